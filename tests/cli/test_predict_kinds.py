"""`predict` and `detect` accept their own kind of model."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from histodict.cli import app


@pytest.fixture
def run_command(small_models):
    """Return a function that runs `predict` or `detect` with a small model."""

    def run(command, kind, *arguments):
        return CliRunner().invoke(
            app, [command, str(small_models.path(kind)), *map(str, arguments)]
        )

    return run


@pytest.mark.parametrize(
    ("command", "kind", "table"),
    [
        ("predict", "dfdl", "predictions.csv"),
        ("predict", "panel", "predictions.csv"),
        ("detect", "regions", "detections.csv"),
    ],
)
def test_every_kind_of_model_predicts(run_command, small_models, command, kind, table, tmp_path):
    images = small_models.tissue / "inflamed"
    run = run_command(command, kind, images, "-o", tmp_path)
    assert run.exit_code == 0, run.output
    lines = (tmp_path / table).read_text(encoding="utf-8").splitlines()
    assert len(lines) == 1 + len(list(images.iterdir()))
    assert f"{len(lines) - 1} images: " in run.output


@pytest.mark.parametrize(
    ("command", "kind", "other"),
    [
        ("predict", "regions", "detect"),
        ("detect", "dfdl", "predict"),
        ("detect", "panel", "predict"),
    ],
)
def test_error_names_the_other_command(run_command, small_models, command, kind, other, tmp_path):
    run = run_command(command, kind, small_models.tissue, "-o", tmp_path)
    assert run.exit_code == 2 and f"histodict {other}" in run.output
    assert list(tmp_path.iterdir()) == []


def test_folder_without_images_is_refused(run_command, tmp_path):
    run = run_command("predict", "dfdl", tmp_path, "-o", tmp_path / "out")
    assert run.exit_code == 2 and "no images found" in run.output
