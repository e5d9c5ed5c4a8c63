"""What a user says of a data set: which class is to be found, how large a pixel is, whom to learn
from.

It lies in the workspace, in `about.json` of the data set, beside its corrections.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from ..execution.sealed import write_sealed
from ..images.classes import positive_by_name
from ..images.manifest import Manifest
from ..images.pixel_size import GivenSize
from .workspace import damage, read_fields

_FIELDS: dict[str, Any] = {
    "positive": (str, type(None)),
    "mpp": (int, float, type(None)),
    "learn_from": list,
}
_LEAST_MPP, _LARGEST_MPP = 1e-4, 1000.0


@dataclass(frozen=True)
class About:
    """None: nothing was said.

    positive : of two classes the one to be found
    mpp : µm per pixel of images of which neither a table nor the file says it
    learn_from : patients who are learnt from and never kept for testing
    """

    positive: str | None = None
    mpp: float | None = None
    learn_from: tuple[str, ...] = ()

    @classmethod
    def read(cls, folder: Path) -> Self:
        path = folder / "about.json"
        if not path.exists():
            return cls()
        found = read_fields(path, _FIELDS)
        if not _are_names(found["learn_from"]):
            raise damage(path, "learn_from is wrong")
        return cls(found["positive"], found["mpp"], tuple(found["learn_from"]))

    def write(self, folder: Path) -> None:
        write_sealed(folder / "about.json", asdict(self))

    def changed(self, body: Mapping[str, Any], manifest: Manifest) -> About:
        """With what a request says; a field that it does not have stays as it is."""
        positive, mpp = body.get("positive", self.positive), body.get("mpp", self.mpp)
        if positive is not None and "positive" in body:
            manifest.with_positive(str(positive))  # refuses what is no class
        if mpp is not None:
            if type(mpp) not in (int, float) or not _LEAST_MPP <= mpp < _LARGEST_MPP:
                raise ValueError(
                    "the pixel size must be a number of µm, at least "
                    f"{_LEAST_MPP:g} and below {_LARGEST_MPP:g}"
                )
            mpp = float(mpp)
        moved = body.get("learn_from", list(self.learn_from))
        if not _are_names(moved) or (
            "learn_from" in body and not set(moved) <= set(manifest.patients)
        ):
            raise ValueError("learn_from must be patients of this set")
        return About(None if positive is None else str(positive), mpp, tuple(sorted(set(moved))))

    def given(self, table_mpp: float | None) -> GivenSize:
        """What is said of an image's pixel size outside its file."""
        return GivenSize(fill=self.mpp).with_table(table_mpp)


def _are_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def class_to_be_found(classes: Sequence[str], chosen: str | None) -> dict[str, Any] | None:
    """Of two classes, in their order, the one to be found, and how that is known."""
    if len(classes) != 2:
        return None
    if chosen in classes:
        how = "chosen"
    else:
        how = "by its name" if positive_by_name(classes) else "unknown"
    return {"name": classes[1], "how": how}
