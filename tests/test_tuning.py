"""Choosing a recipe on inner folds of the training patients."""

from __future__ import annotations

import json

import pytest
from histodict.pipeline.tuning import Trial, candidates, choose_recipe
from typer.testing import CliRunner

from histodict import TissueClassifier
from histodict.cli import app
from histodict.compare.choices import choose_recipes
from histodict.demo.sets import write_synthetic_set
from histodict.images.manifest import read_manifest
from histodict.model_file import load_model, save_model
from histodict.pipeline import tuning
from histodict.recipes import Recipe, preset

FAST = Recipe(
    method="nearest-mean",
    patch_px=12,
    patches_per_class=200,
    stain="reinhard",
    vectors="centred",
    rule="margin",
)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    folder = write_synthetic_set(tmp_path_factory.mktemp("set") / "t", 6, 2, size=(160, 120))
    return read_manifest(folder / "manifest.csv")


def test_candidates_are_different_seeded_and_begin_with_the_recipe_itself():
    found = candidates(FAST, 12, 0)
    assert found[0] == FAST and len({json.dumps(r.to_dict()) for r in found}) == 12
    assert found == candidates(FAST, 12, 0) != candidates(FAST, 12, 1)
    cells = candidates(preset("embeddings"), 6, 0)
    assert {recipe.vectors for recipe in cells} == {"efficientnet-lite0"}


def test_the_better_half_goes_on(manifest, monkeypatch):
    """Planted values: the best recipe must win, and bad ones must not cost all folds."""
    recipes = [FAST.with_changes(patch_px=px) for px in range(10, 18)]
    asked = []

    def value(manifest, split, recipe, *rest):
        asked.append(recipe.patch_px)
        return 1 - abs(recipe.patch_px - 15) / 10

    monkeypatch.setattr(tuning, "_value", value)
    seen = []
    trials = choose_recipe(manifest, recipes, callback=lambda p: seen.append((p.done, p.total)))
    assert trials[0].recipe.patch_px == 15
    assert [len(trial.values) for trial in trials] == [3, 3, 3, 2, 2, 1, 1, 1]
    assert len(asked) == 8 + 5 + 3 == seen[-1][0] == seen[-1][1]


def test_no_test_patient_is_trained_on_and_found_values_are_kept(manifest, tmp_path, monkeypatch):
    fitted = []
    original = TissueClassifier.fit

    def fit(self, data, **more):
        fitted.append(set(data.patients))
        return original(self, data, **more)

    monkeypatch.setattr(TissueClassifier, "fit", fit)
    recipes = candidates(FAST, 2, 0)
    first = choose_recipe(manifest, recipes, cache=tmp_path, n_jobs=1)
    assert len(fitted) == 6 and all(len(patients) == 4 for patients in fitted)
    again = choose_recipe(manifest, recipes, cache=tmp_path, n_jobs=1)
    assert again == first and len(fitted) == 6


def test_the_best_candidate_is_trained_and_it_is_said_what_was_tried(manifest, tmp_path):
    recipe = FAST.with_changes(candidates=2)
    model = TissueClassifier(recipe, random_state=0).fit(manifest)
    tried = model.training_["tried"]
    assert len(tried) == 2 and model.recipe.candidates == 0
    assert model.recipe.to_dict() == tried[0]["recipe"]
    loaded = load_model(save_model(model, tmp_path / "m.histodict"))
    assert loaded.recipe == model.recipe and loaded.training_["tried"] == tried


def test_tune_then_train_on_the_command_line(manifest, tmp_path):
    out = tmp_path / "recipe.json"
    settings = ["--set", "patch_px=12", "--set", "patches_per_class=200"]
    arguments = ["tune", str(manifest.root), "--method", "nearest-mean", "--candidates", "2"]
    run = CliRunner().invoke(app, [*arguments, "-o", str(out), *settings])
    assert run.exit_code == 0, run.output
    assert "as given" in run.output and "Best:" in run.output
    model = tmp_path / "m.histodict"
    run = CliRunner().invoke(
        app, ["train", str(manifest.root), "--preset", str(out), "-o", str(model)]
    )
    assert run.exit_code == 0, run.output
    assert load_model(model).recipe.to_dict() == json.loads(out.read_text())
    for arguments, words in (
        (["tune", str(manifest.root), "-o", str(tmp_path / "x.txt")], "ends in .json"),
        (["train", str(manifest.root), "--preset", "no.json", "-o", str(model)], "recipe file"),
    ):
        run = CliRunner().invoke(app, arguments)
        assert run.exit_code == 2 and words in run.output


def test_a_trial_has_mean_and_spread():
    trial = Trial(FAST, (0.5, 0.7))
    assert trial.mean == pytest.approx(0.6) and trial.spread == pytest.approx(0.1)


def test_what_would_not_go_together_is_not_tried():
    """A method of whole images has no patches to vary."""
    whole = candidates(preset("default", "lbp-colour"), 50, 0)
    assert len(whole) == 9 and len({(r.stain, r.downsample) for r in whole}) == 9
    shirc = candidates(preset("default", "shirc"), 50, 0)
    assert {(r.context > 1, r.method_parameters["n_channels"]) for r in shirc} == {
        (True, 6),
        (False, 3),
    }
    tried = candidates(preset("default"), 12, 0)
    grids = {(r.patch_px, r.grid_stride_px, r.downsample, r.context) for r in tried}
    assert len(grids) == 4
    with pytest.raises(ValueError, match="candidates"):
        candidates(FAST, 0, 0)


def test_a_candidate_that_does_not_fit_the_images_is_passed_over(manifest):
    """Patches larger than the images: of no use, but no reason to stop."""
    large = FAST.with_changes(patch_px=200)
    trials = choose_recipe(manifest, [FAST, large], n_jobs=1)
    assert [trial.recipe for trial in trials] == [FAST, large] and trials[1].mean == 0
    assert "less than one patch" in trials[1].failure and not trials[0].failure
    assert "less than one patch" in trials[1].to_dict()["failure"]
    with pytest.raises(ValueError, match="less than one patch"):
        choose_recipe(manifest, [large, FAST], n_jobs=1)


def test_what_was_given_stays_unless_another_is_clearly_better(manifest, monkeypatch):
    values = {10: 0.80, 11: 0.815, 12: 0.81, 13: 0.83}
    monkeypatch.setattr(tuning, "_value", lambda m, s, recipe, *rest: values[recipe.patch_px])
    recipes = [FAST.with_changes(patch_px=px) for px in (10, 11, 12)]
    assert choose_recipe(manifest, recipes)[0].recipe.patch_px == 10
    recipes.append(FAST.with_changes(patch_px=13))
    assert choose_recipe(manifest, recipes)[0].recipe.patch_px == 13


def test_a_recipe_file_takes_the_method_that_is_named(tmp_path):
    """Else a comparison of methods would compare one with itself."""
    file = tmp_path / "recipe.json"
    file.write_text(json.dumps(FAST.with_changes(method="dfdl", stain="macenko").to_dict()))
    assert preset(str(file)).method == "dfdl"
    for name in ("odl", "lbp-colour", "nayak"):
        recipe = preset(str(file), name)
        assert (recipe.method, recipe.stain, recipe.patch_px) == (name, "macenko", 12)
    assert preset(str(file), "nayak").rule == "codes"
    found = choose_recipes(["dfdl", "odl"], str(file), {})
    assert [recipe.method for recipe in found.values()] == ["dfdl", "odl"]
    assert TissueClassifier(str(file)).recipe.method == "dfdl"
