from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest


@pytest.fixture
def dictol(monkeypatch) -> Iterator[ModuleType]:
    """The DICTOL toolbox, an independent implementation; tests that need it are skipped without
    it."""
    package = pytest.importorskip("dictol")
    # It locates its demonstration data with a module that newer setuptools do not include.
    monkeypatch.setitem(sys.modules, "pkg_resources", ModuleType("pkg_resources"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escape sequences
        import dictol.LRSDL
        import dictol.ODL
        import dictol.SRC

    # Its own version uses a NumPy function that NumPy 2 removed.
    monkeypatch.setattr(dictol.SRC.utils, "vec", np.ravel)
    state = np.random.get_state()  # it uses the global generator of NumPy
    np.random.seed(0)
    yield package
    np.random.set_state(state)
