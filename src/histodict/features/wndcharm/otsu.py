"""Otsu's threshold, which parts values into the two classes that differ most."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .distributions import histogram

_N_LEVELS = 1024


def otsu(values: NDArray[np.float64]) -> float:
    """The threshold among 1024 levels between the least and the greatest value.

    It makes ω_0·ω_1·(μ_1 − μ_0)² of the classes' shares and means largest; the first of several.
    """
    share = histogram(values, _N_LEVELS) / values.size
    below, mass = share.cumsum(), (share * np.arange(_N_LEVELS)).cumsum()
    parts = (below > 0) & (below < 1)
    spread = np.zeros(_N_LEVELS)
    lag = mass[-1] * below[parts] - mass[parts]
    spread[parts] = lag**2 / (below[parts] * (1 - below[parts]))
    level = spread[:-1].argmax()
    return float(level / (_N_LEVELS - 1) * np.ptp(values) + values.min())
