"""Finite differences, to test analytic gradients."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray


def finite_differences(
    function: Callable[[NDArray], float], point: NDArray, step: float = 1e-5
) -> NDArray:
    """Return central differences of a scalar function, entry by entry."""
    gradient = np.empty_like(point)
    for index in np.ndindex(*point.shape):
        ahead, behind = point.copy(), point.copy()
        ahead[index] += step
        behind[index] -= step
        gradient[index] = (function(ahead) - function(behind)) / (2 * step)
    return gradient
