from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest


@pytest.fixture
def dictol(monkeypatch) -> Iterator[ModuleType]:
    """The DICTOL toolbox, an independent implementation; tests that want it are skipped without."""
    package = pytest.importorskip("dictol")
    # It looks for its demonstration data through a module that newer setuptools no longer bring.
    monkeypatch.setitem(sys.modules, "pkg_resources", ModuleType("pkg_resources"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # strings of an older Python
        import dictol.LRSDL
        import dictol.ODL
        import dictol.SRC

    # Its own asks numpy what numpy 2 refuses.
    monkeypatch.setattr(dictol.SRC.utils, "vec", np.ravel)
    state = np.random.get_state()  # it draws from numpy's global generator
    np.random.seed(0)
    yield package
    np.random.set_state(state)
