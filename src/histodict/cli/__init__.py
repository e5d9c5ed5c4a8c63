"""The command line: each command is a few lines over the pipeline, in the file of its group.

options    what several commands take
console    what they say
learn      train
adapt      adapt
answer     predict, detect
look       info, atoms, methods
compare    evaluate, reproduce
open       demo, serve
"""

from __future__ import annotations

from inspect import cleandoc
from typing import Annotated

import typer

from .adapt import adapt
from .answer import detect, predict
from .compare import evaluate, reproduce
from .learn import train
from .look import atoms, info, methods
from .open import demo, serve
from .options import Command, flat

_GROUPS = {
    "From images to answers": (train, predict, detect, adapt),
    "What is in a model": (info, atoms, methods),
    "How good is it": (evaluate, reproduce),
    "Try it": (demo, serve),
}


def _help(command: Command) -> str:
    """Its docstring, in which a paragraph is a line: the terminal is to break them.

    Indented paragraphs are commands to be copied.
    """
    paragraphs = cleandoc(command.__doc__ or "").split("\n\n")
    return "\n\n".join(p if p.startswith(" ") else p.replace("\n", " ") for p in paragraphs)


app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
for _title, _commands in _GROUPS.items():
    for _command in _commands:
        app.command(rich_help_panel=_title, help=_help(_command))(flat(_command))


def _tell_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"histodict {version('histodict')}")
        raise typer.Exit()


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_tell_version, is_eager=True, help="Say the version."),
    ] = False,
) -> None:
    """Tell healthy from diseased tissue with a handful of labelled images, and see why."""
