"""Schema of learned arrays: declared by estimators and validated when models are read.

A shape is declared by the name of each dimension. A name stands for the same size in all arrays of
a model. Some sizes are known beforehand (classes, features, …); others (atoms) are taken from the
first array that has a dimension of this name. Sums and products of names and numbers are also
allowed: "2*atoms", "scores+codes".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Sizes = Mapping[str, int | str]  # size by dimension name: a number, or an expression of names
_UNIT_TOLERANCE = 1e-4  # tolerance of unit norms in single precision


@dataclass(frozen=True)
class ArraySpec:
    """Specification of an array.

    Attributes
    ----------
    shape : name or expression of each dimension, separated by commas, such as "scores, 2*atoms"
    condition : requirement on the values, a key of CONDITIONS
    """

    shape: str
    condition: str = "finite numbers"


def validate_arrays(
    declared: Mapping[str, ArraySpec], arrays: Mapping[str, NDArray[Any]], sizes: Sizes
) -> None:
    """Raise ValueError unless arrays have the declared names, shapes, types and values.

    Parameters
    ----------
    declared : specification of each array, by name
    arrays : arrays to validate, by name
    sizes : sizes of the dimensions that are known beforehand, by name
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
    """Raise ValueError unless an array has the declared shape.

    Parameters
    ----------
    name : name of the array, for the message
    dimensions : declared name or expression of each dimension
    shape : shape of the array
    known : sizes by name or expression; the sizes of this array are added
    """
    fits = len(dimensions) == len(shape) and 0 not in shape
    for dimension, size in zip(dimensions, shape, strict=False):
        fits = fits and _evaluate_size(dimension, known) in (None, size)
        known.setdefault(dimension, size)
    if not fits:
        expected = ", ".join(
            f"{dimension} = {_evaluate_size(dimension, known)}" for dimension in dimensions
        )
        raise ValueError(f"array {name!r} has shape {shape}, expected ({expected})")


def _evaluate_size(expression: str, known: Mapping[str, int | str]) -> int | None:
    """Return the value of a size such as "2*atoms"; None if a name in it is not in `known`."""
    total = 0
    for term in expression.split("+"):
        product = 1
        for factor in term.split("*"):
            value = int(factor) if factor.isdecimal() else known.get(factor)
            size = _evaluate_size(value, known) if isinstance(value, str) else value
            if size is None:
                return None
            product *= size
        total += product
    return total


# --- conditions ---------------------------------------------------------------------------------


def _are_finite(array: NDArray[Any], known: Sizes) -> bool:
    return array.dtype in (np.float32, np.float64) and bool(np.isfinite(array).all())


def _are_positive(array: NDArray[Any], known: Sizes) -> bool:
    return _are_finite(array, known) and bool((array > 0).all())


def _are_fractions(array: NDArray[Any], known: Sizes) -> bool:
    return _are_finite(array, known) and bool(((array >= 0) & (array <= 1)).all())


def _are_unit_or_zero_vectors(array: NDArray[Any], known: Sizes) -> bool:
    if not _are_finite(array, known):
        return False
    norms = np.sqrt(np.einsum("...i,...i->...", array, array, dtype=np.float64))
    return bool(((np.abs(norms - 1) <= _UNIT_TOLERANCE) | (norms == 0)).all())


def _are_positive_integers(array: NDArray[Any], known: Sizes) -> bool:
    return array.dtype.kind == "i" and bool((array >= 1).all())


def _contain_all_classes(array: NDArray[Any], known: Sizes) -> bool:
    """Return whether an array contains the index of every class at least once."""
    return array.dtype.kind == "i" and np.array_equal(
        np.unique(array), np.arange(int(known["classes"]))
    )


def _are_feature_indices(array: NDArray[Any], known: Sizes) -> bool:
    inside = array.dtype.kind == "i" and ((array >= 0) & (array < int(known["features"]))).all()
    return bool(inside) and len(np.unique(array)) == array.size


CONDITIONS: dict[str, Callable[[NDArray[Any], Sizes], bool]] = {
    "finite numbers": _are_finite,
    "positive numbers": _are_positive,
    "fractions from 0 to 1": _are_fractions,
    "vectors of unit norm or zero vectors": _are_unit_or_zero_vectors,
    "positive whole numbers": _are_positive_integers,
    "indices of all classes": _contain_all_classes,
    "distinct feature indices": _are_feature_indices,
}
UNIT_VECTORS = "vectors of unit norm or zero vectors"
CLASS_INDICES = "indices of all classes"
