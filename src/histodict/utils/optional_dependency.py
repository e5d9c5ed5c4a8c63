"""Optional dependencies: import them, and name the command that installs them."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def install_command(extra: str) -> str:
    """Return the command that installs an optional group of dependencies.

    Parameters
    ----------
    extra : name of the group in pyproject.toml
    """
    return f'pip install ".[{extra}]" (in a checkout of histodict)'


def load_optional(module: str, extra: str, purpose: str) -> Any:
    """Import a module of an optional dependency.

    Parameters
    ----------
    module : name of the module
    extra : group of dependencies that contains it
    purpose : what needs the module, for the error message

    Raises
    ------
    ImportError
        If the module or one that it needs is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(missing_message(error.name or module, extra, purpose)) from error


def missing_message(module: str, extra: str, purpose: str) -> str:
    """Return the message for a missing module; parameters as for `load_optional`."""
    return f"{purpose} needs {module}, which is not installed. Run: {install_command(extra)}"
