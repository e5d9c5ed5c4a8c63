"""Every line of Python in the docs' page and in the README's example runs."""

from __future__ import annotations

import re
import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import matplotlib
import pytest

from histodict.demo.sets import write_synthetic_set
from histodict.methods.registry import METHODS
from histodict.recipes import PRESETS

ROOT = Path(__file__).parents[1]


def blocks(text):
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def without_sizes(table):
    """Its lines without the last column: the new images say nothing of their pixel size either."""
    lines = [line.rpartition(",") for line in table.read_text().splitlines()]
    assert lines[0][2] == "mpp"
    return [line for line, *_ in lines]


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """Drawn tissue, some images to ask about, and presets that learn quickly."""
    tissue = write_synthetic_set(tmp_path / "tissue", 4, 1, size=(96, 80))
    (tmp_path / "new").mkdir()
    for name in ("new.png", "new/a.png", "new/b.png"):
        shutil.copy(next((tissue / "healthy").iterdir()), tmp_path / name)
    header, *lines = without_sizes(tissue / "manifest.csv")
    (tissue / "manifest.csv").write_text("\n".join([header, *lines]))
    table = [header, *(f"tissue/{line}" for line in lines)]
    (tmp_path / "labelled.csv").write_text("\n".join(table))
    monkeypatch.chdir(tmp_path)
    for name in ("dfdl", "odl"):
        monkeypatch.setitem(METHODS[name].small, "n_atoms", 12)
        monkeypatch.setitem(METHODS[name].small, "n_iter", 2)
    for name in ("default", "regions"):
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
    assert "a.png" in capsys.readouterr().out


def test_so_can_the_readme(workplace):
    for seed, name in enumerate(("tissue", "new")):
        shutil.rmtree(name)
        write_synthetic_set(workplace / name, 4, 1, size=(96, 80), seed=seed)
    example, *_ = (b for b in blocks((ROOT / "README.md").read_text("utf-8")) if "fit(" in b)
    known: dict = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exec(example, known)
    assert known["answer"].label in known["model"].classes_
    assert Path("tissue.histodict").is_file()
