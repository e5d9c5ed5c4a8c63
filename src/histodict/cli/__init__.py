"""Command-line interface: the typer application and its groups of commands.

console        messages, progress display and signal handling
options        options and option groups shared by several commands; layout of `--help`
image_options  options that name images
train          train, adapt
predict        predict
features       features
concepts       concepts
inspect_model  info, atoms
edit_atoms     edit, explain
evaluate       evaluate, reproduce
serve          demo, serve
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from .concepts import concepts
from .edit_atoms import edit, explain
from .evaluate import evaluate, reproduce
from .features import features
from .inspect_model import atoms, info
from .options import WIDTH, Command, Commands, flatten_options
from .predict import predict
from .serve import demo, serve
from .train import adapt, train

_GROUPS: dict[str, tuple[Callable[..., None], ...]] = {
    "Train and predict": (train, predict, evaluate, adapt),
    "Explain": (explain, atoms, edit, info),
    "Patches without labels": (features, concepts),
    "Try": (serve, demo, reproduce),
}

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"max_content_width": WIDTH},
)
for _title, _commands in _GROUPS.items():
    for _command in _commands:
        app.command(cls=Command, rich_help_panel=_title)(flatten_options(_command))


def _print_version(is_requested: bool) -> None:
    if is_requested:
        from importlib.metadata import version

        typer.echo(f"histodict {version('histodict')}")
        raise typer.Exit()


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Classify tissue images with few labels, and explain every prediction.

    Start with `histodict serve --demo` or `histodict train --help`.
    """
