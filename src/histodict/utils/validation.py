"""Checks of parameters, and hints in messages: an option, a parameter or a field of the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from numbers import Integral, Real
from reprlib import repr as short
from typing import Any, Literal


def check_whole_number(name: str, value: object, low: int) -> int:
    """value as an int of at least low."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < low:
        raise ValueError(f"{name} must be a whole number of at least {low}, not {short(value)}")
    return int(value)


def check_number(name: str, value: object, *, low: float = 0.0, above: bool = False) -> float:
    """value as a finite float of at least low, or greater than low if `above`."""
    try:
        number = float(value) if isinstance(value, Real) else math.nan
    except OverflowError:  # a whole number beyond all floats
        number = math.inf
    if not math.isfinite(number) or number < low or (above and number == low):
        bound = "greater than" if above else "of at least"
        raise ValueError(f"{name} must be a finite number {bound} {low:g}, not {short(value)}")
    return number


def check_names(names: Iterable[str], known: Iterable[str]) -> None:
    """Refuses a setting that is not known, and says which one may have been meant."""
    there = sorted(known)
    for name in sorted(set(names) - set(there)):
        raise ValueError(
            f"there is no setting {name!r}{_meant(name, there)}; there are {', '.join(there)}"
        )


def check_choice(what: str, name: object, known: Iterable[str]) -> None:
    """Refuses a name that is none of those that are known, and says which may have been meant."""
    there = sorted(known)
    if name not in there:
        meant = _meant(name, there) if isinstance(name, str) else ""
        raise ValueError(f"{what} must be one of {', '.join(there)}, not {short(name)}{meant}")


def _meant(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, n=2)
    return f" (did you mean {' or '.join(near)}?)" if near else ""


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_bool(value: object) -> bool:
    return isinstance(value, bool) or str(getattr(value, "dtype", "")) == "bool"  # NumPy's too


def _is_whole(value: object) -> bool:
    return _is_number(value) and isinstance(value, Integral)


# What a value may be, by the word of an annotation; and how a message calls it.
_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "int": (_is_whole, "a whole number"),
    "float": (_is_number, "a number"),
    "bool": (_is_bool, "true or false"),
    "str": (lambda value: isinstance(value, str), "a word"),
    "None": (lambda value: value is None, "nothing (null)"),
    "dict[str, Any]": (lambda value: isinstance(value, dict), "settings by name"),
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
        "a list of words",
    ),
    "list[Any]": (lambda value: isinstance(value, list), "a list"),
    "Any": (lambda value: True, "anything"),
}


def check_kind(name: str, value: object, annotation: str) -> None:
    """Refuses a value that is none of what an annotation such as "int | None" allows."""
    kinds = [_KINDS[word] for word in annotation.split(" | ")]
    if not any(fits(value) for fits, _ in kinds):
        words = " or ".join(words for _, words in kinds)
        raise ValueError(f"{name} must be {words}, not {short(value)}")


# --- hints --------------------------------------------------------------------------------------

Surface = Literal["python", "cli", "web"]
_SURFACE: list[Surface] = ["python"]


def hint_surface() -> Surface:
    """Return the surface for which hints are worded; worker processes have to be told."""
    return _SURFACE[0]


def set_hint_surface(surface: Surface) -> None:
    """Word the hints of messages for one surface, in this process.

    Parameters
    ----------
    surface : "python" names parameters, "cli" options of commands, "web" fields of the page
    """
    _SURFACE[0] = surface


@contextmanager
def hints_for(surface: Surface) -> Iterator[None]:
    """Word the hints of messages for one surface until the block ends."""
    before = hint_surface()
    set_hint_surface(surface)
    try:
        yield
    finally:
        set_hint_surface(before)


def hint(*, python: str, cli: str, web: str | None = None) -> str:
    """Return the wording for the current surface.

    Parameters
    ----------
    python, cli, web : the wordings; without `web`, the message cannot appear on the page
    """
    return {"python": python, "cli": cli, "web": cli if web is None else web}[_SURFACE[0]]
