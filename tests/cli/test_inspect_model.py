"""Tests of `info`, which describes a model file."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from histodict.cli import app
from histodict.models.model_file import read_header, serialize
from histodict.reports.model_card import describe_members, describe_model
from tests.small_models import TRAIN

# For every kind of model: texts that must appear, and texts that must not.
EXPECTED = {
    "dfdl": (
        ["classify images as healthy or inflamed", "12 images of 6 patients", "Patches"],
        ["Adapted"],
    ),
    "ensemble": (["combined from 3 base models", "Base models", "stain=none"], ["candidates"]),
    "calibrated": (["Calibrated model", "  as above"], ["ensemble with"]),
    "regions": (
        ["region-detector", "detect regions of class 'inflamed'", "connected patches"],
        ["classify"],
    ),
    "textures": (["lbp-colour", "from the whole image"], ["Patches"]),
    "adapted": (["adapted without labels to", "all scores by"], []),
    "continued": (["resumed from the dictionaries of another model"], []),
    "surroundings": (["and the area of 16 x 16 pixels around them"], []),
    "three": (["classify images as healthy, inflamed 0 or inflamed 1"], []),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_info_describes_the_model(small_models, name):
    run = CliRunner().invoke(app, ["info", str(small_models.path(name))])
    assert run.exit_code == 0, run.output
    text, others = EXPECTED[name]
    assert [word for word in text if word not in run.output] == []
    assert [word for word in others if word in run.output] == []


def test_json_info_is_the_header(small_models):
    file = small_models.path("ensemble")
    run = CliRunner().invoke(app, ["info", str(file), "--json"])
    assert json.loads(run.output) == read_header(file)


@pytest.mark.parametrize("name", TRAIN)
def test_every_kind_of_model_is_described(small_models, name):
    description = dict(describe_model(read_header(small_models.path(name))))
    assert {"Kind", "Task", "Training data", "Method", "Decision", "Seed"} <= set(description)
    assert all(description.values())


def test_excluded_member_is_listed_with_the_reason(small_models):
    header = read_header(small_models.path("ensemble"))
    header["training_info"]["estimators"][2] |= {"unseen": None, "failure": "too small"}
    members = describe_members(header)
    assert len(members) == 3
    assert [number for number, *_ in members] == ["1", "2", "-"]
    assert members[2][1] == "-----" and members[2][2].endswith("; excluded: too small")


def test_unknown_encoder_is_reported_in_one_line(small_models, tmp_path):
    """For example, one that another program registered."""
    file = tmp_path / "m.histodict"
    header = read_header(small_models.path("dfdl"))
    header["recipe"]["features"] = "mine"
    file.write_bytes(serialize(header, {"x": np.zeros(1)}))
    run = CliRunner().invoke(app, ["info", str(file)])
    assert run.exit_code == 2 and "unknown encoder or features 'mine'" in run.output
    assert CliRunner().invoke(app, ["info", str(file), "--json"]).exit_code == 0
