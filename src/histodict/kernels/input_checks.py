"""Checks of the inputs of kernels, and of overflow in their results.

Shapes, dtypes and NaN are checked before any computation. Finite values may still be too large:
squares and products of samples and atoms must be representable in the dtype of the computation.
Coders check this with the norms of samples and atoms, which they compute anyway.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse

_NUMBER_NAMES = {2: "two", 3: "three"}


def check_pair(
    D: ArrayLike, Y: ArrayLike, *, names: tuple[str, str] = ("D", "Y"), n_dimensions: int = 2
) -> tuple[NDArray, NDArray]:
    """Validate D and Y, and return them as C-contiguous arrays of a common float dtype.

    The dtype is float32 if both arrays are float32, else float64. Raise TypeError if an array is
    sparse, and ValueError if it has a wrong shape or contains NaN or infinity.

    Parameters
    ----------
    D : dictionary
    Y : samples
    names : names of D and Y in messages
    n_dimensions : required number of dimensions
    """
    single = all(getattr(array, "dtype", None) == np.float32 for array in (D, Y))
    dtype = np.dtype(np.float32 if single else np.float64)
    D, Y = (
        as_array(name, array, dtype, n_dimensions)
        for name, array in zip(names, (D, Y), strict=True)
    )
    if 0 in D.shape:
        raise ValueError(f"{names[0]} must have atoms and features, not shape {D.shape}")
    if D.shape[-1] != Y.shape[-1]:
        raise ValueError(
            f"{names[1]} has {Y.shape[-1]} features (columns), but {names[0]} has {D.shape[-1]}"
        )
    return D, Y


def check_channels(D: ArrayLike, Y: ArrayLike) -> tuple[NDArray, NDArray]:
    """Validate arrays (n_channels, n_rows, n_features) like `check_pair`; return D and Y."""
    D, Y = check_pair(D, Y, n_dimensions=3)
    if len(D) != len(Y):
        raise ValueError(f"Y has {len(Y)} channels, but D has {len(D)}")
    return D, Y


def as_array(name: str, array: ArrayLike, dtype: np.dtype, n_dimensions: int = 2) -> NDArray:
    """Return an array-like as a finite C-contiguous array of `dtype`.

    `name` is its name in messages. Raise TypeError if it is sparse, and ValueError if its number of
    dimensions is not `n_dimensions` or if it contains NaN or infinity.
    """
    if issparse(array):
        raise TypeError(f"{name} must be a dense array, not a sparse one")
    dense = np.ascontiguousarray(array, dtype=dtype)
    if dense.ndim != n_dimensions:
        raise ValueError(
            f"{name} must have {_NUMBER_NAMES[n_dimensions]} dimensions, not {dense.ndim}"
        )
    if not np.isfinite(dense).all():
        raise ValueError(f"{name} contains NaN or infinity")
    return dense


def check_range(
    name: str, squared_norms: NDArray[np.float64], dtype: np.dtype, max_factor: float = 1.0
) -> None:
    """Raise ValueError if rows have such large norms that computed results would overflow.

    Parameters
    ----------
    name : name of the array in the message
    squared_norms : squared norms of the rows of the array; must be representable in float64
    dtype : dtype of the computation, in which norm · `max_factor` must be representable
    max_factor : largest number by which norms are multiplied
    """
    largest = float(squared_norms.max(initial=0))
    fits = largest <= 0.25 * float(np.finfo(np.float64).max)
    if not fits or not np.sqrt(largest) * max_factor <= 0.25 * float(np.finfo(dtype).max):
        raise ValueError(
            f"products of values of {name} overflow in {dtype}; scale them down, such as to "
            "rows of norm 1"
        )


def check_result(name: str, values: NDArray, dtype: np.dtype) -> None:
    """Raise ValueError if a result, computed in `dtype`, contains NaN or infinity from overflow.

    `name` is the name of the values in the message, in the plural.
    """
    if not np.isfinite(values).all():
        raise ValueError(
            f"{name} overflow in {dtype}: values of samples and atoms are too large or differ "
            "too much; scale them, such as to rows of norm 1"
        )


def check_sums(E: NDArray, F: NDArray) -> None:
    """Raise ValueError if the sums E or F of `SufficientStatistics` contain NaN or infinity."""
    if not (np.isfinite(E).all() and np.isfinite(F).all()):
        raise ValueError(
            f"the sums over samples, E and F, overflow in {E.dtype}; scale the samples down, "
            "such as to rows of norm 1"
        )
