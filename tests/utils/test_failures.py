"""Tests of failure messages: expected errors keep their text, defects get type and place."""

from __future__ import annotations

from concurrent.futures import BrokenExecutor
from concurrent.futures.process import BrokenProcessPool

import pytest

from histodict.utils.text_io import failure_reason, parse_json


def reason_of(step):
    try:
        step()
    except Exception as error:
        return failure_reason(error)
    raise AssertionError("no error")


def test_expected_error_keeps_its_message():
    assert failure_reason(ValueError("a.png: is no image")) == "a.png: is no image"
    assert failure_reason(OSError()) == "OSError"


def test_defect_is_reported_with_type_and_place_in_one_line():
    # a TypeError raised by json, called from text_io.py
    output = reason_of(lambda: parse_json(None))
    assert output.startswith("unexpected TypeError: the JSON object must be str")
    assert "utils/text_io.py:" in output and "(parse_json)" in output
    assert "json/__init__.py:" in output and "\n" not in output


def test_memory_error_is_reported():
    output = failure_reason(MemoryError("Unable to allocate 2 GiB"))
    assert "not enough memory" in output and "Unable to allocate 2 GiB" in output


def test_broken_process_pool_is_raised():
    with pytest.raises(BrokenExecutor):
        failure_reason(BrokenProcessPool("killed"))
