"""Labelled samples, a block at a time: from arrays and memory maps, or from an iterable of blocks.

Labels inside are places in the sorted list of classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_array
from sklearn.utils.multiclass import check_classification_targets

from ..kernels import BLOCK_ROWS, row_blocks

LabelledBlock = tuple[NDArray[Any], NDArray[np.int64]]
OpenBlocks = Callable[[], Iterator[LabelledBlock]]


def open_arrays(
    X: NDArray[Any], labels: NDArray[np.int64], block_rows: int = BLOCK_ROWS
) -> OpenBlocks:
    """Blocks of so many rows of X, which may be a memory map."""

    def blocks() -> Iterator[LabelledBlock]:
        for rows in row_blocks(len(X), block_rows):
            yield X[rows], labels[rows]

    return blocks


def find_classes(blocks: Iterable[tuple[ArrayLike, ArrayLike]]) -> NDArray[Any]:
    """The sorted classes of all blocks; refuses what can be read only once, or is empty."""
    if iter(blocks) is iter(blocks):
        raise TypeError(
            "blocks can be read only once, but training reads them every iteration: give a list, "
            "or an object whose __iter__ starts again"
        )
    seen = [np.unique(np.asarray(y)) for _, y in blocks]
    if not seen:
        raise ValueError("blocks is empty: there is nothing to learn from")
    classes = np.unique(np.concatenate(seen))
    check_classification_targets(classes)
    return classes


def open_blocks(
    blocks: Iterable[tuple[ArrayLike, ArrayLike]], classes: NDArray[Any], n_features: int | None
) -> OpenBlocks:
    """The user's blocks, checked as they come; n_features None takes the first block's number."""
    first = check_array(next(iter(blocks))[0], dtype=[np.float64, np.float32])
    expected = first.shape[1] if n_features is None else n_features
    dtype = first.dtype

    def checked() -> Iterator[LabelledBlock]:
        for X, y in blocks:
            X, y = check_array(X, dtype=dtype, order="C"), np.asarray(y)
            if X.shape[1] != expected:
                raise ValueError(f"a block has {X.shape[1]} features, {expected} are expected")
            if y.shape != (len(X),):
                raise ValueError(f"a block has {len(X)} samples but labels of shape {y.shape}")
            labels = np.searchsorted(classes, y).astype(np.int64)
            for rows in row_blocks(len(X)):
                yield X[rows], labels[rows]

    return checked


def read_labels(blocks: Iterator[LabelledBlock]) -> NDArray[np.int64]:
    """The labels of all samples, in order."""
    return np.concatenate([labels for _, labels in blocks])


def draw_samples(
    blocks: Iterator[LabelledBlock],
    labels: NDArray[np.int64],
    n_classes: int,
    most: int,
    rng: np.random.Generator,
) -> list[NDArray[Any]]:
    """Per class `most` samples at random and in random order; all, if there are fewer."""
    chosen = [rng.permutation(np.flatnonzero(labels == i))[:most] for i in range(n_classes)]
    places = np.full(len(labels), -1)
    for rows in chosen:
        places[rows] = np.arange(len(rows))
    drawn: list[NDArray[Any]] = []
    start = 0
    for X, own_labels in blocks:
        if not drawn:
            drawn = [np.empty((len(rows), X.shape[1]), X.dtype) for rows in chosen]
        if not np.array_equal(own_labels, labels[start : start + len(X)]):
            raise ValueError(
                "blocks came with other labels, or in another order, when read again: they must "
                "be the same each time (do not shuffle while loading)"
            )
        here = places[start : start + len(X)]
        for i in range(n_classes):
            wanted = (own_labels == i) & (here >= 0)
            drawn[i][here[wanted]] = X[wanted]
        start += len(X)
    return drawn
