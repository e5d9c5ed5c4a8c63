"""Commands in the documentation name existing modules, options, presets, methods and settings.

Commands `histodict …`, `python -m benchmarks.…` and `python -m attacks.…` are read from the code
blocks and code spans of Markdown files, and from the docstrings of the benchmarks and attacks.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from typer.main import get_command

from histodict.cli import app
from histodict.methods.registry import METHODS
from histodict.models.plan import ENSEMBLE_PRESETS, Plan
from histodict.models.recipe import PRESETS
from tests.cli.commands import get_named_command

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
SCRIPTS = [*sorted((ROOT / "benchmarks").glob("*.py")), *sorted((ROOT / "attacks").glob("*.py"))]
# At the start of the line, after a prompt, variables of the environment, or another command.
COMMAND = re.compile(
    r"(?:^|&& )\s*(?:\$ )?(?:[A-Z_]+=\S* )*"
    r"(?:(?:\S*/)?python3? -m ((?:benchmarks|attacks)\.\w+)|histodict(?= [a-z-]))"
)
# Metadata of images in QuPath, which begin like a command.
METADATA = ("histodict label", "histodict top label", "histodict score")


# --- commands in the documents ------------------------------------------------------------------


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each command: its module or `histodict`, then its arguments."""
    for code in code_of(text):
        for found in () if code in METADATA else COMMAND.finditer(code):
            line = re.split(r" #|[;|>&]{1,2} |\)\s*$|$", code[found.end() :], maxsplit=1)[0]
            line = re.sub(r"[\[\]|…'\"]", " ", line)
            yield [found[1] or "histodict", *shlex.split(line)]


def code_of(text: str) -> Iterator[str]:
    """Yield the lines of code blocks and the code spans; continued lines are joined."""
    block = re.compile(r"^[ ]*(```|~~~).*?^[ ]*\1", re.MULTILINE | re.DOTALL)
    for found in block.finditer(text):
        yield from re.sub(r"\\\n\s*", " ", found[0]).splitlines()
    for found in re.finditer(r"`([^`]+)`", block.sub("", text)):
        yield " ".join(found[1].split())


def usage_of(script: Path) -> Iterator[list[str]]:
    """Yield the commands in the indented lines and code spans of a module docstring."""
    text = ast.get_docstring(ast.parse(script.read_text("utf-8"))) or ""
    lines = "\n".join(line for line in text.splitlines() if line.startswith("    "))
    yield from commands(re.sub(r"\n        ", " ", f"```\n{lines}\n```\n{text}"))


# --- what exists --------------------------------------------------------------------------------


@cache
def options_of(command: str) -> frozenset[str]:
    """Return the options of a module, or of `histodict` or one of its subcommands."""
    if "." in command:
        return frozenset(options_in(ROOT / (command.replace(".", "/") + ".py")))
    made = get_command(app) if command == "histodict" else get_named_command(command)
    names = (name for parameter in made.params for name in parameter.opts)
    other = (name for parameter in made.params for name in parameter.secondary_opts)
    return frozenset([*names, *other, "--help"])


def options_in(script: Path) -> Iterator[str]:
    """Yield the options that the source of a script defines."""
    yield "--help"
    source = script.read_text("utf-8")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            for argument in node.args:
                if isinstance(argument, ast.Constant):
                    yield argument.value
                    if any("BooleanOptional" in ast.unparse(word) for word in node.keywords):
                        yield f"--no-{argument.value.lstrip('-')}"
    if "add_options(" in source and script.stem != "result_store":
        yield from options_in(ROOT / "benchmarks" / "result_store.py")


@cache
def is_setting(name: str) -> bool:
    return any(Plan.named("fast", method).has_setting(name) for method in METHODS)


def is_plan(text: str) -> bool:
    """Return whether this is PRESET, METHOD or PRESET:METHOD, with +NAME=VALUE for changes."""
    plan, *changes = text.split("+")
    name, _, method = plan.partition(":")
    presets = {*PRESETS, *ENSEMBLE_PRESETS}
    is_known = name in presets and (not method or method in METHODS)
    return (is_known or plan in METHODS) and all(is_setting(c.split("=")[0]) for c in changes)


def complaint(tokens: list[str]) -> str | None:
    """Return what the command names that does not exist; None if all exists."""
    command, *arguments = tokens
    if command == "histodict" and not arguments[0].startswith("-"):
        command, *arguments = arguments
        if get_named_command(command) is None:
            return f"no subcommand {command}"
    elif "." in command and not (ROOT / (command.replace(".", "/") + ".py")).is_file():
        return f"no module {command}"
    options = options_of(command)
    pairs = [argument.partition("=") for argument in arguments if argument.startswith("--")]
    if command == "benchmarks.stages":
        return complaint(["histodict", *arguments[1:]])  # the second argument begins a command
    for name in [name for name, *_ in pairs] + [a for a in arguments if re.match(r"-\w", a)]:
        if name.rstrip(",.:") not in options:
            return f"{command} has no option {name}"
    for option, value in pairwise(arguments):
        if not re.match(r"[a-z]", value) or value.endswith(".json"):
            continue  # a placeholder or a file
        if option == "--set" and "=" in value and not is_setting(value.split("=")[0]):
            return f"no setting {value.split('=')[0]}"
        if option in ("--preset", "--presets", "--method", "--methods"):
            unknown = [name for name in value.split(",") if name and not is_plan(name)]
            if unknown:
                return f"no preset or method {unknown[0]}"
    return None


# --- tests --------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_of_pages_exist(page):
    if not page.is_file():
        pytest.skip("the documents are not here")
    found = [(tokens, complaint(tokens)) for tokens in commands(page.read_text("utf-8"))]
    assert [f"{' '.join(tokens)}: {error}" for tokens, error in found if error] == []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_commands_of_docstrings_exist(script):
    found = [(tokens, complaint(tokens)) for tokens in usage_of(script)]
    assert [f"{' '.join(tokens)}: {error}" for tokens, error in found if error] == []


def test_most_commands_are_read():
    pages = [page for page in PAGES if page.is_file()]
    read = [tokens for page in pages for tokens in commands(page.read_text("utf-8"))]
    assert sum(tokens[0] == "histodict" for tokens in read) > 100
    assert sum(tokens[0].startswith("benchmarks.") for tokens in read) > 30


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("`histodict learn images/`", "no subcommand learn"),
        ("`histodict train tissue/ --prest fast`", "train has no option --prest"),
        ("```\nhistodict train a \\\n    --preset quick\n```", "no preset or method quick"),
        ("`histodict train a --set n_atom=5`", "no setting n_atom"),
        ("`histodict evaluate a --methods dfdl,svm`", "no preset or method svm"),
        ("`python -m benchmarks.rivals`", "no module benchmarks.rivals"),
        (
            "`python -m benchmarks.waits [--slow | --quick]`",
            "benchmarks.waits has no option --slow",
        ),
        ("`python -m attacks.fuzz images --case 5`", "attacks.fuzz has no option --case"),
    ],
)
def test_unknown_names_are_reported(text, error):
    (tokens,) = commands(text)
    assert complaint(tokens) == error


@pytest.mark.parametrize(
    "text",
    [
        "```\n$ histodict train tissue/ --preset default -o m.histodict  # as `train --x`\n```",
        "`histodict evaluate images/ --methods fast:dfdl,odl --set n_atoms=50 > log.txt`",
        "`python -m benchmarks.tissue --no-shifts --only ucsb`",
        "`python -m benchmarks.presets --presets embeddings+stain=none --jobs 16`",
        "`histodict --version`",
    ],
)
def test_existing_names_pass(text):
    (tokens,) = commands(text)
    assert complaint(tokens) is None
