"""`info`: what a model file says of itself."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from histodict.cli import app
from histodict.models.model_file import read_header, serialize
from histodict.reports.model_card import describe_members, describe_model
from tests.small_models import TRAIN

# Of models of every kind: what has to be said of them, and what must not.
SAID = {
    "dfdl": (["tells apart healthy, inflamed", "12 images of 6 patients", "Patches"], ["Adapted"]),
    "panel": (["by an ensemble of 3", "These decide together", "stain=none"], ["candidates"]),
    "calibrated": (["Calibrated; how good", "  as above"], ["decide together"]),
    "regions": (["region-detector", "finds regions of inflamed", "connected patches"], ["apart"]),
    "textures": (["lbp-colour", "from the image as a whole"], ["Patches"]),
    "adapted": (["adapted without labels, scores moved by"], []),
    "continued": (["going on from the dictionaries of another model"], []),
    "surroundings": (["times as wide surroundings"], []),
    "three": (["tells apart healthy, inflamed 0, inflamed 1"], []),
}


@pytest.mark.parametrize("name", SAID)
def test_info_says_what_a_model_is(small_models, name):
    run = CliRunner().invoke(app, ["info", str(small_models.path(name))])
    assert run.exit_code == 0, run.output
    text, others = SAID[name]
    assert [word for word in text if word not in run.output] == []
    assert [word for word in others if word in run.output] == []


def test_info_for_programs_is_the_header(small_models):
    file = small_models.path("panel")
    run = CliRunner().invoke(app, ["info", str(file), "--json"])
    assert json.loads(run.output) == read_header(file)


@pytest.mark.parametrize("name", TRAIN)
def test_every_kind_of_model_is_described(small_models, name):
    facts = dict(describe_model(read_header(small_models.path(name))))
    assert {"Kind", "What it does", "Learnt from", "Method", "Decision", "Seed"} <= set(facts)
    assert all(facts.values())


def test_a_view_that_was_left_out_says_why(small_models):
    header = read_header(small_models.path("panel"))
    header["training_info"]["estimators"][2] |= {"unseen": None, "failure": "too small"}
    members = describe_members(header)
    assert len(members) == 3
    assert members[2][0] == "-----" and members[2][1].endswith("; left out: too small")


def test_a_network_that_is_not_known_here_is_said_in_a_line(small_models, tmp_path):
    """Such as one that another program registered."""
    file = tmp_path / "m.histodict"
    header = read_header(small_models.path("dfdl"))
    header["recipe"]["features"] = "mine"
    file.write_bytes(serialize(header, {"x": np.zeros(1)}))
    run = CliRunner().invoke(app, ["info", str(file)])
    assert run.exit_code == 2 and "features must be one of" in run.output
    assert CliRunner().invoke(app, ["info", str(file), "--json"]).exit_code == 0
