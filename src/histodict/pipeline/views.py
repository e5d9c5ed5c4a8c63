"""Who sits on a panel: a recipe, and others that look at the same tissue in other ways.

They differ in scale, in stain correction and in what they look at, so that their mistakes do:

- patches: the recipe itself; with the other stain correction; and, of pixels, at a finer scale
  without surroundings; cells of a network at a coarser one;
- textures and colours of the image as a whole (`lbp-colour`), beside pixels: at two scales, with
  and without stain correction.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from ..methods.registry import method_entry
from ..networks import vectors_named
from ..recipes import PRESETS, Recipe, for_method, recipe_of

_TEXTURES = "lbp-colour"
# Finer patches show less of the tissue at once, so fewer atoms would be left for codes as sparse.
_FINE = {"patch_px": 20, "stride_px": None, "context": 1, "penalty": 0.2}

# What the preset auto makes its views of.
AUTO = PRESETS["default"].with_changes(rule="margin-and-codes")


def panel_recipe(given: Recipe | str, method: str | None = None) -> Recipe:
    """A recipe, or one by the name of a preset, of which auto is one."""
    return for_method(AUTO, method or "dfdl") if given == "auto" else recipe_of(given, method)


def views(recipe: Recipe) -> list[Recipe]:
    """The recipe first, then the others; each once."""
    found = [recipe]
    for other in _others(recipe):
        if other not in found:
            found.append(other)
    return found


def _others(base: Recipe) -> Iterator[Recipe]:
    if not method_entry(base.method).sees_patches:
        yield from _whole_images(base)
        return
    yield replace(base, stain="reinhard" if base.stain == "macenko" else "macenko")
    if not vectors_named(base.vectors).take_surroundings:
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
