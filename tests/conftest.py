from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from histodict.images import slide_process


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Real tissue images; tests that want them are skipped where there are none."""
    folder = os.environ.get("HISTODICT_DATA")
    if not folder:
        pytest.skip("HISTODICT_DATA is not set: no real tissue images here")
    return Path(folder)


@pytest.fixture
def slide_library(tmp_path, monkeypatch):
    """Puts another module in the place of openslide, for slides opened from then on."""

    def replace(source):
        slide_process.end_idle()
        folder = tmp_path / "library"
        folder.mkdir(exist_ok=True)
        (folder / "openslide.py").write_text(source)
        monkeypatch.syspath_prepend(folder)

    yield replace
    slide_process.end_idle()
