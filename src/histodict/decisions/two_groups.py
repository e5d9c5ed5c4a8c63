"""Do scores fall into two groups? A test by smoothing, after Silverman (1981).

H0: the scores are of one group. Their density is smoothed more and more; t, the width of smoothing
at which the last valley closes, in standard deviations, is small if valleys are chance and large if
there are two groups. A valley counts if a tenth of the images or more lie on either side of it, so
that a few outliers make no group. H0 is refused if t is larger than for 95 in 100 sets of as many
draws from a normal distribution; heavy tails and skewed groups have smaller t than that.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

ERROR_RATE = 0.05
_MIN_FRACTION = 0.1
_N_DRAWS = 1000
_MAX_IMAGES = 1000  # of a draw: with more, t would be a little smaller yet
_SPAN, _N_BINS = 5.0, 256  # standard deviations to either side of the median
_WIDTHS = np.geomspace(1.5, 0.08, 60)


def is_bimodal(scores: NDArray[np.float64]) -> bool:
    """Whether scores (n_images,) are of two groups, with an error rate of 5 % if they are not."""
    if np.ptp(scores) == 0:
        return False
    width = _closing_widths(_untied(scores)[None])[0]
    return bool(width > _critical(min(len(scores), _MAX_IMAGES)))


def _untied(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sorted; scores that are the same are spread evenly about their place, as far as the next one.

    Shares of few patches are multiples of one number, and what is between them is no valley. Of
    scores with two or three values alone nothing can be told, and they count as one group.
    """
    values, counts = np.unique(scores, return_counts=True)
    gaps = np.diff(values)
    nearest = np.minimum(np.append(gaps[:1], gaps), np.append(gaps, gaps[-1:]))
    nth = np.arange(len(scores)) - np.repeat(np.cumsum(counts) - counts, counts)
    place = np.repeat(np.arange(len(values)), counts)
    share = (2 * nth + 1) / counts[place] - 1  # from -1 to 1, and 0 of one alone
    return np.asarray(values[place] + share * nearest[place])


@lru_cache(maxsize=100)
def _critical(n_images: int) -> float:
    draws = np.random.default_rng(0).normal(size=(_N_DRAWS, n_images))
    return float(np.quantile(_closing_widths(draws), 1 - ERROR_RATE))


def _closing_widths(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """t of each of the sets (n_sets, n_images); 0 where there is no valley at the least width."""
    counts = _histograms(scores)
    found = np.zeros(len(scores))
    for width in _WIDTHS:  # from wide to narrow: the first valley to open closes last
        open_ = found == 0
        if open_.any():
            found[open_] = np.where(_have_valleys(counts[open_] @ _smoother(width)), width, 0)
    return found


def _histograms(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n_sets, n_bins): shares of the images, about the median, in standard deviations."""
    centred = scores - np.median(scores, axis=1, keepdims=True)
    places = (centred / scores.std(axis=1, keepdims=True) / _SPAN + 1) / 2 * _N_BINS
    bins = np.clip(places.astype(np.int64), 0, _N_BINS - 1)
    counts = np.zeros((len(scores), _N_BINS))
    np.add.at(counts, (np.arange(len(scores))[:, None], bins), 1 / scores.shape[1])
    return counts


@lru_cache(maxsize=len(_WIDTHS))
def _smoother(width: float) -> NDArray[np.float64]:
    """(n_bins, n_bins): a normal density of this width about each bin."""
    middles = np.linspace(-_SPAN, _SPAN, _N_BINS)
    return np.exp(-(((middles[:, None] - middles) / width) ** 2) / 2)


def _have_valleys(density: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Of densities (n_sets, n_bins): whether one has a least place between two groups."""
    below = np.cumsum(density, axis=1) / density.sum(axis=1, keepdims=True)
    middle = density[:, 1:-1]
    is_least = (middle <= density[:, :-2]) & (middle < density[:, 2:])
    between = (below[:, 1:-1] >= _MIN_FRACTION) & (below[:, 1:-1] <= 1 - _MIN_FRACTION)
    return np.asarray((is_least & between).any(axis=1))
