"""The oldest versions that are accepted, and those that were tested together."""

from __future__ import annotations

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
    for text in [text for texts in LISTS.values() for text in texts]:
        needed = Requirement(text)
        bounds.setdefault(needed.name.lower(), set()).add(str(needed.specifier))
    assert {name: found for name, found in bounds.items() if len(found) > 1} == {}
