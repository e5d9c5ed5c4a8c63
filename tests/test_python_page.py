"""Every line of Python in the docs' page and in the README's example runs."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from pathlib import Path

import matplotlib
import pytest

from histodict.methods.registry import METHODS
from histodict.models.recipe import PRESETS
from histodict.synthetic.dataset import write_synthetic_dataset

ROOT = Path(__file__).parents[1]


def blocks(text):
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """Drawn tissue of two sets of patients, and presets that learn quickly."""
    for seed, name in enumerate(("tissue", "new")):
        write_synthetic_dataset(tmp_path / name, 4, 1, size=(96, 80), seed=seed)
    monkeypatch.chdir(tmp_path)
    for name in ("dfdl", "odl"):
        monkeypatch.setitem(METHODS[name].default_parameters, "n_atoms", 12)
        monkeypatch.setitem(METHODS[name].default_parameters, "n_iter", 2)
    for name in ("fast", "regions"):
        monkeypatch.setitem(PRESETS, name, replace(PRESETS[name], patches_per_class=200))
    matplotlib.use("Agg")
    yield tmp_path
    from matplotlib import pyplot

    pyplot.close("all")


def test_the_page_can_be_followed(workplace, capsys):
    pytest.importorskip("pandas")
    known: dict = {}
    for block in blocks((ROOT / "docs" / "python.md").read_text("utf-8")):
        exec(block, known)
    assert known["answers"].to_frame().shape[0] == 2
    assert "patient03_1.jpg" in capsys.readouterr().out


def test_so_can_the_readme(workplace):
    example, *_ = (b for b in blocks((ROOT / "README.md").read_text("utf-8")) if "fit(" in b)
    known: dict = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exec(example, known)
    assert known["answer"].label in known["model"].classes_
    assert Path("tissue.histodict").is_file()
