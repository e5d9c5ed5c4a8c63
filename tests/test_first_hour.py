"""The first hour prints the words that are kept, and the pages for users quote them."""

from __future__ import annotations

import re
from difflib import unified_diff
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.main import get_command

from histodict.cli import app
from tests.data.record import processor
from tests.first_hour import (
    Step,
    masked,
    read_steps,
    recorded,
    recorded_on,
    run_hour,
    without_figures,
    write_steps,
)

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS = get_command(app)


def test_the_hour_prints_the_words_that_are_kept(tmp_path):
    kept = [step for step in recorded() if find_spec("torch") or not step.needs_torch]
    found = [kept[0], *run_hour(kept[1:], tmp_path.resolve())]
    if processor() != recorded_on(kept):
        kept, found = ([_plain(step) for step in steps] for steps in (kept, found))
    diff = unified_diff(write_steps(kept).splitlines(), write_steps(found).splitlines(), n=4)
    changed = "\n".join(diff)
    assert not changed, f"keep the new words with `python -m tests.first_hour`:\n{changed}"


def _plain(step):
    return Step(step.typed, without_figures(step.words))


# --- pages --------------------------------------------------------------------------------------


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.M)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_shows_is_what_is_printed(page):
    printed = {step.typed: without_figures(step.words) for step in recorded()}
    for block in blocks(page, "console"):
        for step in read_steps(block):
            assert step.typed in printed, f"{page.name}: not in the first hour: {step.typed}"
            for part in re.split(r"^…$", masked(step.words), flags=re.M):
                assert without_figures(part) in printed[step.typed], f"{page.name}: {step.text}"


def test_pages_quote_the_hour():
    quoted = {
        step.typed for page in PAGES for b in blocks(page, "console") for step in read_steps(b)
    }
    assert len(quoted) > 12


def commands_of(page):
    lines = [line for block in blocks(page, "(?:console)?") for line in block.splitlines()]
    return [line.removeprefix("$ ") for line in lines if re.match(r"(\$ )?histodict ", line)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_of_a_page_have_the_options_that_it_names(page):
    for line in commands_of(page):
        command = COMMANDS.commands[line.split()[1]]
        known = {name for parameter in command.params for name in parameter.opts}
        words = line.split("  #")[0].split()[2:]
        assert {word for word in words if re.match(r"--?[a-z]", word)} <= known | {"--help"}, line
