"""Tests of `import histodict` and of its documentation."""

from __future__ import annotations

import pydoc
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import histodict
from histodict.methods.registry import METHODS
from histodict.models.recipe import PRESETS
from histodict.synthetic.dataset import write_synthetic_dataset

NAMES = [name for name in histodict.__all__ if name != "__version__"]


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_exists_and_is_documented(name):
    found = getattr(histodict, name)
    assert found.__doc__.strip()
    assert name in dir(histodict)


def test_package_documentation_names_every_name():
    lesson, _, _ = pydoc.plain(pydoc.render_doc(histodict)).partition("PACKAGE CONTENTS")
    assert [name for name in NAMES if name not in lesson] == []


def test_other_names_do_not_exist():
    with pytest.raises(AttributeError, match="no attribute 'Tissue'"):
        _ = histodict.Tissue


def test_package_documentation_runs(tmp_path, monkeypatch, rng):
    """Every line of the package docstring runs, in order, on synthetic tissue and vectors."""
    folder = write_synthetic_dataset(tmp_path / "set", 6, 1, size=(96, 80))
    table = (folder / "manifest.csv").read_text().replace(",inflamed,", ",tumour,")
    (folder / "tissue.csv").write_text(table)
    for name in ("new.png", "newer.png"):
        shutil.copy(next((folder / "healthy").iterdir()), folder / name)
    monkeypatch.chdir(folder)
    monkeypatch.setitem(METHODS["dfdl"].default_parameters, "n_atoms", 20)
    for name in ("fast", "regions"):
        monkeypatch.setitem(PRESETS, name, replace(PRESETS[name], patches_per_class=300))
    X = np.abs(rng.standard_normal((60, 12)))
    namespace = {"X": X, "y": np.arange(60) % 2, "X_new": X[:5]}
    steps = [line.partition(">>> ")[2] for line in histodict.__doc__.splitlines()]
    for step in filter(None, steps):
        exec(step, namespace)
    assert namespace["model"].predict("new.png").scores == namespace["prediction"].scores
    assert namespace["dfdl"].dictionaries_.shape[2] == 12


def test_typed_script_uses_every_name():
    """mypy reads it, here and from outside."""
    script = Path(__file__).with_name("typed_script.py").read_text("utf-8")
    assert [name for name in histodict.__all__ if not re.search(rf"\b{name}\b", script)] == []
