"""Tests of plans: settings as text, recipe files, and the models they build."""

from __future__ import annotations

import json

import pytest

from histodict.models import (
    ENSEMBLE_PRESETS,
    EnsembleClassifier,
    Plan,
    RegionDetector,
    TissueClassifier,
)
from histodict.models import recipe as presets
from histodict.models.model_file import read_header
from histodict.models.recipe import PRESETS, preset


def test_plan_builds_a_single_model_or_an_ensemble():
    assert type(Plan.named("fast").build_model()) is TissueClassifier
    assert type(Plan.named("fast").build_model(region="tumour")) is RegionDetector
    auto = Plan.named("pixels").build_model(random_state=4)
    assert type(auto) is EnsembleClassifier and (auto.folds, auto.random_state) == (3, 4)
    assert len(auto.recipes) == 3 and auto.recipe == Plan.named("pixels").recipe
    calibrated = Plan.named("fast").parse_settings({"calibration_folds": "2"})
    assert calibrated.build_model().recipes == [preset("fast")]
    with pytest.raises(ValueError, match=r"an ensemble .* presets embeddings, fast, paper"):
        Plan.named("pixels").build_model(region="tumour")
    with pytest.raises(ValueError, match="omit calibration_folds"):
        calibrated.build_model(region="tumour")
    with pytest.raises(ValueError, match="calibration_folds"):
        Plan(preset("fast"), ensemble=True)


def test_settings_apply_to_plan_recipe_or_method():
    settings = {"ensemble": "true", "calibration_folds": "4", "stain": "none", "n_atoms": "7"}
    plan = Plan.named("fast").parse_settings(settings)
    assert (plan.ensemble, plan.calibration_folds, plan.recipe.stain) == (True, 4, "none")
    assert plan.recipe.method_parameters["n_atoms"] == 7
    assert (
        plan.has_setting("ensemble") and plan.has_setting("stain") and not plan.has_setting("magic")
    )
    with pytest.raises(ValueError, match="unknown setting 'magic'"):
        plan.parse_settings({"magic": "1"})


def test_plan_file_round_trip(tmp_path):
    for name in (*PRESETS, *ENSEMBLE_PRESETS):
        file, plan = tmp_path / f"{name}.json", Plan.named(name)
        file.write_text(json.dumps(plan.to_dict()))
        assert Plan.named(str(file)) == plan
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ValueError, match="not a recipe file"):
        Plan.named(str(tmp_path / "bad.json"))


def test_presets_accept_any_method():
    assert Plan.named("paper", "nayak").recipe == preset("paper", "nayak")
    assert (
        Plan.named("pixels", "odl").recipe.method == "odl" and Plan.named("pixels", "odl").ensemble
    )
    with pytest.raises(ValueError, match=r"preset must be one of .*pixels"):
        Plan.named("best")


def test_default_preset_uses_an_encoder_if_installed(monkeypatch):
    monkeypatch.setattr(presets, "missing_dependency", lambda name: None)
    with_encoder = Plan.named("default")
    assert [(r.method, r.features, r.stain) for r in with_encoder.recipes] == [
        ("dfdl", "efficientnet-lite0", "reinhard"),
        ("dfdl", "efficientnet-lite0", "none"),
        ("dfdl", "centred", "reinhard"),
        ("lbp-colour", "centred", "reinhard"),
    ]
    assert Plan.named("default", "shirc").recipes == Plan.named("pixels", "shirc").recipes
    assert EnsembleClassifier(patch_px=12).recipe.features == "centred"
    monkeypatch.setattr(presets, "missing_dependency", lambda name: "torch")
    assert Plan.named("default") == Plan.named("pixels")


def test_invalid_plan_is_refused_in_one_line(tmp_path):
    (tmp_path / "list.json").write_text("[1, 2]")
    with pytest.raises(ValueError, match="not a recipe file"):
        Plan.named(str(tmp_path / "list.json"))
    with pytest.raises(ValueError, match=r"unknown setting 'magic'; valid settings: .*ensemble"):
        Plan.named("fast").parse_settings({"magic": "1"})
    for name in ("pixels", "default"):
        with pytest.raises(ValueError, match=r"Plan\.named"):
            TissueClassifier(name)
    with pytest.raises(ValueError, match="unknown encoder"):
        Plan.named("fast").parse_settings({"features": "timm"})
    assert type(Plan.named("fast").build_model(region="")) is TissueClassifier


def test_plan_from_model_info_builds_a_similar_model(small_models, tmp_path):
    """An ensemble stays an ensemble, with as many folds."""
    for name, ensemble, folds in (
        ("dfdl", False, 0),
        ("calibrated", False, 2),
        ("ensemble", True, 2),
    ):
        header = read_header(small_models.path(name))
        (tmp_path / "info.json").write_text(json.dumps(header))
        plan = Plan.named(str(tmp_path / "info.json"))
        assert (plan.ensemble, plan.calibration_folds) == (ensemble, folds)
        assert plan.recipe.to_dict() == header["recipe"]
        assert len(plan.recipes) == max(1, len(header["estimators"]))
