"""A small synthetic set and a model of it, for tests of bad and unusual files."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from PIL import Image

from histodict.synthetic.dataset import write_synthetic_dataset
from tests.cli.commands import SIZE, train


@pytest.fixture(scope="session")
def tissue(tmp_path_factory):
    return write_synthetic_dataset(tmp_path_factory.mktemp("set") / "tissue", 4, 4, size=SIZE)


@pytest.fixture(scope="session")
def model(tissue, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tissue.histodict"
    outcome = train(tissue / "manifest.csv", path)
    assert outcome.status == 0, outcome.message
    return path


@pytest.fixture(scope="session")
def good(tissue):
    return tissue / "inflamed" / "patient01_2.jpg"


@pytest.fixture(scope="session")
def pixels(good):
    return np.asarray(Image.open(good))


@pytest.fixture
def classes(tissue, tmp_path):
    """A copy of the training folders, to add files to."""
    for name in ("healthy", "inflamed"):
        shutil.copytree(tissue / name, tmp_path / "classes" / name)
    return tmp_path / "classes"
