"""Every method is trained on images, saved and loaded, with the same predictions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from histodict import TissueClassifier
from histodict.cli import app
from histodict.datasets.manifest import read_manifest
from histodict.methods.registry import METHODS, get_method
from histodict.models import load_model, save_model
from histodict.models.recipe import preset
from histodict.synthetic.dataset import write_synthetic_dataset

# Small enough for one or two seconds each; parameters that a method lacks are omitted.
SMALL = {"n_atoms": 30, "n_iter": 3, "n_epochs": 2, "n_coding_steps": 10, "n_nonzero": 5}


def small_recipe(method):
    expected = preset("fast", method)
    parameters = {k: v for k, v in SMALL.items() if expected.has_setting(k)}
    if method.endswith("-image"):
        parameters.pop("n_atoms")  # the atoms are training samples
    merged = expected.method_parameters | parameters
    return expected.with_changes(
        method_parameters=merged, patch_px=12, downsample=1.0, patches_per_class=400
    )


@pytest.fixture(scope="module")
def halves(tmp_path_factory):
    folder = write_synthetic_dataset(tmp_path_factory.mktemp("set") / "t", 4, 2, size=(160, 120))
    manifest = read_manifest(folder / "manifest.csv")
    first = sorted(set(manifest.patients))[:2]
    train = [i for i, patient in enumerate(manifest.patients) if patient in first]
    test = [i for i in range(len(manifest.records)) if i not in train]
    return manifest.select(train), manifest.select(test)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_loaded_model_gives_the_same_predictions(method, halves, tmp_path):
    train, test = halves
    cache = train.root / "cache"  # two methods share their features
    recipe = small_recipe(method)
    model, again = (
        TissueClassifier(recipe, random_state=1, n_jobs=n, cache=cache).fit(train) for n in (1, 2)
    )
    loaded = load_model(save_model(model, tmp_path / "m.histodict"), n_jobs=1)
    for record in test.records[:3]:
        one, two, three = (m.predict(record.path, mpp=record.mpp) for m in (model, again, loaded))
        assert one.label in model.classes_
        assert one.scores == two.scores == three.scores
        assert np.isfinite(one.scores).all()
        assert (one.patch_map is None) == (get_method(method).features is not None)


def test_method_can_be_set_in_python_and_on_the_command_line(halves, tmp_path):
    assert TissueClassifier(method="odl").recipe == preset("fast", "odl")
    assert TissueClassifier("paper", method="nayak").recipe.aggregation == "codes"
    with pytest.raises(ValueError, match="method must be one of"):
        TissueClassifier(method="magic")
    listed = CliRunner().invoke(app, ["info", "--methods"]).output
    assert all(name in listed for name in METHODS)
    run = CliRunner().invoke(
        app,
        ["train", str(halves[0].root), "--method", "magic", "-o", str(tmp_path / "m.histodict")],
    )
    assert run.exit_code == 2 and "method must be one of" in run.output


def test_whole_image_method_cannot_find_regions(tmp_path):
    run = CliRunner().invoke(
        app, ["train", ".", "--method", "lbp-colour", "--regions", "x", "-o", str(tmp_path / "m")]
    )
    assert run.exit_code == 2


def test_background_image_has_no_mean_vector_and_no_label(halves, tmp_path):
    train, _ = halves
    for place in range(len(train.records)):
        Image.new("RGB", (160, 120), (243, 242, 244)).save(tmp_path / f"{place}.png")
    background = [replace(r, path=tmp_path / f"{i}.png") for i, r in enumerate(train.records)]
    recipe = small_recipe("mean-logistic")
    with pytest.warns(UserWarning, match="1 training image without tissue was not used"):
        model = TissueClassifier(recipe).fit(
            replace(train, records=(*train.records, background[0]))
        )
    prediction = model.predict(background[0].path, mpp=background[0].mpp)
    assert (
        prediction.label is None
        and np.isnan(prediction.scores).all()
        and len(prediction.scores) == 1
    )
    first = train.classes[0]
    pairs = zip(train.records, background, strict=True)
    records = tuple(blank if r.label == first else r for r, blank in pairs)
    with pytest.raises(ValueError, match=f"no tissue .* {first!r}"):
        TissueClassifier(recipe).fit(replace(train, records=records))
