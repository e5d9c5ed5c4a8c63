"""Tests of option groups, and of the help texts of all options."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Annotated

import pytest
import typer
from PIL import Image
from typer.main import get_command
from typer.testing import CliRunner

import histodict
from histodict.cli import app, load_command_function
from histodict.cli.image_options import ImageOptions, SplitDataOptions, parse_integers, parse_pairs
from histodict.cli.options import flatten_options
from tests.cli.commands import get_named_command

COMMANDS = get_command(app).list_commands(None)


@dataclass(frozen=True)
class Place:
    where: Annotated[Path, typer.Argument(help="A place.")]
    times: Annotated[int, typer.Option(help="How often.")] = 1


@dataclass(frozen=True)
class NamedPlace(Place):
    name: Annotated[list[str] | None, typer.Option(help="Names of it.")] = None


def call(*arguments):
    """Return the arguments that a command with an option group received, and the result of
    typer."""
    got = []

    def visit(
        *, output: Annotated[str, typer.Option("-o")], place: NamedPlace, as_json: bool = False
    ) -> None:
        got.append((output, place, as_json))

    own = typer.Typer()
    own.command()(flatten_options(visit))
    return got, CliRunner().invoke(own, list(arguments))


def test_option_group_is_flattened_and_rebuilt():
    got, _ = call("here", "-o", "x", "--times", "3", "--name", "a", "--name", "b")
    assert got == [("x", NamedPlace(Path("here"), 3, ["a", "b"]), False)]
    got, _ = call("here", "-o", "x", "--as-json")
    assert got == [("x", NamedPlace(Path("here")), True)]


def test_required_option_of_a_group():
    got, run = call("-o", "x")
    assert run.exit_code == 2 and "where" in run.output.lower() and got == []


def test_options_keep_the_order_of_the_parameters():
    def visit(*, as_json: bool = False, place: NamedPlace) -> None: ...

    assert list(signature(flatten_options(visit)).parameters) == [
        "as_json",
        "where",
        "times",
        "name",
    ]


@pytest.mark.parametrize("command", COMMANDS)
def test_command_has_few_parameters(command):
    assert len(signature(load_command_function(command)).parameters) <= 7


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_has_a_help_text(command):
    made = get_named_command(command)
    assert [option.name for option in made.params if not option.help] == []
    run = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "100"})
    assert run.exit_code == 0
    for option in made.params:
        displayed = option.metavar or option.name
        assert (option.opts[0] if option.opts[0].startswith("-") else displayed) in run.output


def test_shared_options_have_the_same_help_text():
    """These options have different meanings."""
    other = {
        "annotations",
        "data",
        "model",
        "output",
        "methods",
        "preset",
        "per_class",
        "repeats",
        "seed",
        "demo",
        "encoder",
        "setting_overrides",
    }
    output = {}
    for command in COMMANDS:
        for option in get_named_command(command).params:
            output.setdefault(option.name, set()).add(option.help)
    assert [name for name, text in output.items() if len(text) > 1 and name not in other] == []


def test_version_option():
    assert CliRunner().invoke(app, ["--version"]).output == f"histodict {histodict.__version__}\n"


def test_rows_of_a_table_are_selected(tmp_path):
    for place, name in enumerate("ab"):
        Image.new("RGB", (4, 4 + place)).save(tmp_path / f"{name}.png")
    table = tmp_path / "t.csv"
    table.write_text("path,label,patient,split\na.png,x,1,train\nb.png,y,2,test\n")
    (record,) = SplitDataOptions(table, split="test").read().records
    assert record.path.name == "b.png"
    with pytest.raises(ValueError, match=r"no row has the value 'none' .*; its values are test, t"):
        SplitDataOptions(table, split="none").read()
    table.write_text("path,label\na.png,x\nb.png,y\n")
    with pytest.raises(ValueError, match=r"column split \(missing or empty\)"):
        SplitDataOptions(table, split="test").read()


@pytest.mark.parametrize(
    ("test_patient", "split", "is_shared"),
    [("1", "test", True), ("3", "test", False), ("", "test", False), ("1", "", False)],
)
def test_patients_shared_by_splits_are_warned_of(tmp_path, capsys, test_patient, split, is_shared):
    for place, name in enumerate("abc"):
        Image.new("RGB", (4, 4 + place)).save(tmp_path / f"{name}.png")
    table = tmp_path / "t.csv"
    rows = f"a.png,x,1,train\nb.png,y,2,train\nc.png,y,{test_patient},{split}\n"
    table.write_text(f"path,label,patient,split\n{rows}")
    SplitDataOptions(table, split="train").read()
    message = "1 of 2 patients of split 'train' also have images in other splits"
    assert (message in " ".join(capsys.readouterr().err.split())) == is_shared


def test_invalid_pairs_are_quoted():
    assert parse_pairs("--set", ["a = 1", "b=x=y"]) == {"a": "1", "b": "x=y"}
    with pytest.raises(ValueError, match="--set a: write it as NAME=VALUE"):
        parse_pairs("--set", ["a"])
    assert parse_integers("--seeds", "1,2") == [1, 2]
    with pytest.raises(ValueError, match="--seeds 1,x: write whole numbers"):
        parse_integers("--seeds", "1,x")


def test_help_paragraphs_are_wrapped_by_the_terminal_only():
    wide = CliRunner().invoke(app, ["train", "--help"], terminal_width=200).output
    assert "slide, site, mpp, split and mask. Some other names are accepted" in wide
    assert "histodict train tissue/ --output tissue.histodict" in wide


def test_module_uses_the_name_of_the_command():
    run = subprocess.run(
        [sys.executable, "-m", "histodict.cli", "info", "--help"], capture_output=True, text=True
    )
    assert "Usage: histodict info" in run.stdout


def test_demo_folder_must_be_empty(tmp_path):
    (tmp_path / "mine.jpg").touch()
    run = CliRunner().invoke(app, ["demo", "--draw", str(tmp_path)])
    assert run.exit_code == 2 and "is not empty" in run.stderr


def test_skipped_files_of_a_folder_are_named_or_counted(tmp_path, capsys):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    for place in range(7):
        (tmp_path / f"{place}.gif").write_bytes(b"x")
    assert len(ImageOptions([tmp_path]).list_images()) == 1
    output = "".join(capsys.readouterr().err.split())
    assert output.endswith("4.gif(unsupportedformat)and2more")
