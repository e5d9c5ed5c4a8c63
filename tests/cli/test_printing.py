"""Tests of unwritable output, unusual names and many failures."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.csv
import pytest
from typer.testing import CliRunner

from histodict.cli import app
from histodict.cli.console import FAILURES_FILE
from histodict.synthetic.dataset import write_synthetic_dataset
from histodict.utils.text_io import limit_lines, printable

SETTINGS = ("patch_px=16", "downsample=1", "patches_per_class=200", "n_atoms=8", "n_iter=1")
FULL = Path("/dev/full")


def run(*arguments, status=0):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert "Traceback" not in result.output
    assert result.exit_code == status, result.output
    return result.output


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return write_synthetic_dataset(tmp_path_factory.mktemp("set") / "tissue", 2, 2, size=(120, 90))


@pytest.fixture(scope="module")
def model(images, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "m.histodict"
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    run("train", images / "manifest.csv", "--preset", "fast", *settings, "--output", path)
    return path


def command(*arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "histodict.cli", *map(str, arguments)],
        stderr=subprocess.PIPE,
        **options,
    )


@pytest.mark.skipif(not FULL.exists(), reason="there is no device that is always full")
@pytest.mark.parametrize("arguments", [["info", "--methods"], ["info", "--help"]])
def test_output_to_a_full_disk_is_reported_in_one_line(arguments):
    with FULL.open("wb") as full:
        process = command(*arguments, stdout=full)
    output = process.communicate(timeout=300)[1].decode()
    assert process.returncode == 1
    assert output.startswith("Error: the output cannot be written") and output.count("\n") == 1, (
        output
    )


def test_closed_pipe_is_reported_in_one_line(model):
    reader, writer = os.pipe()
    os.close(reader)
    process = command("info", model, stdout=writer)
    os.close(writer)
    output = process.communicate(timeout=300)[1].decode()
    assert process.returncode == 1 and output.count("\n") == 1 and "Broken pipe" in output, output


def test_bytes_that_are_no_text_are_escaped():
    assert printable(os.fsdecode(b"caf\xe9.jpg")) == "caf\\xe9.jpg"
    assert printable("é\ud800") == "é\\ud800"


@pytest.mark.parametrize("locale", ["C", "POSIX without UTF-8"])
def test_name_that_is_not_unicode_is_predicted_in_every_locale(model, images, tmp_path, locale):
    folder = tmp_path / "images"
    folder.mkdir()
    source = next((images / "healthy").glob("*.jpg"))
    for name in (b"caf\xe9.jpg", "gut \u00e9.jpg".encode()):
        try:
            shutil.copy(source, os.path.join(os.fsencode(folder), name))
        except OSError:
            pytest.skip("this file system takes UTF-8 names only")
    (Path(os.fsdecode(os.fsencode(folder) + b"/\xff.png"))).touch()
    settings = {"LC_ALL": locale.split()[0]}
    if "without" in locale:
        settings |= {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environment = os.environ | settings
    out = tmp_path / "out"
    process = command(
        "predict", model, folder, "--output", out, stdout=subprocess.PIPE, env=environment
    )
    output = process.communicate(timeout=300)[1].decode()
    assert process.returncode == 1 and "Traceback" not in output, output
    assert "\\xff.png" in output
    rows = pyarrow.csv.read_csv(out / "predictions.csv").to_pylist()
    assert sorted(Path(row["path"]).name for row in rows) == ["caf\\xe9.jpg", "gut é.jpg"]
    for row in rows:
        (out / "geojson" / f"{row['key']}.geojson").read_text("utf-8")
    failures = pyarrow.csv.read_csv(out / FAILURES_FILE).to_pylist()
    assert [Path(row["path"]).name for row in failures] == ["\\xff.png"]


def test_ten_of_many_failures_are_printed_and_all_are_in_a_table(model, images, tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(25):
        (folder / f"{number:02d}.png").touch()
    good = next((images / "healthy").glob("*.jpg"))
    output = run("predict", model, folder, good, "--output", tmp_path / "out", status=1)
    table = tmp_path / "out" / FAILURES_FILE
    assert output.count("is empty") == 10 and f"and 15 more: see {table}" in output
    assert len(pyarrow.csv.read_csv(table)) == 25
    run("predict", model, good, "--output", tmp_path / "out")
    assert not table.exists()
    output = run("train", folder.parent, "--output", tmp_path / "m.histodict", status=2)
    assert output.count("is empty") == 10 and "and 15 more" in output


def test_first_of():
    assert limit_lines(["a"] * 10) == ["a"] * 10
    assert limit_lines(["a"] * 11, ": see t") == ["a"] * 10 + ["and 1 more: see t"]


def odd_entries(folder):
    folder.mkdir()
    os.mkfifo(folder / "pipe.png")
    (folder / "lost.png").symlink_to("nowhere.png")
    (folder / "circle.png").symlink_to("circle.png")
    (folder / "device.png").symlink_to(os.devnull)
    (folder / "pipe").symlink_to("pipe.png")
    return ["pipe.png", "lost.png", "circle.png", "device.png"]


@pytest.mark.parametrize("name", ["predict", "features", "adapt", "concepts", "train", "evaluate"])
def test_special_entries_are_reported_by_every_command(name, model, images, tmp_path):
    data = tmp_path / "data"
    for label in ("healthy", "inflamed"):
        shutil.copytree(images / label, data / label)
    odd = odd_entries(data / "healthy" / "odd")
    output = ["--output", tmp_path / "out"]
    arguments = {
        "predict": [model, data],
        "features": [data, "--encoder", "rgb"],
        "adapt": [model, data],
        "concepts": [data],
        "train": [data, "--preset", "fast"],
        "evaluate": [data, "--preset", "fast"],
    }
    status = 1 if name in ("predict", "features") else 2
    output = run(name, *arguments[name], *output, status=status)
    assert all(entry in output for entry in odd), output
    assert "a named pipe" in output and "circle" in output
    if name == "predict":
        rows = pyarrow.csv.read_csv(tmp_path / "out" / "predictions.csv")
        assert len(rows) == len(list(data.glob("*/*.jpg")))
