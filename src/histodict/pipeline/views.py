"""Who sits on a panel: a recipe, and others that look at the same tissue in other ways.

They differ in what they look at, in scale and in stain correction, so that their mistakes do:

- beside cells of a network: the same cells of images whose stain was not corrected (each is right
  where the other is not), a dictionary of pixels, and textures and colours of the image as a whole
  (`lbp-colour`) at half the scale;
- beside vectors of feature files: nobody, as these have no pixels;
- beside a dictionary of pixels: such textures at two scales, the coarser without stain correction.

What was changed in the recipe is changed in the others, where they have it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from itertools import product
from typing import Any

from ..methods.registry import get_method
from ..networks import get_patch_features
from ..presets import PRESETS, default_uses_encoder, resolve_recipe, with_method
from ..recipes import Recipe

_TEXTURES = "lbp-colour"
_CORRECTED = "reinhard"
# By how much images are reduced for them.
_COARSE, _COARSER = 2.0, 4.0
# What belongs to a network's cells, or to pixels, and says nothing of the other.
_PRECOMPUTED_RECIPES = (
    "features",
    "patch_px",
    "stride_px",
    "context_scale",
    "n_components",
    "whiten",
    "aggregation",
)

# Finer patches than those of one model alone show less of the tissue at once, so fewer atoms would
# be left for codes as sparse.
_FINER = {"patch_px": 20, "context_scale": 1, "penalty": 0.2, "downsample": 1.0}
PIXELS = (
    PRESETS["fast"].with_changes(aggregation="margin-and-codes").with_applicable_settings(_FINER)
)
ENCODER = PRESETS["embeddings"]


def resolve_ensemble_recipe(
    given: Recipe | str, method: str | None = None, settings: Mapping[str, Any] | None = None
) -> Recipe:
    """The first recipe of a panel: itself, or by the name of a preset, also of one for panels.

    `settings` that will be changed in it decide with whether it may be of a network.
    """
    if given == "features":
        return resolve_recipe("precomputed", method)
    if given not in ("default", "pixels"):
        return resolve_recipe(given, method)
    if given == "default" and default_uses_encoder(settings or {}, [method or ""])[0]:
        return with_method(ENCODER, method or ENCODER.method)
    sees_patches = get_method(method or PIXELS.method).uses_patch_features
    return with_method(PIXELS if sees_patches else PRESETS["fast"], method or PIXELS.method)


def ensemble_recipes(recipe: Recipe) -> list[Recipe]:
    """The recipe first, then the others; each once."""
    found = [recipe]
    for other in _others(recipe):
        if other not in found:
            found.append(other)
    return found


def _others(base: Recipe) -> Iterator[Recipe]:
    if not get_method(base.method).uses_patch_features:
        yield from _whole_images(base)
        return
    if get_patch_features(base.features).is_precomputed:
        return  # there is nothing else to look at
    if not get_patch_features(base.features).uses_context:
        yield replace(base, stain=_CORRECTED if base.stain == "none" else "none")
        pixels = _beside_encoder(base)
        yield pixels
        yield _textures(pixels, _COARSE)
        return
    yield _textures(base, _COARSE)
    yield replace(_textures(base, _COARSER), stain="none")


def _corrected(recipe: Recipe) -> str:
    return _CORRECTED if recipe.stain == "none" else recipe.stain


def _textures(pixels: Recipe, reduced: float) -> Recipe:
    """Of the image reduced by so much, and never less than the patches are cut from."""
    return _rescaled(with_method(pixels, _TEXTURES), max(1.0, reduced / pixels.downsample))


def _beside_encoder(base: Recipe) -> Recipe:
    """The recipe of pixels, changed as the base was."""
    usual, plain = (with_method(recipe, base.method) for recipe in (PIXELS, ENCODER))
    changed = {
        own.name: getattr(base, own.name)
        for own in fields(base)
        if own.name
        not in (*_PRECOMPUTED_RECIPES, "method", "method_parameters", "downsample", "mpp")
        and getattr(base, own.name) != getattr(plain, own.name)
    }
    parameters = {
        name: value
        for name, value in base.method_parameters.items()
        if value != plain.method_parameters.get(name)
    }
    return replace(
        usual,
        **changed,
        method_parameters=usual.method_parameters | parameters,
        downsample=usual.downsample * base.downsample,
        mpp=None if base.mpp is None else usual.downsample * base.mpp,
    )


def _whole_images(base: Recipe) -> Iterator[Recipe]:
    for factor, stain in product((1, 2), (_corrected(base), "none")):
        yield replace(_rescaled(base, factor), stain=stain)


def _rescaled(recipe: Recipe, factor: float) -> Recipe:
    """The recipe on images reduced by so much more."""
    if recipe.mpp is not None:
        return replace(recipe, mpp=recipe.mpp * factor)
    return replace(recipe, downsample=recipe.downsample * factor)
