"""Training requests, which the worker process reads: images, plan and test patients."""

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
from .annotation.edits import annotated_manifest, count_shapes
from .datasets import Dataset, positive_class_to_json, relabelled_manifest, training_manifest
from .schema import Json

# Presets that the page offers.
PRESET_LABELS = {
    "quick": "Quick: few atoms, a minute or less",
    "default": "Most accurate: an ensemble with calibrated probabilities",
    "fast": "One pixel dictionary per class",
    "pixels": "Ensemble of pixel dictionaries, without a pretrained encoder",
    "embeddings": "One dictionary on features of a pretrained encoder; needs PyTorch",
    "paper": "As published: 20 x 20 pixel patches, 10,000 per class; slow",
    "regions": "Regions: predictions are smoothed over neighbouring patches",
}
# Presets of the page that change a preset of the package: its name, and the changed settings.
_PRESET_CHANGES = {
    "quick": (
        "fast",
        {"n_atoms": "80", "n_iter": "10", "patches_per_class": "2000", "downsample": "1"},
    )
}


def make_preset_plan(preset_name: str, method: str, *, finds_regions: bool = False) -> Plan:
    """Return the plan of a preset of the page.

    Settings of the preset that the method does not have are ignored.

    Parameters
    ----------
    preset_name : key of `PRESET_LABELS`
    method : name of the method
    finds_regions : whether the model detects regions
    """
    if preset_name not in PRESET_LABELS:
        raise ValueError(f"preset must be one of {sorted(PRESET_LABELS)}, not {preset_name!r}")
    base, changes = _PRESET_CHANGES.get(preset_name, (preset_name, {}))
    plan = Plan.named(base, method, regions=finds_regions)
    known = {*plan.to_dict(), *plan.recipe.method_parameters}
    return plan.parse_settings({k: v for k, v in changes.items() if k in known})


@dataclass(frozen=True)
class TrainingSettings:
    """Settings of a training.

    Attributes
    ----------
    plan : training plan
    region_class : class whose regions are detected; None to classify images
    seed : random seed
    test_folds : number of folds into which patients are divided; the first fold is the test set.
        0 for no test set
    test_patients : patients of the test set; None to use the first of `test_folds` folds
    """

    plan: Plan
    region_class: str | None
    seed: int
    test_folds: int = 0
    test_patients: Sequence[str] | None = None

    @classmethod
    def from_request(cls, request: Mapping[str, Any]) -> TrainingSettings:
        """Return the settings in the request of an earlier training, including test patients."""
        plan, patients = Plan.from_dict(request["recipe"]), request["test_patients"]
        return cls(plan, request["regions"], request["seed"], test_patients=patients)

    def check(self, manifest: Manifest) -> None:
        """Raise ValueError if the settings are invalid or do not fit the images."""
        if self.test_folds not in (0, 2, 3, 4, 5):
            raise ValueError("test_folds must be 0, 2, 3, 4 or 5")
        if not 0 <= self.seed < 2**32:
            raise ValueError("seed must be a whole number from 0 to 4294967295")
        features = self.plan.recipe.features
        if ":" in features:  # names a file or a download, which the page must not choose
            raise ValueError(f"vectors {features!r} can be used from the command line only")
        self.plan.build_model(region=self.region_class)
        if self.region_class:
            region_classes(manifest, self.region_class)

    def select_test_patients(
        self, manifest: Manifest, training_patients: Collection[str] = ()
    ) -> list[str]:
        """Return the sorted test patients; none of them is in `training_patients`."""
        free = [i for i, r in enumerate(manifest.records) if r.patient not in training_patients]
        others = manifest.select(free)
        if self.test_patients is not None:
            return sorted({*self.test_patients} & {*others.patients})
        if not self.test_folds or not free:
            return []
        split = k_folds(others, self.test_folds, random_state=self.seed).splits[0]
        return sorted({others.records[index].patient for index in split.test})


def make_training_request(dataset: Dataset, settings: TrainingSettings) -> Json:
    """Return the request of a training on a data set; raise ValueError if it is invalid."""
    is_annotated = not dataset.is_labelled
    manifest = annotated_manifest(dataset) if is_annotated else training_manifest(dataset)
    settings.check(manifest)
    if not settings.region_class:
        _check_positive_class(dataset, manifest)
    n_images = len(manifest.records if is_annotated else relabelled_manifest(dataset).records)
    images, rectangles = manifest.select(range(n_images)), manifest.records[n_images:]
    training_patients = {*dataset.settings.learn_from}
    if settings.test_patients is None:  # marked rectangles should be used for training
        training_patients |= {record.patient for record in rectangles}
    test_patients = settings.select_test_patients(images, training_patients)
    _check_training_classes(manifest, test_patients)
    return {
        "kind": "train",
        "data": dataset.id,
        "name": dataset.source.name if dataset.source.is_dir() else dataset.source.parent.name,
        "root": manifest.root,
        "records": [asdict(record) for record in manifest.records],
        "n_images": n_images,  # followed by marked rectangles
        "positive": manifest.classes[1] if len(manifest.classes) == 2 else None,
        "mpp": dataset.settings.mpp,
        "recipe": settings.plan.to_dict(),
        "regions": settings.region_class,
        "seed": settings.seed,
        "test_patients": test_patients,
        "corrections": dataset.corrections(),
        "n_shapes": count_shapes(dataset) if is_annotated else 0,
    }


def _check_training_classes(manifest: Manifest, test_patients: Collection[str]) -> None:
    """Raise ValueError if a class has no training image, because all are in the test set."""
    remaining = {record.label for record in manifest.records if record.patient not in test_patients}
    missing = [name for name in manifest.classes if name not in remaining]
    if test_patients and missing:
        raise ValueError(
            f"all images with class {missing[0]} are in the test set. Leave at least one patient "
            "for training"
        )


def _check_positive_class(dataset: Dataset, manifest: Manifest) -> None:
    """Raise ValueError if there are two classes and it is unknown which one is positive."""
    found = positive_class_to_json(manifest.classes, dataset.settings.positive)
    if found is not None and found["how"] == "unknown":
        raise ValueError(
            f"choose the positive class, {' or '.join(manifest.classes)}: it defines sensitivity "
            "and specificity, and cannot be guessed from the names"
        )


def manifest_from_request(request: Mapping[str, Any]) -> Manifest:
    """Return the images of a job's request, in the same order."""
    try:
        records = tuple(map(_record_from_json, request["records"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"the image list of this training is damaged ({error})") from error
    return Manifest(records, (), Path(request["root"]), request.get("positive"))


def _record_from_json(row: Json) -> ImageRecord:
    annotation_files = {
        name: row.get(name) and _annotation_file_from_json(row[name])
        for name in ("annotations", "region_of_interest")
    }
    mask = row["mask"] and Path(row["mask"])
    return ImageRecord(**(row | {"path": Path(row["path"]), "mask": mask} | annotation_files))


def _annotation_file_from_json(fields: Json) -> AnnotationFile:
    return AnnotationFile(Path(fields["path"]), tuple(fields["names"]), fields["coordinates"])


def classes_from_request(request: Mapping[str, Any]) -> list[str]:
    """Return the class names, in order, of the model that is trained for a request."""
    manifest, region = manifest_from_request(request), request.get("regions")
    try:
        return manifest.classes if region is None else region_classes(manifest, region)
    except ValueError:  # a request that failed for this reason
        return manifest.classes


def split_training_and_test(
    request: Mapping[str, Any], excluded_names: Collection[str] = ()
) -> tuple[Manifest, Manifest]:
    """Return the training images and the test images of a request.

    Images cropped from rectangles that the user has labelled are only used for training; those of
    test patients are in neither set.

    Parameters
    ----------
    request : request of the job
    excluded_names : names of images that are in neither set
    """
    manifest = manifest_from_request(request)
    test_patients = set(request["test_patients"])
    training, test, excluded = [], [], []
    for index, record in enumerate(manifest.records):
        if manifest.name(record) in excluded_names:
            excluded.append(manifest.name(record))
        elif record.patient not in test_patients:
            training.append(index)
        elif index < request["n_images"]:
            test.append(index)
    included = replace(manifest, skipped=tuple(excluded))
    return included.select(training), included.select(test)
