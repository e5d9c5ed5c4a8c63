"""Labelled training samples in blocks, and initial dictionaries of the classes.

Samples come from arrays and memory maps, from an iterable of blocks, or from `StoredSamples`, which
the thread or worker that processes them reads. `learn_dictionary_per_class` runs online dictionary
learning (ODL) on each class. With the same seed all methods start from the same dictionaries, so
that their results differ only by the method. Labels are indices into the sorted classes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_array, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from ..dictionaries.atoms import initial_atoms
from ..dictionaries.online import OnlineDictionary, continue_online, count_batches
from ..kernels import BLOCK_ROWS, load_backend, row_blocks
from ..utils.parallel import run_concurrently, single_blas_thread
from ..utils.progress import Callback, Progress

LabelledBlock = tuple[NDArray[Any], NDArray[np.int64]]
Blocks = Iterable[tuple[ArrayLike, ArrayLike]]

# A worker returns the sums over a group of blocks. The number of groups is limited, so that neither
# the data sent between machines nor the time to add the sums grows with the number of samples.
_MAX_GROUPS = 256
_MAX_BLOCKS_PER_GROUP = 32


@runtime_checkable
class StoredSamples(Protocol):
    """Interface of samples that are read by the thread or worker that processes them.

    The object is sent to workers, so it should store file names rather than file contents.
    """

    @property
    def labels(self) -> NDArray[Any]:
        """Labels of all samples, (n_samples,)."""

    def read(self, rows: slice) -> NDArray[Any]:
        """Return the samples of these rows, (n, n_features)."""


@dataclass(frozen=True)
class StoredBlock:
    """Block of stored samples, whose labels are mapped to indices into `classes`.

    The samples are read, and converted to `dtype`, when the block is unpacked: `X, labels = block`.
    """

    samples: StoredSamples
    rows: slice
    classes: NDArray[Any]
    dtype: np.dtype[Any]

    def __iter__(self) -> Iterator[NDArray[Any]]:
        yield check_array(self.samples.read(self.rows), dtype=self.dtype, order="C")
        yield np.searchsorted(self.classes, self.samples.labels[self.rows]).astype(np.int64)


OpenBlocks = Callable[[], Iterator[LabelledBlock | StoredBlock]]
BlockGroup = tuple[LabelledBlock | StoredBlock, ...]


def open_arrays(
    X: NDArray[Any], labels: NDArray[np.int64], block_rows: int = BLOCK_ROWS
) -> OpenBlocks:
    """Return a function that returns an iterator over blocks (X, labels) of an array or memory map.

    X are the samples, `labels` their class indices, and `block_rows` the number of samples of a
    block.
    """

    def blocks() -> Iterator[LabelledBlock]:
        for rows in row_blocks(len(X), block_rows):
            yield X[rows], labels[rows]

    return blocks


def open_stored_blocks(
    samples: StoredSamples, classes: NDArray[Any], block_rows: int = BLOCK_ROWS
) -> OpenBlocks:
    """Return a function that returns an iterator over blocks of stored samples.

    The samples of a block are read only when it is unpacked. `classes` are the sorted class labels,
    and `block_rows` is the number of samples of a block.
    """
    labels = samples.labels
    first = check_array(samples.read(slice(0, 1)), dtype=[np.float64, np.float32])

    def blocks() -> Iterator[StoredBlock]:
        for rows in row_blocks(len(labels), block_rows):
            yield StoredBlock(samples, rows, classes, first.dtype)

    return blocks


def group_blocks(iterate_blocks: OpenBlocks, n_samples: int) -> Callable[[], Iterator[BlockGroup]]:
    """Return a function that returns an iterator over groups of consecutive blocks.

    `iterate_blocks` returns an iterator over the blocks. The size of a group depends only on the
    number of samples, so that results do not depend on the number of workers.
    """
    min_blocks = -(-n_samples // (_MAX_GROUPS * BLOCK_ROWS))
    n_blocks = min(min_blocks, _MAX_BLOCKS_PER_GROUP)

    def groups() -> Iterator[BlockGroup]:
        blocks = iterate_blocks()
        while group := tuple(islice(blocks, n_blocks)):
            yield group

    return groups


def find_classes(blocks: Blocks) -> NDArray[Any]:
    """Return the sorted distinct class labels y of all blocks (X, y).

    Raise TypeError if the blocks can be iterated over only once, and ValueError if there are no
    blocks or y does not contain class labels.
    """
    if iter(blocks) is iter(blocks):
        raise TypeError(
            "blocks must be re-iterable, as training reads them in every iteration; pass a "
            "list, or an object whose __iter__ starts again"
        )
    labels_by_block = [np.unique(np.asarray(y)) for _, y in blocks]
    if not labels_by_block:
        raise ValueError("blocks is empty")
    classes = np.unique(np.concatenate(labels_by_block))
    check_classification_targets(classes)
    return classes


def open_blocks(blocks: Blocks, classes: NDArray[Any], n_features: int | None) -> OpenBlocks:
    """Return a function that returns an iterator over validated blocks of at most BLOCK_ROWS rows.

    Parameters
    ----------
    blocks : pairs (X, y) of samples and class labels
    classes : sorted class labels; y is mapped to indices into them
    n_features : expected number of features; None to expect as many as in the first block
    """
    first = check_array(next(iter(blocks))[0], dtype=[np.float64, np.float32])
    expected = first.shape[1] if n_features is None else n_features
    dtype = first.dtype

    def validated() -> Iterator[LabelledBlock]:
        for X, y in blocks:
            X, y = check_array(X, dtype=dtype, order="C"), np.asarray(y)
            if X.shape[1] != expected:
                raise ValueError(f"a block has {X.shape[1]} features, expected {expected}")
            if y.shape != (len(X),):
                raise ValueError(f"a block has {len(X)} samples, but labels of shape {y.shape}")
            labels = np.searchsorted(classes, y).astype(np.int64)
            for rows in row_blocks(len(X)):
                yield X[rows], labels[rows]

    return validated


def read_labels(blocks: Iterator[LabelledBlock | StoredBlock]) -> NDArray[np.int64]:
    """Return the class indices of the samples of all blocks, (n_samples,)."""
    return np.concatenate([labels for _, labels in blocks])


def sample_by_class(
    blocks: Iterator[LabelledBlock | StoredBlock],
    labels: NDArray[np.int64],
    n_classes: int,
    max_samples: int,
    rng: np.random.Generator,
) -> list[NDArray[Any]]:
    """Draw up to `max_samples` samples of each class at random and in random order.

    `labels` (n_samples,) are the class indices of the samples of all blocks. Return one array
    (n, n_features) per class. Raise ValueError if the labels of the blocks differ from `labels`.
    """
    chosen_rows = [
        rng.permutation(np.flatnonzero(labels == i))[:max_samples] for i in range(n_classes)
    ]
    positions = np.full(len(labels), -1)
    for rows in chosen_rows:
        positions[rows] = np.arange(len(rows))
    samples: list[NDArray[Any]] = []
    start = 0
    for block in blocks:
        if samples and isinstance(block, StoredBlock) and (positions[block.rows] < 0).all():
            start = block.rows.stop
            continue
        X, block_labels = block
        if not samples:
            samples = [np.empty((len(rows), X.shape[1]), X.dtype) for rows in chosen_rows]
        if not np.array_equal(block_labels, labels[start : start + len(X)]):
            raise ValueError(
                "blocks have different labels, or another order, when they are read again; "
                "do not shuffle while loading"
            )
        block_positions = positions[start : start + len(X)]
        for i in range(n_classes):
            is_chosen = (block_labels == i) & (block_positions >= 0)
            samples[i][block_positions[is_chosen]] = X[is_chosen]
        start += len(X)
    return samples


# Maximum number of samples per class for dictionary learning; they are held in memory.
_MAX_SAMPLES_PER_CLASS = 20_000


def validate_labelled_data(
    estimator: BaseEstimator, X: ArrayLike, y: ArrayLike
) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.int64]]:
    """Validate X and y for `fit` of an estimator; raise ValueError for fewer than two classes.

    Returns
    -------
    samples : (n_samples, n_features), in single or double precision
    classes : (n_classes,), sorted
    labels : (n_samples,), index of each sample's class
    """
    samples, targets = validate_data(estimator, X, y, dtype=[np.float64, np.float32])
    check_classification_targets(targets)
    classes, labels = np.unique(targets, return_inverse=True)
    if len(classes) < 2:
        raise ValueError(
            f"{type(estimator).__name__} needs at least two classes, but y has only one class: "
            f"{classes.tolist()}"
        )
    return samples, classes, labels.astype(np.int64)


def make_rng(random_state: Any) -> np.random.Generator:
    """Return a NumPy generator for the parameter `random_state` of a scikit-learn estimator."""
    return np.random.default_rng(check_random_state(random_state).randint(2**31, size=4))


def learn_class_dictionaries(
    X: NDArray[Any],
    labels: NDArray[np.int64],
    rng: np.random.Generator,
    *,
    n_atoms: int,
    penalty: float,
    n_epochs: int = 5,
    n_jobs: int | None,
    backend: str,
    stage: str,
    report: Callback,
) -> list[OnlineDictionary]:
    """Return a dictionary of each class, learned online from at most 20,000 samples of X per class.

    `labels` (n_samples,) are class indices; every class has samples. The other parameters are those
    of `learn_dictionary_per_class`.
    """
    n_classes = int(labels.max()) + 1
    samples = sample_by_class(
        open_arrays(X, labels)(), labels, n_classes, _MAX_SAMPLES_PER_CLASS, rng
    )
    return learn_dictionary_per_class(
        samples,
        rng,
        n_atoms=n_atoms,
        penalty=penalty,
        n_epochs=n_epochs,
        n_jobs=n_jobs,
        backend=backend,
        stage=stage,
        report=report,
    )


def learn_dictionary_per_class(
    samples: Sequence[NDArray[Any]],
    rng: np.random.Generator,
    *,
    n_atoms: int,
    penalty: float,
    n_epochs: int = 5,
    n_jobs: int | None,
    backend: str,
    stage: str,
    report: Callback,
) -> list[OnlineDictionary]:
    """Run online dictionary learning on each class, in parallel over the classes.

    Classes run in parallel because the update between two mini-batches uses one thread only.

    Parameters
    ----------
    samples : samples of each class in random order, (n_samples, n_features) each
    rng : source of randomness for the initial atoms
    n_atoms : atoms per class
    penalty : l1 penalty of the codes
    n_epochs : passes over the samples
    n_jobs : number of threads; None for all cores
    backend : "cpu" or "cuda"
    stage : name of the stage in the reported progress
    report : called with a `Progress` after every mini-batch

    Returns
    -------
    list of OnlineDictionary
        One for each class.
    """
    n_threads = load_backend(backend).count_threads(n_jobs)
    n_concurrent = min(n_threads, len(samples))
    with single_blas_thread():
        initial = [initial_atoms(Y, n_atoms, rng) for Y in samples]
    total = sum(count_batches(len(Y), n_epochs) for Y in samples)
    done = itertools.count()

    def on_step() -> None:
        report(Progress(stage, next(done), total))

    def learn(D: NDArray[Any], Y: NDArray[Any], on_batch: Callable[[], None]) -> OnlineDictionary:
        return continue_online(
            D,
            Y,
            penalty,
            n_epochs=n_epochs,
            n_jobs=-(-n_threads // n_concurrent),
            backend=backend,
            on_batch=on_batch,
        )

    on_step()
    tasks = [partial(learn, D, Y) for D, Y in zip(initial, samples, strict=True)]
    return run_concurrently(tasks, on_step, n_concurrent)
