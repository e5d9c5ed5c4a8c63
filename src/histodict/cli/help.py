"""What `--help` says, in plain text: boxes and colours would take longer to load than all of it."""

from __future__ import annotations

import sys
from typing import Any

from typer.core import TyperGroup

from .console import end_unprinted

WIDTH = 100  # of a line, where the terminal has room


class Commands(TyperGroup):
    """The commands, each under the title of its group (which typer calls its panel)."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; print a one-line error if its output cannot be written."""
        try:
            try:
                return super().invoke(ctx)
            finally:
                if sys.stdout is not None:  # it may be closed
                    sys.stdout.flush()
        except OSError as error:
            end_unprinted(error)

    def main(self, *args: Any, **options: Any) -> Any:
        """Do the same for `--help` and `--version`."""
        try:
            return super().main(*args, **options)
        except OSError as error:
            end_unprinted(error)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            row = (name, command.get_short_help_str(limit=WIDTH))
            groups.setdefault(command.rich_help_panel, []).append(row)
        for title, rows in groups.items():
            with formatter.section(title):
                formatter.write_dl(rows)

    def get_help_option(self, ctx: Any) -> Any:
        """Not given it is false, and not None, which typer would load pydantic to make a bool."""
        option = super().get_help_option(ctx)
        if option is not None:
            option.default = False
        return option
