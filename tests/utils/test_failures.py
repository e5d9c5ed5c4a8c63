"""Reasons of failed items: expected errors in their own words, defects with type and place."""

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


def test_an_expected_error_has_its_own_words():
    assert failure_reason(ValueError("a.png: is no image")) == "a.png: is no image"
    assert failure_reason(OSError()) == "OSError"


def test_of_a_defect_type_and_place_are_told_in_one_line():
    output = reason_of(lambda: parse_json(None))  # a TypeError of json, called by text_io.py
    assert output.startswith("unexpected TypeError: the JSON object must be str")
    assert "utils/text_io.py:" in output and "(parse_json)" in output
    assert "json/__init__.py:" in output and "\n" not in output


def test_too_little_memory_is_told():
    output = failure_reason(MemoryError("Unable to allocate 2 GiB"))
    assert "not enough memory" in output and "Unable to allocate 2 GiB" in output


def test_the_end_of_all_processes_is_no_error_of_an_item():
    with pytest.raises(BrokenExecutor):
        failure_reason(BrokenProcessPool("killed"))
