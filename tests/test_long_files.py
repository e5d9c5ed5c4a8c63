"""Tests of the shares of slow test files: they are disjoint and complete."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.long_files import ALWAYS, LONG, left_out, place_of

TESTS = Path(__file__).parent


def test_files_exist_and_are_listed_once():
    named = ALWAYS + LONG
    assert len(set(named)) == len(named)
    assert [name for name in named if not (TESTS / name).is_file()] == []
    assert [place_of(name) for name in named] == list(range(len(named)))


@pytest.mark.parametrize("n_shares", [1, 2, 3, 4])
def test_every_long_file_is_in_one_share(n_shares):
    run = [set(LONG) - left_out(f"{k}/{n_shares}") for k in range(1, n_shares + 1)]
    assert set.union(*run) == set(LONG)
    assert sum(map(len, run)) == len(LONG)
    assert not set(ALWAYS) & left_out(f"1/{n_shares}")


@pytest.mark.parametrize("share", ["", "2", "0/3", "4/3", "a/b", "1/0", "-1/3"])
def test_invalid_share_is_refused(share):
    with pytest.raises(ValueError, match="such as 2/3"):
        left_out(share)


def test_skipped_files_are_reported():
    files = [f"tests/{LONG[place]}" for place in (-3, -2, -1)]
    arguments = ["--collect-only", "-q", "-p", "no:cacheprovider", "--share", "2/3"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments, *files, "tests/test_long_files.py"],
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    collected = {line.partition("::")[0] for line in run.stdout.splitlines() if "::" in line}
    assert collected == {files[LONG[-3:].index(LONG[1::3][-1])], "tests/test_long_files.py"}
    assert "deselected" in run.stdout
