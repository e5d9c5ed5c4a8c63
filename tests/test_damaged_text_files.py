"""Invalid text files are refused in one line that names the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from histodict.cli import app
from histodict.datasets.manifest import read_manifest
from histodict.model_selection.protocols import k_folds
from histodict.model_selection.splits import _digest, load_splits, save_splits
from histodict.models import Plan
from histodict.utils.dask_executor import _read_settings
from histodict.utils.text_io import parse_json


def refusal(call, *message):
    with pytest.raises(ValueError) as found:
        call(*message)
    assert "\n" not in str(found.value)
    return str(found.value)


@pytest.mark.parametrize("text", ["[" * 10**5, "[" * 60 + "]" * 60, "NaN", '{"a": -Infinity}', "{"])
def test_invalid_json_is_a_value_error(text):
    refusal(parse_json, text)
    assert parse_json('[{"a": [1, "x", null]}]') == [{"a": [1, "x", None]}]


# --- recipes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"method": []},
        {"method_parameters": None},
        {"method_parameters": {"n_atoms": []}},
        {"method_parameters": {"n_atoms": "many"}},
        {"method_parameters": {"penalty": -1}},
        {"method_parameters": {"magic": 1}},
        {"patch_px": 8.5},
        {"patch_px": 10**30},
        {"context_scale": 10**6},
        {"smoothing_radius": 10**9},
        {"mpp": "0.5"},
        {"downsample": 10**400},
        {"downsample": 1e308},
        {"augment_patches": "yes"},
        {"stain": {}},
        {"features": 5},
        {"features": None},
        {"ensemble": 3},
        {"calibration_folds": True},
        {"candidates": "x"},
        {"kind": 1, "recipe": [], "training_info": 2, "estimators": 3},
        {"surprise": 1},
    ],
)
def test_recipe_of_wrong_types_names_file_and_setting(tmp_path, change):
    path = tmp_path / "own.json"
    path.write_text(json.dumps(Plan.named("fast").to_dict() | change))
    text = refusal(Plan.named, str(path))
    assert text.startswith(f"{path}: ")
    setting = next(iter(change.get("method_parameters") or change))
    assert setting in text or len(change) > 1


def test_settings_of_wrong_types_are_refused_in_one_line(tmp_path):
    for setting in (
        "n_atoms=[]",
        "patch_px=null",
        "n_iter={}",
        "rho=[[[",
        "ensemble=2",
        "penalty=-1",
    ):
        run = CliRunner().invoke(
            app, ["train", str(tmp_path), "--set", setting, "-o", str(tmp_path / "m")]
        )
        assert run.exit_code == 2 and isinstance(run.exception, SystemExit)
        assert refusal(Plan.named("fast").parse_settings, dict([setting.split("=")]))
    plan = Plan.named("fast").parse_settings({"mpp": "1"})
    assert plan.recipe.mpp == 1.0
    assert plan.parse_settings({"mpp": "null"}).recipe.mpp is None
    assert plan.parse_settings({"stain": "none"}).recipe.stain == "none"


# --- splits -------------------------------------------------------------------------------------


@pytest.fixture
def manifest(tmp_path):
    lines = ["path,label,patient"]
    for n in range(8):
        Image.new("RGB", (4, 4)).save(tmp_path / f"{n}.png")
        lines.append(f"{n}.png,{'ab'[n % 2]},p{n // 2}")
    (tmp_path / "m.csv").write_text("\n".join(lines))
    return read_manifest(tmp_path / "m.csv")


def test_invalid_splits_name_their_file(manifest, tmp_path):
    path = save_splits(k_folds(manifest, 2), tmp_path / "splits.json")
    valid = json.loads(path.read_text())
    valid.pop("digest")
    first = valid["splits"][0]

    def changed(**change):
        content = valid | {"splits": [first | change]}
        path.write_text(json.dumps(content | {"digest": _digest(content)}))
        return refusal(load_splits, path, manifest)

    both = [*first["train"], *first["test"]]
    for change in (
        {"train": both[:-1], "test": both[-1:]},  # a patient on both sides
        {"train": first["train"] + first["test"][:1]},
        {"train": []},
        {"train": [0.0, 2.0]},
        {"train": [True]},
        {"train": "01"},
        {"train": [-1]},
        {"by": []},
        {"name": 3},
        {"repeat": "x"},
        {"n_per_class": [1]},
        {"more": 1},
    ):
        assert changed(**change).startswith(f"{path}: ")
    for text in ("[" * 10**5, "\ufeff", '{"format": NaN}', "[]"):
        path.write_text(text)
        assert refusal(load_splits, path, manifest).startswith(f"{path}: ")
    path.write_bytes(b"\xff\xfe\x00")
    assert refusal(load_splits, path, manifest).startswith(f"{path}: ")


# --- manifests ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (b"path,label\n0.png,a\n1.png\0,b\n", "line 3"),
        ("path,label\n0.png,a\n".encode("utf-16"), "UTF-8"),
        (b"path,label\n0.png,a\n" + b"x" * 3000 + b".png,b\n", "line 3"),
        (b"path,label,mpp\n0.png,a,1e999\n", "line 2"),
        (b"path,label\n0.png,a\n" + b'"' + b"y" * 200_000 + b'",b\n', "line"),
    ],
)
def test_invalid_tables_name_file_and_line(manifest, tmp_path, text, where):
    path = tmp_path / "hurt.csv"
    path.write_bytes(text)
    message = refusal(read_manifest, path)
    assert message.startswith(str(path)) and where in message and len(message) < 1000


# --- batch systems ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        b"\xff\xfe\x00",
        b"[" * 10**5,
        b"a: [1",
        b"system: 2001-99-99",
        b"- 1",
        b"{[1]: 2}",
        b"x: !!python/object:a 1",
        b"jobs: " + b"9" * 5000,
    ],
)
def test_invalid_batch_system_settings_name_their_file(tmp_path, text):
    pytest.importorskip("yaml")
    path = tmp_path / "slurm.yaml"
    path.write_bytes(text)
    assert refusal(_read_settings, path).startswith(f"{path}: ")
    assert "file not found" in refusal(_read_settings, Path(tmp_path / "none.yaml"))
