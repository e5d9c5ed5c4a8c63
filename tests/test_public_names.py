"""What `import histodict` gives, and whether its first page is true."""

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
def test_every_public_name_is_there_and_says_what_it_is(name):
    found = getattr(histodict, name)
    assert found.__doc__.strip()
    assert name in dir(histodict)


def test_the_first_page_teaches_every_name():
    lesson, _, _ = pydoc.plain(pydoc.render_doc(histodict)).partition("PACKAGE CONTENTS")
    assert [name for name in NAMES if name not in lesson] == []


def test_other_names_are_not_there():
    with pytest.raises(AttributeError, match="no attribute 'Tissue'"):
        _ = histodict.Tissue


def test_the_tour_can_be_walked(tmp_path, monkeypatch, rng):
    """Every line of the first page runs, in order, on drawn tissue and made-up vectors."""
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
    known = {"X": X, "y": np.arange(60) % 2, "X_new": X[:5]}
    steps = [line.partition(">>> ")[2] for line in histodict.__doc__.splitlines()]
    for step in filter(None, steps):
        exec(step, known)
    assert known["model"].predict("new.png").scores == known["prediction"].scores
    assert known["dfdl"].dictionaries_.shape[2] == 12


def test_the_typed_script_names_everything():
    """Which mypy reads, here and from outside."""
    script = Path(__file__).with_name("typed_script.py").read_text("utf-8")
    assert [name for name in histodict.__all__ if not re.search(rf"\b{name}\b", script)] == []
