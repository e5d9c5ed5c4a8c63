"""Who sits on a panel: a recipe, and others that look at the same tissue in other ways.

Members differ in scale, in stain correction and in what they look at, so that their mistakes do:

- patches: the recipe itself; with the other stain correction; and, of pixels, at a finer scale
  without surroundings;
- textures and colours of the image as a whole (`lbp-colour`), beside pixels: at two scales, with
  and without stain correction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..decisions.image_rules import n_scores
from ..evaluation.protocols import k_folds
from ..evaluation.splits import SplitError
from ..execution.executor import Executor
from ..execution.progress import Callback, Progress, ignore
from ..images.manifest import Manifest
from ..images.readers import ImageError
from ..methods.registry import MEAN_VECTOR, method_entry
from ..networks import is_network
from ..recipes import Recipe, for_method
from .unseen import how_good, unseen_scores

_TEXTURES = "lbp-colour"
# Finer patches show less of the tissue at once, so fewer atoms would be left for codes as sparse.
_FINE = {"patch_px": 20, "stride_px": None, "context": 1, "penalty": 0.2}


def members(recipe: Recipe) -> list[Recipe]:
    """The recipe first, then the others; each once."""
    base = replace(recipe, panel=False, calibration_folds=0)
    if not recipe.panel:
        return [base]
    found = [base]
    for other in _others(base):
        if other not in found:
            found.append(other)
    return found


def _others(base: Recipe) -> Iterator[Recipe]:
    if method_entry(base.method).features not in (None, MEAN_VECTOR):
        yield from _whole_images(base)
        return
    stain = "reinhard" if base.stain == "macenko" else "macenko"
    yield replace(base, stain=stain)
    if is_network(base.vectors):
        yield _rescaled(base, 2)
        return
    yield _rescaled(base, 0.5).with_known(_FINE)
    yield from _whole_images(for_method(base, _TEXTURES))


def _whole_images(base: Recipe) -> Iterator[Recipe]:
    corrected = "reinhard" if base.stain == "none" else base.stain
    for factor, stain in product((1, 2), (corrected, "none")):
        yield replace(_rescaled(base, factor), stain=stain)


def _rescaled(recipe: Recipe, factor: float) -> Recipe:
    """The recipe on images reduced by so much more, or less; never finer than they may be."""
    if recipe.mpp is not None:
        return replace(recipe, mpp=recipe.mpp * max(factor, 1))
    return replace(recipe, downsample=max(1.0, recipe.downsample * factor))


@dataclass(frozen=True)
class Member:
    """A recipe, and what models made by it said of training patients they had not seen.

    scores : (n_images, n_scores), NaN on glass
    failure : why it could not be tried; it does not sit on the panel then
    """

    recipe: Recipe
    scores: NDArray[np.float64]
    value: float | None
    failure: str = ""

    def to_dict(self) -> dict[str, Any]:
        facts = {"recipe": self.recipe.to_dict(), "unseen": self.value}
        return facts | ({"failure": self.failure} if self.failure else {})


def ask_members(
    manifest: Manifest,
    recipes: Sequence[Recipe],
    n_folds: int,
    *,
    random_state: int = 0,
    n_jobs: int | None = None,
    cache: Path | None = None,
    callback: Callback = ignore,
    executor: Executor | None = None,
) -> list[Member]:
    """Every recipe's answers for all training images, from models that did not see the patient.

    The first recipe has to work; another that cannot be tried says why.
    """
    try:
        splits = list(k_folds(manifest, n_folds, random_state=random_state))
    except SplitError as error:
        raise ValueError(
            f"answers cannot be checked on unseen patients ({error}): with so few, take a preset "
            "without a panel, such as default, and calibration_folds=0"
        ) from error
    asked: list[Member] = []
    shape = len(manifest.records), n_scores(len(manifest.classes))
    for recipe in recipes:
        scores = np.full(shape, np.nan)
        failure = ""
        for place, split in enumerate(splits):
            try:
                found = unseen_scores(
                    manifest, split, recipe, random_state, n_jobs, cache, executor
                )
            except ImageError as error:  # patches larger than an image, say
                if not asked:
                    raise
                failure = str(error)
                break
            scores[split.test] = found
            done = len(asked) * len(splits) + place + 1
            callback(Progress("unseen patients", done, len(recipes) * len(splits)))
        value = None if failure else how_good(scores, manifest.labels, manifest.classes)
        asked.append(Member(recipe, scores, value, failure))
    return asked
