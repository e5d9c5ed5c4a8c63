"""Models, predictions and files are bit for bit as recorded.

If a change is meant to change results, record them again, with the reason in the commit: `python -m
tests.data.record tests/data/predictions-x86.json`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.data.record import command_cases, draw, model_cases, processor

RECORDED = json.loads((Path(__file__).parent / "predictions-x86.json").read_text())


@pytest.fixture(scope="module")
def tissue(tmp_path_factory):
    pytest.importorskip("torch", reason="learned vectors need PyTorch")
    if processor() != RECORDED["processor"]:
        pytest.skip(f"recorded on {RECORDED['processor']}; this is {processor()}")
    return draw(tmp_path_factory.mktemp("same").resolve())


def test_models_and_predictions_are_as_recorded(tissue):
    found = model_cases(tissue)
    assert {k: found.get(k) for k in RECORDED["models"]} == RECORDED["models"]


def test_files_of_the_command_line_are_as_recorded(tissue):
    found = command_cases(tissue.parent, tissue)
    assert {k: found.get(k) for k in RECORDED["commands"]} == RECORDED["commands"]
