"""Tests of the accepted and the tested versions of dependencies."""

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
def test_tested_versions_are_accepted(of):
    for text in LISTS[of]:
        needed = Requirement(text)
        version = TESTED.get(needed.name.lower())
        assert version is None or needed.specifier.contains(version), f"{text}: tested {version}"


def test_package_has_one_lower_bound():
    bounds: dict[str, set[str]] = {}
    for text in [text for contents in LISTS.values() for text in contents]:
        needed = Requirement(text)
        bounds.setdefault(needed.name.lower(), set()).add(str(needed.specifier))
    assert {name: found for name, found in bounds.items() if len(found) > 1} == {}


def test_badges_are_correct_and_self_contained():
    badges = {path.stem: path.read_text("utf-8") for path in (ROOT / "docs/badges").glob("*.svg")}
    if not badges:
        pytest.skip("the pages are not here")
    version = PROJECT["requires-python"].removeprefix(">=")
    assert f">{version} or newer<" in badges["python"]
    assert f">{PROJECT['license']}<" in badges["licence"]
    assert (ROOT / "src/histodict/py.typed").is_file() and ">mypy --strict<" in badges["types"]
    assert "mypy --strict" in (ROOT / "Makefile").read_text("utf-8")
    readme = (ROOT / "README.md").read_text("utf-8")
    label = set(re.findall(r"!\[[^\]]*\]\(([^)]+)\)", readme))
    assert {f"docs/badges/{name}.svg" for name in badges} <= label
    assert not [link for link in label if "//" in link]
