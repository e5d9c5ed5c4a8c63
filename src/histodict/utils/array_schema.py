"""Schema of learned arrays: declared by estimators and validated when models are read.

A shape is a name per dimension. A name stands for the same number in all arrays of a model. Some
numbers are known beforehand (classes, features, …); others (atoms) are taken from the first array
that has the name. Sums and products of names and numbers are also allowed: "2*atoms",
"scores+codes".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Sizes = Mapping[str, int | str]
_UNIT_TOLERANCE = 1e-4  # of norms in single precision


@dataclass(frozen=True)
class ArraySpec:
    """Specification of an array.

    Attributes
    ----------
    shape : names of the dimensions, comma-separated; see the module's docstring
    condition : requirement on the values, a key of CONDITIONS
    """

    shape: str
    condition: str = "finite numbers"


def validate_arrays(
    declared: Mapping[str, ArraySpec], arrays: Mapping[str, NDArray[Any]], sizes: Sizes
) -> None:
    """Raise ValueError if arrays differ from those declared in name, shape, type or values.

    Parameters
    ----------
    declared : specification of each array, by name
    arrays : arrays to validate, by name
    sizes : size of each known dimension, by name: a number, or an expression of other names
    """
    for name in sorted(set(declared) ^ set(arrays)):
        raise ValueError(f"array {name!r} is {'missing' if name in declared else 'unknown'}")
    known = dict(sizes)
    for name, spec in declared.items():
        _check_shape(name, spec.shape.split(", "), arrays[name].shape, known)
        if not CONDITIONS[spec.condition](arrays[name], known):
            raise ValueError(f"array {name!r} must contain {spec.condition}")


def _check_shape(
    name: str, dimensions: list[str], shape: tuple[int, ...], known: dict[str, int | str]
) -> None:
    fits = len(dimensions) == len(shape) and 0 not in shape
    for dimension, size in zip(dimensions, shape, strict=False):
        fits = fits and _size(dimension, known) in (None, size)
        known.setdefault(dimension, size)
    if not fits:
        expected = ", ".join(f"{dimension} = {_size(dimension, known)}" for dimension in dimensions)
        raise ValueError(f"array {name!r} has shape {shape}, expected ({expected})")


def _size(expression: str, known: Mapping[str, int | str]) -> int | None:
    """Return the value of a sum of products; None if a name in it is unknown."""
    total = 0
    for term in expression.split("+"):
        product = 1
        for factor in term.split("*"):
            value = int(factor) if factor.isdecimal() else known.get(factor)
            size = _size(value, known) if isinstance(value, str) else value
            if size is None:
                return None
            product *= size
        total += product
    return total


# --- conditions ---------------------------------------------------------------------------------


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
    """Return whether all classes occur; a class without vectors would have no distance."""
    return array.dtype.kind == "i" and np.array_equal(
        np.unique(array), np.arange(int(known["classes"]))
    )


def _feature_axes(array: NDArray[Any], known: Sizes) -> bool:
    inside = array.dtype.kind == "i" and ((array >= 0) & (array < int(known["features"]))).all()
    return bool(inside) and len(np.unique(array)) == array.size


CONDITIONS: dict[str, Callable[[NDArray[Any], Sizes], bool]] = {
    "finite numbers": _finite,
    "positive numbers": _positive,
    "fractions from 0 to 1": _fractions,
    "vectors of unit norm or zero vectors": _unit_norm_atoms,
    "positive whole numbers": _counts,
    "indices of all classes": _class_axes,
    "distinct feature indices": _feature_axes,
}
UNIT = "vectors of unit norm or zero vectors"
CLASSES = "indices of all classes"
