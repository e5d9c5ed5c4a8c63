"""What a user says of a data set: which class is to be found, how large a pixel is.

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
from .workspace import read_fields

_FIELDS: dict[str, Any] = {"positive": (str, type(None)), "mpp": (int, float, type(None))}
_LARGEST_MPP = 1000.0


@dataclass(frozen=True)
class About:
    """None: nothing was said.

    positive : of two classes the one to be found
    mpp : µm per pixel of images of which neither a table nor the file says it
    """

    positive: str | None = None
    mpp: float | None = None

    @classmethod
    def read(cls, folder: Path) -> Self:
        path = folder / "about.json"
        if not path.exists():
            return cls()
        found = read_fields(path, _FIELDS)
        return cls(found["positive"], found["mpp"])

    def write(self, folder: Path) -> None:
        write_sealed(folder / "about.json", asdict(self))

    def changed(self, body: Mapping[str, Any], manifest: Manifest) -> About:
        """With what a request says; a field that it does not have stays as it is."""
        positive, mpp = body.get("positive", self.positive), body.get("mpp", self.mpp)
        if positive is not None and "positive" in body:
            manifest.with_positive(str(positive))  # refuses what is no class
        if mpp is not None:
            if type(mpp) not in (int, float) or not 0 < mpp < _LARGEST_MPP:
                raise ValueError(
                    f"the pixel size must be a number of µm above 0 and below {_LARGEST_MPP:g}"
                )
            mpp = float(mpp)
        return About(None if positive is None else str(positive), mpp)

    def given(self, table_mpp: float | None) -> GivenSize:
        """What is said of an image's pixel size outside its file."""
        return GivenSize(fill=self.mpp).with_table(table_mpp)


def class_to_be_found(classes: Sequence[str], chosen: str | None) -> dict[str, Any] | None:
    """Of two classes, in their order, the one to be found, and how that is known."""
    if len(classes) != 2:
        return None
    if chosen in classes:
        how = "chosen"
    else:
        how = "by its name" if positive_by_name(classes) else "unknown"
    return {"name": classes[1], "how": how}
