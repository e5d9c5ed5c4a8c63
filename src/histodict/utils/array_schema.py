"""What an array that was learnt must be: said where it is learnt, checked where it is read.

A shape is a word for each dimension. A word means the same number in all arrays of a model; some
are known beforehand (classes, features, …), any other (atoms) is learnt from the first array that
has it. Sums and products of words and numbers are shapes too: "2*atoms", "scores+codes".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Sizes = Mapping[str, int | str]
_UNIT_TOLERANCE = 1e-4  # of the norm of a vector in single precision


@dataclass(frozen=True)
class ArraySpec:
    """shape : words separated by commas; holds : what kind of numbers, one of `HOLDS`."""

    shape: str
    condition: str = "finite numbers"


def validate_arrays(
    declared: Mapping[str, ArraySpec], arrays: Mapping[str, NDArray[Any]], sizes: Sizes
) -> None:
    """Refuses arrays that are not those declared, in name, shape, type or value.

    `sizes` : numbers of the words that are known, or what other words they are made of
    """
    for name in sorted(set(declared) ^ set(arrays)):
        raise ValueError(f"the array {name} is {'missing' if name in declared else 'not known'}")
    known = dict(sizes)
    for name, what in declared.items():
        _check_shape(name, what.shape.split(", "), arrays[name].shape, known)
        if not CONDITIONS[what.condition](arrays[name], known):
            raise ValueError(f"the array {name} must hold {what.condition}, and does not")


def _check_shape(
    name: str, words: list[str], shape: tuple[int, ...], known: dict[str, int | str]
) -> None:
    fits = len(words) == len(shape) and 0 not in shape
    for word, size in zip(words, shape, strict=False):
        fits = fits and _size(word, known) in (None, size)
        known.setdefault(word, size)
    if not fits:
        wanted = ", ".join(f"{word} = {_size(word, known)}" for word in words)
        raise ValueError(f"the array {name} has the shape {shape}, not ({wanted})")


def _size(words: str, known: Mapping[str, int | str]) -> int | None:
    """The number that a sum of products stands for; None if a word of it is not known."""
    total = 0
    for part in words.split("+"):
        product = 1
        for word in part.split("*"):
            value = int(word) if word.isdecimal() else known.get(word)
            size = _size(value, known) if isinstance(value, str) else value
            if size is None:
                return None
            product *= size
        total += product
    return total


# --- kinds of numbers ---------------------------------------------------------------------------


def _finite(array: NDArray[Any], known: Sizes) -> bool:
    return array.dtype in (np.float32, np.float64) and bool(np.isfinite(array).all())


def _positive(array: NDArray[Any], known: Sizes) -> bool:
    return _finite(array, known) and bool((array > 0).all())


def _fractions(array: NDArray[Any], known: Sizes) -> bool:
    return _finite(array, known) and bool(((array >= 0) & (array <= 1)).all())


def _unit_norm_atoms(array: NDArray[Any], known: Sizes) -> bool:
    if not _finite(array, known):
        return False
    norms = np.sqrt(np.einsum("...i,...i->...", array, array, dtype=np.float64))
    return bool(((np.abs(norms - 1) <= _UNIT_TOLERANCE) | (norms == 0)).all())


def _counts(array: NDArray[Any], known: Sizes) -> bool:
    return array.dtype.kind == "i" and bool((array >= 1).all())


def _class_axes(array: NDArray[Any], known: Sizes) -> bool:
    """Of all classes: one that nobody belongs to would have no distance."""
    return array.dtype.kind == "i" and np.array_equal(
        np.unique(array), np.arange(int(known["classes"]))
    )


def _feature_axes(array: NDArray[Any], known: Sizes) -> bool:
    inside = array.dtype.kind == "i" and ((array >= 0) & (array < int(known["features"]))).all()
    return bool(inside) and len(np.unique(array)) == array.size


CONDITIONS: dict[str, Callable[[NDArray[Any], Sizes], bool]] = {
    "finite numbers": _finite,
    "positive numbers": _positive,
    "shares from 0 to 1": _fractions,
    "vectors of unit norm, or of zeros": _unit_norm_atoms,
    "whole numbers from 1 on": _counts,
    "the places of all classes": _class_axes,
    "different places of features": _feature_axes,
}
UNIT = "vectors of unit norm, or of zeros"
CLASSES = "the places of all classes"
