"""The examples run, and the commands of the workflow exist."""

from __future__ import annotations

import re
import shlex
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from histodict.cli import app
from histodict.models import TissueClassifier
from histodict.models.recipe import PRESETS
from histodict.synthetic.dataset import write_synthetic_dataset
from tests.cli.commands import get_named_command

EXAMPLES = Path(__file__).parents[1] / "examples"
SNAKEFILE = EXAMPLES / "snakemake" / "Snakefile"


def commands(text):
    """Return the commands of a Snakefile, with every {placeholder} replaced by a number."""
    shells = re.findall(r'shell:\n((?:\s+"[^"]*"\n)+)', text)
    joined = ["".join(re.findall(r'"([^"]*)"', shell)) for shell in shells]
    filled = [re.sub(r"\{[^}]*\}", "1", line) for line in joined]
    comments = re.findall(r"^#\s+(histodict demo.*?)\s{2,}#", text, re.M)
    arguments = [
        shlex.split(part) for line in (*filled, *comments) for part in re.split("&&|>", line)
    ]
    return [found for found in arguments if found and found[0] == "histodict"]


def parse(arguments):
    name, *rest = arguments[1:]
    command = get_named_command(name)
    return command.make_context(name, list(rest))


def test_scikit_learn_pipeline_with_groups_runs():
    spec = spec_from_file_location("sklearn_pipeline", EXAMPLES / "sklearn_pipeline.py")
    example = module_from_spec(spec)
    spec.loader.exec_module(example)
    best, score = example.main()
    assert set(best) == {"dfdl__n_atoms", "dfdl__penalty"} and score > 0.7


def test_code_of_the_pipelines_page_runs():
    text = (EXAMPLES.parent / "docs" / "pipelines.md").read_text("utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    namespace: dict = {}
    exec(block, namespace)
    assert namespace["search"].best_params_["dfdl__n_atoms"] in (4, 16)


def test_workflow_has_only_existing_commands():
    found = commands(SNAKEFILE.read_text("utf-8"))
    assert [text[1] for text in found] == [
        *("train", "predict", "predict", "atoms", "demo", "demo")
    ]
    for text in found:
        parse(text)


def test_unknown_option_in_the_workflow_is_detected(capsys):
    wrong = SNAKEFILE.read_text("utf-8").replace("--split {params", "--slide {params")
    with pytest.raises(typer.Exit):
        [parse(text) for text in commands(wrong)]
    assert "unknown option --slide" in capsys.readouterr().err


def test_settings_of_the_workflow_are_valid():
    text = (SNAKEFILE.parent / "config.yaml").read_text("utf-8")
    settings = dict(re.findall(r"^(\w+): (\S+)", text, re.M))
    assert settings["preset"] in PRESETS
    assert set(re.findall(r'config\["(\w+)"\]', SNAKEFILE.read_text("utf-8"))) == set(settings)


def test_slides_predicted_one_by_one_form_one_run(tmp_path):
    """The workflow runs one job per row of the table; afterwards nothing is left to do."""
    tissue = write_synthetic_dataset(tmp_path / "t", 2, 1, size=(120, 90))
    model = TissueClassifier("fast", n_atoms=8, n_iter=1, patches_per_class=100).fit(tissue)
    path, table = model.save(tmp_path / "m.histodict"), tissue / "manifest.csv"
    start = ["predict", str(path), str(table), "--output", str(tmp_path / "out")]
    rows = ["--column", "path=path", "--column", "split=path", "--split"]
    for slide in ("healthy/patient01_1.jpg", "inflamed/patient02_1.jpg"):
        result = CliRunner().invoke(app, [*start, *rows, slide])
        assert result.exit_code == 0 and "1 image: 1" in result.output, result.output
    result = CliRunner().invoke(app, start)
    assert result.exit_code == 0 and "2 images (2 already finished)" in result.output
    assert "2 labelled images (2 patients)" in result.output  # scored with the labels of the table
