"""A training as the web app asks for it: which images, which plan, which patients to test on."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..annotations.annotation_file import AnnotationFile
from ..datasets.manifest import ImageRecord, Manifest
from ..model_selection.protocols import k_folds
from ..models import Plan
from ..models.region_detector import region_classes
from .annotation.edits import annotated_manifest, n_shapes
from .datasets import Dataset, class_to_be_found, relabelled_manifest, training_manifest

# What the page offers, in words for people.
PRESET_LABELS = {
    "quick": "Quick look: few building blocks, a minute or less",
    "default": "The best there is here: several views of the tissue decide together, and say how "
    "sure they are",
    "fast": "One dictionary of pixels for each class",
    "pixels": "Several views of pixels alone, without a pretrained network",
    "embeddings": "One dictionary of what a pretrained network sees; needs PyTorch",
    "paper": "As published: 20 x 20 pixel patches, 10,000 of each class; slow",
    "regions": "Regions: neighbouring patches are judged together",
}
# An offer that is no preset of the package: the preset that it changes, and how.
_CHANGED = {
    "quick": (
        "fast",
        {"n_atoms": "80", "n_iter": "10", "patches_per_class": "2000", "downsample": "1"},
    )
}


def offered_plan(offer: str, method: str, *, regions: bool = False) -> Plan:
    """The plan behind an offer, for a method; settings that the method lacks are left out."""
    if offer not in PRESET_LABELS:
        raise ValueError(f"preset must be one of {sorted(PRESET_LABELS)}, not {offer!r}")
    base, changes = _CHANGED.get(offer, (offer, {}))
    plan = Plan.named(base, method, regions=regions)
    known = {*plan.to_dict(), *plan.recipe.method_parameters}
    return plan.parse_settings({k: v for k, v in changes.items() if k in known})


@dataclass(frozen=True)
class TrainingRequest:
    """What a training shall be.

    regions : the class whose regions are looked for; None: which class an image is
    test_folds : one fold of so many is kept for testing, whole patients; 0 keeps none
    test_patients : those to keep, in place of a fold
    """

    plan: Plan
    regions: str | None
    seed: int
    test_folds: int = 0
    test_patients: Sequence[str] | None = None

    @classmethod
    def from_request(cls, request: Mapping[str, Any]) -> TrainingRequest:
        """The same once more, tested on the same patients, so that the two can be compared."""
        plan, patients = Plan.from_dict(request["recipe"]), request["test_patients"]
        return cls(plan, request["regions"], request["seed"], test_patients=patients)

    def check(self, manifest: Manifest) -> None:
        """Refuse what cannot be, or does not fit together."""
        if self.test_folds not in (0, 2, 3, 4, 5):
            raise ValueError("test_folds must be 0, 2, 3, 4 or 5")
        if not 0 <= self.seed < 2**32:
            raise ValueError("seed must be a whole number from 0 to 4294967295")
        vectors = self.plan.recipe.features
        if ":" in vectors:  # names a file or a download, which a page must not choose
            raise ValueError(f"vectors {vectors!r} can be used from the command line only")
        self.plan.build_model(region=self.regions)
        if self.regions:
            region_classes(manifest, self.regions)

    def included_patients(self, manifest: Manifest, learn_from: Collection[str] = ()) -> list[str]:
        """Those to test on; `learn_from`: patients that are never kept for that."""
        free = [i for i, r in enumerate(manifest.records) if r.patient not in learn_from]
        others = manifest.select(free)
        if self.test_patients is not None:
            return sorted({*self.test_patients} & {*others.patients})
        if not self.test_folds or not free:
            return []
        split = k_folds(others, self.test_folds, random_state=self.seed).splits[0]
        return sorted({others.records[place].patient for place in split.test})


def training_request(dataset: Dataset, wish: TrainingRequest) -> dict[str, Any]:
    """All that the worker needs, checked; raises ValueError in words for the page."""
    is_drawn = not dataset.is_labelled
    manifest = annotated_manifest(dataset) if is_drawn else training_manifest(dataset)
    wish.check(manifest)
    if not wish.regions:
        _check_positive(dataset, manifest)
    n_images = len(manifest.records if is_drawn else relabelled_manifest(dataset).records)
    images, marked = manifest.select(range(n_images)), manifest.records[n_images:]
    learn_from = {*dataset.about.learn_from}
    if wish.test_patients is None:  # who marks a region wants it to be learnt from
        learn_from |= {record.patient for record in marked}
    kept = wish.included_patients(images, learn_from)
    _check_remaining(manifest, kept)
    return {
        "kind": "train",
        "data": dataset.id,
        "name": dataset.source.name if dataset.source.is_dir() else dataset.source.parent.name,
        "root": manifest.root,
        "records": [asdict(record) for record in manifest.records],
        "n_images": n_images,  # those after them are marked rectangles
        "positive": manifest.classes[1] if len(manifest.classes) == 2 else None,
        "mpp": dataset.about.mpp,
        "recipe": wish.plan.to_dict(),
        "regions": wish.regions,
        "seed": wish.seed,
        "test_patients": kept,
        "corrections": dataset.corrections(),
        "n_shapes": n_shapes(dataset) if is_drawn else 0,
    }


def _check_remaining(manifest: Manifest, kept: Collection[str]) -> None:
    """Refuses to test on all that there is of a class: nothing of it could be learnt."""
    there = {record.label for record in manifest.records if record.patient not in kept}
    missing = [name for name in manifest.classes if name not in there]
    if kept and missing:
        raise ValueError(
            f"all images with {missing[0]} would be kept for testing: leave one to learn from"
        )


def _check_positive(dataset: Dataset, manifest: Manifest) -> None:
    """Of two classes somebody must say which one is to be found: their order is no reason."""
    found = class_to_be_found(manifest.classes, dataset.about.positive)
    if found is not None and found["how"] == "unknown":
        raise ValueError(
            f"say first which class is to be found, {' or '.join(manifest.classes)}: misses, false "
            "alarms and colours go by it, and the names do not tell"
        )


def request_manifest(request: Mapping[str, Any]) -> Manifest:
    """The images of a request, in its order."""
    try:
        records = tuple(map(_record, request["records"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"the list of this training's images is damaged ({error})") from error
    return Manifest(records, (), Path(request["root"]), request.get("positive"))


def _record(row: dict[str, Any]) -> ImageRecord:
    drawn = {
        name: row.get(name) and _drawing(row[name])
        for name in ("annotations", "region_of_interest")
    }
    mask = row["mask"] and Path(row["mask"])
    return ImageRecord(**(row | {"path": Path(row["path"]), "mask": mask} | drawn))


def _drawing(fields: dict[str, Any]) -> AnnotationFile:
    return AnnotationFile(Path(fields["path"]), tuple(fields["names"]), fields["coordinates"])


def request_classes(request: Mapping[str, Any]) -> list[str]:
    """The classes of the model that a training makes, in their order."""
    manifest, region = request_manifest(request), request.get("regions")
    try:
        return manifest.classes if region is None else region_classes(manifest, region)
    except ValueError:  # it failed for that
        return manifest.classes


def train_and_test(
    request: Mapping[str, Any], left_out: Collection[str] = ()
) -> tuple[Manifest, Manifest]:
    """Images to learn from, and those of the patients kept for testing.

    A rectangle that was marked is learnt from, never tested on: it is no image of the set.
    `left_out`: names of images that are in neither.
    """
    manifest = request_manifest(request)
    kept = set(request["test_patients"])
    learn, test, missing = [], [], []
    for place, record in enumerate(manifest.records):
        if manifest.name(record) in left_out:
            missing.append(manifest.name(record))
        elif record.patient not in kept:
            learn.append(place)
        elif place < request["n_images"]:
            test.append(place)
    known = replace(manifest, skipped=tuple(missing))
    return known.select(learn), known.select(test)
