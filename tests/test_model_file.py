"""Models on disk: nothing is lost, nothing foreign is taken, and files of before still answer."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from histodict.model_content import ARRAYS
from histodict.model_file import SCHEMA, ModelFileError, read_content, read_header
from histodict.old_model_files import UPGRADES
from histodict.pipeline import Panel, RegionDetector, TissueClassifier, load_model, save_model

FOLDER = Path(__file__).parent / "data" / "models"
ANSWERS = json.loads((FOLDER / "answers.json").read_text())
KINDS = {"calibrated": Panel, "panel": Panel, "regions": RegionDetector}


def file_of(name):
    if name == "embeddings":
        pytest.importorskip("torch", reason="learned vectors need PyTorch")
    return FOLDER / f"schema-4-{name}.histodict"


@pytest.mark.parametrize("name", sorted(ANSWERS))
def test_files_of_schema_4_give_the_answers_they_gave(name, tmp_path):
    model = load_model(file_of(name))
    assert type(model) is KINDS.get(name, TissueClassifier)
    again = load_model(save_model(model, tmp_path / "m.histodict"))
    for image, said in ANSWERS[name].items():
        for one in (model, again):
            answer = one.answer(FOLDER / "images" / image, mpp=0.5)
            assert (answer.label, answer.n_patches) == (said["label"], said["n_patches"])
            # Another processor rounds otherwise.
            assert answer.score == pytest.approx(said["score"], rel=1e-4, abs=1e-5)
            for key in ("probabilities", "threshold"):
                if key in said:
                    assert getattr(answer, key) == pytest.approx(said[key], rel=1e-4)
            if "candidates" in said:
                assert answer.candidates == said["candidates"]
            if "winners" in said:
                closest, _ = one.model_.judge(FOLDER / "images" / image, 0.5)
                assert (closest.winners == np.array(said["winners"])).mean() > 0.98


RECORDS = {path.stem: json.loads(path.read_text("utf-8")) for path in FOLDER.glob("schema-*.json")}
RECORDED = sorted((schema, kind) for schema, kinds in RECORDS.items() for kind in kinds)


@pytest.mark.parametrize(("schema", "kind"), RECORDED)
def test_files_of_every_schema_give_the_answers_they_gave(schema, kind, tmp_path):
    """Files of their time (tests/data/keep_models.py); answers with today's tissue detection."""
    said = RECORDS[schema][kind]
    model = load_model(FOLDER / f"{schema}-{kind}.histodict")
    again = load_model(save_model(model, tmp_path / "m.histodict"))
    assert type(model) is type(again) is KINDS.get(kind, TissueClassifier)
    for one, image in product((model, again), said):
        answer = one.answer(FOLDER / "images" / image, mpp=0.5)
        for name, value in said[image].items():
            exact = name in ("label", "candidates")
            expected = value if exact else pytest.approx(value, rel=1e-4, abs=1e-5)
            assert getattr(answer, name) == expected, name


def test_every_schema_that_is_read_has_a_file():
    found = {int(path.stem.split("-")[1]) for path in FOLDER.glob("schema-*.histodict")}
    assert found == {*UPGRADES, SCHEMA}, "keep some: python -m tests.data.keep_models"


@pytest.mark.parametrize("schema", range(min(UPGRADES)))
def test_schemas_of_before_are_refused_by_name(schema, tmp_path):
    path = tmp_path / "old.histodict"
    versions = {"histodict": "0.0.1"}
    header = json.dumps({"schema": schema, "versions": versions})
    save_file({"x": np.zeros(3)}, path, {"histodict": header})
    with pytest.raises(ModelFileError, match=rf"schema {schema}, .*reads 4 to {SCHEMA}.*0\.0\.1"):
        load_model(path)


def test_a_panel_of_schema_8_gives_the_answers_it_gave(tmp_path):
    """Its members have unequal weights, and what they say was not bounded."""
    model = load_model(FOLDER / "schema-8-panel.histodict")
    again = load_model(save_model(model, tmp_path / "m.histodict"))
    assert model.combination_.bend == again.combination_.bend == 0
    for name, score, chance in (
        ("patient06_1.jpg", 0.37345514034303245, 0.6217002227186663),
        ("patient06_2.jpg", -0.7630723496118706, 0.26599632755783964),
    ):
        for one in (model, again):
            answer = one.answer(FOLDER / "images" / name, mpp=0.5)
            assert answer.score == pytest.approx(score, rel=1e-4)
            assert answer.probabilities["inflamed"] == pytest.approx(chance, rel=1e-4)


def test_what_is_said_of_a_model_of_schema_4_is_said_in_today_s_words(tmp_path):
    header = read_header(file_of("panel"))
    assert header["kind"] == "panel" and len(header["members"]) == 7
    assert header["training"]["folds"] == 2 and "panel" not in header["recipe"]
    adapted = read_header(file_of("adapted"))
    assert adapted["kind"] == "tissue-classifier" and adapted["decision"]["shift"] != 0
    for name in sorted(ANSWERS):
        content = read_content(file_of(name)) if name != "embeddings" else None
        for array in content.arrays if content else ():
            known = array in ARRAYS or array.startswith(("method.", "rule."))
            assert known, f"{array} is not in the schema"


def test_a_model_file_is_whole_or_not_there(tmp_path):
    model = load_model(file_of("dfdl"))
    path = save_model(model, tmp_path / "größe.histodict")
    assert [p.name for p in tmp_path.iterdir()] == ["größe.histodict"]
    assert read_header(path)["schema"] == SCHEMA
    with pytest.raises(ModelFileError, match="does not exist"):
        save_model(model, tmp_path / "nowhere" / "model.histodict")


def test_damaged_foreign_and_newer_files_are_told_apart(tmp_path):
    path = save_model(load_model(file_of("dfdl")), tmp_path / "model.histodict")
    cut = tmp_path / "cut.histodict"
    cut.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    text = tmp_path / "text.histodict"
    text.write_text("not a model")
    foreign = tmp_path / "foreign.histodict"
    save_file({"x": np.zeros(3)}, foreign)
    newer = tmp_path / "newer.histodict"
    save_file({"x": np.zeros(3)}, newer, {"histodict": json.dumps({"schema": 99})})
    lacking = tmp_path / "lacking.histodict"
    save_file({"x": np.zeros(3)}, lacking, {"histodict": json.dumps({"schema": SCHEMA})})
    old = tmp_path / "old.histodict"
    save_file({"x": np.zeros(3)}, old, {"histodict": json.dumps({"schema": 4})})
    for file, message in (
        (tmp_path / "none.histodict", "no such file"),
        (cut, "damaged"),
        (text, "not a histodict model"),
        (foreign, "another program"),
        (newer, "schema 99"),
        (lacking, "damaged"),
        (old, "damaged"),
    ):
        with pytest.raises(ModelFileError, match=message):
            load_model(file)
