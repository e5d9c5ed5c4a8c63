"""Tests of `train`, `predict` and `info` in sequence, with bad files and killed runs."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import sys

import numpy as np
import pyarrow.parquet
import pytest
from PIL import Image
from typer.testing import CliRunner

from histodict.cli import app
from histodict.patches.patch_map import NO_TISSUE
from histodict.utils.text_io import read_checked_json, write_checked_json
from tests.cli.commands import SIZE


def rows_of(folder):
    return pyarrow.parquet.read_table(folder / "predictions.parquet").to_pylist()


def test_train_predict_info(model, tissue, tmp_path):
    out = tmp_path / "results"
    arguments = ["predict", str(model), str(tissue / "inflamed"), "--output", str(out)]
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
            assert overlay.width == SIZE[0] and overlay.height > SIZE[1]  # a legend is below
        with np.load(out / "maps" / f"{key}.npz") as arrays:
            assert (arrays["predicted_classes"] != NO_TISSUE).sum() == row["n_patches"]
    again = CliRunner().invoke(app, arguments)
    assert "already finished" in again.output
    info = CliRunner().invoke(app, ["info", str(model)])
    assert "healthy or inflamed" in info.output


def test_unreadable_files_are_listed_and_do_not_stop_others(model, tissue, tmp_path):
    images = tmp_path / "images"
    images.mkdir()
    good = sorted((tissue / "healthy").iterdir())[0]
    (images / "gut.jpg").write_bytes(good.read_bytes())
    (images / "empty.jpg").write_bytes(b"")
    (images / "cut.jpg").write_bytes(good.read_bytes()[:2000])
    Image.new("RGB", (5, 5), (200, 100, 150)).save(images / "tiny.png")
    result = CliRunner().invoke(
        app,
        ["predict", str(model), str(images), str(tmp_path / "no.jpg"), "-o", str(tmp_path / "o")],
    )
    assert result.exit_code == 1
    for name in ("empty.jpg", "cut.jpg", "tiny.png", "no.jpg"):
        assert name in result.output
    assert [row["path"] for row in rows_of(tmp_path / "o")] == [str(images / "gut.jpg")]


def test_errors_are_one_line_with_exit_status_2(model, tmp_path):
    for arguments in (
        ["train", str(tmp_path / "none"), "-o", str(tmp_path / "m.histodict")],
        ["predict", str(tmp_path / "none.histodict"), str(tmp_path), "-o", str(tmp_path / "o")],
        ["predict", str(model), str(tmp_path), "-o", str(tmp_path / "o")],
        ["info", __file__],
    ):
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 2
        assert "Error:" in result.output
        assert "Traceback" not in result.output


# A process that is killed after its third image.
KILLED = """
import os, signal, sys
from histodict import batch
from histodict.cli import app

predict_images = batch.predict_images

def kill_after_three(*arguments, callback, **options):
    def count(progress):
        callback(progress)
        if progress.done == 3:
            os.kill(os.getpid(), signal.SIGKILL)
    return predict_images(*arguments, callback=count, **options)

batch.predict_images = kill_after_three
app()
"""


def test_killed_run_resumes(model, tissue, tmp_path):
    out = tmp_path / "results"
    arguments = ["predict", str(model), str(tissue / "healthy"), str(tissue / "inflamed")]
    arguments += ["-o", str(out)]
    command = [sys.executable, "-c", KILLED, *arguments]
    assert subprocess.run(command, capture_output=True).returncode == -signal.SIGKILL
    finished = {p: p.stat().st_mtime_ns for p in out.glob("done/*.json")}
    assert 3 <= len(finished) < 16
    assert not (out / "predictions.csv").exists()
    assert CliRunner().invoke(app, arguments).exit_code == 0
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
def test_damaged_or_outdated_results_are_computed_again(model, tissue, tmp_path, recwarn):
    image = sorted((tissue / "healthy").iterdir())[0]
    out = tmp_path / "o"
    arguments = ["predict", str(model), str(image), "-o", str(out)]
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
def test_damaged_file_is_warned_of_and_replaced(model, tissue, tmp_path, kind, damage, recwarn):
    image = sorted((tissue / "healthy").iterdir())[0]
    arguments = ["predict", str(model), str(image), "-o", str(tmp_path)]
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


def test_outlines_are_written_as_requested(model, tissue, tmp_path):
    image = sorted((tissue / "inflamed").iterdir())[0]

    def outlined(*options):
        run = CliRunner().invoke(
            app, ["predict", str(model), str(image), "-o", str(tmp_path), *options]
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


def test_qupath_project_has_all_images_of_the_folder(model, tissue, tmp_path):
    images = sorted((tissue / "inflamed").iterdir())[:3]

    def predicted(*arguments):
        run = CliRunner().invoke(app, ["predict", str(model), *arguments, "-o", str(tmp_path)])
        assert run.exit_code == 0, run.output
        return run.output

    assert "qpproj" not in predicted(str(images[0]))
    assert not (tmp_path / "qupath").exists()
    for _ in range(2):
        output = predicted(*map(str, images[1:]), "--qupath-project")
        project = tmp_path / "qupath" / "project.qpproj"
        assert f"See {tmp_path / 'predictions.csv'} and {project}" in output
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
