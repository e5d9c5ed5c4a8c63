"""Stain normalisers, which map the colours of all images to a fixed target.

A normaliser estimates a transform from an image's thumbnail. All parts of a slide are transformed
in the same way. If the thumbnail is not sufficient (blank, too little tissue, a single colour or
stain), the transform is the identity and gives the reason in `unchanged_reason`.

The targets are averages over laboratories: each statistic was computed by the functions below on a
quarter of the images of four public collections (lung of LC25000, breast of UCSB, colon of GlaS,
lymph node of CAMELYON); the target is the rounded median over the collections of the median over
images.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
Mask = NDArray[np.bool_]
Matrix = NDArray[np.float32]
Plane = NDArray[np.float32]  # one colour channel of a block of pixels

_MIN_PIXELS = 100  # tissue pixels required in the thumbnail
_MAX_PIXELS = 100_000  # tissue pixels used; more do not change the estimate
_BLOCK_PIXELS = 1 << 14  # pixels at a time, so that the intermediate arrays stay in the cache


class StainTransform(Protocol):
    """Transform of pixels (..., 3) to normalised pixels of the same shape.

    Attributes
    ----------
    unchanged_reason : reason why an image cannot be normalised; "" if there is none
    """

    @property
    def unchanged_reason(self) -> str:
        """Reason why the image cannot be normalised; "" if there is none."""

    def __call__(self, pixels: Pixels) -> Pixels:
        """Return the transformed pixels (..., 3)."""


class StainNormalizer(Protocol):
    """Interface of classes that estimate a stain transform."""

    def estimate(self, pixels: Pixels, tissue: Mask) -> StainTransform:
        """Estimate a transform from the pixels (..., 3) and tissue mask (...) of a thumbnail."""


@dataclass(frozen=True)
class IdentityTransform:
    """Identity transform, for no normalisation.

    Attributes
    ----------
    unchanged_reason : reason why the image cannot be normalised; "" if no normalisation is set
    """

    unchanged_reason: str = ""

    @classmethod
    def estimate(cls, pixels: Pixels, tissue: Mask) -> StainTransform:
        """Return the identity transform for any pixels."""
        return cls()

    def __call__(self, pixels: Pixels) -> Pixels:
        """Return the pixels unchanged."""
        return pixels


# --- Reinhard -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reinhard:
    """Normaliser that matches mean and standard deviation of L*, a*, b* of the tissue to a target.

    lab ← (lab − mean) · target_deviation / deviation + target_mean. Reinhard et al., Color transfer
    between images, IEEE Computer Graphics and Applications 21(5), 2001; here in CIE Lab (D65).

    Attributes
    ----------
    mean : mean of L*, a*, b* of the image's tissue
    deviation : standard deviation of L*, a*, b* of the image's tissue
    unchanged_reason : always "", as this transform changes the pixels
    """

    TARGET_MEAN: ClassVar[tuple[float, ...]] = (60.0, 35.0, -30.0)
    TARGET_DEVIATION: ClassVar[tuple[float, ...]] = (14.0, 8.0, 11.0)
    # Units of CIE Lab; a smaller standard deviation is noise rather than contrast.
    MIN_DEVIATION: ClassVar[float] = 0.5

    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    unchanged_reason: str = ""

    @classmethod
    def estimate(cls, pixels: Pixels, tissue: Mask) -> StainTransform:
        """Estimate the transform; return the identity if the tissue has too little contrast."""
        if tissue.sum() < _MIN_PIXELS:
            return IdentityTransform(_too_little_tissue_reason(tissue))
        mean, deviation = lab_statistics(_sample_tissue_pixels(pixels, tissue))
        if deviation.min() < cls.MIN_DEVIATION:
            return IdentityTransform("not normalised: the tissue has a single colour or is grey")
        return cls(tuple(mean.tolist()), tuple(deviation.tolist()))

    def __call__(self, pixels: Pixels) -> Pixels:
        """Return the normalised pixels (..., 3)."""
        gain = np.array(self.TARGET_DEVIATION) / self.deviation
        shift = self.TARGET_MEAN - gain * self.mean
        # lab = A f + b is affine in f = f(XYZ), so the transform is one matrix and an offset.
        A, b = _LAB_OF_F, _LAB_OFFSET
        inverse = np.linalg.inv(A)
        matrix = inverse @ np.diag(gain) @ A
        offset = inverse @ (gain * b + shift - b)
        return _transform_by_blocks(
            pixels,
            lambda block: _lab_f_to_rgb(_multiply_planes(matrix, _rgb_to_lab_f(block), offset)),
        )


def lab_statistics(pixels: Pixels) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and standard deviation of L*, a*, b* over pixels (n_pixels, 3)."""
    lab = to_lab(pixels)
    return lab.mean(axis=0, dtype=np.float64), lab.std(axis=0, dtype=np.float64)


def to_lab(pixels: Pixels) -> Matrix:
    """Return CIE L*, a*, b* (white point D65) of sRGB pixels, (n_pixels, 3)."""
    return np.stack(_multiply_planes(_LAB_OF_F, _rgb_to_lab_f(pixels.T), _LAB_OFFSET), axis=-1)


# Linear sRGB (IEC 61966-2-1) to XYZ relative to the white point: white is (1, 1, 1).
_XYZ_OF_RGB = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)
_XYZ_OF_RGB /= _XYZ_OF_RGB.sum(axis=1, keepdims=True)
_RGB_OF_XYZ = np.linalg.inv(_XYZ_OF_RGB)
# L* = 116·fy − 16, a* = 500·(fx − fy), b* = 200·(fy − fz) with f(t) = ∛t, linear near black
_LAB_OF_F = np.array([[0.0, 116, 0], [500, -500, 0], [0, 200, -200]])
_LAB_OFFSET = np.array([-16.0, 0, 0])
_LAB_DELTA = 6 / 29
# Entries of the tables over linear light. Near black, where the curves are steepest, one step is
# 0.05 of L* and 0.2 of a pixel value.
_N_STEPS = 1 << 14


@cache
def _linear_light_table() -> Plane:
    """Return the linear light (0 to 1) of each of the 256 sRGB values."""
    value = np.arange(256) / 255
    light = np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)
    return light.astype(np.float32)


@cache
def _srgb_table() -> Pixels:
    """Return the sRGB values of `_N_STEPS` values of linear light from 0 to 1."""
    light = np.arange(_N_STEPS) / (_N_STEPS - 1)
    value = np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)
    return np.rint(255 * value).astype(np.uint8)


@cache
def _lab_f_table() -> Plane:
    """Return the function f of CIE Lab for `_N_STEPS` values of linear light from 0 to 1."""
    light = np.arange(_N_STEPS) / (_N_STEPS - 1)
    f = np.where(light > _LAB_DELTA**3, np.cbrt(light), light / (3 * _LAB_DELTA**2) + 4 / 29)
    return f.astype(np.float32)


def _apply_table(table: NDArray, light: Plane) -> NDArray:
    """Return the table entry of each value of linear light; values are clipped to 0 … 1 first."""
    steps = np.clip(light, 0, 1)
    steps *= _N_STEPS - 1
    steps += 0.5
    return table.take(steps.astype(np.int32))


def _rgb_to_lab_f(rgb: Pixels) -> list[Plane]:
    light = [_linear_light_table().take(plane) for plane in rgb]
    return [_apply_table(_lab_f_table(), plane) for plane in _multiply_planes(_XYZ_OF_RGB, light)]


def _lab_f_to_rgb(f: list[Plane]) -> list[Pixels]:
    near_black = [3 * _LAB_DELTA**2 * (plane - np.float32(4 / 29)) for plane in f]
    xyz = [np.where(p > _LAB_DELTA, p * p * p, low) for p, low in zip(f, near_black, strict=True)]
    return [_apply_table(_srgb_table(), plane) for plane in _multiply_planes(_RGB_OF_XYZ, xyz)]


# --- Macenko ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Macenko:
    """Normaliser that replaces the colours of the two stains by target colours.

    Optical densities lie near the plane of the first two singular vectors; the stains are the 1st
    and 99th percentiles of the angle in this plane. With stain matrices W (2, 3), a pixel of
    density o = c·W becomes c·diag(target_strength / strength)·W_target, where the strengths are the
    99th percentiles of the amounts c. Macenko et al., A method for normalizing histology slides for
    quantitative analysis, ISBI 2009.

    Attributes
    ----------
    stains : optical densities (R, G, B) of haematoxylin and of eosin, as unit vectors
    strength : 99th percentiles of the amounts of haematoxylin and eosin
    unchanged_reason : always "", as this transform changes the pixels
    """

    TARGET_STAINS: ClassVar[tuple[tuple[float, ...], ...]] = (
        (0.561, 0.782, 0.271),
        (0.21, 0.94, 0.27),
    )
    TARGET_STRENGTH: ClassVar[tuple[float, ...]] = (2.0, 1.0)

    stains: tuple[tuple[float, ...], ...]
    strength: tuple[float, ...]
    unchanged_reason: str = ""

    @classmethod
    def estimate(cls, pixels: Pixels, tissue: Mask) -> StainTransform:
        """Estimate the transform; return the identity if two stains cannot be separated."""
        if tissue.sum() < _MIN_PIXELS:
            return IdentityTransform(_too_little_tissue_reason(tissue))
        OD = _density_table()[_sample_tissue_pixels(pixels, tissue)].astype(np.float64)
        OD = OD[OD.mean(axis=1) > _MIN_DENSITY]
        if len(OD) < _MIN_PIXELS:
            return IdentityTransform("not normalised: the tissue is too faintly stained")
        W = stain_matrix(OD)
        if W[0] @ W[1] > _MAX_SINGLE_STAIN_COSINE or W.min() < -0.1:
            return IdentityTransform("not normalised: the tissue does not have two distinct stains")
        strength = stain_strength(OD, W)
        if strength.min() < _MIN_DENSITY:
            return IdentityTransform("not normalised: one of the two stains is missing")
        return cls(tuple(map(tuple, W.tolist())), tuple(strength.tolist()))

    def __call__(self, pixels: Pixels) -> Pixels:
        """Return the normalised pixels (..., 3)."""
        ratio = np.array(self.TARGET_STRENGTH) / self.strength
        matrix = np.linalg.pinv(np.array(self.stains)) * ratio @ np.array(self.TARGET_STAINS)

        def transform_planes(block: Pixels) -> list[Pixels]:
            density = [_density_table().take(plane) for plane in block]
            return [_density_to_rgb(plane) for plane in _multiply_planes(matrix.T, density)]

        return _transform_by_blocks(pixels, transform_planes)


# Fainter pixels carry little information on the stains. This is β of the paper, for the mean over
# the colours: eosin hardly absorbs red, so a threshold on every colour would exclude it.
_MIN_DENSITY = 0.15
_ANGLE_PERCENTILES = (1, 99)
_STRENGTH_PERCENTILE = 99
_MAX_SINGLE_STAIN_COSINE = float(np.cos(np.radians(6)))


def stain_matrix(OD: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return estimated unit vectors of haematoxylin and eosin, (2, 3).

    `OD` are the optical densities of tissue pixels, (n_pixels, 3).
    """
    V = np.linalg.eigh(OD.T @ OD / len(OD))[1][:, :0:-1]  # the right singular vectors of OD
    V = V * np.where(V.sum(axis=0) < 0, -1, 1)
    plane = OD @ V
    angles = np.percentile(np.arctan2(plane[:, 1], plane[:, 0]), _ANGLE_PERCENTILES)
    W = np.stack([np.cos(angles), np.sin(angles)], axis=1) @ V.T
    # Haematoxylin is the one that absorbs more red: it looks blue.
    return W[np.argsort(-W[:, 0])]


def stain_strength(OD: NDArray[np.float64], W: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the 99th percentiles of the amounts of both stains, (2,).

    `OD` are optical densities of tissue pixels, (n_pixels, 3), and `W` is the stain matrix, (2, 3).
    """
    strength: NDArray[np.float64] = np.percentile(
        OD @ np.linalg.pinv(W), _STRENGTH_PERCENTILE, axis=0
    )
    return strength


@cache
def _density_table() -> Matrix:
    """Return the optical density −ln((v + 1) / 256) of each pixel value v from 0 to 255."""
    return -np.log((np.arange(256) + 1) / 256).astype(np.float32)


def _density_to_rgb(density: Plane) -> Pixels:
    return np.rint(np.clip(256 * np.exp(-density) - 1, 0, 255)).astype(np.uint8)


# --- common functions ---------------------------------------------------------------------------


class LookupTransform:
    """Transform that caches the result of another transform for each colour.

    A slide has few colours and many pixels. The table has an entry for each of the 2²⁴ colours;
    unused memory pages are not allocated. Several threads may fill the table, as they write equal
    values.
    """

    def __init__(self, transform: StainTransform) -> None:
        self._transform = transform
        self._cache = np.zeros(1 << 24, "<u4")  # red, green, blue, and 1 for computed entries

    @property
    def unchanged_reason(self) -> str:
        """Reason why the image cannot be normalised; "" if there is none."""
        return self._transform.unchanged_reason

    def __call__(self, pixels: Pixels) -> Pixels:
        """Return the transformed pixels (..., 3); compute only colours that are not cached."""
        rows = pixels.reshape(-1, 3)
        out = np.empty_like(rows)
        for start in range(0, len(rows), _BLOCK_PIXELS):
            block = rows[start : start + _BLOCK_PIXELS]
            wide = np.zeros((len(block), 4), np.uint8)
            for colour in range(3):  # one by one: three times as fast as three at once
                wide[:, colour] = block[:, colour]
            indices = wide.view("<u4")[:, 0].astype(np.intp)
            values = self._cache.take(indices)
            if not values.all():
                self._compute(block[values == 0], indices[values == 0])
                values = self._cache.take(indices)
            wide = values.view(np.uint8).reshape(-1, 4)
            for colour in range(3):
                out[start : start + _BLOCK_PIXELS, colour] = wide[:, colour]
        return out.reshape(pixels.shape)

    def _compute(self, colours: Pixels, indices: NDArray[np.intp]) -> None:
        values = np.ones((len(colours), 4), np.uint8)
        values[:, :3] = self._transform(colours)
        self._cache[indices] = values.view("<u4")[:, 0]


def _transform_by_blocks(
    pixels: Pixels, transform_planes: Callable[[Pixels], list[Pixels]]
) -> Pixels:
    """Return pixels (..., 3) transformed block by block to save memory.

    `transform_planes` is a function of the colour planes (3, n) of a block that returns the three
    new planes.
    """
    rows = pixels.reshape(-1, 3)
    out = np.empty_like(rows)
    for start in range(0, len(rows), _BLOCK_PIXELS):
        block = rows[start : start + _BLOCK_PIXELS].T
        for colour, plane in enumerate(transform_planes(block)):
            out[start : start + _BLOCK_PIXELS, colour] = plane
    return out.reshape(pixels.shape)


def _multiply_planes(
    matrix: NDArray[np.float64],
    planes: Sequence[Plane],
    offset: Sequence[float] | NDArray = (0, 0, 0),
) -> list[Plane]:
    """Return matrix · planes + offset for three planes; BLAS is slow for such small matrices."""
    x, y, z = planes
    return [
        np.float32(row[0]) * x + np.float32(row[1]) * y + np.float32(row[2]) * z + np.float32(c)
        for row, c in zip(matrix, offset, strict=True)
    ]


def _sample_tissue_pixels(pixels: Pixels, tissue: Mask) -> Pixels:
    """Return tissue pixels (n_pixels, 3), or an evenly spaced subset if there are many."""
    chosen = pixels[tissue]
    return chosen[:: -(-len(chosen) // _MAX_PIXELS) or 1]


def _too_little_tissue_reason(tissue: Mask) -> str:
    return f"not normalised: only {int(tissue.sum())} tissue pixels in the thumbnail"


NORMALIZERS: dict[str, StainNormalizer] = {
    "none": IdentityTransform,
    "reinhard": Reinhard,
    "macenko": Macenko,
}
