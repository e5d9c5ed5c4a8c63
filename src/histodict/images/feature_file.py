"""Vectors of a slide's patches that were computed before: a file of them, opened by its suffix.

A feature file stands where an image stands: it holds what the patches look like to an encoder, and
where they lie, but no pixels. FORMATS says how a file is opened, by its suffix; another format is
a function more in it, which gives a `Content`. What a content must be is checked here, once.

    features   (n, length) or (1, n, length), of floating point
    coords     (n, 2) or (1, n, 2): x and y of the patches' upper left corners, in level-0 pixels
    attributes what else the file says, by the names that TRIDENT and CLAM have for it: patch_size,
               patch_size_level0, overlap, target_magnification, level0_width, level0_height,
               encoder; of CLAM patch_level and downsample

Learnt from the source of TRIDENT (IO.py: coords_to_h5, save_h5; WSI.py: extract_patch_features),
which writes None as the text 'None', and of CLAM (file_utils.py: save_hdf5; extract_features_fp.py:
its features have no attributes; WholeSlideImage.py: its coords have).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..execution.files import file_bytes, file_key, is_there
from ..execution.missing_chunks import check_missing_chunks
from .errors import ImageError
from .feature_anndata import open_h5ad
from .feature_attributes import MAX_LENGTH, Metadata, Origin
from .feature_formats import FEATURES, Content, open_hdf5, open_npz, open_zarr, reading
from .feature_places import check_places, usual_step
from .feature_sizes import check_whole
from .folder_images import FOLDER_IMAGES

# How a file of features is opened, by its suffix.
FORMATS: dict[str, Callable[[Path], AbstractContextManager[Content]]] = {
    ".h5": open_hdf5,
    ".h5ad": open_h5ad,
    ".hdf5": open_hdf5,
    ".npz": open_npz,
    ".zarr": open_zarr,
}
_TENSORS = (".pt", ".pth")
_USUAL_PX = 256  # side of a single patch of which nothing is known
_BLOCK_BYTES = 8 * 2**20
_MOST_ROWS, _MOST_LENGTH = 10_000_000, 100_000  # what a damaged file says must not fill the memory
_MAX_COORD = 2**40  # larger values are errors and would overflow in sums
_MOST_GAP = 8  # rows that are read though nobody asked, rather than in two goes


class FeatureFile:
    """An open feature file whose content is what it must be.

    coords : (n, 2) of int64, level-0 x and y
    size : (width, height) of the slide in level-0 pixels, where the file says it
    side, overlap : of patches in level-0 pixels; where the file does not say, as they lie
    offset : position of the image's (0, 0) in the coords, in files written by histodict
    settings : of a file that was made here, what it was made with; else empty
    missing_chunks : number of missing chunks, read as their fill value
    """

    def __init__(self, path: Path, content: Content) -> None:
        self.path = path
        self._vectors, self._is_nested = _vectors_of(path, content.vectors)
        self.n_rows, length = self._vectors.shape[-2:]
        _check_shape(path, content.coords, self.n_rows)
        self.missing_chunks = content.missing[0]
        self._coords = content.coords
        self._metadata = Metadata(path, content.attributes)
        self.settings = self._metadata.settings
        self.size = self._metadata.size
        self.mpp = self._metadata.mpp
        self.offset = self._metadata.offset
        self.origin = Origin(
            length,
            self._metadata.encoder,
            self._metadata.patch_px,
            self._metadata.magnification,
        )

    @cached_property
    def coords(self) -> NDArray[np.int64]:
        with reading(self.path):
            found = np.asarray(self._coords[...]).reshape(-1, 2)
        if not ((found >= 0) & (found <= MAX_LENGTH)).all():
            raise _no_pixels(self.path)
        placed = np.rint(found).astype(np.int64)
        check_places(self.path, placed, self.size, self._metadata.step)
        return placed

    @cached_property
    def side(self) -> float:
        return self._metadata.side or self.step or _USUAL_PX

    @property
    def overlap(self) -> float:
        return self._metadata.overlap(self.side)

    @cached_property
    def step(self) -> float | None:
        """The most frequent distance of neighbours in a row or a column; None if none has any."""
        return usual_step(self.coords)[0]

    @property
    def extent(self) -> tuple[int, int]:
        """(width, height) of the image: as the file says, else as far as there are patches."""
        width, height = self.size or self._far()
        extent = width - self.offset[0], height - self.offset[1]
        if min(extent) < 1:
            raise ImageError(
                f"{self.path}: its patches end at ({width}, {height}), before the image begins: "
                f"correct the offset {self.offset} in its attribute histodict, or compute the "
                "features again"
            )
        return extent

    def _far(self) -> tuple[int, int]:
        x, y = (self.coords.max(axis=0, initial=0) + round(self.side)).tolist()
        return x, y

    def read(self, rows: slice) -> NDArray[np.float32]:
        """Some vectors (n, length); refuses such as are no finite numbers."""
        with reading(self.path):
            found = self._vectors[0, rows] if self._is_nested else self._vectors[rows]
            vectors = np.asarray(found).astype(np.float32)
        bad = ~np.isfinite(vectors).all(axis=1)
        if bad.any():
            first = (rows.start or 0) + int(np.argmax(bad))
            raise ImageError(
                f"{self.path}: the vector of patch {first} is not of finite numbers (NaN or "
                "infinity): compute its features again"
            )
        return vectors

    def read_some(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """The vectors of these rows, in this order; rows that lie together are read together."""
        found = np.empty((len(rows), self.origin.length), np.float32)
        order = np.argsort(rows, kind="stable")
        ends = np.flatnonzero(np.diff(rows[order]) > _MOST_GAP) + 1
        for own in np.split(order, ends) if len(rows) else ():
            first, last = int(rows[own[0]]), int(rows[own[-1]])
            found[own] = self.read(slice(first, last + 1))[rows[own] - first]
        return found

    def blocks(self) -> Iterator[slice]:
        """All rows, a few megabytes at a time."""
        step = max(1, _BLOCK_BYTES // (4 * self.origin.length))
        for start in range(0, self.n_rows, step):
            yield slice(start, min(start + step, self.n_rows))

    def check(self) -> None:
        """Reads all of it once; refuses what no model could learn from."""
        if not self.n_rows:
            raise ImageError(
                f"{self.path}: holds no vectors; no tissue was found when they were computed"
            )
        assert self.coords is not None  # whoever reads them checks them
        for rows in self.blocks():
            self.read(rows)


@contextmanager
def open_features(path: Path) -> Iterator[FeatureFile]:
    """The features in a file; raises ImageError if they cannot be read."""
    if not is_there(path):
        raise ImageError(f"{path}: there is no such file; check the name and the folder")
    with FORMATS[path.suffix.lower()](path) as content:
        refused = check_missing_chunks(path, *content.missing)
        if refused:
            raise ImageError(refused)
        with reading(path):
            file = FeatureFile(path, content)
        yield file


def check_features(path: Path) -> None:
    """Reads all of a file once; raises ImageError if no model could learn from it."""
    with open_features(path) as file:
        file.check()


def check_sized(path: Path) -> None:
    """Refuses a feature file over which no mask can be laid."""
    with open_features(path) as file:
        if file.size is None:
            raise ImageError(
                f"{path}: does not say how large its slide is (level0_width, level0_height), so "
                "that a mask cannot be laid over its patches"
            )


def is_feature_file(path: object) -> bool:
    """By its name; of Zarr, in which much else is kept, by whether there are features in it."""
    if not isinstance(path, Path) or path.suffix.lower() not in FORMATS:
        return False
    return path.suffix.lower() not in FOLDER_IMAGES or (path / FEATURES).is_dir()


def check_has_positions(path: Path) -> None:
    """Refuse PyTorch files, which CLAM and others write beside the files with positions."""
    if path.suffix.lower() not in _TENSORS:
        return
    names = [path.with_suffix(suffix) for suffix in (".h5", ".hdf5")]
    names += [path.parent.parent / "h5_files" / name.name for name in names]  # as CLAM has them
    found = next((name for name in names if is_there(name)), None)
    what = f"give {found}" if found else "give the .h5 file with features and coords of this slide"
    raise ImageError(f"{path}: {path.suffix} files have no positions of patches: {what}")


def common_origin(paths: Iterable[object]) -> Origin | None:
    """How the vectors of all feature files among these were made; None if there is no such file.

    Refuses a mixture, of which a model would learn who made the vectors.
    """
    first, found = None, None
    for path in paths:
        if not is_feature_file(path):
            continue
        assert isinstance(path, Path)
        own = _origin_of(path, repr(file_key(path)) if is_there(path) else "")
        if found is None:
            first, found = path, own
        others = own.differences(found)
        if others:
            raise ImageError(
                f"{path}: its features were made otherwise than those of {first}: "
                f"{'; '.join(others)}. Learn from such as were made alike"
            )
        found = found.filled_from(own)
    return found


@lru_cache(maxsize=100_000)
def _origin_of(path: Path, state: str) -> Origin:
    with open_features(path) as file:
        return file.origin


# --- what a content must be ---------------------------------------------------------------------


def _vectors_of(path: Path, vectors: Any) -> tuple[Any, bool]:
    """The vectors, and whether they lie in one more bracket."""
    shape = tuple(vectors.shape)
    is_nested = len(shape) == 3 and shape[0] == 1
    if len(shape) == 1:
        raise ImageError(
            f"{path}: holds one vector of {shape[0]} numbers for the slide as a whole: the "
            "features of its patches are needed"
        )
    if len(shape) >= 2 and (shape[-2] > _MOST_ROWS or shape[-1] > _MOST_LENGTH):
        raise ImageError(
            f"{path}: says that it holds {shape[-2]} vectors of {shape[-1]} numbers, more than "
            "any slide has: the file is damaged, or of something else"
        )
    if (len(shape) != 2 and not is_nested) or not shape[-1]:
        raise ImageError(
            f"{path}: its features are of shape {shape}: they must be (patches, numbers)"
        )
    if np.dtype(vectors.dtype).kind != "f":
        raise ImageError(f"{path}: its features are {vectors.dtype}, not of floating point")
    return vectors, is_nested


def _check_shape(path: Path, coords: Any, n_rows: int) -> None:
    if coords is None:
        raise ImageError(
            f"{path}: says nothing of where the patches lie; it must have `coords`, x and y of "
            "each in level-0 pixels, beside `features`"
        )
    if tuple(coords.shape) not in ((n_rows, 2), (1, n_rows, 2)):
        raise ImageError(
            f"{path}: its coords are of shape {tuple(coords.shape)}, for {n_rows} vectors: they "
            f"must be ({n_rows}, 2)"
        )
    dtype = np.dtype(coords.dtype)
    if dtype.kind not in "iuf":
        raise _no_pixels(path)
    try:  # they are read whole
        check_whole("coords", 2 * n_rows * dtype.itemsize, file_bytes(path))
    except ValueError as error:
        raise ImageError(f"{path}: {error}") from error


def _no_pixels(path: Path) -> ImageError:
    return ImageError(
        f"{path}: its coords must be level-0 pixels, whole numbers from 0 on and at most "
        f"{MAX_LENGTH:,}"
    )
