"""A training as the web app asks for it: which images, which recipe, which patients to test on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..evaluation.protocols import k_folds
from ..images.manifest import Manifest, Record
from ..pipeline import RegionDetector, TissueClassifier
from ..recipes import Recipe, preset
from .datasets import Dataset, corrected

# What the page offers: a name, words for people, and changes to a preset of the package.
OFFERS: dict[str, tuple[str, str, dict[str, str]]] = {
    "quick": (
        "default",
        "Quick look: few building blocks, a minute or less",
        {"n_atoms": "80", "n_iter": "10", "patches_per_class": "2000", "downsample": "1"},
    ),
    "default": ("default", "Balanced: against differences of stain between patients", {}),
    "auto": (
        "auto",
        "Panel: seven views of the tissue decide together, with probabilities; slow",
        {},
    ),
    "paper": ("paper", "As published: 20 x 20 pixel patches, 10,000 of each class; slow", {}),
    "embeddings": (
        "embeddings",
        "Embeddings: what a pretrained network sees; the most accurate, needs PyTorch",
        {},
    ),
    "regions": ("regions", "Regions: neighbouring patches are judged together", {}),
}


def offered_recipe(offer: str, method: str) -> Recipe:
    """The recipe behind an offer, for a method; settings that the method lacks are left out."""
    if offer not in OFFERS:
        raise ValueError(f"preset must be one of {sorted(OFFERS)}, not {offer!r}")
    base, _, changes = OFFERS[offer]
    recipe = preset(base, method)
    known = {*recipe.to_dict(), *recipe.method_parameters}
    return recipe.with_settings({k: v for k, v in changes.items() if k in known})


def training_request(
    dataset: Dataset,
    recipe: Recipe,
    *,
    regions: str | None,
    test_folds: int,
    seed: int,
    parent: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """All that the worker needs, checked; raises ValueError in words for the page.

    One fold of `test_folds` is kept for testing, whole patients; 0 keeps none. With a parent, its
    test patients are kept, so that the two can be compared.
    """
    manifest = corrected(dataset)
    if not dataset.is_labelled:
        raise ValueError(
            "these images have no classes: open a folder with one sub-folder per class"
        )
    if ":" in recipe.vectors:  # names a file or a download, which a page must not choose
        raise ValueError(f"vectors {recipe.vectors!r} can be used from the command line only")
    make_model(recipe, regions, seed)  # refuses what does not fit together
    has_masks = any(record.mask for record in manifest.records)
    if regions and not has_masks and regions not in manifest.classes:
        raise ValueError(f"the region {regions!r} is not among the classes {manifest.classes}")
    if parent is not None:
        test_patients = list(parent["test_patients"])
    elif test_folds:
        split = k_folds(manifest, test_folds, random_state=seed).splits[0]
        test_patients = sorted({manifest.records[place].patient for place in split.test})
    else:
        test_patients = []
    return {
        "kind": "train",
        "data": dataset.id,
        "name": dataset.source.name if dataset.source.is_dir() else dataset.source.parent.name,
        "root": str(manifest.root),
        "records": [plain_record(record) for record in manifest.records],
        "n_images": len(dataset.manifest.records),  # those after them are marked rectangles
        "recipe": recipe.to_dict(),
        "regions": regions,
        "seed": seed,
        "test_patients": test_patients,
        "corrections": dataset.corrections(),
    }


def make_model(
    recipe: Recipe, regions: str | None, seed: int, cache: Path | None = None
) -> TissueClassifier | RegionDetector:
    if regions:
        return RegionDetector(recipe, region=regions, random_state=seed, cache=cache)
    return TissueClassifier(recipe, random_state=seed, cache=cache)


def request_manifest(request: Mapping[str, Any]) -> Manifest:
    """The images of a request, in its order."""
    records = tuple(
        Record(**(row | {"path": Path(row["path"]), "mask": row["mask"] and Path(row["mask"])}))
        for row in request["records"]
    )
    return Manifest(records, (), Path(request["root"]))


def train_and_test(request: Mapping[str, Any]) -> tuple[Manifest, Manifest]:
    """Images to learn from, and those of the patients kept for testing.

    A rectangle that was marked is learnt from, never tested on: it is no image of the set.
    """
    manifest = request_manifest(request)
    kept = set(request["test_patients"])
    test = [i for i, record in enumerate(manifest.records) if record.patient in kept]
    train = [i for i, record in enumerate(manifest.records) if record.patient not in kept]
    n_images = request["n_images"]
    return manifest.select(train), manifest.select([i for i in test if i < n_images])


def plain_record(record: Record) -> dict[str, Any]:
    return asdict(record) | {
        "path": str(record.path),
        "mask": str(record.mask) if record.mask else None,
    }
