"""Small seeded problems for the kernels, with selectable difficulties."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

ROWS = 64


@dataclass(frozen=True)
class Settings:
    """Parameters of a problem; a fuzz case lists the values that differ from the defaults.

    atoms, features, channels, classes : sizes
    rank : rank of the atoms, 0 for full rank
    repeated, near, zero : number of additional atoms that repeat others (some negated or scaled),
    repeat them with small noise, or are zero
    atom_scale, sample_scale : power of ten of all values; *_spread: range of the power of each row
    whole : small integers, so that scores are tied
    spanned : samples are combinations of a few atoms; `blank`: number of zero samples
    blocks : repeat the samples to fill several blocks, which several threads encode
    hole, shape, codes : the invalid input, if any: array with a NaN or infinity, wrong shape,
    invalid sparse codes
    """

    seed: int = 0
    atoms: int = 3
    features: int = 3
    channels: int = 2
    classes: int = 2
    single: bool = False
    rank: int = 0
    repeated: int = 0
    near: int = 0
    zero: int = 0
    atom_scale: float = 0
    sample_scale: float = 0
    atom_spread: float = 0
    sample_spread: float = 0
    whole: bool = False
    spanned: bool = False
    blank: int = 0
    blocks: bool = False
    hole: str = ""
    shape: str = ""
    codes: str = ""
    penalty: float = 0.1
    tol: float = 1e-4
    n_nonzero: int = 2
    correlation: bool = False

    @property
    def dtype(self) -> type:
        return np.float32 if self.single else np.float64

    @property
    def is_generic(self) -> bool:
        """Whether no two atoms are tied, dependent or very different in norm."""
        awkward = self.rank, self.repeated, self.near, self.zero, self.whole, self.spanned
        scales = self.atom_scale, self.sample_scale, self.atom_spread, self.sample_spread
        return not (self.single or any(awkward) or any(scales) or self.is_wrong)

    @property
    def is_wrong(self) -> bool:
        """Whether the input is invalid and must be refused."""
        return bool(self.hole or self.shape or self.codes)

    @property
    def is_tame(self) -> bool:
        """Whether a result is required: the input is valid and no square can overflow."""
        reach = max(abs(self.atom_scale) + self.atom_spread, 0)
        reach += max(abs(self.sample_scale) + self.sample_spread, 0)
        return not self.is_wrong and reach <= (8 if self.single else 60)


NAMES = tuple(field.name for field in fields(Settings))


_WRONG = {
    "hole": ["D", "Y"],
    "shape": ["thin", "flat", "empty", "words", "sparse"],
    "codes": ["beyond", "before", "order", "nan", "size"],
}


def draw_settings(rng: Generator, wrong: tuple[str, ...]) -> tuple[list[Any], ...]:
    """Return random settings that differ from the defaults, as pairs [name, value]."""
    size = int(rng.choice([1, 2, 3, 5, 8, 17, 33, 40]))
    edits: dict[str, Any] = {
        "seed": int(rng.integers(2**31)),
        "atoms": int(rng.choice([1, 2, 3, 4, 5, 16, 17, 31, 32, 33, 40, 65])),
        "features": size,
        "single": bool(rng.random() < 0.5),
        "n_nonzero": int(rng.choice([1, 2, 3, 5, 9, 30, 100])),
        "correlation": bool(rng.random() < 0.5),
        "penalty": float(rng.choice([0.1, 1.0, 1e-3, 1e-8, 1e3, 1e-300, 1e300, 5e-324])),
        "tol": float(rng.choice([1e-4, 1e-2, 1e-9, 0.0])),
        "channels": int(rng.choice([1, 2, 3])),
        "classes": int(rng.choice([1, 2, 5])),
    }
    awkward = {
        "rank": lambda: int(rng.integers(1, size + 1)),
        "repeated": lambda: int(rng.integers(1, 9)),
        "near": lambda: int(rng.integers(1, 9)),
        "zero": lambda: int(rng.integers(1, 4)),
        "atom_scale": lambda: _exponent(rng, edits["single"]),
        "sample_scale": lambda: _exponent(rng, edits["single"]),
        "atom_spread": lambda: float(rng.choice([1, 4, 20, 150])),
        "sample_spread": lambda: float(rng.choice([1, 4, 20, 150])),
        "whole": lambda: True,
        "spanned": lambda: True,
        "blank": lambda: int(rng.integers(1, ROWS + 1)),
    }
    for name, value in awkward.items():
        if rng.random() < 0.25:
            edits[name] = value()
    if rng.random() < 0.02:
        edits["blocks"] = True
    if wrong and rng.random() < 0.05:
        what = str(rng.choice(wrong))
        edits[what] = str(rng.choice(_WRONG[what]))
    return tuple([name, value] for name, value in edits.items())


def _exponent(rng: Generator, single: bool) -> float:
    most = 45 if single else 323
    near = [0.1, 0.25, 0.49, 0.5, 0.51, 0.8, 1.0]
    return float(np.round(rng.choice([-1, 1]) * rng.choice(near) * most * rng.uniform(0.95, 1), 1))


@dataclass(frozen=True)
class Problem:
    """Atoms D and samples Y, with a first axis of channels if requested."""

    D: Any
    Y: Any


def make_problem(settings: Settings, *, with_channels: bool = False) -> Problem:
    rng = np.random.default_rng(settings.seed)
    n_channels = settings.channels if with_channels else 1
    pairs = [_channel(settings, rng) for _ in range(n_channels)]
    D, Y = (np.stack(arrays) for arrays in zip(*pairs, strict=True))
    if settings.blocks:
        Y = np.tile(Y, (1, 17, 1))
    if not with_channels:
        D, Y = D[0], Y[0]
    return Problem(*_invalidate(settings, rng, D, Y))


def _channel(settings: Settings, rng: Generator) -> tuple[NDArray, NDArray]:
    D = _rows(rng, settings.atoms, settings)
    if settings.rank:
        D = _rows(rng, settings.atoms, settings, settings.rank) @ _rows(
            rng, settings.rank, settings
        )
    extra = D[rng.integers(len(D), size=settings.repeated)]
    extra = extra * rng.choice([-1.0, 0.5, 1.0], len(extra))[:, None]
    near = D[rng.integers(len(D), size=settings.near)]
    near = near + 10.0 ** rng.uniform(-17, -1) * rng.standard_normal(near.shape)
    D = np.concatenate([D, extra, near, np.zeros((settings.zero, settings.features))])
    D = D[rng.permutation(len(D))]
    Y = _rows(rng, ROWS, settings)
    if settings.spanned:
        Y = (rng.standard_normal((ROWS, len(D))) * (rng.random((ROWS, len(D))) < 0.2)) @ D
    Y[: settings.blank] = 0
    return (
        _scaled(D, rng, settings.atom_scale, settings.atom_spread, settings.dtype),
        _scaled(Y, rng, settings.sample_scale, settings.sample_spread, settings.dtype),
    )


def _rows(rng: Generator, n: int, settings: Settings, width: int = 0) -> NDArray[np.float64]:
    shape = n, width or settings.features
    if settings.whole:
        return rng.integers(-2, 3, shape).astype(float)
    return rng.standard_normal(shape)


def _scaled(rows: NDArray, rng: Generator, scale: float, spread: float, dtype: type) -> NDArray:
    """Multiply rows by powers of ten; values outside the range of the type are clipped."""
    powers = scale + rng.uniform(-spread, spread, (len(rows), 1))
    most = np.finfo(dtype).max
    scaled = rows * np.longdouble(10) ** powers.astype(np.longdouble)
    return np.clip(scaled, -np.longdouble(most), np.longdouble(most)).astype(dtype)


def _invalidate(settings: Settings, rng: Generator, D: Any, Y: Any) -> tuple[Any, Any]:
    if settings.hole:
        array = D if settings.hole == "D" else Y
        array.flat[rng.integers(array.size)] = rng.choice([np.nan, np.inf, -np.inf])
    if settings.shape == "thin":
        Y = np.concatenate([Y, Y], axis=-1)
    elif settings.shape == "flat":
        Y = Y.reshape(-1)
    elif settings.shape == "empty":
        D = D[..., :0, :]
    elif settings.shape == "words":
        Y = "samples"
    elif settings.shape == "sparse":
        from scipy.sparse import csr_array

        Y = csr_array(np.atleast_2d(Y.reshape(-1, Y.shape[-1])))
    return D, Y
