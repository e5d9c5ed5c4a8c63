"""How an answer is come by: settings as text, files of settings, and what is made of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from histodict.model_file import read_header
from histodict.pipeline import PLANS, Panel, Plan, RegionDetector, TissueClassifier
from histodict.recipes import PRESETS, preset


def test_a_plan_makes_one_model_or_several():
    assert type(Plan.named("default").model()) is TissueClassifier
    assert type(Plan.named("default").model(region="tumour")) is RegionDetector
    auto = Plan.named("auto").model(random_state=4)
    assert type(auto) is Panel and (auto.folds, auto.random_state) == (3, 4)
    assert len(auto.recipes) == 7 and auto.recipe == Plan.named("auto").recipe
    calibrated = Plan.named("default").with_settings({"calibration_folds": "2"})
    assert calibrated.model().recipes == [preset("default")]
    with pytest.raises(ValueError, match="not for regions"):
        Plan.named("auto").model(region="tumour")
    with pytest.raises(ValueError, match="calibration_folds"):
        Plan(preset("default"), panel=True)


def test_settings_go_to_the_plan_the_recipe_or_the_method():
    settings = {"panel": "true", "calibration_folds": "4", "stain": "none", "n_atoms": "7"}
    plan = Plan.named("default").with_settings(settings)
    assert (plan.panel, plan.calibration_folds, plan.recipe.stain) == (True, 4, "none")
    assert plan.recipe.method_parameters["n_atoms"] == 7
    assert plan.knows("panel") and plan.knows("stain") and not plan.knows("magic")
    with pytest.raises(ValueError, match="no setting 'magic'"):
        plan.with_settings({"magic": "1"})


def test_plans_survive_a_file(tmp_path):
    for name, plan in PLANS.items():
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps(plan.to_dict()))
        assert Plan.named(str(file)) == plan
    # A file that was written when recipes were still chosen among candidates.
    old = PLANS["default"].to_dict() | {"candidates": 0}
    (tmp_path / "old.json").write_text(json.dumps(old))
    assert Plan.named(str(tmp_path / "old.json")) == PLANS["default"]
    (tmp_path / "old.json").write_text(json.dumps(old | {"candidates": 12}))
    with pytest.raises(ValueError, match="no longer chosen"):
        Plan.named(str(tmp_path / "old.json"))
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ValueError, match="not a recipe file"):
        Plan.named(str(tmp_path / "bad.json"))


def test_presets_are_for_any_method():
    assert set(PLANS) == {*PRESETS, "auto"}
    assert Plan.named("paper", "nayak").recipe == preset("paper", "nayak")
    assert Plan.named("auto", "odl").recipe.method == "odl" and Plan.named("auto", "odl").panel
    with pytest.raises(ValueError, match=r"preset must be one of .*auto"):
        Plan.named("best")


def test_what_is_no_plan_is_said_in_a_line(tmp_path):
    (tmp_path / "list.json").write_text("[1, 2]")
    with pytest.raises(ValueError, match="not a recipe file"):
        Plan.named(str(tmp_path / "list.json"))
    with pytest.raises(ValueError, match=r"no setting 'magic'; there are .*panel"):
        Plan.named("default").with_settings({"magic": "1"})
    with pytest.raises(ValueError, match=r"Plan\.named"):
        TissueClassifier("auto")
    with pytest.raises(ValueError, match="vectors must be one of"):
        Plan.named("default").with_settings({"vectors": "timm"})
    assert type(Plan.named("default").model(region="")) is TissueClassifier


def test_what_info_says_of_a_model_makes_one_like_it(tmp_path):
    """A panel stays a panel, in as many folds."""
    folder = Path(__file__).parents[1] / "data" / "models"
    for name, panel, folds in (("dfdl", False, 0), ("calibrated", False, 2), ("panel", True, 2)):
        header = read_header(folder / f"schema-4-{name}.histodict")
        (tmp_path / "info.json").write_text(json.dumps(header))
        plan = Plan.named(str(tmp_path / "info.json"))
        assert (plan.panel, plan.calibration_folds) == (panel, folds)
        made = header["members"] or [header]
        assert [recipe.to_dict() for recipe in plan.recipes] == [one["recipe"] for one in made]
