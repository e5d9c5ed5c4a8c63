"""Errors are detected before the work starts, and messages of interrupted commands are correct."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from histodict.cli import app, console
from histodict.datasets.manifest import read_manifest
from histodict.models import Plan, TissueClassifier, load_model
from histodict.models.recipe import Recipe
from histodict.synthetic.dataset import write_synthetic_dataset
from histodict.utils import files as outputs
from histodict.utils.progress import Progress
from tests.annotations.outline_files import box, feature, write_geojson

FAST = ("--method", "nearest-mean", "--set", "patch_px=12", "--set", "patches_per_class=100")
COMMANDS = ("train", "adapt", "atoms", "predict", "evaluate", "reproduce", "demo")
READ_ONLY = Path("/proc")  # no user can write there, not even root


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def tissue(tmp_path_factory):
    return write_synthetic_dataset(tmp_path_factory.mktemp("set") / "t", 3, 2, size=(120, 90))


@pytest.fixture(scope="module")
def model(tissue, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "m.histodict"
    assert run("train", tissue, "-o", path, *FAST).exit_code == 0
    return path


@pytest.fixture
def no_work(monkeypatch):
    """Fail the test if any work starts."""

    def work(*arguments, **more):
        raise AssertionError("the work was begun")

    monkeypatch.setattr(TissueClassifier, "fit", work)
    monkeypatch.setattr(TissueClassifier, "predict_one", work)
    monkeypatch.setattr("histodict.datasets.survey.check_readable", work)


def commands(tissue, model):
    return {
        "train": ("train", tissue, *FAST),
        "adapt": ("adapt", model, tissue),
        "atoms": ("atoms", model, tissue),
        "predict": ("predict", model, tissue),
        "evaluate": ("evaluate", tissue, "--folds", "2"),
        "reproduce": ("reproduce", "bases", "--quick"),
        "demo": ("demo",),
    }


@pytest.mark.skipif(not READ_ONLY.is_dir(), reason="no folder that nobody may write to")
@pytest.mark.parametrize("name", COMMANDS)
def test_read_only_output_folder_is_refused(name, tissue, model, no_work):
    outcome = run(*commands(tissue, model)[name], "-o", READ_ONLY / "out.html")
    assert outcome.exit_code == 2, outcome.output
    assert "the folder /proc is not writable" in outcome.output


@pytest.mark.parametrize("name", ["train", "adapt", "atoms"])
def test_output_file_that_is_a_folder_is_refused(name, tissue, model, tmp_path, no_work):
    (tmp_path / "a.html").mkdir()
    outcome = run(*commands(tissue, model)[name], "-o", tmp_path / "a.html")
    assert outcome.exit_code == 2 and "a.html: is a folder" in outcome.output


@pytest.mark.parametrize("name", ["atoms", "explain"])
def test_page_with_another_suffix_is_refused(name, tissue, model, tmp_path, no_work):
    outcome = run(name, model, tissue, "-o", tmp_path / "atoms.txt")
    assert outcome.exit_code == 2 and "ends in .html" in " ".join(outcome.output.split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["predict", "evaluate", "reproduce", "demo"])
def test_output_folder_that_is_a_file_is_refused(name, tissue, model, tmp_path, no_work):
    (tmp_path / "file").write_text("")
    for output in (tmp_path / "file", tmp_path / "file" / "below"):
        outcome = run(*commands(tissue, model)[name], "-o", output)
        assert outcome.exit_code == 2 and "is a file; give the name of a folder" in outcome.output


@pytest.mark.parametrize(
    "name", ["train", "adapt", "atoms", "predict", "evaluate", "reproduce", "demo"]
)
def test_full_disk_is_refused(name, tissue, model, tmp_path, monkeypatch):
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(outputs.shutil, "disk_usage", lambda path: usage(1000))
    outcome = run(*commands(tissue, model)[name], "-o", tmp_path / "out.html")
    assert outcome.exit_code == 2 and "free some space" in outcome.output, outcome.output
    assert list(tmp_path.iterdir()) == []


# --- images that cannot be read -----------------------------------------------------------------


@pytest.fixture
def damaged(tissue, tmp_path):
    folder = shutil.copytree(tissue, tmp_path / "damaged")
    names = [sorted((folder / label).iterdir())[0] for label in ("healthy", "inflamed")]
    for name in names:
        name.write_bytes(name.read_bytes()[:900])
    return folder, [f"{name.parent.name}/{name.name}" for name in names]


def test_train_reports_all_unreadable_images_or_skips_them(damaged, tmp_path):
    folder, names = damaged
    output = tmp_path / "m.histodict"
    outcome = run("train", folder, "-o", output, *FAST)
    assert outcome.exit_code == 2 and "2 of 6 images cannot be used" in outcome.output
    assert all(name in outcome.output for name in names) and "--skip-unreadable" in outcome.output
    outcome = run("train", folder, "-o", output, *FAST, "--skip-unreadable")
    assert outcome.exit_code == 0, outcome.output
    assert "2 of 6 images skipped" in outcome.output and "on 4 images" in outcome.output
    assert all(name in outcome.output for name in names)
    assert load_model(output).training_info_["left_out"] == names
    assert "2 images" in run("info", output).output and names[0] in run("info", output).output


def test_evaluate_reports_or_skips_unreadable_images_before_any_run(damaged, tmp_path):
    folder, names = damaged
    out = tmp_path / "out"
    arguments = ("evaluate", folder, "--methods", "nearest-mean", "--folds", "2", "-o", out)
    settings = FAST[2:]
    outcome = run(*arguments, *settings)
    assert outcome.exit_code == 2 and all(name in outcome.output for name in names)
    assert not (out / "runs").exists()
    outcome = run(*arguments, *settings, "--skip-unreadable")
    assert outcome.exit_code == 0, outcome.output
    assert names[0] in (out / "provenance.json").read_text()


def test_fit_reports_all_unreadable_images(damaged):
    folder, names = damaged
    with pytest.raises(ValueError, match="2 of 6 images cannot be used") as raised:
        TissueClassifier("fast").fit(read_manifest(folder))
    assert all(name in str(raised.value) for name in names)


def test_duplicate_in_two_classes_is_refused(tissue, tmp_path):
    folder = shutil.copytree(tissue, tmp_path / "twice", ignore=lambda *_: ["manifest.csv"])
    first = sorted((folder / "healthy").iterdir())[0]
    shutil.copy(first, folder / "inflamed" / "again.jpg")
    outcome = run("train", folder, "-o", tmp_path / "m", *FAST)
    assert outcome.exit_code == 2, outcome.output
    assert f"healthy/{first.name} and inflamed/again.jpg are identical images" in outcome.output
    with pytest.raises(ValueError, match="are identical images"):
        TissueClassifier("fast").fit(read_manifest(folder))
    (folder / "inflamed" / "again.jpg").rename(folder / "healthy" / "again.jpg")
    outcome = run("train", folder, "-o", tmp_path / "m", *FAST)
    assert outcome.exit_code == 0 and "1 image with copies" in outcome.output


# --- masks without --regions --------------------------------------------------------------------


def test_masks_require_regions(tissue, tmp_path):
    image = sorted((tissue / "healthy").iterdir())[0]
    Image.new("L", (120, 90), 255).save(tmp_path / "mask.png")
    (tmp_path / "t.csv").write_text(f"path,mask,patient\n{image},mask.png,1\n")
    outcome = run("train", tmp_path / "t.csv", "-o", tmp_path / "m", *FAST)
    assert outcome.exit_code == 2 and "give --regions NAME" in outcome.output
    other = sorted((tissue / "inflamed").iterdir())[0]
    lines = f"path,mask,patient,label\n{image},mask.png,1,healthy\n{other},,2,inflamed\n"
    (tmp_path / "t.csv").write_text(lines)
    outcome = run("train", tmp_path / "t.csv", "-o", tmp_path / "m", *FAST)
    text = "masks or annotations of 1 image ignored. To use them, give --regions NAME"
    assert outcome.exit_code == 0 and text in outcome.output
    write_geojson(tmp_path / "healthy.geojson", feature("Tumor", box(10, 10, 60, 60)))
    (tmp_path / "t.csv").write_text(lines.replace("mask.png", "healthy.geojson"))
    outcome = run("train", tmp_path / "t.csv", "-o", tmp_path / "n", *FAST)
    assert outcome.exit_code == 0 and text in outcome.output


# --- messages of interrupted commands -----------------------------------------------------------


def output_when_interrupted(capsys, *arguments):
    def stop(*arguments, **more):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TissueClassifier, "fit", stop)
        patch.setattr("histodict.batch.predict_images", stop)
        outcome = run(*arguments)
    assert outcome.exit_code == 130
    return outcome.output


def test_hint_to_resume_is_shown_only_if_the_command_resumes(tissue, model, tmp_path, capsys):
    train = ("train", tissue, "-o", tmp_path / "m", *FAST)
    assert "starts again from the beginning" in output_when_interrupted(capsys, *train)
    cached = output_when_interrupted(capsys, *train, "--cache", tmp_path / "cache")
    assert "it reuses the intermediate results in" in cached
    predicted = output_when_interrupted(capsys, "predict", model, tissue, "-o", tmp_path / "out")
    assert "run the same command; it reuses finished images" in predicted
    console.reset_state()
    assert "goes on" not in console._memory_hint()


@pytest.mark.parametrize("folds", [0, 2])
def test_every_stage_is_reported_before_its_first_step(tissue, folds):
    report: list[Progress] = []
    recipe = Recipe(method_parameters={"n_atoms": 4, "n_iter": 2}, patch_px=12)
    recipe = recipe.with_changes(patches_per_class=60)
    Plan(recipe, folds).build_model().fit(read_manifest(tissue), callback=report.append)
    first = {step.stage: step.done for step in reversed(report)}
    assert {"read", "patches", "initialise", "train", "decision"} <= set(first)
    assert set(first.values()) == {0}, first
