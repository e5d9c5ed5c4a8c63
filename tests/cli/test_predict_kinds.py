"""`predict` accepts every kind of model."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from histodict.cli import app


def predict(model, *arguments):
    return CliRunner().invoke(app, ["predict", str(model), *map(str, arguments)])


@pytest.mark.parametrize(
    ("kind", "table"),
    [("dfdl", "predictions.csv"), ("ensemble", "predictions.csv"), ("regions", "detections.csv")],
)
def test_every_kind_of_model_predicts(small_models, kind, table, tmp_path):
    images = small_models.tissue / "inflamed"
    run = predict(small_models.path(kind), images, "-o", tmp_path)
    assert run.exit_code == 0, run.output
    lines = (tmp_path / table).read_text(encoding="utf-8").splitlines()
    assert len(lines) == 1 + len(list(images.iterdir()))
    assert f"{len(lines) - 1} images: " in run.output
    assert (tmp_path / "regions.csv").exists() == (kind == "regions")


def test_folder_without_images_is_refused(small_models, tmp_path):
    run = predict(small_models.path("dfdl"), tmp_path, "-o", tmp_path / "out")
    assert run.exit_code == 2 and "no images found" in run.output


@pytest.mark.parametrize("content", [b"path,label\na.png,b\n", b"", b"\x00" * 20])
def test_file_that_is_no_model_is_named_as_such(small_models, tmp_path, content):
    file = tmp_path / "m.histodict"
    file.write_bytes(content)
    run = predict(file, small_models.tissue, "-o", tmp_path / "out")
    text = " ".join(run.output.split())
    assert run.exit_code == 2 and "not a model file" in text and "`histodict train`" in text
