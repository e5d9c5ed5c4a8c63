"""Tests of all methods: parameters, documented defaults, progress, and classes of atoms."""

from __future__ import annotations

import ast
import re
from inspect import getdoc, signature

import numpy as np
import pytest

from histodict.methods.registry import METHODS, get_method
from tests.problems import unit_rows

SMALL = {"n_atoms": 6, "n_iter": 2, "n_nonzero": 3, "n_epochs": 1, "n_channels": 1}
# Section III of Vu 2016: k = 500 bases per class, λ = 0.1, ρ = 0.001, L = 30 and 50 iterations. The
# dictionary of Nayak is common to both classes.
PAPER = {
    "dfdl": {"n_atoms": 500, "penalty": 0.1, "rho": 0.001, "n_iter": 50, "step": "published"},
    "odl": {"n_atoms": 500, "penalty": 0.1},
    "lcksvd": {"n_atoms": 500, "n_nonzero": 30, "n_iter": 50, "penalty": 0.1},
    "fddl": {"n_atoms": 500, "penalty": 0.1},
    "nayak": {"n_atoms": 2 * 500, "penalty": 0.1},
}


@pytest.mark.parametrize("name", PAPER)
def test_paper_parameters_are_those_of_the_paper(name):
    entry = get_method(name)
    parameters = entry.load_class()(**entry.paper_parameters).get_params()
    assert {key: parameters[key] for key in PAPER[name]} == PAPER[name]


@pytest.mark.parametrize("path", sorted({entry.import_path for entry in METHODS.values()}))
def test_defaults_are_the_documented_ones(path):
    (method, *_) = (e.load_class() for e in METHODS.values() if e.import_path == path)
    text = getdoc(method).partition("Attributes\n")[0]
    documented = {
        name: ast.literal_eval(value)
        for name, value in re.findall(r"^(\w+) : .*, default=(.+)$", text, re.MULTILINE)
    }
    assert documented == {
        name: parameter.default for name, parameter in signature(method).parameters.items()
    }


@pytest.mark.parametrize("name", METHODS)
def test_progress_ends_with_all_steps_and_class_atoms_belong_to_classes(rng, name):
    entry, y, steps = get_method(name), np.arange(60) % 3, {}
    X = unit_rows(rng.random((60, 8)) + np.eye(8)[y])
    known = entry.load_class()().get_params()
    parameters = {key: value for key, value in SMALL.items() if key in known}
    model = entry.make_estimator(parameters, random_state=0, n_jobs=1)
    model.fit(X, y, callback=lambda p: steps.setdefault(p.stage, []).append((p.done, p.total)))
    assert "train" in steps
    for reported in steps.values():
        done, totals = zip(*reported, strict=True)
        assert set(totals) == {done[-1]} and min(done) >= 0 and sorted(done) == list(done)
    if not entry.is_patch_level:
        return
    if model.has_class_atoms:
        D, classes = model.labelled_atoms()
        assert D.shape == (len(classes), 8) and set(classes) == {0, 1, 2}
    else:
        with pytest.raises(NotImplementedError):
            model.labelled_atoms()
