"""Texture features: Tamura, fractal, Gabor, edge, Haralick and object statistics.

Tamura's textures are coarseness, contrast and directionality as in the original program, whose
coarseness differs from Tamura's: window sums take the wrong corners of the summed-area table, so
that one pixel of the window (or, at the upper border, the sum of a part of one column) is divided
by the area of the window. Slopes are computed with two asymmetric 3 × 3 windows. Both are
reproduced here, so that the numbers agree.

Fractal features measure how grey level differences grow with distance. On a fractal surface of
Hurst exponent H, such as fractional Brownian motion, the mean of |f(x + k) − f(x)| grows as k^H;
these means, for 20 distances up to a fifth of the image, describe H at every scale.

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

from .histograms import Entries, Plane, histogram, moments, named_entries, otsu_threshold

_N_DISTANCES = 20


def fractal_features(plane: Plane) -> Entries:
    """Return the mean absolute difference of grey levels at 20 distances k.

    If a plane is too small for 20 distances, the missing features are 0. As in the original
    program, the sum of differences is divided by w(w − k) + h(h − k) for width w and height h,
    which is the number of pairs only for square planes.
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
_FILTER_PX = 38
_WINDOW_DEVIATION = 0.56  # standard deviation of the Gaussian window, in wavelengths
_ASPECT_RATIO = 0.5
_ANGLE = 3.14159265 / 2


def gabor_textures(plane: Plane) -> Entries:
    """Return the relative number of pixels with a strong response, for each frequency.

    It is the number of pixels with a response above Otsu's threshold, divided by the number of
    pixels whose response to a low frequency is above 0.4 of the maximum of this response. Without
    pixels of the latter kind, the result is 0.
    """
    reference, *responses = _filter_responses(plane, (_LOW_FREQUENCY, *_FREQUENCIES))
    n_reference = int((reference > 0.4 * reference.max()).sum())
    return {
        f"frequency {frequency}": int((response > otsu_threshold(response)).sum()) / n_reference
        if n_reference
        else 0.0
        for frequency, response in zip(_FREQUENCIES, responses, strict=True)
    }


def _filter_responses(plane: Plane, frequencies: Sequence[float]) -> Iterator[Plane]:
    """Yield the modulus of the response to each filter, divided by its maximum.

    The filters are Gabor filters of the `frequencies`, in radians per pixel. The plane is padded
    with zeros. A response that is 0 everywhere is not divided.
    """
    height, width = plane.shape
    shape = [fft.next_fast_len(side + _FILTER_PX - 1) for side in plane.shape]
    spectrum, start = fft.fft2(plane, shape), _FILTER_PX // 2
    for frequency in frequencies:
        response = fft.ifft2(spectrum * fft.fft2(_gabor_filter(frequency), shape))
        modulus = np.abs(response[start : start + height, start : start + width])
        yield modulus / (modulus.max() or 1.0)


@cache
def _gabor_filter(frequency: float) -> NDArray[np.complex128]:
    deviation = _WINDOW_DEVIATION * 2 * np.pi / frequency
    steps = np.arange(_FILTER_PX) - _FILTER_PX // 2
    y, x = np.meshgrid(steps, steps, indexing="ij")
    along = x * np.cos(_ANGLE) + y * np.sin(_ANGLE)
    across = y * np.cos(_ANGLE) - x * np.sin(_ANGLE)
    window = np.exp(-(along**2 + _ASPECT_RATIO**2 * across**2) / (2 * deviation**2))
    return window / window.sum() * np.exp(1j * frequency * along)


def gradient(plane: Plane) -> tuple[Plane, Plane]:
    """Return Prewitt's gradient: pixels above minus pixels below, and pixels left minus right.

    Pixels outside the plane count as 0.
    """
    padded = np.pad(plane, 1)
    up, left = padded[:-2] - padded[2:], padded[:, :-2] - padded[:, 2:]
    return up[:, :-2] + up[:, 1:-1] + up[:, 2:], left[:-2] + left[1:-1] + left[2:]


def edge_transform(plane: Plane) -> Plane:
    """Return the largest absolute difference between each pixel and its four neighbours.

    For pixels of the border only the neighbours along the border are used.
    """
    edges = np.zeros_like(plane)
    down, across = np.abs(np.diff(plane, axis=0)), np.abs(np.diff(plane, axis=1))
    edges[1:-1] = np.maximum(down[:-1], down[1:])
    np.maximum(edges[:, 1:-1], np.maximum(across[:, :-1], across[:, 1:]), out=edges[:, 1:-1])
    return edges


_N_DIRECTION_BINS = 8


def edge_statistics(plane: Plane) -> Entries:
    """Return statistics of edges, and of the gradient directions of all pixels.

    Edges are pixels whose gradient magnitude is above the mean. The entries "opposite" are the
    difference between the counts of two opposite directions divided by their sum; "first two" is
    the fraction of pixels in the first two of the eight bins of directions.
    """
    up, left = gradient(plane)
    magnitude = np.hypot(up, left)
    directions = np.where(up == 0, np.pi * (left < 0), np.arctan2(up, left))
    counts = histogram(directions, _N_DIRECTION_BINS)
    first, opposite = counts[: _N_DIRECTION_BINS // 2], counts[_N_DIRECTION_BINS // 2 :]
    return (
        {"number of edges": float((magnitude > magnitude.mean()).sum())}
        | named_entries("opposite", np.abs(first - opposite) / np.maximum(first + opposite, 1))
        | named_entries("direction", counts)
        | {"first two": float(counts[:2].sum() / counts.sum())}
        | _summarize("direction", directions)
        | named_entries("steepness", histogram(magnitude, _N_DIRECTION_BINS))
        | _summarize("steepness", magnitude)
    )


def _summarize(name: str, values: Plane) -> Entries:
    """Return mean, median and variance of the values, as entries that start with `name`."""
    return {
        f"{name} mean": float(values.mean()),
        f"{name} median": float(np.median(values)),
        f"{name} variance": float(values.var(ddof=1)),
    }


Fractions = NDArray[np.float64]

_N_LEVELS = 256
_LOG_OFFSET = 1e-9  # keeps logarithms finite


def haralick_textures(plane: Plane) -> Entries:
    """Return the mean and the range over four directions of each Haralick statistic."""
    directions = [haralick_statistics(p) for p in cooccurrence_matrices(plane)]
    entries: Entries = {}
    for name in directions[0]:
        values = [direction[name] for direction in directions]
        entries[f"{name} mean"] = sum(values) / 4
        entries[f"{name} range"] = max(values) - min(values)
    return entries


def cooccurrence_matrices(plane: Plane) -> list[Fractions]:
    """Return the grey-level co-occurrence matrices of adjacent pixels in four directions.

    Rows and columns are those of 256 levels from minimum to maximum that occur in the plane. As in
    the original program, pairs with a pixel of the lowest level are excluded.
    """
    span = np.ptp(plane)
    grey = ((plane - plane.min()) * (255.0 / span if span > 0 else 0.0)).astype(np.intp)
    occurs = np.bincount(grey.ravel(), minlength=_N_LEVELS) > 0
    pairs = [
        (grey[:, :-1], grey[:, 1:]),
        (grey[:-1, 1:], grey[1:, :-1]),
        (grey[:-1], grey[1:]),
        (grey[:-1, :-1], grey[1:, 1:]),
    ]
    return [_cooccurrence_matrix(first, second)[np.ix_(occurs, occurs)] for first, second in pairs]


def _cooccurrence_matrix(first: NDArray[np.intp], second: NDArray[np.intp]) -> Fractions:
    """Return the symmetric co-occurrence matrix (256, 256) of the levels of pairs of pixels."""
    counts = np.bincount((first * _N_LEVELS + second).ravel(), minlength=_N_LEVELS**2)
    both = counts.reshape(_N_LEVELS, _N_LEVELS).astype(np.float64)
    both[0] = both[:, 0] = 0
    both += both.T
    return both / max(both.sum(), 1.0)


def haralick_statistics(p: Fractions) -> dict[str, float]:
    """Return Haralick's fourteen statistics of a symmetric co-occurrence matrix p, by name.

    They are in the order of the original program, in which the sum variance is computed around the
    sum entropy instead of the sum average.
    """
    steps = np.arange(len(p))
    i, j = steps[:, None], steps
    marginal = p.sum(axis=0)
    mean = float(marginal @ steps)
    variance = float(marginal @ (steps - mean) ** 2)
    sums, differences = _sum_by_index(i + j, p), _sum_by_index(np.abs(i - j), p)
    entropy, sum_entropy = _entropy(p), _entropy(sums)
    independent = np.outer(marginal, marginal)
    information = entropy - _entropy(p, independent)
    margin_entropy = _entropy(marginal)
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
        "information of correlation 2": _information_correlation(_entropy(independent) - entropy),
        "sum average": float(sums @ np.arange(len(sums))),
        "sum entropy": sum_entropy,
        "sum variance": float(sums @ (np.arange(len(sums)) - sum_entropy) ** 2),
        "variance": variance,
    }


def _sum_by_index(indices: NDArray[np.intp], p: Fractions) -> Fractions:
    """Return the sum of the frequencies p with each index, (n_indices,).

    `indices` and p have the same shape.
    """
    return np.bincount(indices.ravel(), p.ravel()).astype(np.float64)


def _entropy(p: Fractions, other: Fractions | None = None) -> float:
    """Return the entropy −Σ p·log₂ p, or with `other` the cross-entropy −Σ p·log₂ other."""
    return float(-(p * np.log2((p if other is None else other) + _LOG_OFFSET)).sum())


def _information_correlation(information: float) -> float:
    """Return √|1 − exp(−2·information)|, the second information measure of correlation.

    `information` is the mutual information in bits, as returned by `_entropy`, although the natural
    exponential function corresponds to nats.
    """
    return abs(1 - np.exp(-2.0 * information)) ** 0.5


def maximal_correlation(p: Fractions) -> float:
    """Return the maximal correlation coefficient of a co-occurrence matrix p.

    It is the second largest absolute eigenvalue of the symmetric matrix p_ij / √(p_i p_j), whose
    largest is 1.
    """
    occurs = p.sum(axis=0) > 0
    p = p[np.ix_(occurs, occurs)]
    if len(p) < 2:
        return 0.0
    roots = np.sqrt(p.sum(axis=0))
    values = np.linalg.eigvalsh(p / np.outer(roots, roots))
    return float(np.sort(np.abs(values))[-2])


_N_OBJECT_BINS = 10


def bright_objects(plane: Plane) -> Entries:
    """Return statistics of objects, the connected regions above Otsu's threshold."""
    return object_statistics(plane > otsu_threshold(plane))


def dark_objects(plane: Plane) -> Entries:
    """Return statistics of objects above Otsu's threshold in the inverted plane."""
    return bright_objects(plane.max() - plane + plane.min())


def object_statistics(mask: NDArray[np.bool_]) -> Entries:
    """Return statistics of the objects of a mask.

    They are the number of objects, their areas, the centre of all their pixels, the distances of
    the objects' centres from it, and the Euler number. Pixels that touch, including corners, form
    one object. The coordinates of the centre count pixels from 1. Without objects all statistics
    are 0.
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
        _summarize_objects("area", areas)
        | named_entries("middle", centre)
        | {"number": float(count)}
        | _summarize_objects("distance", np.hypot(*(centres - centre[:, None])))
        | {"Euler number": float(euler_number(mask))}
    )


def euler_number(mask: NDArray[np.bool_]) -> int:
    """Return an estimate of the Euler number: the number of objects minus the number of holes.

    It is computed from the numbers of 2 × 2 windows with one and with three pixels set. As in the
    original program, windows with two diagonal pixels and the border of the image are ignored. The
    result is exact for objects that touch neither the border nor each other diagonally.
    """
    m = mask.astype(np.int8)
    n_set = m[:-1, :-1] + m[:-1, 1:] + m[1:, :-1] + m[1:, 1:]
    return int(((n_set == 1).sum() - int((n_set == 3).sum())) / 4)


def _summarize_objects(name: str, values: NDArray[Any]) -> Entries:
    """Return a ten-bin histogram, maximum, mean, upper median, minimum and variance of the values.

    The names of the entries start with `name`.
    """
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


_Region = tuple[slice, slice]  # rows and columns of a plane

_N_SCALES = 7
_N_DIRECTIONS = 125
_COARSENESS_MARGIN = 32
_SLOPE_WINDOW_ACROSS = np.array([[-1.0, 2, 1], [-2, 0, 2], [-1, -2, -1]])
_SLOPE_WINDOW_DOWN = np.array([[1.0, 0, 0], [0, 0, 0], [-1, 0, 0]])
# Smaller slopes have no direction.
_MIN_SLOPE = 1e-4


def tamura_textures(plane: Plane) -> Entries:
    """Return Tamura's textures.

    They are a three-bin histogram of the coarseness scales, the contrast, the directionality and
    the mean coarseness.
    """
    maximum = plane.max()
    unit = (plane - plane.min()) / (maximum if maximum else 1.0)
    scales = coarsest_scales(unit)
    coarseness_counts = histogram(scales, 3)
    inner = [side - _COARSENESS_MARGIN for side in plane.shape]
    return named_entries("coarseness", coarseness_counts / coarseness_counts.max()) | {
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
    column_sums = plane[: 2 * margin].cumsum(axis=0)
    for k in range(1, _N_SCALES + 1):
        half = 2 ** (k - 1)
        means = _window_means(padded, column_sums, half)
        for region, first, second in _opposite_windows(plane.shape, half):
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

    It is |log(Σ_a h_a·(a + 1 − p)² / Σ (across² + down² + φ²))| with the slopes across and down and
    the direction φ of each steep pixel. h_a are the 125 bins of the histogram of directions, and p
    is the index of the largest bin.
    """
    across, down = (
        correlate(plane, window, mode="constant")
        for window in (_SLOPE_WINDOW_ACROSS, _SLOPE_WINDOW_DOWN)
    )
    steep = across >= _MIN_SLOPE
    if not steep.any():
        return 0.0
    angles = np.zeros_like(plane)
    angles[steep] = np.arctan(down[steep] / across[steep]) + np.pi / 2 + 0.001
    energy = (across[steep] ** 2 + down[steep] ** 2 + angles[steep] ** 2).sum()
    counts = histogram(angles, _N_DIRECTIONS)
    spread = counts @ (np.arange(_N_DIRECTIONS) + 1 - counts.argmax()) ** 2
    return float(abs(np.log(spread / energy + 1e-7)))


def _window_means(padded: Plane, column_sums: Plane, half: int) -> Plane:
    """Return the window means of the original program, which differ from true means.

    The value for the window [y − half, y + half) × [x − half, x + half) is its lower left pixel
    divided by the area of the window inside the image. For windows at the upper border the pixel is
    replaced by the sum of its column down to that pixel.

    Parameters
    ----------
    padded : plane, extended below and to the left by its border pixels
    column_sums : cumulative sums down the columns of the plane
    half : half of the window side in pixels
    """
    margin = 2 ** (_N_SCALES - 1)
    height, width = (side - margin for side in padded.shape)
    values = padded[half - 1 : half - 1 + height, margin - half : margin - half + width].copy()
    above = np.arange(min(half + 1, height))
    left = np.maximum(np.arange(width) - half, 0)
    values[: len(above)] = column_sums[np.ix_(np.minimum(above + half - 1, height - 1), left)]
    down, across = (_lengths_inside(side, half) for side in (height, width))
    values /= down[:, None] * across
    return values


def _lengths_inside(n: int, half: int) -> NDArray[np.float64]:
    """Return the length of [i − half, i + half) inside [0, n), for i from 0 to n − 1."""
    positions = np.arange(n)
    inside = np.minimum(positions + half, n) - np.maximum(positions - half, 0)
    return inside.astype(np.float64)


def _opposite_windows(shape: tuple[int, ...], half: int) -> list[tuple[_Region, _Region, _Region]]:
    """Return regions of a plane: the pixels with two opposite windows, and the windows' centres.

    The result has a triple (pixels, centres of the first windows, centres of the second windows)
    for windows to the left and right of a pixel, and one for windows above and below it. A triple
    is omitted if its windows do not fit into the `shape` of the plane.
    """
    (height, width), all_indices = shape, slice(None)
    slices = slice(half, -half), slice(2 * half, None), slice(None, -2 * half)
    across = [(all_indices, part) for part in slices] if width > 2 * half else []
    down = [(part, all_indices) for part in slices] if height > 2 * half else []
    return [(pair[0], pair[1], pair[2]) for pair in (across, down) if pair]
