"""Recipes of the estimators of an ensemble: variations of one recipe.

The estimators of an ensemble differ in features, scale and stain normalisation, so that their
errors differ. `ensemble_recipes` adds to a recipe

- for an encoder: the same encoder with the opposite stain setting, a dictionary of pixels, and
  texture and colour features of the whole image (`lbp-colour`) at half the scale;
- for a dictionary of pixels: these texture features at two scales, the coarser without stain
  normalisation;
- for a method on whole images: the same method at the full and at half the scale, each with and
  without stain normalisation;
- for precomputed features: nothing, as feature files have no pixels.

Except for these differences, a variation inherits each setting in which the recipe differs from its
preset, if the variation has that setting.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from itertools import product
from typing import Any

from ..encoders import get_patch_features
from ..methods.registry import get_method
from .recipe import PRESETS, Recipe, default_uses_encoder, resolve_recipe, with_method

_TEXTURE_METHOD = "lbp-colour"
_STAIN_NORMALIZATION = "reinhard"
# Downsample factors of texture recipes.
_TEXTURE_DOWNSAMPLE, _COARSE_TEXTURE_DOWNSAMPLE = 2.0, 4.0
# Settings that are not copied from a recipe with encoder features to one with pixels.
_NOT_COPIED_SETTINGS = (
    "features",
    "patch_px",
    "stride_px",
    "context_scale",
    "n_components",
    "whiten",
    "aggregation",
)
# Patches are finer than in a single model. They contain less tissue, so the same penalty would
# leave fewer atoms per code.
_FINE_PATCH_SETTINGS = {"patch_px": 20, "context_scale": 1, "penalty": 0.2, "downsample": 1.0}
PIXEL_RECIPE = (
    PRESETS["fast"]
    .with_changes(aggregation="margin-and-codes")
    .with_applicable_settings(_FINE_PATCH_SETTINGS)
)
ENCODER_RECIPE = PRESETS["embeddings"]


def resolve_ensemble_recipe(
    recipe: Recipe | str, method: str | None = None, settings: Mapping[str, Any] | None = None
) -> Recipe:
    """Return the recipe of the first estimator of an ensemble.

    Parameters
    ----------
    recipe : recipe, or name of a preset
    method : name of a method that replaces the method of the recipe; None keeps it
    settings : changed settings, by name. They are not applied here, but the preset "default" uses
        no encoder if a setting requires pixels
    """
    if recipe == "features":
        return resolve_recipe("precomputed", method)
    if recipe not in ("default", "pixels"):
        return resolve_recipe(recipe, method)
    if recipe == "default" and default_uses_encoder(settings or {}, [method or ""])[0]:
        return with_method(ENCODER_RECIPE, method or ENCODER_RECIPE.method)
    uses_patches = get_method(method or PIXEL_RECIPE.method).uses_patch_features
    return with_method(
        PIXEL_RECIPE if uses_patches else PRESETS["fast"], method or PIXEL_RECIPE.method
    )


def ensemble_recipes(recipe: Recipe) -> list[Recipe]:
    """Return the recipe, followed by its variations for an ensemble, without duplicates."""
    recipes = [recipe]
    for other in _variations(recipe):
        if other not in recipes:
            recipes.append(other)
    return recipes


def _variations(base: Recipe) -> Iterator[Recipe]:
    if not get_method(base.method).uses_patch_features:
        yield from _whole_image_variations(base)
        return
    if get_patch_features(base.features).is_precomputed:
        return  # feature files have no other representation
    if not get_patch_features(base.features).uses_context:
        yield replace(base, stain=_STAIN_NORMALIZATION if base.stain == "none" else "none")
        pixels = _pixel_variation(base)
        yield pixels
        yield _texture_recipe(pixels, _TEXTURE_DOWNSAMPLE)
        return
    yield _texture_recipe(base, _TEXTURE_DOWNSAMPLE)
    yield replace(_texture_recipe(base, _COARSE_TEXTURE_DOWNSAMPLE), stain="none")


def _normalized_stain(recipe: Recipe) -> str:
    return _STAIN_NORMALIZATION if recipe.stain == "none" else recipe.stain


def _texture_recipe(pixel_recipe: Recipe, downsample: float) -> Recipe:
    """Return a recipe with texture features.

    It reduces images by the factor `downsample`, or by the factor of `pixel_recipe` if that is
    larger.
    """
    return _rescale(
        with_method(pixel_recipe, _TEXTURE_METHOD), max(1.0, downsample / pixel_recipe.downsample)
    )


def _pixel_variation(base: Recipe) -> Recipe:
    """Return the recipe of the preset for pixels with the settings that the user has changed.

    These are the settings in which `base` differs from the preset with an encoder.
    """
    default, encoder = (
        with_method(recipe, base.method) for recipe in (PIXEL_RECIPE, ENCODER_RECIPE)
    )
    changed = {
        setting.name: getattr(base, setting.name)
        for setting in fields(base)
        if setting.name
        not in (*_NOT_COPIED_SETTINGS, "method", "method_parameters", "downsample", "mpp")
        and getattr(base, setting.name) != getattr(encoder, setting.name)
    }
    parameters = {
        name: value
        for name, value in base.method_parameters.items()
        if value != encoder.method_parameters.get(name)
    }
    return replace(
        default,
        **changed,
        method_parameters=default.method_parameters | parameters,
        downsample=default.downsample * base.downsample,
        mpp=None if base.mpp is None else default.downsample * base.mpp,
    )


def _whole_image_variations(base: Recipe) -> Iterator[Recipe]:
    for factor, stain in product((1, 2), (_normalized_stain(base), "none")):
        yield replace(_rescale(base, factor), stain=stain)


def _rescale(recipe: Recipe, factor: float) -> Recipe:
    """Return a copy that reduces images by a further `factor`."""
    if recipe.mpp is not None:
        return replace(recipe, mpp=recipe.mpp * factor)
    return replace(recipe, downsample=recipe.downsample * factor)
