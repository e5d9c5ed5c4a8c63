"""Tests of continued training after labels changed or images were added."""

from __future__ import annotations

import numpy as np
import pytest
from typer.testing import CliRunner

from histodict import TissueClassifier
from histodict.cli import app
from histodict.datasets.manifest import read_manifest
from histodict.models import EnsembleClassifier, load_model, save_model
from histodict.models.recipe import Recipe
from histodict.synthetic.dataset import write_synthetic_dataset

SMALL = Recipe(
    method_parameters={"n_atoms": 12, "n_iter": 30, "tol": 1e-3},
    patch_px=10,
    patches_per_class=600,
    features="centred",
    aggregation="margin",
)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    folder = write_synthetic_dataset(tmp_path_factory.mktemp("set") / "t", 4, 2, size=(120, 100))
    return read_manifest(folder / "manifest.csv")


@pytest.fixture(scope="module")
def first(manifest):
    return TissueClassifier(SMALL, random_state=0).fit(manifest)


def test_training_starts_where_the_first_ended(manifest, first, tmp_path):
    """On the same images the objective starts at the end of the first training, and soon
    converges."""
    loaded = load_model(save_model(first, tmp_path / "first.histodict"))
    stages = set()
    second = TissueClassifier(SMALL, random_state=0).fit(
        manifest, start_from=loaded, callback=lambda p: stages.add(p.stage)
    )
    assert "initialise" not in stages
    before, after = first.model_.classifier_, second.model_.classifier_
    np.testing.assert_array_equal(before.n_nonzero_, after.n_nonzero_)
    assert after.n_iter_ < before.n_iter_
    for old, new in zip(before.objective_, after.objective_, strict=True):
        assert new[0] <= old[-1] + 1e-3 * abs(old[0]) < old[0]


def test_other_recipe_or_unsuitable_method_is_refused(manifest, first):
    other = SMALL.with_changes(patch_px=12)
    with pytest.raises(ValueError, match="same settings"):
        TissueClassifier(other).fit(manifest, start_from=first)
    plain = SMALL.with_changes(method="odl", method_parameters={"n_atoms": 8})
    with pytest.raises(ValueError, match="cannot resume"):
        TissueClassifier(plain).fit(manifest, start_from=TissueClassifier(plain).fit(manifest))


def test_warm_start_on_the_command_line(manifest, tmp_path):
    settings = [
        part
        for text in ("n_atoms=12", "n_iter=5", "patches_per_class=300")
        for part in ("--set", text)
    ]
    one, two = str(tmp_path / "one.histodict"), str(tmp_path / "two.histodict")
    data = [str(manifest.root / "manifest.csv"), *settings]
    run = CliRunner().invoke(app, ["train", *data, "--preset", "fast", "-o", one])
    assert run.exit_code == 0, run.output
    run = CliRunner().invoke(app, ["train", *data, "-o", two, "--start-from", one])
    assert run.exit_code == 0, run.output
    run = CliRunner().invoke(
        app, ["train", *data, "--set", "n_atoms=13", "-o", two, "--start-from", one]
    )
    assert run.exit_code == 2 and "same settings" in run.output


def test_ensemble_cannot_be_continued(manifest, small_models, tmp_path):
    """Otherwise its other members would be lost silently."""
    one = str(small_models.path("ensemble"))
    two = ["-o", str(tmp_path / "two.histodict")]
    run = CliRunner().invoke(app, ["train", str(manifest.root), *two, "--start-from", one])
    assert run.exit_code == 2 and "training can only be resumed from a single model" in " ".join(
        run.output.split()
    )


def test_training_info_records_the_start_model(manifest, first):
    second = TissueClassifier(SMALL, random_state=0).fit(manifest, start_from=first)
    assert second.training_info_["started_from"] == first.training_info_
    one = EnsembleClassifier([SMALL], folds=2).fit(manifest)
    two = EnsembleClassifier([SMALL], folds=2).fit(manifest, start_from=one)
    assert two.training_info_["started_from"] == one.training_info_
    assert two.model_.classifier_.n_iter_ < one.model_.classifier_.n_iter_
    with pytest.raises(ValueError, match="only be resumed from a single model"):
        EnsembleClassifier([SMALL, SMALL.with_changes(stain="none")], folds=2).fit(
            manifest, start_from=one
        )
