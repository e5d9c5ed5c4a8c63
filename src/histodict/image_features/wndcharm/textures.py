"""Texture features: Tamura, fractal, Gabor, edge, Haralick and object statistics.

Tamura's textures are coarseness, contrast and directionality as in the original program. Its
coarseness differs from Tamura's: window sums take the wrong corners of the summed-area table, so
that one pixel of the window (or, at the upper border, a piece of one column) is divided by the
window's area. Its slopes come from two uneven 3 × 3 windows. Both are reproduced here, so that the
numbers agree.

Fractal features measure how differences grow with distance. On a fractal surface of Hurst exponent
H, such as fractional Brownian motion, the mean of |f(x + k) − f(x)| grows as k^H; these means, for
20 distances up to a fifth of the image, describe H at every scale.

Gabor textures give the area in which waves of seven frequencies are strong. A Gabor filter is a
wave under a Gaussian window of 0.56 wavelengths, twice as long along the crests; here of 38 × 38
pixels, with waves that run down the image. The modulus of its response does not depend on phase.

Haralick's textures are fourteen statistics of the grey levels of neighbouring pixels. Edge
statistics use Prewitt's gradient; object statistics describe connected pixels above Otsu's
threshold, in the plane and its inverse.

References: Tamura, Mori, Yamawaki, "Textural features corresponding to visual perception", IEEE
Transactions on Systems, Man and Cybernetics, 1978; Wu, Chen, Hsieh, "Texture features for
classification of ultrasonic liver images", IEEE Transactions on Medical Imaging, 1992; Grigorescu,
Petkov, Kruizinga, "Comparison of texture features based on Gabor filters", IEEE Transactions on
Image Processing, 2002; Haralick, Shanmugam, Dinstein, "Textural features for image classification",
IEEE Transactions on Systems, Man and Cybernetics, 1973.
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
    """Return the mean absolute difference of grey levels at 20 distances.

    As in the original program, the sum of differences is divided by w(w − k) + h(h − k), which is
    the number of pairs only for square planes. The result is 0 for distances larger than the plane.
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
    """Return, per frequency, the number of pixels whose response is above Otsu's threshold.

    It is divided by the number of pixels whose response to a low frequency is above 0.4 of the
    maximum, and 0 without such pixels.
    """
    slow, *others = _responses(plane, (_LOW_FREQUENCY, *_FREQUENCIES))
    n_reference = int((slow > 0.4 * slow.max()).sum())
    return {
        f"frequency {frequency}": int((response > otsu(response)).sum()) / n_reference
        if n_reference
        else 0.0
        for frequency, response in zip(_FREQUENCIES, others, strict=True)
    }


def _responses(plane: Plane, frequencies: Sequence[float]) -> Iterator[Plane]:
    """Yield |response| to each filter relative to the maximum; the plane is zero-padded."""
    height, width = plane.shape
    shape = [fft.next_fast_len(side + _SIDE - 1) for side in plane.shape]
    spectrum, start = fft.fft2(plane, shape), _SIDE // 2
    for frequency in frequencies:
        response = fft.ifft2(spectrum * fft.fft2(_filter(frequency), shape))
        modulus = np.abs(response[start : start + height, start : start + width])
        yield modulus / (modulus.max() or 1.0)


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
    """Return Prewitt's gradient: differences of the pixels above and below, and left and right.

    Pixels beyond the border are 0.
    """
    padded = np.pad(plane, 1)
    up, left = padded[:-2] - padded[2:], padded[:, :-2] - padded[:, 2:]
    return up[:, :-2] + up[:, 1:-1] + up[:, 2:], left[:-2] + left[1:-1] + left[2:]


def edge_transform(plane: Plane) -> Plane:
    """Return the largest absolute difference of each pixel to its four neighbours.

    Pixels of the border only have neighbours along the border.
    """
    edges = np.zeros_like(plane)
    down, across = np.abs(np.diff(plane, axis=0)), np.abs(np.diff(plane, axis=1))
    edges[1:-1] = np.maximum(down[:-1], down[1:])
    np.maximum(edges[:, 1:-1], np.maximum(across[:, :-1], across[:, 1:]), out=edges[:, 1:-1])
    return edges


_N_BINS = 8


def edge_statistics(plane: Plane) -> Entries:
    """Return statistics of edges, and of the gradient directions of all pixels.

    Edges are pixels whose gradient magnitude is above the mean.

    "opposite" is the difference between two opposite directions relative to their sum, "first two"
    the fraction of the first two directions.
    """
    up, left = gradient(plane)
    steepness = np.hypot(up, left)
    directions = np.where(up == 0, np.pi * (left < 0), np.arctan2(up, left))
    h = histogram(directions, _N_BINS)
    first, opposite = h[: _N_BINS // 2], h[_N_BINS // 2 :]
    return (
        {"number of edges": float((steepness > steepness.mean()).sum())}
        | named_entries("opposite", np.abs(first - opposite) / np.maximum(first + opposite, 1))
        | named_entries("direction", h)
        | {"first two": float(h[:2].sum() / h.sum())}
        | _summary("direction", directions)
        | named_entries("steepness", histogram(steepness, _N_BINS))
        | _summary("steepness", steepness)
    )


def _summary(name: str, values: Plane) -> Entries:
    """Return mean, median and variance."""
    return {
        f"{name} mean": float(values.mean()),
        f"{name} median": float(np.median(values)),
        f"{name} variance": float(values.var(ddof=1)),
    }


Fractions = NDArray[np.float64]

_N_LEVELS = 256
_MIN = 1e-9  # keeps logarithms finite


def haralick_textures(plane: Plane) -> Entries:
    """Return the mean and range of each Haralick statistic over the four directions."""
    directions = [statistics(p) for p in neighbour_frequencies(plane)]
    entries: Entries = {}
    for name in directions[0]:
        values = [direction[name] for direction in directions]
        entries[f"{name} mean"] = sum(values) / 4
        entries[f"{name} range"] = max(values) - min(values)
    return entries


def neighbour_frequencies(plane: Plane) -> list[Fractions]:
    """Return the grey-level co-occurrence matrices (level, level) of four directions.

    Levels are 256 steps from minimum to maximum; only those that occur are included. As in the
    original program, pairs with a pixel of the lowest level are excluded.
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
    return [_fractions(first, second)[np.ix_(seen, seen)] for first, second in pairs]


def _fractions(first: NDArray[np.intp], second: NDArray[np.intp]) -> Fractions:
    """Return the symmetric matrix of pair frequencies."""
    counts = np.bincount((first * _N_LEVELS + second).ravel(), minlength=_N_LEVELS**2)
    both = counts.reshape(_N_LEVELS, _N_LEVELS).astype(np.float64)
    both[0] = both[:, 0] = 0
    both += both.T
    return both / max(both.sum(), 1.0)


def statistics(p: Fractions) -> dict[str, float]:
    """Return Haralick's fourteen statistics of a symmetric co-occurrence matrix p.

    They are in the order of the original program, in which the sum variance is taken about the sum
    entropy.
    """
    steps = np.arange(len(p))
    i, j = steps[:, None], steps
    margin = p.sum(axis=0)
    mean = float(margin @ steps)
    variance = float(margin @ (steps - mean) ** 2)
    sums, differences = _totals(i + j, p), _totals(np.abs(i - j), p)
    entropy, sum_entropy = _entropy(p), _entropy(sums)
    independent = np.outer(margin, margin)
    information = entropy - _entropy(p, independent)
    margin_entropy = _entropy(margin)
    mean_difference = float(differences @ np.arange(len(differences)))
    squares = float(differences @ np.arange(len(differences)) ** 2.0)
    product = float(steps @ p @ steps)
    return {
        "angular second moment": float((p * p).sum()),
        "contrast": squares,
        "correlation": (product - mean * mean) / variance if variance > 0 else 1.0,
        "difference variance": squares - mean_difference**2,
        "difference entropy": _entropy(differences),
        "entropy": entropy,
        "information of correlation 1": information / margin_entropy if margin_entropy else 1.0,
        "inverse difference moment": float((p / (1.0 + (i - j) ** 2)).sum()),
        "maximal correlation": maximal_correlation(p),
        "information of correlation 2": _information(_entropy(independent) - entropy),
        "sum average": float(sums @ np.arange(len(sums))),
        "sum entropy": sum_entropy,
        "sum variance": float(sums @ (np.arange(len(sums)) - sum_entropy) ** 2),
        "variance": variance,
    }


def _totals(indices: NDArray[np.intp], p: Fractions) -> Fractions:
    """Return the sum of the frequencies at each index."""
    return np.bincount(indices.ravel(), p.ravel()).astype(np.float64)


def _entropy(p: Fractions, other: Fractions | None = None) -> float:
    """Return the entropy −Σ p·log₂ p, or the cross-entropy −Σ p·log₂ other."""
    return float(-(p * np.log2((p if other is None else other) + _MIN)).sum())


def _information(nats: float) -> float:
    return abs(1 - np.exp(-2.0 * nats)) ** 0.5


def maximal_correlation(p: Fractions) -> float:
    """Return the maximal correlation coefficient of a co-occurrence matrix p.

    It is the second largest singular value of p_ij / √(p_i p_j), whose largest is 1; p is
    symmetric.
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
    """Return statistics of objects: connected pixels above Otsu's threshold."""
    return object_statistics(plane > otsu(plane))


def dark_objects(plane: Plane) -> Entries:
    """Return statistics of objects above Otsu's threshold in the inverted plane."""
    return bright_objects(plane.max() - plane + plane.min())


def object_statistics(mask: NDArray[np.bool_]) -> Entries:
    """Return object statistics: number, areas, Euler number, common centre and distances from it.

    Pixels that touch, including corners, form one object; centres count pixels from 1. All are 0 if
    there is no object.
    """
    from skimage.measure import label

    labels, count = label(mask, connectivity=2, return_num=True)
    rows, columns = np.nonzero(mask)
    objects = labels[rows, columns] - 1
    areas = np.bincount(objects, minlength=count).astype(np.float64)
    centres = (
        np.stack([np.bincount(objects, positions + 1, count) for positions in (columns, rows)])
        / areas
    )
    centre = np.array([columns.mean() + 1, rows.mean() + 1]) if count else np.zeros(2)
    return (
        _object_summary("area", areas)
        | named_entries("middle", centre)
        | {"number": float(count)}
        | _object_summary("distance", np.hypot(*(centres - centre[:, None])))
        | {"Euler number": float(euler_number(mask))}
    )


def euler_number(mask: NDArray[np.bool_]) -> int:
    """Return an estimate of the Euler number, the number of objects minus that of holes.

    It is computed from the numbers of 2 × 2 windows with one and with three pixels set. As in the
    original program, windows with two diagonal pixels and the border of the image are ignored. The
    result is exact for objects that touch neither the border nor each other diagonally.
    """
    m = mask.astype(np.int8)
    in_window = m[:-1, :-1] + m[:-1, 1:] + m[1:, :-1] + m[1:, 1:]
    return int(((in_window == 1).sum() - int((in_window == 3).sum())) / 4)


def _object_summary(name: str, values: NDArray[Any]) -> Entries:
    """Return a histogram of ten bins, maximum, mean, upper median, minimum and variance."""
    ordered = np.sort(values) if values.size else np.zeros(1)
    # The original program has no histogram of equal areas.
    is_empty = name == "area" and np.ptp(ordered) == 0
    return named_entries(
        name, np.zeros(_N_OBJECT_BINS) if is_empty else histogram(values, _N_OBJECT_BINS)
    ) | {
        f"{name} greatest": float(ordered[-1]),
        f"{name} mean": float(ordered.mean()),
        f"{name} median": float(ordered[len(ordered) // 2]),
        f"{name} least": float(ordered[0]),
        f"{name} variance": float(ordered.var(ddof=1)) if len(ordered) > 1 else 0.0,
    }


_Region = tuple[slice, slice]

_N_SCALES = 7
_N_DIRECTIONS = 125
_MARGIN = 32
_ACROSS = np.array([[-1.0, 2, 1], [-2, 0, 2], [-1, -2, -1]])
_DOWN = np.array([[1.0, 0, 0], [0, 0, 0], [-1, 0, 0]])
# Smaller slopes have no direction.
_MIN_SLOPE = 1e-4


def tamura_textures(plane: Plane) -> Entries:
    """Return Tamura's textures: three bins of coarseness, contrast, directionality, coarseness."""
    maximum = plane.max()
    unit = (plane - plane.min()) / (maximum if maximum else 1.0)
    scales = coarsest_scales(unit)
    thirds = histogram(scales, 3)
    inner = [side - _MARGIN for side in plane.shape]
    return named_entries("coarseness", thirds / thirds.max()) | {
        "contrast": contrast(unit),
        "directionality": directionality(unit),
        "coarseness": float(scales.sum() / np.prod([side or 1 for side in inner])),
    }


def coarsest_scales(plane: Plane) -> NDArray[np.uint8]:
    """Return, for each pixel, the scale k at which adjacent windows of side 2^k differ most.

    The two windows are to the left and right of the pixel, or above and below it. The scale is
    between 1 and 7, or 0 if no windows differ.
    """
    best, strongest = np.zeros(plane.shape, np.uint8), np.zeros(plane.shape)
    margin = 2 ** (_N_SCALES - 1)
    padded = np.pad(plane, [(0, margin), (margin, 0)], mode="edge")
    sums = plane[: 2 * margin].cumsum(axis=0)
    for k in range(1, _N_SCALES + 1):
        half = 2 ** (k - 1)
        means = _window_means(padded, sums, half)
        for region, first, second in _opposites(plane.shape, half):
            difference = means[first] - means[second]
            np.abs(difference, out=difference)
            is_stronger = difference > strongest[region]
            best[region][is_stronger] = k
            np.maximum(strongest[region], difference, out=strongest[region])
    return best


def contrast(plane: Plane) -> float:
    """Return Tamura's contrast σ²/κ^(1/4), with standard deviation σ and kurtosis κ."""
    _, deviation, _, kurtosis = moments(plane)
    return deviation**2 / kurtosis**0.25 if kurtosis else 0.0


def directionality(plane: Plane) -> float:
    """Return Tamura's directionality; 0 for a plane without slopes.

    It is |log(Σ_a h_a·(a + 1 − p)² / Σ (slopes² + φ²))|. h is the histogram of directions with 125
    bins, p the index of its largest bin.
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
    """Return the window means of the original program, which differ from true means.

    The value for [y − half, y + half) × [x − half, x + half) is the lower left pixel divided by the
    area of the window inside the image. For windows at the upper border the pixel is replaced by
    the sum of its column down to that pixel. `padded` extends the border's pixels below and to the
    left; `sums` are cumulative down the columns.
    """
    margin = 2 ** (_N_SCALES - 1)
    height, width = (side - margin for side in padded.shape)
    values = padded[half - 1 : half - 1 + height, margin - half : margin - half + width].copy()
    above = np.arange(min(half + 1, height))
    left = np.maximum(np.arange(width) - half, 0)
    values[: len(above)] = sums[np.ix_(np.minimum(above + half - 1, height - 1), left)]
    down, across = (_extents(side, half) for side in (height, width))
    values /= down[:, None] * across
    return values


def _extents(n: int, half: int) -> NDArray[np.float64]:
    """Return the length of [position − half, position + half) inside the image."""
    positions = np.arange(n)
    inside = np.minimum(positions + half, n) - np.maximum(positions - half, 0)
    return inside.astype(np.float64)


def _opposites(shape: tuple[int, ...], half: int) -> list[tuple[_Region, _Region, _Region]]:
    """Return horizontal and vertical regions with windows on both sides, and their centres."""
    (height, width), all_indices = shape, slice(None)
    slices = slice(half, -half), slice(2 * half, None), slice(None, -2 * half)
    across = [(all_indices, part) for part in slices] if width > 2 * half else []
    down = [(part, all_indices) for part in slices] if height > 2 * half else []
    return [(pair[0], pair[1], pair[2]) for pair in (across, down) if pair]
