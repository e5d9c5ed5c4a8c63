"""Tests of the setting that allows files with missing chunks, also on cluster workers."""

from __future__ import annotations

import warnings

import pytest

from histodict.utils.dask_executor import _with_local_settings
from histodict.utils.missing_chunks import (
    allow_missing_chunks,
    check_missing_chunks,
    missing_chunks_allowed,
)
from histodict.utils.validation import hint_interface, hints_for


def test_outermost_block_decides():
    assert not missing_chunks_allowed()
    with allow_missing_chunks():
        with allow_missing_chunks(), allow_missing_chunks(False):
            assert missing_chunks_allowed()
        assert missing_chunks_allowed()
    assert not missing_chunks_allowed()


@pytest.mark.parametrize("allow", [True, False])
def test_workers_get_the_settings_of_the_sender(allow):
    with hints_for("python"):
        reported = _with_local_settings(
            allow, "cli", lambda item: (missing_chunks_allowed(), hint_interface()), 3
        )
    assert reported == (allow, "cli")
    assert not missing_chunks_allowed()


def test_missing_chunks_are_warned_of_once_or_refused():
    assert check_missing_chunks("a", 0, 9) == ""
    assert "a: 2 of 9 chunks are missing" in check_missing_chunks("a", 2, 9)
    with allow_missing_chunks(), warnings.catch_warnings(record=True) as reported:
        warnings.simplefilter("always")
        assert {check_missing_chunks(name, 2, 9) for name in "aab"} == {""}
    assert [str(each.message)[0] for each in reported] == ["a", "b"]
