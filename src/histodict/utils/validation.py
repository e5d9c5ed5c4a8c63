"""Validation of parameters, and hints in messages, worded for Python, command line or web page."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from numbers import Integral, Real
from reprlib import repr as short
from typing import Any, Literal


def check_whole_number(name: str, value: object, low: int) -> int:
    """Return `value` as an int; raise ValueError unless it is an integer of at least `low`.

    `name` is its name in the message.
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or value < low:
        raise ValueError(f"{name} must be a whole number of at least {low}, not {short(value)}")
    return int(value)


def check_number(name: str, value: object, *, low: float = 0.0, exclusive: bool = False) -> float:
    """Return `value` as a float; raise ValueError unless it is finite and at least `low`.

    If `exclusive`, the value must be greater than `low`. `name` is its name in the message.
    """
    try:
        number = float(value) if isinstance(value, Real) else math.nan
    except OverflowError:  # an integer beyond the range of float
        number = math.inf
    if not math.isfinite(number) or number < low or (exclusive and number == low):
        bound = "greater than" if exclusive else "of at least"
        raise ValueError(f"{name} must be a finite number {bound} {low:g}, not {short(value)}")
    return number


def check_setting_names(names: Iterable[str], known: Iterable[str]) -> None:
    """Raise ValueError unless all names are known settings; the message suggests similar names."""
    valid = sorted(known)
    for name in sorted(set(names) - set(valid)):
        raise ValueError(
            f"unknown setting {name!r}{suggest_names(name, valid)}; valid settings: "
            f"{', '.join(valid)}"
        )


def check_choice(what: str, name: object, known: Iterable[str]) -> None:
    """Raise ValueError unless `name` is one of the known names; the message suggests similar names.

    Parameters
    ----------
    what : noun for the message, such as "method"
    name : name to check
    known : valid names
    """
    valid = sorted(known)
    if name not in valid:
        suggestion = suggest_names(name, valid) if isinstance(name, str) else ""
        raise ValueError(f"{what} must be one of {', '.join(valid)}, not {short(name)}{suggestion}")


def describe_unknown(what: str, name: str, known: Iterable[str]) -> str:
    """Return the error message for an unknown name, with similar names and all known names.

    `what` is a noun, such as "method".
    """
    valid = list(known)
    suggestion = suggest_names(name, valid)
    return f"unknown {what} {name!r}{suggestion}; the {what}s are {', '.join(valid)}"


def suggest_names(name: str, known: list[str]) -> str:
    """Return " (did you mean …?)" with at most two similar names; "" if no name is similar."""
    matches = get_close_matches(name, known, n=2)
    return f" (did you mean {' or '.join(matches)}?)" if matches else ""


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_bool(value: object) -> bool:
    return isinstance(value, bool) or str(getattr(value, "dtype", "")) == "bool"  # NumPy's too


def _is_whole(value: object) -> bool:
    return _is_number(value) and isinstance(value, Integral)


# Function that checks the type of a value, and description of the type for messages, by annotation.
_TYPE_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "int": (_is_whole, "a whole number"),
    "float": (_is_number, "a number"),
    "bool": (_is_bool, "true or false"),
    "str": (lambda value: isinstance(value, str), "a string"),
    "None": (lambda value: value is None, "null"),
    "dict[str, Any]": (lambda value: isinstance(value, dict), "an object"),
    "list[int]": (
        lambda value: isinstance(value, list) and all(_is_whole(part) for part in value),
        "a list of whole numbers",
    ),
    "list[float]": (
        lambda value: isinstance(value, list) and all(_is_number(part) for part in value),
        "a list of numbers",
    ),
    "list[str]": (
        lambda value: isinstance(value, list) and all(isinstance(part, str) for part in value),
        "a list of strings",
    ),
    "list[Any]": (lambda value: isinstance(value, list), "a list"),
    "Any": (lambda value: True, "anything"),
}


def check_type(name: str, value: object, annotation: str) -> None:
    """Raise ValueError unless a value has the type of an annotation, such as "int | None".

    `name` is the name of the value in the message.
    """
    kinds = [_TYPE_CHECKS[kind] for kind in annotation.split(" | ")]
    if not any(fits(value) for fits, _ in kinds):
        expected = " or ".join(expected for _, expected in kinds)
        raise ValueError(f"{name} must be {expected}, not {short(value)}")


# --- hints --------------------------------------------------------------------------------------

UserInterface = Literal["python", "cli", "web"]
_HINT_INTERFACE: list[UserInterface] = ["python"]  # current user interface


def hint_interface() -> UserInterface:
    """Return the user interface for which this process words its hints."""
    return _HINT_INTERFACE[0]


def set_hint_interface(interface: UserInterface) -> None:
    """Set the user interface for which this process words its hints.

    Parameters
    ----------
    interface : "python" (hints name parameters), "cli" (options) or "web" (fields of the page)
    """
    _HINT_INTERFACE[0] = interface


@contextmanager
def hints_for(interface: UserInterface) -> Iterator[None]:
    """Return a context in which hints are worded for a user interface; see `set_hint_interface`."""
    before = hint_interface()
    set_hint_interface(interface)
    try:
        yield
    finally:
        set_hint_interface(before)


def hint(*, python: str, cli: str, web: str | None = None) -> str:
    """Return the wording of a hint for the current user interface.

    Parameters
    ----------
    python : wording for Python
    cli : wording for the command line
    web : wording for the web page; None to use the wording of `cli`
    """
    return {"python": python, "cli": cli, "web": cli if web is None else web}[_HINT_INTERFACE[0]]


def install_command(extra: str) -> str:
    """Return the command that installs an optional group of dependencies.

    Parameters
    ----------
    extra : name of the group in pyproject.toml
    """
    return f'pip install ".[{extra}]" (in a checkout of histodict)'


# Folders of packages in the repository that are not on PyPI, by the name of their module.
_LOCAL_PACKAGES = {"histodict_instanseg": "packages/histodict-instanseg"}


def import_optional(module: str, extra: str, purpose: str) -> Any:
    """Import a module of an optional dependency.

    Parameters
    ----------
    module : name of the module
    extra : group of dependencies that contains it
    purpose : feature that needs the module, for the error message

    Raises
    ------
    ImportError
        If the module, or a module that it imports, is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(missing_module_message(error.name or module, extra, purpose)) from error


def missing_module_message(module: str, extra: str, purpose: str) -> str:
    """Return the error message for a missing module; see `import_optional` for the parameters."""
    command = install_command(extra)
    if module in _LOCAL_PACKAGES:
        command = f"pip install ./{_LOCAL_PACKAGES[module]} (in a checkout of histodict)"
    return f"{purpose} needs {module}, which is not installed. Run: {command}"
