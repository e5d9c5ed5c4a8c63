"""Where a model and images, or two models, are not of one kind: said before anybody compares."""

from __future__ import annotations

from dataclasses import dataclass

from ..decisions.tuning import describe_tuning
from ..pipeline import Model
from .datasets import Dataset
from .jobs import OPENED, Job


@dataclass(frozen=True)
class Kind:
    """What two models must share for their maps to tell of the same thing.

    images : id of the set that it learnt from; of a model from a file, nobody else's
    mpp : µm per pixel of its training images, or at which it works; None: not known
    """

    name: str
    is_file: bool
    images: str
    classes: tuple[str, ...]
    mpp: float | None
    vectors: str
    patch_px: int
    tuning: str = ""  # how its decision was changed after training

    @classmethod
    def of(cls, job: Job, model: Model) -> Kind:
        recipe = model.recipe
        mpp = recipe.mpp if recipe.mpp is not None else model.model_.mpp_
        is_file = job.summary["kind"] == OPENED
        images = job.id if is_file else job.summary["data"]
        names = tuple(model.classes_)
        tuning = describe_tuning(model.training_)
        return cls(job.name, is_file, images, names, mpp, recipe.vectors, recipe.patch_px, tuning)


def misfits(kind: Kind, dataset: Dataset) -> list[str]:
    """What a set has that the model was not trained for; none of its own set."""
    if kind.images == dataset.id:
        return []
    source = "comes from a file" if kind.is_file else "was trained on other images"
    found = [f"This model {source} ({kind.name}): how good it is on these has not been measured."]
    if kind.tuning:
        found.append(f"Its decision was changed after training: {kind.tuning}.")
    labels = dataset.manifest.classes
    unknown = [name for name in labels if name not in kind.classes]
    if unknown:
        found.append(
            f"These images are labelled {_list(labels)}; the model only knows "
            f"{_list(kind.classes)}, and calls every patch one of these."
        )
    if kind.mpp is None:
        found.append(
            "The model does not know the pixel size of the images that it learnt from: nothing "
            "tells whether cells have the same size here."
        )
    return found


def differences(one: Kind, other: Kind) -> list[str]:
    """In what two models differ beside what they have learnt."""
    found = []
    if set(one.classes) != set(other.classes):
        found.append(
            f"They tell other classes apart: {_list(one.classes)}, and {_list(other.classes)}."
        )
    if one.images != other.images:
        found.append("They were not trained on the same images, as far as is known here.")
    if one.mpp != other.mpp:
        found.append(f"They work at other pixel sizes: {_size(one)}, and {_size(other)}.")
    if (one.vectors, one.patch_px) != (other.vectors, other.patch_px):
        found.append(
            f"They see patches in other ways: {one.vectors} of {one.patch_px} pixels, and "
            f"{other.vectors} of {other.patch_px}."
        )
    return found


def _list(names: list[str] | tuple[str, ...]) -> str:
    return " / ".join(names)


def _size(kind: Kind) -> str:
    return "not known" if kind.mpp is None else f"{kind.mpp:g} µm"
