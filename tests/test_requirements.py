"""The oldest versions that are accepted, and those that were tested together."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
LISTS = {"dependencies": PROJECT["dependencies"], **EXTRAS}
TESTED = {
    name.lower(): version
    for name, _, version in (
        line.partition("==") for line in (ROOT / "constraints.txt").read_text().splitlines()
    )
}


@pytest.mark.parametrize("of", LISTS)
def test_what_was_tested_is_accepted(of):
    for text in LISTS[of]:
        needed = Requirement(text)
        version = TESTED.get(needed.name.lower())
        assert version is None or needed.specifier.contains(version), f"{text}: tested {version}"


def test_a_package_has_one_lower_bound():
    bounds: dict[str, set[str]] = {}
    for text in [text for contents in LISTS.values() for text in contents]:
        needed = Requirement(text)
        bounds.setdefault(needed.name.lower(), set()).add(str(needed.specifier))
    assert {name: found for name, found in bounds.items() if len(found) > 1} == {}


def test_badges_are_true_and_fetch_nothing():
    badges = {path.stem: path.read_text("utf-8") for path in (ROOT / "docs/badges").glob("*.svg")}
    if not badges:
        pytest.skip("the pages are not here")
    version = PROJECT["requires-python"].removeprefix(">=")
    assert f">{version} or newer<" in badges["python"]
    assert f">{PROJECT['license']}<" in badges["licence"]
    assert (ROOT / "src/histodict/py.typed").is_file() and ">mypy --strict<" in badges["types"]
    assert "mypy --strict" in (ROOT / "Makefile").read_text("utf-8")
    readme = (ROOT / "README.md").read_text("utf-8")
    shown = set(re.findall(r"!\[[^\]]*\]\(([^)]+)\)", readme))
    assert {f"docs/badges/{name}.svg" for name in badges} <= shown
    assert not [link for link in shown if "//" in link]
