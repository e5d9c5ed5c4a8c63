"""Tamura's textures: coarseness, contrast and directionality, as the original program has them.

Its coarseness is not quite Tamura's: a sum over a window takes the wrong corners of the table of
sums, which leaves one pixel of the window (or, at the image's upper border, a piece of one column)
over the window's area. Its slopes come from two uneven 3 × 3 windows. Both are followed here, so
that the numbers are the same.

Reference: Tamura, Mori, Yamawaki, "Textural features corresponding to visual perception", IEEE
Transactions on Systems, Man and Cybernetics, 1978.

Fractal features: how fast values part with distance.

On a fractal surface of Hurst exponent H, as fractional Brownian motion draws, the mean of
|f(x + k) − f(x)| grows as k^H: these means, for 20 distances up to a fifth of the image, hold H at
every scale.

Reference: Wu, Chen, Hsieh, "Texture features for classification of ultrasonic liver images", IEEE
Transactions on Medical Imaging, 1992.

Gabor textures: in how much of the image waves of seven frequencies are strong.

A Gabor filter is a wave under a Gaussian window of 0.56 wavelengths, twice as long along the wave's
crests; here of 38 × 38 pixels, with waves that run down the image. The length of its complex
response does not depend on the wave's phase.

Reference: Grigorescu, Petkov, Kruizinga, "Comparison of texture features based on Gabor filters",
IEEE Transactions on Image Processing, 2002.

Prewitt's gradient, and the edge transform.

Edge statistics: how many edges, how steep, and in which directions.

Haralick's textures: fourteen statistics of which grey levels lie next to each other.

Reference: Haralick, Shanmugam, Dinstein, "Textural features for image classification", IEEE
Transactions on Systems, Man and Cybernetics, 1973.

Object statistics: connected pixels brighter than Otsu's threshold, and of the inverted image.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import fft
from scipy.ndimage import correlate

from .histograms import Entries, Plane, histogram, moments, named_entries, otsu

_N_DISTANCES = 20


def fractal_features(plane: Plane) -> Entries:
    """Σ |difference| at 20 distances, over w(w − k) + h(h − k), as the original has it.

    Of a square that is the mean. Distances a small image does not have are 0.
    """
    reach = min(plane.shape) // 5
    distances = range(1, reach, max(1, reach // _N_DISTANCES))[:_N_DISTANCES]
    values = np.zeros(_N_DISTANCES)
    values[: len(distances)] = [_mean_difference(plane, k) for k in distances]
    return named_entries("distance", values)


def _mean_difference(plane: Plane, k: int) -> float:
    height, width = plane.shape
    across, down = plane[:, k:] - plane[:, :-k], plane[k:] - plane[:-k]
    total = sum(np.abs(part, out=part).sum() for part in (across, down))
    return float(total / (width * (width - k) + height * (height - k)))


_FREQUENCIES = (1, 2, 3, 4, 5, 6, 7)  # radians per pixel
_LOW_FREQUENCY = 0.1
_SIDE = 38
_WINDOW = 0.56  # wavelengths
_ASPECT = 0.5
_ANGLE = 3.14159265 / 2


def gabor_textures(plane: Plane) -> Entries:
    """Pixels whose response is above Otsu's threshold, per frequency.

    Over those whose response to a slow wave is above 0.4 of the strongest; 0 where there is none.
    """
    slow, *others = _responses(plane, (_LOW_FREQUENCY, *_FREQUENCIES))
    known = int((slow > 0.4 * slow.max()).sum())
    return {
        f"frequency {frequency}": int((one > otsu(one)).sum()) / known if known else 0.0
        for frequency, one in zip(_FREQUENCIES, others, strict=True)
    }


def _responses(plane: Plane, frequencies: Sequence[float]) -> Iterator[Plane]:
    """|response| to each filter, over the strongest; beyond the border there is nothing."""
    height, width = plane.shape
    shape = [fft.next_fast_len(side + _SIDE - 1) for side in plane.shape]
    spectrum, start = fft.fft2(plane, shape), _SIDE // 2
    for frequency in frequencies:
        whole = fft.ifft2(spectrum * fft.fft2(_filter(frequency), shape))
        part = np.abs(whole[start : start + height, start : start + width])
        yield part / (part.max() or 1.0)


@cache
def _filter(frequency: float) -> NDArray[np.complex128]:
    deviation = _WINDOW * 2 * np.pi / frequency
    steps = np.arange(_SIDE) - _SIDE // 2
    y, x = np.meshgrid(steps, steps, indexing="ij")
    along = x * np.cos(_ANGLE) + y * np.sin(_ANGLE)
    across = y * np.cos(_ANGLE) - x * np.sin(_ANGLE)
    window = np.exp(-(along**2 + _ASPECT**2 * across**2) / (2 * deviation**2))
    return window / window.sum() * np.exp(1j * frequency * along)


def gradient(plane: Plane) -> tuple[Plane, Plane]:
    """How much the three pixels above outweigh those below, and those left those right.

    There is nothing beyond the border: pixels there are 0.
    """
    padded = np.pad(plane, 1)
    up, left = padded[:-2] - padded[2:], padded[:, :-2] - padded[:, 2:]
    return up[:, :-2] + up[:, 1:-1] + up[:, 2:], left[:-2] + left[1:-1] + left[2:]


def edge_transform(plane: Plane) -> Plane:
    """The largest |difference| to the neighbours above, below, left and right.

    Pixels of the border have neighbours along the border alone.
    """
    edges = np.zeros_like(plane)
    down, across = np.abs(np.diff(plane, axis=0)), np.abs(np.diff(plane, axis=1))
    edges[1:-1] = np.maximum(down[:-1], down[1:])
    np.maximum(edges[:, 1:-1], np.maximum(across[:, :-1], across[:, 1:]), out=edges[:, 1:-1])
    return edges


_N_BINS = 8


def edge_statistics(plane: Plane) -> Entries:
    """Edges are pixels steeper than the mean; directions are of all pixels.

    "opposite": the difference between two opposite directions, relative to both.
    "first two": the share of the first two directions.
    """
    up, left = gradient(plane)
    steepness = np.hypot(up, left)
    directions = np.where(up == 0, np.pi * (left < 0), np.arctan2(up, left))
    h = histogram(directions, _N_BINS)
    one, other = h[: _N_BINS // 2], h[_N_BINS // 2 :]
    return (
        {"number of edges": float((steepness > steepness.mean()).sum())}
        | named_entries("opposite", np.abs(one - other) / np.maximum(one + other, 1))
        | named_entries("direction", h)
        | {"first two": float(h[:2].sum() / h.sum())}
        | _summary("direction", directions)
        | named_entries("steepness", histogram(steepness, _N_BINS))
        | _summary("steepness", steepness)
    )


def _summary(name: str, values: Plane) -> Entries:
    """Mean, median and variance."""
    return {
        f"{name} mean": float(values.mean()),
        f"{name} median": float(np.median(values)),
        f"{name} variance": float(values.var(ddof=1)),
    }


Fractions = NDArray[np.float64]

_N_LEVELS = 256
_MIN = 1e-9  # keeps logarithms of shares finite


def haralick_textures(plane: Plane) -> Entries:
    """Mean and range of each statistic over the four directions."""
    each = [statistics(p) for p in neighbour_frequencies(plane)]
    entries: Entries = {}
    for name in each[0]:
        values = [one[name] for one in each]
        entries[f"{name} mean"] = sum(values) / 4
        entries[f"{name} range"] = max(values) - min(values)
    return entries


def neighbour_frequencies(plane: Plane) -> list[Fractions]:
    """Shares of the pairs of levels of neighbours, in four directions: (level, level).

    Levels are 256 steps from the least value to the greatest, and only those that occur have a
    place. As in the original, pairs with a pixel of the lowest level do not count.
    """
    span = np.ptp(plane)
    grey = ((plane - plane.min()) * (255.0 / span if span > 0 else 0.0)).astype(np.intp)
    seen = np.bincount(grey.ravel(), minlength=_N_LEVELS) > 0
    pairs = [
        (grey[:, :-1], grey[:, 1:]),
        (grey[:-1, 1:], grey[1:, :-1]),
        (grey[:-1], grey[1:]),
        (grey[:-1, :-1], grey[1:, 1:]),
    ]
    return [_fractions(one, other)[np.ix_(seen, seen)] for one, other in pairs]


def _fractions(one: NDArray[np.intp], other: NDArray[np.intp]) -> Fractions:
    counts = np.bincount((one * _N_LEVELS + other).ravel(), minlength=_N_LEVELS**2)
    both = counts.reshape(_N_LEVELS, _N_LEVELS).astype(np.float64)
    both[0] = both[:, 0] = 0
    both += both.T
    return both / max(both.sum(), 1.0)


def statistics(p: Fractions) -> dict[str, float]:
    """The fourteen statistics of shares p (levels, levels), symmetric, in the original's order.

    As in the original, the sum variance is taken about the sum entropy.
    """
    steps = np.arange(len(p))
    i, j = steps[:, None], steps
    margin = p.sum(axis=0)
    mean = float(margin @ steps)
    variance = float(margin @ (steps - mean) ** 2)
    sums, differences = _totals(i + j, p), _totals(np.abs(i - j), p)
    entropy, sum_entropy = _entropy(p), _entropy(sums)
    independent = np.outer(margin, margin)
    known = entropy - _entropy(p, independent)
    whole = _entropy(margin)
    apart = float(differences @ np.arange(len(differences)))
    squares = float(differences @ np.arange(len(differences)) ** 2.0)
    together = float(steps @ p @ steps)
    return {
        "angular second moment": float((p * p).sum()),
        "contrast": squares,
        "correlation": (together - mean * mean) / variance if variance > 0 else 1.0,
        "difference variance": squares - apart**2,
        "difference entropy": _entropy(differences),
        "entropy": entropy,
        "information of correlation 1": known / whole if whole else 1.0,
        "inverse difference moment": float((p / (1.0 + (i - j) ** 2)).sum()),
        "maximal correlation": maximal_correlation(p),
        "information of correlation 2": _information(_entropy(independent) - entropy),
        "sum average": float(sums @ np.arange(len(sums))),
        "sum entropy": sum_entropy,
        "sum variance": float(sums @ (np.arange(len(sums)) - sum_entropy) ** 2),
        "variance": variance,
    }


def _totals(places: NDArray[np.intp], p: Fractions) -> Fractions:
    """The sum of the shares at each place."""
    return np.bincount(places.ravel(), p.ravel()).astype(np.float64)


def _entropy(p: Fractions, other: Fractions | None = None) -> float:
    """−Σ p·log₂ p, or −Σ p·log₂ other."""
    return float(-(p * np.log2((p if other is None else other) + _MIN)).sum())


def _information(nats: float) -> float:
    return abs(1 - np.exp(-2.0 * nats)) ** 0.5


def maximal_correlation(p: Fractions) -> float:
    """Largest correlation that functions of two neighbours' levels can have.

    The second largest singular value of p_ij / √(p_i p_j), whose largest is 1; p symmetric.
    """
    seen = p.sum(axis=0) > 0
    p = p[np.ix_(seen, seen)]
    if len(p) < 2:
        return 0.0
    roots = np.sqrt(p.sum(axis=0))
    values = np.linalg.eigvalsh(p / np.outer(roots, roots))
    return float(np.sort(np.abs(values))[-2])


_N_OBJECT_BINS = 10


def bright_objects(plane: Plane) -> Entries:
    """Of pixels above the threshold."""
    return object_statistics(plane > otsu(plane))


def dark_objects(plane: Plane) -> Entries:
    """Of pixels above the threshold of the inverted plane."""
    return bright_objects(plane.max() - plane + plane.min())


def object_statistics(mask: NDArray[np.bool_]) -> Entries:
    """Areas, middle of all, number, distances of the objects from that middle, Euler number.

    Pixels that touch, corners included, are one object; the middle counts pixels from 1. All 0
    where there is no object.
    """
    from skimage.measure import label

    labels, count = label(mask, connectivity=2, return_num=True)
    rows, columns = np.nonzero(mask)
    owners = labels[rows, columns] - 1
    areas = np.bincount(owners, minlength=count).astype(np.float64)
    centres = np.stack([np.bincount(owners, at + 1, count) for at in (columns, rows)]) / areas
    middle = np.array([columns.mean() + 1, rows.mean() + 1]) if count else np.zeros(2)
    return (
        _object_summary("area", areas)
        | named_entries("middle", middle)
        | {"number": float(count)}
        | _object_summary("distance", np.hypot(*(centres - middle[:, None])))
        | {"Euler number": float(euler_number(mask))}
    )


def euler_number(mask: NDArray[np.bool_]) -> int:
    """Objects less holes, from the 2 × 2 windows with one and with three pixels set.

    As in the original, windows of two pixels corner to corner are not counted and the border is
    left out, so that it is the Euler number only of objects that have neither.
    """
    m = mask.astype(np.int8)
    in_window = m[:-1, :-1] + m[:-1, 1:] + m[1:, :-1] + m[1:, 1:]
    return int(((in_window == 1).sum() - int((in_window == 3).sum())) / 4)


def _object_summary(name: str, values: NDArray[Any]) -> Entries:
    """Histogram of ten steps, greatest, mean, the upper median, least, variance."""
    known = np.sort(values) if values.size else np.zeros(1)
    # The original has no histogram of areas that are all the same.
    blank = name == "area" and np.ptp(known) == 0
    return named_entries(
        name, np.zeros(_N_OBJECT_BINS) if blank else histogram(values, _N_OBJECT_BINS)
    ) | {
        f"{name} greatest": float(known[-1]),
        f"{name} mean": float(known.mean()),
        f"{name} median": float(known[len(known) // 2]),
        f"{name} least": float(known[0]),
        f"{name} variance": float(known.var(ddof=1)) if len(known) > 1 else 0.0,
    }


_Region = tuple[slice, slice]

_N_SCALES = 7
_N_DIRECTIONS = 125
_MARGIN = 32
_ACROSS = np.array([[-1.0, 2, 1], [-2, 0, 2], [-1, -2, -1]])
_DOWN = np.array([[1.0, 0, 0], [0, 0, 0], [-1, 0, 0]])
# A slope of less than this has no direction.
_MIN_SLOPE = 1e-4


def tamura_textures(plane: Plane) -> Entries:
    """Shares of fine, middle and coarse, the fullest as 1; contrast, directionality, coarseness."""
    greatest = plane.max()
    unit = (plane - plane.min()) / (greatest if greatest else 1.0)
    scales = coarsest_scales(unit)
    thirds = histogram(scales, 3)
    inner = [side - _MARGIN for side in plane.shape]
    return named_entries("coarseness", thirds / thirds.max()) | {
        "contrast": contrast(unit),
        "directionality": directionality(unit),
        "coarseness": float(scales.sum() / np.prod([side or 1 for side in inner])),
    }


def coarsest_scales(plane: Plane) -> NDArray[np.uint8]:
    """Per pixel the k, from 1 to 7, whose windows of 2^k pixels differ most; 0 where none do."""
    best, strongest = np.zeros(plane.shape, np.uint8), np.zeros(plane.shape)
    most = 2 ** (_N_SCALES - 1)
    padded = np.pad(plane, [(0, most), (most, 0)], mode="edge")
    sums = plane[: 2 * most].cumsum(axis=0)
    for k in range(1, _N_SCALES + 1):
        half = 2 ** (k - 1)
        means = _window_means(padded, sums, half)
        for there, one, other in _opposites(plane.shape, half):
            step = means[one] - means[other]
            np.abs(step, out=step)
            better = step > strongest[there]
            best[there][better] = k
            np.maximum(strongest[there], step, out=strongest[there])
    return best


def contrast(plane: Plane) -> float:
    """σ²/κ^(1/4), of standard deviation σ and kurtosis κ."""
    _, deviation, _, kurtosis = moments(plane)
    return deviation**2 / kurtosis**0.25 if kurtosis else 0.0


def directionality(plane: Plane) -> float:
    """|log(Σ_a h_a·(a + 1 − p)² / Σ (slopes² + φ²))|; p is the fullest of 125 bins h of directions.

    0 of a plane without slopes.
    """
    across, down = (correlate(plane, window, mode="constant") for window in (_ACROSS, _DOWN))
    steep = across >= _MIN_SLOPE
    if not steep.any():
        return 0.0
    angles = np.zeros_like(plane)
    angles[steep] = np.arctan(down[steep] / across[steep]) + np.pi / 2 + 0.001
    energy = (across[steep] ** 2 + down[steep] ** 2 + angles[steep] ** 2).sum()
    h = histogram(angles, _N_DIRECTIONS)
    spread = h @ (np.arange(_N_DIRECTIONS) + 1 - h.argmax()) ** 2
    return float(abs(np.log(spread / energy + 1e-7)))


def _window_means(padded: Plane, sums: Plane, half: int) -> Plane:
    """What is left of the mean over [y − half, y + half) × [x − half, x + half) of each pixel.

    The pixel at the window's lower left over the window's area inside the image; where the window
    reaches the upper border, the sum of the column down to that pixel. `padded` goes on below and
    left with the border's pixels; `sums` are down the columns.
    """
    most = 2 ** (_N_SCALES - 1)
    height, width = (side - most for side in padded.shape)
    values = padded[half - 1 : half - 1 + height, most - half : most - half + width].copy()
    above = np.arange(min(half + 1, height))
    left = np.maximum(np.arange(width) - half, 0)
    values[: len(above)] = sums[np.ix_(np.minimum(above + half - 1, height - 1), left)]
    down, across = (_extents(side, half) for side in (height, width))
    values /= down[:, None] * across
    return values


def _extents(n: int, half: int) -> NDArray[np.float64]:
    """How much of [place − half, place + half) lies inside, for each place."""
    places = np.arange(n)
    inside = np.minimum(places + half, n) - np.maximum(places - half, 0)
    return inside.astype(np.float64)


def _opposites(shape: tuple[int, ...], half: int) -> list[tuple[_Region, _Region, _Region]]:
    """Pixels with windows on both sides, and the middles of these: across, then down."""
    (height, width), whole = shape, slice(None)
    places = slice(half, -half), slice(2 * half, None), slice(None, -2 * half)
    across = [(whole, place) for place in places] if width > 2 * half else []
    down = [(place, whole) for place in places] if height > 2 * half else []
    return [(pair[0], pair[1], pair[2]) for pair in (across, down) if pair]
