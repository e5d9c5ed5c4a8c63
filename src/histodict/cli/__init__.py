"""Command-line interface: the typer application and its groups of commands.

console        messages, progress display and signal handling
usage_errors   messages about wrong command lines
options        options and option groups shared by several commands; layout of their help
image_options  options that name images
train          train, adapt
predict        predict
features       features
concepts       concepts
inspect_model  info, atoms
edit_atoms     edit, explain
evaluate       evaluate, reproduce
serve          demo, serve

The module of a command is imported when the command runs or its help is printed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ..utils.validation import describe_unknown
from .usage_errors import exit_after_usage_error, report_usage_errors

_WIDTH = 100  # maximum line length of help

# Title of each group, and its commands with the first line of their help.
_GROUPS = {
    "Train and predict": {
        "train": "Train a model on labelled images, masks, annotations or feature files.",
        "predict": "Classify images and slides, or detect regions; the model determines which.",
        "evaluate": "Compare methods on unseen patients, and write a report.",
        "adapt": "Adapt the threshold of a model to unlabelled images of another hospital.",
    },
    "Explain": {
        "explain": "Explain predictions: the contribution of each atom to the score of an image.",
        "atoms": "Write an HTML page of the atoms of a model, with the patches that use them most.",
        "edit": "Name, group and disable atoms, and write a new model file.",
        "info": "Describe a model: settings, training images, ensemble weights. Or list methods.",
    },
    "Patches without labels": {
        "features": "Write one feature file (.h5) per image, as the program TRIDENT does.",
        "concepts": "Learn concepts from unlabelled images; classify images from a few labels.",
    },
    "Try": {
        "serve": "Start a local web page to inspect images, train, correct labels, train again.",
        "demo": "Train and test on synthetic tissue, and write an HTML page. Needs no data.",
        "reproduce": "Repeat the experiments of Vu 2016, and compare the results with the paper.",
    },
}
# Module of each command whose module has another name.
_MODULES = {
    "adapt": "train",
    "explain": "edit_atoms",
    "edit": "edit_atoms",
    "atoms": "inspect_model",
    "info": "inspect_model",
    "demo": "serve",
    "reproduce": "evaluate",
}


class LazyCommandGroup(TyperGroup):
    """Command group that imports a command at first use, and lists the commands in sections."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        names = (name for summaries in _GROUPS.values() for name in summaries)
        self.commands: dict[str, Any] = dict.fromkeys(names)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of this name, imported at first use; None if there is none."""
        if cmd_name in self.commands and self.commands[cmd_name] is None:
            self.commands[cmd_name] = _make_command(cmd_name)
        return self.commands.get(cmd_name)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options before the command; after an error, print one line and exit."""
        if not args:
            return super().parse_args(ctx, args)  # prints the help
        with report_usage_errors(ctx):
            return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return name, command and its arguments; print one line and exit for an unknown name."""
        if args[0] not in self.commands:
            exit_after_usage_error(ctx, describe_unknown("command", args[0], self.commands))
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run a command; print a one-line error if its output cannot be written."""
        try:
            try:
                with report_usage_errors(ctx):
                    return super().invoke(ctx)
            finally:
                if sys.stdout is not None:  # it may be closed
                    sys.stdout.flush()
        except OSError as error:
            _exit_after_output_error(error)

    def main(self, *args: Any, **options: Any) -> Any:
        """Run the application; print a one-line error if the output cannot be written."""
        try:
            return super().main(*args, **options)
        except OSError as error:
            _exit_after_output_error(error)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands, one section per group."""
        for title, summaries in _GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(list(summaries.items()))

    def get_help_option(self, ctx: Any) -> Any:
        """Return the help option with default False.

        With the default None, typer imports pydantic to convert the value.
        """
        option = super().get_help_option(ctx)
        if option is not None:
            option.default = False
        return option


def load_command_function(name: str) -> Callable[..., None]:
    """Import and return the function of the command with this name."""
    module = import_module(f".{_MODULES.get(name, name)}", __name__)
    return vars(module)[name]


def _make_command(name: str) -> Any:
    from .options import Command, flatten_options

    command_app = typer.Typer(add_completion=False, rich_markup_mode=None)
    command_app.command(name, cls=Command)(flatten_options(load_command_function(name)))
    return typer.main.get_command(command_app)


def _exit_after_output_error(error: OSError) -> None:
    from .console import exit_after_output_error

    exit_after_output_error(error)


app = typer.Typer(
    cls=LazyCommandGroup,
    no_args_is_help=True,
    options_metavar="",
    subcommand_metavar="COMMAND [OPTIONS]",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"max_content_width": _WIDTH, "help_option_names": ["--help", "-h"]},
)


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

    An atom is a typical patch pattern that the model has learned. A concept is one atom, or
    several atoms to which you gave the same name.
    """
