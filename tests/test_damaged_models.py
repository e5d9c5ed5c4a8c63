"""A changed model file gives no prediction: checks of the digest, the schema and the scores."""

from __future__ import annotations

import hashlib
import json
import shutil

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file
from typer.testing import CliRunner

from histodict.cli import app
from histodict.decision.aggregation import ScoreError
from histodict.models import load_model, save_model
from histodict.models.model_file import ModelFileError, read_header, serialize

KINDS = ("dfdl", "three", "regions", "ensemble", "calibrated", "lcksvd", "textures", "components")


@pytest.fixture
def saved(small_models):
    """Model files of several kinds, by name."""
    return {name: small_models.path(name) for name in KINDS}


@pytest.fixture
def image(small_models):
    return small_models.images[0]


def opened(path):
    with safe_open(path, framework="numpy") as file:
        header = json.loads(file.metadata()["histodict"])
        header.pop("sha256", None)
        names = file.keys()
        return header, {name: file.get_tensor(name) for name in names}


def resealed(path, header, arrays):
    """Write a file with a valid digest, so that only the schema can detect changes."""
    path.write_bytes(serialize(header, arrays))
    return path


# --- the digest ---------------------------------------------------------------------------------


def test_every_flipped_bit_is_detected(saved, tmp_path, rng):
    content = saved["dfdl"].read_bytes()
    path = tmp_path / "m.histodict"
    for place in rng.choice(8 * len(content), 150, replace=False):
        data = bytearray(content)
        data[place // 8] ^= 1 << (place % 8)
        path.write_bytes(data)
        if data[place // 8] in b"eE" and content[place // 8] in b"eE":  # 1e-5 is 1E-5
            continue
        for read in (load_model, read_header):
            with pytest.raises(ModelFileError, match=r"m\.histodict: "):
                read(path)


def test_file_without_a_digest_is_refused(saved, tmp_path):
    header, arrays = opened(saved["dfdl"])
    path = tmp_path / "m.histodict"
    save_file(arrays, path, {"histodict": json.dumps(header)})
    with pytest.raises(ModelFileError, match="digest"):
        load_model(path)


# --- the schema ---------------------------------------------------------------------------------


def nan(arrays):
    arrays["method.dictionaries_"][0, 0, 0] = np.nan


def many(arrays):
    arrays["method.dictionaries_"] = np.tile(arrays["method.dictionaries_"], (1000, 1, 1))


def scaled(arrays):
    arrays["method.dictionaries_"] = arrays["method.dictionaries_"] * np.float32(2)


def transposed(arrays):
    arrays["method.dictionaries_"] = arrays["method.dictionaries_"].transpose(0, 2, 1).copy()


def integers(arrays):
    arrays["method.dictionaries_"] = arrays["method.dictionaries_"].astype(np.int64)


def removed(arrays):
    del arrays["rule.bias"]


def added(arrays):
    arrays["method.more"] = np.zeros(3)


def owned_by_no_class(arrays):
    arrays["member7.method.dictionaries_"] = arrays["method.dictionaries_"]


def wider_rule(arrays):
    arrays["rule.weights"] = np.ones((1, 13))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (nan, "method.dictionaries_"),
        (many, r"method.dictionaries_.*\(2000, 6, 192\)"),
        (scaled, "method.dictionaries_.*unit"),
        (transposed, "method.dictionaries_"),
        (integers, "method.dictionaries_"),
        (removed, "rule.bias"),
        (added, "method.more"),
        (owned_by_no_class, "member7"),
        (wider_rule, "rule.weights"),
    ],
)
def test_arrays_that_violate_the_schema_are_refused(saved, tmp_path, damage, message):
    header, arrays = opened(saved["dfdl"])
    damage(arrays)
    path = resealed(tmp_path / "m.histodict", header, arrays)
    with pytest.raises(ModelFileError, match=rf"m\.histodict: .*{message}"):
        load_model(path)


def test_single_nan_in_any_array_is_refused(saved, tmp_path):
    for name in KINDS[1:]:
        header, arrays = opened(saved[name])
        for key, array in arrays.items():
            if array.dtype.kind == "f":
                hurt = array.copy()
                hurt.flat[-1] = np.inf
                path = resealed(tmp_path / "m.histodict", header, arrays | {key: hurt})
                with pytest.raises(ModelFileError, match=key.split(".", 1)[-1]):
                    load_model(path)


def deep(n):
    value = []
    for _ in range(n):
        value = [value]
    return value


@pytest.mark.parametrize(
    "change",
    [
        {"schema": [1]},
        {"schema": True},
        {"schema": 1.0},
        {"kind": "magic"},
        {"kind": ["ensemble"]},
        {"classes": ["one"]},
        {"classes": ["same", "same"]},
        {"classes": ["", "other"]},
        {"classes": [1, 2]},
        {"classes": "ab"},
        {"classes": ["a", "b", "c"]},
        {"recipe": []},
        {"recipe": None},
        {"recipe": {"patch_px": "8"}},
        {"recipe": {"method": []}},
        {"mpp": "x"},
        {"mpp": -1.0},
        {"n_features": 191},
        {"n_features": 1e30},
        {"n_features": 10**400},
        {"weights": 5},
        {"decision_parameters": {}},
        {"decision_parameters": {"shift": None}},
        {"decision_parameters": {"shift": 1e999}},
        {"decision_parameters": {"shift": 0.0, "min_patches": 2}},
        {"training_info": []},
        {"training_info": {}},
        {"estimators": {}},
        {"estimators": [{}]},
        {"versions": None},
        {"more": 1},
        {"training_info": {"started_from": deep(300)}},
    ],
)
def test_header_that_violates_the_schema_is_refused(saved, tmp_path, change):
    header, arrays = opened(saved["dfdl"])
    path = resealed(tmp_path / "m.histodict", header | change, arrays)
    with pytest.raises(ModelFileError, match=r"m\.histodict: ") as refusal:
        load_model(path)
    assert "\n" not in str(refusal.value) and len(str(refusal.value)) < 400


@pytest.mark.parametrize("text", ["[" * 100_000, "", "null", "[]", '{"schema": 1', "1" * 5000])
def test_header_that_is_no_object_is_refused_in_one_line(saved, tmp_path, text):
    _, arrays = opened(saved["dfdl"])
    path = tmp_path / "m.histodict"
    save_file(arrays, path, {"histodict": text})
    run = CliRunner().invoke(app, ["info", str(path)])
    assert run.exit_code == 2 and not isinstance(run.exception, RecursionError)
    (line,) = run.stderr.splitlines()
    assert "m.histodict" in line


def test_members_of_an_ensemble_must_have_its_classes(saved, tmp_path):
    header, arrays = opened(saved["ensemble"])
    path = tmp_path / "m.histodict"
    for change in (
        {"classes": ["healthy", "other"]},
        {"kind": "region-detector", "decision_parameters": {"min_patches": 1}},
        {"estimators": header["estimators"]},
    ):
        members = [header["estimators"][0] | change, *header["estimators"][1:]]
        with pytest.raises(ModelFileError):
            load_model(resealed(path, header | {"estimators": members}, arrays))
    for change in ({"estimators": []}, {"recipe": header["estimators"][1]["recipe"]}, {"mpp": 9.0}):
        with pytest.raises(ModelFileError):
            load_model(resealed(path, header | change, arrays))


# --- scores -------------------------------------------------------------------------------------


def test_score_that_is_not_finite_is_an_error(saved, image, tmp_path):
    for name, break_ in {
        "textures": lambda m: m.model_.classifier_.intercepts_.fill(np.inf),
        "lcksvd": lambda m: m.model_.classifier_.classifier_.fill(np.nan),
        "dfdl": lambda m: m.model_.aggregator_.bias.fill(np.nan),
        "calibrated": lambda m: m.calibration_.slopes.fill(np.nan),
    }.items():
        model = load_model(saved[name])
        break_(model)
        with pytest.raises(ScoreError, match=image.name):
            model.predict(image)


def test_member_with_nonfinite_scores_does_not_abstain(saved, image):
    model = load_model(saved["ensemble"])
    model.estimators_[1].model_.classifier_.intercepts_.fill(np.nan)
    with pytest.raises(ScoreError, match=image.name):
        model.predict(image)


def test_detector_with_nonfinite_scores_is_an_error(saved, image):
    model = load_model(saved["regions"])
    method = type(model.model_.classifier_)

    def encode(self, X):
        codes, distances = method.encode(self, X)
        return codes, distances * np.nan

    model.model_.classifier_.__class__ = type("Broken", (method,), {"encode": encode})
    with pytest.raises(ScoreError, match=image.name):
        model.predict(image)


def test_predict_continues_after_an_image_without_a_score(saved, image, tmp_path, monkeypatch):
    from histodict.decision.aggregation import LinearAggregator

    real = LinearAggregator.scores
    calls = []

    def scores(self, statistics):
        calls.append(1)
        return real(self, statistics) * (np.nan if len(calls) == 1 else 1)

    monkeypatch.setattr(LinearAggregator, "scores", scores)
    images = [tmp_path / f"{i}.png" for i in range(2)]
    for copied in images:
        shutil.copy(image, copied)
    arguments = ["predict", str(saved["dfdl"]), *map(str, images), "-o", str(tmp_path / "out")]
    run = CliRunner().invoke(app, arguments)
    assert run.exit_code == 1
    (line,) = [line for line in run.stderr.splitlines() if line.startswith("Failed")]
    assert "0.png" in line
    assert len((tmp_path / "out" / "predictions.csv").read_text().splitlines()) == 2


def test_model_with_nan_is_not_saved(saved, tmp_path):
    model = load_model(saved["dfdl"])
    model.model_.classifier_.dictionaries_[0, 0, 0] = np.nan
    with pytest.raises(ValueError, match="dictionaries_"):
        save_model(model, tmp_path / "m.histodict")
    assert not (tmp_path / "m.histodict").exists()


def test_digest_can_be_verified_independently(saved, tmp_path):
    with safe_open(saved["dfdl"], framework="numpy") as file:
        header = json.loads(file.metadata()["histodict"])
        found = header.pop("sha256")
        total = hashlib.sha256(json.dumps(header, sort_keys=True).encode() + b"\n")
        for name in sorted(file.keys()):
            array = file.get_tensor(name)
            description = [name, array.dtype.str, list(array.shape)]
            total.update(json.dumps(description).encode() + b"\n" + array.tobytes())
    assert found == total.hexdigest()


def test_same_model_has_the_same_bytes(saved, tmp_path):
    model = load_model(saved["calibrated"])
    files = [save_model(model, tmp_path / f"{n}.histodict") for n in range(8)]
    assert len({file.read_bytes() for file in files}) == 1
