"""Tests of `train`, `predict` and `info` in sequence, with bad files and killed runs."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow.parquet
import pytest
from PIL import Image
from typer.testing import CliRunner

from histodict.cli import app
from histodict.patches.patch_map import NO_TISSUE
from histodict.synthetic.dataset import write_synthetic_dataset
from histodict.utils.text_io import read_checked_json, write_checked_json


@pytest.fixture(scope="module")
def tissue(tmp_path_factory):
    return write_synthetic_dataset(tmp_path_factory.mktemp("set") / "tissue", 4, 4, size=(240, 180))


@pytest.fixture(scope="module")
def trained(tissue, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tissue.histodict"
    options = ["--set", "patch_px=16", "--set", "downsample=1", "--set", "n_atoms=60", "--json"]
    options += ["--preset", "fast"]
    result = CliRunner().invoke(
        app, ["train", str(tissue / "manifest.csv"), "-o", str(path), *options]
    )
    assert result.exit_code == 0, result.output
    return path


def rows_of(folder):
    return pyarrow.parquet.read_table(folder / "predictions.parquet").to_pylist()


def test_train_predict_info(trained, tissue, tmp_path):
    out = tmp_path / "results"
    arguments = ["predict", str(trained), str(tissue / "inflamed"), "--output", str(out)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    rows = rows_of(out)
    assert len(rows) == len(list((tissue / "inflamed").iterdir()))
    assert {"path", "label", "score", "proportion_inflamed"} <= set(rows[0])
    header = (out / "predictions.csv").read_text().splitlines()[0]
    assert header.startswith('"path","label","top_label","score"')
    for row in rows:
        key = row["key"]
        collection = json.loads((out / "geojson" / f"{key}.geojson").read_text())
        measured = [feature["properties"]["measurements"] for feature in collection["features"]]
        assert sum(each["patches"] for each in measured) == row["n_patches"]
        with Image.open(out / "overlays" / f"{key}.png") as overlay:
            assert overlay.width == 240 and overlay.height > 180  # a legend is below
        with np.load(out / "maps" / f"{key}.npz") as arrays:
            assert (arrays["predicted_classes"] != NO_TISSUE).sum() == row["n_patches"]
    again = CliRunner().invoke(app, arguments)
    assert "already finished" in again.output
    info = CliRunner().invoke(app, ["info", str(trained)])
    assert "healthy or inflamed" in info.output


def test_unreadable_files_are_listed_and_do_not_stop_others(trained, tissue, tmp_path):
    images = tmp_path / "images"
    images.mkdir()
    good = sorted((tissue / "healthy").iterdir())[0]
    (images / "gut.jpg").write_bytes(good.read_bytes())
    (images / "empty.jpg").write_bytes(b"")
    (images / "cut.jpg").write_bytes(good.read_bytes()[:2000])
    Image.new("RGB", (5, 5), (200, 100, 150)).save(images / "tiny.png")
    result = CliRunner().invoke(
        app,
        ["predict", str(trained), str(images), str(tmp_path / "no.jpg"), "-o", str(tmp_path / "o")],
    )
    assert result.exit_code == 1
    for name in ("empty.jpg", "cut.jpg", "tiny.png", "no.jpg"):
        assert name in result.output
    assert [row["path"] for row in rows_of(tmp_path / "o")] == [str(images / "gut.jpg")]


def test_errors_are_one_line_with_exit_status_2(trained, tmp_path):
    for arguments in (
        ["train", str(tmp_path / "none"), "-o", str(tmp_path / "m.histodict")],
        ["predict", str(tmp_path / "none.histodict"), str(tmp_path), "-o", str(tmp_path / "o")],
        ["predict", str(trained), str(tmp_path), "-o", str(tmp_path / "o")],
        ["info", __file__],
    ):
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 2
        assert "Error:" in result.output
        assert "Traceback" not in result.output


def test_killed_run_resumes(trained, tissue, tmp_path):
    out = tmp_path / "results"
    command = [sys.executable, "-c", "from histodict.cli import app; app()", "predict"]
    command += [str(trained), str(tissue / "healthy"), str(tissue / "inflamed"), "-o", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while len(list(out.glob("done/*.json"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    finished = {p: p.stat().st_mtime_ns for p in out.glob("done/*.json")}
    assert 3 <= len(finished) < 16
    assert not (out / "predictions.csv").exists()
    assert subprocess.run(command, check=False, capture_output=True).returncode == 0
    assert len(rows_of(out)) == 16
    assert all(p.stat().st_mtime_ns == fingerprint for p, fingerprint in finished.items())
    for folder, count in (("overlays", 16), ("maps", 16), ("geojson", 16)):
        content = [p for p in (out / folder).iterdir() if not p.name.startswith(".")]
        assert len(content) == count


def is_warned_of(arguments, recorded):
    """Since the last call; on the command line a warning is one line."""
    found = any(arguments in str(warning.message) for warning in recorded)
    recorded.clear()
    return found


@pytest.mark.filterwarnings("default")
def test_damaged_or_outdated_results_are_computed_again(trained, tissue, tmp_path, recwarn):
    image = sorted((tissue / "healthy").iterdir())[0]
    out = tmp_path / "o"
    arguments = ["predict", str(trained), str(image), "-o", str(out)]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    (done,) = (out / "done").iterdir()
    before = rows_of(out)
    content = done.read_bytes()
    write_checked_json(
        done, read_checked_json(done) | {"fingerprint": {"file": ["old"], "size": []}}
    )
    old = done.read_bytes()
    label = content.replace(b"healthy", b"hoalthy", 1)
    for content in (b"", b"{}", label, old):
        done.write_bytes(content)
        again = CliRunner().invoke(app, arguments)
        assert again.exit_code == 0 and "already finished" not in again.output
        assert is_warned_of("is damaged", recwarn) == (content != old)
        assert rows_of(out) == before


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("kind", "damage"),
    [
        ("maps", "cut"),
        ("maps", "folder"),
        ("overlays", "empty"),
        ("geojson", "garbage"),
        ("done", "folder"),
    ],
)
def test_damaged_file_is_warned_of_and_replaced(trained, tissue, tmp_path, kind, damage, recwarn):
    image = sorted((tissue / "healthy").iterdir())[0]
    arguments = ["predict", str(trained), str(image), "-o", str(tmp_path)]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    (file,) = (tmp_path / kind).iterdir()
    content = file.read_bytes()
    if damage == "folder":
        file.unlink()
        file.mkdir()
    else:
        bad = {"empty": b"", "cut": content[:-9], "garbage": content[:-9] + b"?" * 9}[damage]
        file.write_bytes(bad)
    again = CliRunner().invoke(app, arguments)
    assert again.exit_code == 0, again.output
    (warning,) = (str(w.message) for w in recwarn if "is damaged" in str(w.message))
    assert file.name in warning
    assert file.read_bytes() == content
    assert "already finished" in CliRunner().invoke(app, arguments).output


def test_outlines_are_written_as_requested(trained, tissue, tmp_path):
    image = sorted((tissue / "inflamed").iterdir())[0]

    def outlined(*options):
        run = CliRunner().invoke(
            app, ["predict", str(trained), str(image), "-o", str(tmp_path), *options]
        )
        assert run.exit_code == 0, run.output
        (file,) = (tmp_path / "geojson").iterdir()
        return run.output, file.name, file.read_bytes()

    _, name, areas = outlined()
    output, packed_name, packed = outlined("--gzip")
    assert "already finished" not in output
    assert packed_name == f"{name}.gz" and gzip.decompress(packed) == areas
    _, _, patches = outlined("--outline-patches")
    (row,) = rows_of(tmp_path)
    assert len(json.loads(patches)["features"]) == row["n_patches"]
    assert outlined()[1:] == (name, areas)
    assert "already finished" in outlined()[0]


def test_qupath_project_has_all_images_of_the_folder(trained, tissue, tmp_path):
    images = sorted((tissue / "inflamed").iterdir())[:3]

    def predicted(*arguments):
        run = CliRunner().invoke(app, ["predict", str(trained), *arguments, "-o", str(tmp_path)])
        assert run.exit_code == 0, run.output
        return run.output

    assert "qpproj" not in predicted(str(images[0]))
    assert not (tmp_path / "qupath").exists()
    for _ in range(2):
        output = predicted(*map(str, images[1:]), "--qupath-project")
        assert "predictions.csv and qupath/project.qpproj" in output
        project = tmp_path / "qupath" / "project.qpproj"
        entries = json.loads(project.read_text())["images"]
        assert sorted(entry["imageName"] for entry in entries) == [i.name for i in images]
        rows = {row["key"]: row for row in rows_of(tmp_path)}
        for entry in entries:
            expected_text = entry["metadata"]
            row = rows[expected_text["histodict"]]
            assert expected_text["histodict label"] == row["label"]
            assert float(expected_text["histodict score"]) == pytest.approx(row["score"], rel=1e-4)
            # The folder where the script of the project looks.
            assert (project.parent.parent / "geojson" / f"{row['key']}.geojson").is_file()
