"""Every line of Python in the documentation page and in the README runs."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from histodict.methods.registry import METHODS
from histodict.models.recipe import PRESETS
from histodict.synthetic.dataset import write_synthetic_dataset

ROOT = Path(__file__).parents[1]


def blocks(text):
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """Synthetic tissue of two sets of patients, and presets that train quickly."""
    for seed, name in enumerate(("tissue", "new")):
        write_synthetic_dataset(tmp_path / name, 4, 1, size=(96, 80), seed=seed)
    monkeypatch.chdir(tmp_path)
    for name in ("dfdl", "odl"):
        monkeypatch.setitem(METHODS[name].default_parameters, "n_atoms", 12)
        monkeypatch.setitem(METHODS[name].default_parameters, "n_iter", 2)
    for name in ("fast", "regions"):
        monkeypatch.setitem(PRESETS, name, replace(PRESETS[name], patches_per_class=200))
    import matplotlib
    from matplotlib import pyplot

    matplotlib.use("Agg")
    yield tmp_path
    pyplot.close("all")


def test_python_page_runs(workplace, capsys):
    pytest.importorskip("pandas")
    namespace: dict = {}
    for block in blocks((ROOT / "docs" / "python.md").read_text("utf-8")):
        exec(block, namespace)
    assert namespace["predictions"].to_frame().shape[0] == 2
    assert "patient03_1.jpg" in capsys.readouterr().out


def test_readme_example_runs(workplace):
    example, *_ = (b for b in blocks((ROOT / "README.md").read_text("utf-8")) if "fit(" in b)
    namespace: dict = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exec(example, namespace)
    assert namespace["prediction"].label in namespace["model"].classes_
    assert Path("model.histodict").is_file()
