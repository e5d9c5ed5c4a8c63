"""Checks of numbers that users give; the message names the parameter."""

from __future__ import annotations

from numbers import Integral, Real

import numpy as np


def check_whole_number(name: str, value: object, low: int) -> int:
    """value as an int of at least low."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < low:
        raise ValueError(f"{name} must be a whole number of at least {low}, not {value!r}")
    return int(value)


def check_number(name: str, value: object, *, low: float = 0.0, above: bool = False) -> float:
    """value as a finite float of at least low, or greater than low if `above`."""
    number = float(value) if isinstance(value, Real) else np.nan
    if not np.isfinite(number) or number < low or (above and number == low):
        bound = "greater than" if above else "of at least"
        raise ValueError(f"{name} must be a finite number {bound} {low:g}, not {value!r}")
    return number
