"""Encoders named in a model file are only loaded with the user's consent."""

from __future__ import annotations

import builtins
import os
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from histodict import TissueClassifier
from histodict.cli import app
from histodict.datasets.manifest import read_manifest
from histodict.encoders import clear_encoder_cache, encoder, load_encoder
from histodict.models import load_model, save_model
from histodict.models.model_file import ModelFileError
from histodict.models.recipe import Recipe
from histodict.synthetic.dataset import write_synthetic_dataset

CELL = 16


class MeanColours:
    """An encoder without libraries: mean and standard deviation of each colour in a cell."""

    stride_px = CELL
    digest = "of mean colours"

    def feature_map(self, pixels):
        h, w = pixels.shape[0] // CELL, pixels.shape[1] // CELL
        parts = pixels.reshape(h, CELL, w, CELL, 3).astype(np.float32)
        return np.concatenate([parts.mean(axis=(1, 3)), parts.std(axis=(1, 3))], axis=-1)


@pytest.fixture
def fetched(monkeypatch):
    """Names that the encoder family `hub` was requested to load."""
    names = []

    def open_(name):
        names.append(name)
        return MeanColours()

    monkeypatch.setitem(encoder.ENCODER_FAMILIES, "hub", open_)
    monkeypatch.setattr(encoder, "_OPENED_NAMES", set())
    clear_encoder_cache()
    yield names
    clear_encoder_cache()


@pytest.fixture(scope="module")
def tissue(tmp_path_factory):
    folder = write_synthetic_dataset(tmp_path_factory.mktemp("set") / "t", 2, 2, size=(96, 64))
    return read_manifest(folder / "manifest.csv")


@pytest.fixture
def strange(fetched, tissue, tmp_path, monkeypatch):
    """A model file from elsewhere."""
    parameters = {"n_atoms": 3, "n_iter": 2}
    vectors = f"hub:colours@{tmp_path / 'secret.pth'}"
    recipe = Recipe("dfdl", parameters, patch_px=CELL, patches_per_class=40, features=vectors)
    path = save_model(TissueClassifier(recipe).fit(tissue), tmp_path / "strange.histodict")
    monkeypatch.setattr(encoder, "_OPENED_NAMES", set())
    clear_encoder_cache()
    fetched.clear()
    return path


def test_encoder_is_not_loaded_without_consent(strange, fetched, tissue, tmp_path):
    with pytest.raises(
        ModelFileError, match=r"strange\.histodict: .*secret\.pth.*trust_weights=True"
    ):
        load_model(strange)
    assert fetched == []
    image, out = str(tissue.records[0].path), str(tmp_path / "out")
    for text in (
        ["predict", strange, image, "-o", out],
        ["predict", strange, image, "-o", out],
        ["adapt", strange, image, "-o", out],
        ["atoms", strange, tissue.root, "-o", tmp_path / "atoms.html"],
        ["train", tissue.root, "--start-from", strange, "-o", tmp_path / "m.histodict"],
    ):
        run = CliRunner().invoke(app, [str(word) for word in text])
        assert run.exit_code == 2 and "--trust-weights" in run.output, run.output
    assert fetched == []
    run = CliRunner().invoke(app, ["info", str(strange)])
    assert run.exit_code == 0 and "secret.pth" in run.output and fetched == []


def test_paths_in_a_model_are_not_accessed(strange, fetched, tmp_path, monkeypatch):
    secret = str(tmp_path / "secret.pth")
    touched = []

    def spy(real):
        def record_path(path, *args, **kwargs):
            touched.extend([path] if str(path) == secret else [])
            return real(path, *args, **kwargs)

        return record_path

    for home, name in ((os, "stat"), (os, "open"), (builtins, "open"), (Path, "is_file")):
        monkeypatch.setattr(home, name, spy(getattr(home, name)))
    with pytest.raises(ModelFileError):
        load_model(strange)
    assert touched == []


def test_model_predicts_with_consent(strange, fetched, tissue, tmp_path):
    record = tissue.records[0]
    arguments = ["predict", strange, record.path, "--trust-weights", "-o", tmp_path / "out"]
    run = CliRunner().invoke(app, [str(word) for word in arguments])
    assert run.exit_code == 0, run.output
    assert fetched == [f"colours@{tmp_path / 'secret.pth'}"]
    assert load_model(strange, trust_weights=True).predict(record.path, mpp=record.mpp).label


def test_encoder_that_the_user_loaded_needs_no_consent(strange, fetched, tmp_path):
    load_encoder(f"hub:colours@{tmp_path / 'secret.pth'}")
    load_model(strange)


def test_other_weights_than_in_training_are_refused(strange, fetched, monkeypatch):
    monkeypatch.setattr(MeanColours, "digest", "of others")
    with pytest.raises(ModelFileError, match="other weights"):
        load_model(strange, trust_weights=True)


def test_missing_timm_is_reported(monkeypatch):
    def none(name):
        raise ModuleNotFoundError("No module named 'timm'", name="timm")

    clear_encoder_cache()
    monkeypatch.setitem(encoder.ENCODER_FAMILIES, "timm", none)
    with pytest.raises(ValueError, match=r"timm.*pip install .*\[encoders\]"):
        load_encoder("timm:resnet18")
