"""Tests of recipes: presets, refused settings, and files."""

from __future__ import annotations

import json

import pytest

from histodict.models.recipe import PRESETS, Recipe, preset


def test_presets_are_recipes_and_paper_is_as_published():
    paper = preset("paper")
    assert (paper.patch_px, paper.patches_per_class, paper.features) == (20, 10_000, "rgb")
    assert (paper.stain, paper.aggregation, paper.downsample) == ("none", "proportion", 1.0)
    parameters = paper.method_parameters
    assert {k: parameters[k] for k in ("n_atoms", "penalty", "rho", "n_iter")} == {
        "n_atoms": 500,
        "penalty": 0.1,
        "rho": 0.001,
        "n_iter": 50,
    }
    for recipe in PRESETS.values():
        assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe
    with pytest.raises(ValueError, match="preset must be one of"):
        preset("best")
    for setting in ({"stain": "pink"}, {"features": "x"}, {"aggregation": "x"}, {"patch_px": 1}):
        with pytest.raises(ValueError, match=next(iter(setting))):
            Recipe(**setting)


def test_pixel_settings_are_refused_for_precomputed_features():
    specified = preset("precomputed")
    for setting in (
        {"quality_filters": "blur"},
        {"mpp": "0.5"},
        {"stain": "macenko"},
        {"patch_px": "32"},
    ):
        with pytest.raises(
            ValueError,
            match=f"{next(iter(setting))}=.* has no effect on vectors from feature files",
        ):
            specified.parse_settings(setting)
    assert specified.parse_settings({"patch_px": "20", "n_components": "5"}).n_components == 5
    assert (
        specified.replace_settings(specified.setting_values()).quality_filters == "none"
    )  # without changes, all settings may be listed
