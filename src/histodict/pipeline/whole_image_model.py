"""Methods that see an image as one vector: features of the whole image, then a classifier."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..execution.progress import Callback, ignore
from ..images.manifest import Record
from ..images.readers import ImageError
from ..methods.registry import method_entry
from ..recipes import Recipe
from .patch_model import common_mpp, for_every
from .view import View, open_view

_MOST_PIXELS = 50_000_000


class WholeImageModel:
    """A classifier of image vectors with everything that stands between it and an image file.

    Attributes
    ----------
    method_ : the trained classifier
    mpp_ : pixel size of the training images, where all have the same
    """

    method_: Any
    mpp_: float | None

    def __init__(self, recipe: Recipe, random_state: int, n_jobs: int | None) -> None:
        self.recipe = recipe
        self.random_state = random_state
        self.n_jobs = n_jobs

    def fit(
        self,
        records: Sequence[Record],
        labels: NDArray[np.int64],
        callback: Callback = ignore,
    ) -> None:
        """One vector per image, all of them kept; then the method's own training."""
        self.mpp_ = common_mpp(records)

        def work(place: int) -> NDArray[np.float64]:
            return self._vector(records[place].path, records[place].mpp)

        X = np.stack(for_every(work, len(records), "features", callback, self.n_jobs))
        method = method_entry(self.recipe.method).load()(**self.recipe.method_parameters)
        if "random_state" in method.get_params():
            method.set_params(random_state=self.random_state)
        self.method_ = method.fit(X, labels, callback=callback)

    def scores(self, path: Path, mpp: float | None = None) -> NDArray[np.float64]:
        """The method's decision values: one for two classes, else one per class."""
        values = self.method_.decision_function(self._vector(path, mpp)[None])
        return np.atleast_1d(np.asarray(values, dtype=np.float64)[0])

    def _vector(self, path: Path, mpp: float | None) -> NDArray[np.float64]:
        from ..features import FEATURES  # brings the image libraries

        features = method_entry(self.recipe.method).features
        assert features is not None
        with open_view(path, mpp, self.recipe, getattr(self, "mpp_", None)) as view:
            return FEATURES[features](_whole(view, path))


def _whole(view: View, path: Path) -> NDArray[np.uint8]:
    width, height = view.size
    if width * height > _MOST_PIXELS * view.downsample**2:
        raise ImageError(
            f"{path}: {width} x {height} pixels are too many for a method that looks at the image "
            "as a whole: use a method that works on patches, or a larger downsample"
        )
    return view.normalise(view.read(0, 0, width, height, view.downsample)[None])[0]
