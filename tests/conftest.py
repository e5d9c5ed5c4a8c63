from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest


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
