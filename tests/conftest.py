from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from histodict.execution import local
from histodict.images import slide_process

# Files that take longest, by half a minute and more: they come first, so that no process is left
# with one of them when the others have ended. The first two compile different kernels, and the
# third none, so that nothing is compiled twice at a time.
LONGEST = (
    "data/test_same_answers.py",
    "attacks/test_smoke.py",
    "images/test_slide_process.py",
    "execution/test_cluster.py",
    "test_sklearn_contract.py",
    "test_first_hour.py",
    "paper/test_paper_quick.py",
    "web/test_jobs.py",
    "web/test_browser_draw.py",
    "web/test_browser_honest.py",
    "web/test_browser.py",
    "paper/test_paper.py",
    "web/test_browser_maps.py",
    "attacks/test_chaos.py",
)
N_SLOWEST = 40


def pytest_configure(config):
    """Beside other processes of tests each has a core: more threads and processes, which tests that
    mean them ask for, would only wait for each other, and first import everything once more.
    """
    if hasattr(config, "workerinput"):
        local.available_cores = lambda: 1


def pytest_collection_modifyitems(items):
    places = {name: place for place, name in enumerate(LONGEST)}
    tests = Path(__file__).parent
    items.sort(key=lambda item: places.get(_name(tests, item.path), len(LONGEST)))


def _name(tests: Path, path: Path) -> str:
    return path.relative_to(tests).as_posix() if path.is_relative_to(tests) else ""


def pytest_terminal_summary(terminalreporter):
    """The files that took longest, if there are many: those that belong into LONGEST."""
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
