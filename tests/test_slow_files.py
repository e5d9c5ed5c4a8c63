"""Tests of the order of slow test files."""

from __future__ import annotations

from pathlib import Path

from tests.slow_files import SLOW, place_of


def test_slow_files_exist_and_are_listed_once():
    folder = Path(__file__).parent
    assert len(set(SLOW)) == len(SLOW)
    assert [name for name in SLOW if not (folder / name).is_file()] == []
    assert [place_of(name) for name in SLOW] == list(range(len(SLOW)))
    assert place_of("test_hints.py") == len(SLOW)
