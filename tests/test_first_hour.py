"""The session prints the recorded output, and the user documentation quotes it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.commands import get_named_command
from tests.first_hour import changes, masked, read_steps, recorded, without_figures

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_session_prints_the_recorded_output(tmp_path):
    changed = changes(tmp_path.resolve())
    assert not changed, f"record the new output with `python -m tests.first_hour`:\n{changed}"


# --- pages --------------------------------------------------------------------------------------


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.M)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_quoted_output_is_the_recorded_output(page):
    printed = {step.typed: without_figures(step.output) for step in recorded()}
    for block in blocks(page, "console"):
        for step in read_steps(block):
            assert step.typed in printed, f"{page.name}: not in the first hour: {step.typed}"
            for part in re.split(r"^…$", masked(step.output), flags=re.M):
                assert without_figures(part) in printed[step.typed], f"{page.name}: {step.text}"


def test_pages_quote_the_session():
    quoted = {
        step.typed for page in PAGES for b in blocks(page, "console") for step in read_steps(b)
    }
    assert len(quoted) > 12


def commands_of(page):
    lines = [
        line for block in blocks(page, "(?:console|shell-session)?") for line in block.splitlines()
    ]
    return [line.removeprefix("$ ") for line in lines if re.match(r"(\$ )?histodict ", line)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_on_a_page_have_their_options(page):
    for line in commands_of(page):
        command = get_named_command(line.split()[1])
        options = {name for parameter in command.params for name in parameter.opts}
        text = line.split("  #")[0].split()[2:]
        assert {word for word in text if re.match(r"--?[a-z]", word)} <= options | {"--help"}, line
