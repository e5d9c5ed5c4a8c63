"""`info`: what a model file says of itself."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

from histodict.cli import app
from histodict.model_file import read_header
from histodict.reports.model_card import describe_members, describe_model

MODELS = Path(__file__).parents[1] / "data" / "models"


def model(name):
    return MODELS / f"schema-4-{name}.histodict"


# Of models of every kind: what has to be said of them, and what must not.
SAID = {
    "dfdl": (["tells apart healthy, inflamed", "12 images of 6 patients", "Patches"], ["Adapted"]),
    "panel": (["by a panel of 7", "These decide together", "stain=macenko"], ["candidates"]),
    "calibrated": (["Calibrated; how good", "0.708  as above"], ["decide together"]),
    "regions": (
        ["region-detector", "finds regions of inflamed", "every patch that is found counts"],
        ["apart"],
    ),
    "textures": (["lbp-colour", "from the image as a whole"], ["Patches"]),
    "adapted": (["adapted without labels, scores moved by"], []),
    "continued": (["going on from the dictionaries of another model"], []),
    "surroundings": (["times as wide surroundings"], []),
    "three": (["tells apart healthy, inflamed 0, inflamed 1"], []),
}


@pytest.mark.parametrize("name", SAID)
def test_info_says_what_a_model_is(name):
    run = CliRunner().invoke(app, ["info", str(model(name))])
    assert run.exit_code == 0, run.output
    words, others = SAID[name]
    assert [word for word in words if word not in run.output] == []
    assert [word for word in others if word in run.output] == []


def test_info_for_programs_is_the_header():
    run = CliRunner().invoke(app, ["info", str(model("panel")), "--json"])
    assert json.loads(run.output) == read_header(model("panel"))


def test_every_kind_of_model_is_described():
    for path in MODELS.glob("*.histodict"):
        facts = dict(describe_model(read_header(path)))
        assert {"Kind", "What it does", "Learnt from", "Method", "Decision", "Seed"} <= set(facts)
        assert all(facts.values())


def test_a_view_that_was_left_out_says_why():
    header = read_header(model("panel"))
    header["training"]["members"][2] |= {"unseen": None, "failure": "too small"}
    members = describe_members(header)
    assert len(members) == 7
    assert members[2] == ("-----", "patch_px=20, penalty=0.2; left out: too small")


def test_a_network_that_is_not_known_here_is_said_in_a_line(tmp_path):
    """Such as one that another program registered."""
    file = tmp_path / "m.histodict"
    whole = read_header(MODELS / "schema-4-dfdl.histodict")
    whole["recipe"]["vectors"] = "mine"
    save_file({"x": np.zeros(1)}, file, {"histodict": json.dumps(whole | {"schema": 5})})
    run = CliRunner().invoke(app, ["info", str(file)])
    assert run.exit_code == 2 and "vectors must be one of" in run.output
    assert CliRunner().invoke(app, ["info", str(file), "--json"]).exit_code == 0
