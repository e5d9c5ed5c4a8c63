"""Messages about wrong command lines, on one line and with the next step, in place of typer's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import typer

from ..utils.validation import suggest_names

_UsageError: Any = typer.BadParameter.__base__  # not exported by typer
# Messages of typer, and the text that replaces them.
_REPLACEMENTS = {
    r"Got unexpected extra argument\(s\) \((.*)\)": r"unexpected argument: \1. Put quotes around "
    "a path that contains spaces",
    r"Option '(.*)' requires an argument": r"\1 needs a value",
    r"Option '(.*)' does not take a value": r"\1 takes no value",
    r"Missing command": "the command is missing",
    r"'?(.*?)'? is not a valid int.*": r"\1 is not a whole number",
    r"'?(.*?)'? is not a valid (number|float).*": r"\1 is not a number",
    r"not (greater than or equal to |in the range x>=)": "less than ",
}


@contextmanager
def report_usage_errors(ctx: Any) -> Iterator[None]:
    """Context manager that prints an error in the arguments on one line and exits with status 2."""
    try:
        yield
    except _UsageError as error:
        exit_after_usage_error(ctx, _describe_usage_error(error, ctx))


def exit_after_usage_error(ctx: Any, message: str) -> NoReturn:
    """Print an error message with the usage of a command; exit with status 2."""
    from .console import print_error

    usage = " ".join(ctx.get_usage().split())
    print_error(f"{message}. {usage}. All options: {ctx.command_path} --help")
    raise typer.Exit(2)


def _describe_usage_error(error: Any, ctx: Any) -> str:
    """Return the message about an error of typer, whose attributes tell which error it is."""
    if hasattr(error, "possibilities"):
        names = [name for parameter in ctx.command.get_params(ctx) for name in parameter.opts]
        return f"unknown option {error.option_name}{suggest_names(error.option_name, names)}"
    message = error.message.rstrip(".")
    if hasattr(error.__cause__, "errors"):  # pydantic, in newer versions of typer
        value = error.__cause__.errors()[0]["input"]
        message = message.replace("Input should be", f"{value} is not")
    for pattern, replacement in _REPLACEMENTS.items():
        message = re.sub(pattern, replacement, message)
    parameter = getattr(error, "param", None)
    if parameter is None:
        return message
    is_argument = parameter.param_type_name == "argument"
    name = parameter.metavar if is_argument else " or ".join(parameter.opts)
    if hasattr(error, "param_type"):
        return f"{name} is missing: {parameter.help.rstrip('.')}"
    return f"{name}: {message}"
