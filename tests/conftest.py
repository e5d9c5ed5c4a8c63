from __future__ import annotations

import os
from collections import Counter
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from histodict.images import slide_reader as slide_process
from histodict.utils import parallel as local
from tests.slow_files import place_of

if TYPE_CHECKING:
    from tests.small_models import SmallModels

N_SLOWEST = 40


def pytest_configure(config):
    """With several test processes each has one core: further threads and processes would only wait
    for each other, and import everything again."""
    if hasattr(config, "workerinput"):
        local.available_cores = lambda: 1
        if hasattr(os, "nice"):
            os.nice(19)  # the priority of jobs of the web server: all processes share the cores


def pytest_collection_modifyitems(config, items):
    items.sort(key=lambda item: place_of(_name(item.path)))


@cache
def _name(path: Path) -> str:
    tests = Path(__file__).parent
    return path.relative_to(tests).as_posix() if path.is_relative_to(tests) else ""


def pytest_terminal_summary(terminalreporter):
    """Report the slowest files, which belong into `slow_files`."""
    seconds: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if hasattr(report, "duration"):
                seconds[report.nodeid.partition("::")[0]] += report.duration
    if len(seconds) > N_SLOWEST:
        terminalreporter.section("slowest files")
        for name, spent in seconds.most_common(N_SLOWEST):
            terminalreporter.write_line(f"{spent:6.1f} s  {name}")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture(scope="session")
def small_models(tmp_path_factory) -> SmallModels:
    """Model files of every kind, trained at first use."""
    from tests.small_models import SmallModels

    return SmallModels(tmp_path_factory.mktemp("small-models"))


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Real tissue images; tests that need them are skipped without them."""
    folder = os.environ.get("HISTODICT_DATA")
    if not folder:
        pytest.skip("HISTODICT_DATA is not set: no real tissue images here")
    return Path(folder)


@pytest.fixture
def slide_library(tmp_path, monkeypatch):
    """Return a function that replaces the module openslide for slides opened afterwards."""

    def replace(source):
        slide_process.end_idle_processes()
        folder = tmp_path / "library"
        folder.mkdir(exist_ok=True)
        (folder / "openslide.py").write_text(source)
        monkeypatch.syspath_prepend(folder)

    yield replace
    slide_process.end_idle_processes()
