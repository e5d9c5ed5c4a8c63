"""Online dictionary learning (ODL), optionally anchored to feature axes.

`learn_online` alternates l1 codes of mini-batches with atom updates from running sums:

    min_{D, S}  Σ ½‖y − sD‖² + penalty·‖s‖₁   with unit-norm atoms

`learn_axis_anchored` learns atoms that are reproducible between patients:

    min_{D, S}  Σ ½‖y − sD‖² + penalty·‖s‖₁ + ½·m·‖D − A‖²   with unit-norm atoms

The rows of A are axes of the feature space, one per atom, and m = anchor_weight · mean_j Σ s_j².
Without the last term a rotation among atoms hardly changes the objective, so dictionaries of
different patients differ by a rotation. An axis of an encoder is a feature learned from millions of
other images. It is the same for all patients, and a good initial atom. Atoms move away from their
axes if many samples are then reconstructed better.

The axes with the largest median over patients of the mean square are used. A feature that is large
in one patient only, such as a stain or a fold, gets no atom.

`split_half_similarity` measures the reproducibility of atoms: it learns dictionaries, including the
choice of axes, from two halves of the patients, and compares the atoms that match each atom.

References: Mairal, Bach, Ponce, Sapiro, "Online learning for matrix factorization and sparse
coding", JMLR 2010; Meinshausen, Bühlmann, "Stability selection", JRSS B 2010 (selection of
features that recur in random halves of the data).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..kernels import load_backend, to_numpy
from ..kernels.sufficient_statistics import SufficientStatistics
from ..utils.parallel import map_blocks, single_blas_thread
from ..utils.validation import check_number, check_whole_number
from .atoms import initial_atoms, match_atoms

_BATCH_ROWS = 1024
_MAX_CANDIDATES = 256  # maximum number of samples that may replace unused atoms after an epoch


@dataclass(frozen=True)
class OnlineDictionary:
    """Dictionary learned by online dictionary learning.

    Attributes
    ----------
    atoms : (n_atoms, n_features)
    mean_nonzero : mean number of non-zero coefficients per sample in the last epoch
    """

    atoms: NDArray
    mean_nonzero: float


def learn_online(
    Y: NDArray,
    n_atoms: int,
    penalty: float,
    rng: np.random.Generator,
    *,
    n_epochs: int = 5,
    n_jobs: int | None = None,
    backend: str = "cpu",
    callback: Callable[[int, int], None] | None = None,
) -> OnlineDictionary:
    """Learn a dictionary for the rows of Y by online dictionary learning.

    Parameters
    ----------
    Y : (n_samples, n_features), C-contiguous float array in random order
    n_atoms : number of atoms
    penalty : l1 penalty of the codes
    rng : source of randomness for the initial atoms
    n_epochs : passes over the samples
    n_jobs : number of threads; None for all cores
    backend : "cpu" or "cuda"
    callback : called with (done, total) at the start and after every mini-batch
    """
    with single_blas_thread():
        D = initial_atoms(Y, n_atoms, rng)
    total = count_batches(len(Y), n_epochs)
    done = itertools.count()

    def on_batch() -> None:
        if callback:
            callback(next(done), total)

    on_batch()
    return continue_online(
        D, Y, penalty, n_epochs=n_epochs, n_jobs=n_jobs, backend=backend, on_batch=on_batch
    )


def count_batches(n_samples: int, n_epochs: int) -> int:
    """Return the number of mini-batches of `n_epochs` passes over the samples."""
    return n_epochs * -(-n_samples // _BATCH_ROWS)


def continue_online(
    D: NDArray,
    Y: NDArray,
    penalty: float,
    *,
    n_epochs: int,
    n_jobs: int | None,
    backend: str,
    on_batch: Callable[[], None],
    anchor_weight: float = 0.0,
) -> OnlineDictionary:
    """Continue online dictionary learning on the rows of Y from the initial atoms D.

    Parameters
    ----------
    D : (n_atoms, n_features), unit-norm initial atoms
    Y, penalty, n_epochs, n_jobs, backend : as in `learn_online`
    on_batch : function without arguments that is called after every mini-batch
    anchor_weight : weight of the squared distance to the initial atoms, as in
        `learn_axis_anchored`. With 0, unused atoms are replaced by samples
    """
    module = load_backend(backend)
    samples, D = module.to_device(Y, D.dtype), module.to_device(D, D.dtype)
    anchors, identity = D, module.to_device(np.eye(len(D)), to_numpy(D).dtype)
    E, F = module.zeros(D.shape), module.zeros((len(D), len(D)))
    starts = range(0, len(Y), _BATCH_ROWS)
    for epoch in range(n_epochs):
        usage_counts: Any = 0
        worst: SufficientStatistics | None = None  # whose worst samples are those of the epoch
        for position, start in enumerate(starts):
            n_before = epoch * len(starts) + position
            decay = n_before / (n_before + 1)
            E *= decay
            F *= decay
            for statistics in _code_batch(
                module, D, samples[start : start + _BATCH_ROWS], penalty, n_jobs
            ):
                E += statistics.E
                F += statistics.F
                usage_counts = usage_counts + statistics.usage_counts
                if worst:
                    worst.merge_worst(statistics, _MAX_CANDIDATES)
                else:
                    worst = statistics
            with single_blas_thread():
                weight = anchor_weight * F.diagonal().sum() / len(D)
                E_and_F = (E + weight * anchors, F + weight * identity) if anchor_weight else (E, F)
                D = module.update_atoms(D, *E_and_F, n_sweeps=1, tol=0.0)
            on_batch()
        if worst and not anchor_weight and epoch < n_epochs - 1:
            candidates = worst.worst_samples[worst.worst_errors > 0]
            with single_blas_thread():
                D = module.replace_unused_atoms(D, usage_counts, candidates)
    return OnlineDictionary(to_numpy(D), float(usage_counts.sum()) / len(Y))


def _code_batch(
    module: ModuleType, D: Any, batch: Any, penalty: float, n_jobs: int | None
) -> Iterator[SufficientStatistics]:
    """Encode a mini-batch in several tasks, and yield the sufficient statistics of each task.

    The samples with the largest residuals, 8 per 256 samples, are candidates for new atoms.
    """
    with single_blas_thread():
        coder = module.LassoCoder(D, penalty, 1e-3)

    def encode_task(start: int) -> SufficientStatistics:
        rows = batch[start : start + module.TASK_ROWS]
        labels, weights = np.zeros(len(rows), np.int64), np.ones(1)
        n_worst = 8 * math.ceil(len(rows) / 256)
        statistics: SufficientStatistics = module.encode_and_accumulate(
            coder, rows, labels, 0, weights, n_worst
        )
        return statistics

    yield from map_blocks(
        encode_task, range(0, len(batch), module.TASK_ROWS), module.count_threads(n_jobs)
    )


PENALTY, ANCHOR_WEIGHT, N_EPOCHS = 0.1, 1.0, 5
_MIN_PATIENTS = 4  # minimum for `split_half_similarity`


@dataclass(frozen=True)
class AxisAnchoredDictionary:
    """Dictionary whose atoms are each anchored to one axis of the feature space.

    Attributes
    ----------
    atoms : (n_atoms, n_features)
    axes : (n_atoms,), index of the feature to which each atom is anchored
    """

    atoms: NDArray[Any]
    axes: NDArray[np.int64]


def learn_axis_anchored(
    Y: NDArray[Any],
    patients: NDArray[Any],
    n_atoms: int,
    rng: np.random.Generator,
    *,
    penalty: float = PENALTY,
    anchor_weight: float = ANCHOR_WEIGHT,
    n_jobs: int | None = None,
    backend: str = "cpu",
    callback: Callable[[int, int], None] | None = None,
) -> AxisAnchoredDictionary:
    """Learn a dictionary whose atoms are anchored to the axes of the most variable features.

    Parameters
    ----------
    Y : (n_samples, n_features), centred unit vectors
    patients : (n_samples,), patient of each sample
    n_atoms : number of atoms
    rng : source of randomness for the order of the samples
    penalty : l1 penalty of the codes
    anchor_weight : weight of the squared distance between an atom and its axis, relative to the fit
    n_jobs : number of threads; None for all cores
    backend : "cpu" or "cuda"
    callback : called with (done, total) after every mini-batch
    """
    check_number("penalty", penalty, exclusive=True)
    check_number("anchor_weight", anchor_weight, exclusive=True)
    axes = most_variable_axes(Y, patients, n_atoms)
    anchors = np.zeros((n_atoms, Y.shape[1]), Y.dtype)
    anchors[np.arange(n_atoms), axes] = 1
    total, done = count_batches(len(Y), N_EPOCHS), iter(range(1, 2**62))

    def on_batch() -> None:
        if callback:
            callback(next(done), total)

    result = continue_online(
        anchors,
        np.ascontiguousarray(Y[rng.permutation(len(Y))]),
        penalty,
        n_epochs=N_EPOCHS,
        n_jobs=n_jobs,
        backend=backend,
        on_batch=on_batch,
        anchor_weight=anchor_weight,
    )
    return AxisAnchoredDictionary(result.atoms, axes)


def most_variable_axes(Y: NDArray[Any], patients: NDArray[Any], n_axes: int) -> NDArray[np.int64]:
    """Return the indices (n_axes,) of the features that vary most, the most variable first.

    The criterion is the median over patients of the mean square of the feature in the samples Y
    (n_samples, n_features) of a patient. Raise ValueError if fewer features vary in most patients.
    """
    check_whole_number("n_atoms", n_axes, 1)
    squares = [_mean_square(Y[patients == patient]) for patient in np.unique(patients)]
    medians = np.median(squares, axis=0)
    n_varying = int(np.count_nonzero(medians > 0))
    if n_axes > n_varying:
        raise ValueError(
            f"n_atoms is {n_axes}, but only {n_varying} of {Y.shape[1]} features vary in most "
            "patients; use fewer atoms"
        )
    return np.argsort(-medians, kind="stable")[:n_axes].astype(np.int64)


def split_half_similarity(
    Y: NDArray[Any],
    patients: NDArray[Any],
    atoms: NDArray[Any],
    rng: np.random.Generator,
    *,
    n_rounds: int = 4,
    learn: Callable[[NDArray[Any], NDArray[Any], np.random.Generator], NDArray[Any]],
) -> NDArray[np.float64] | None:
    """Measure how reproducible atoms are in dictionaries learned from halves of the patients.

    Each round splits the patients at random and learns a dictionary from each half. Every atom is
    matched to one atom of each of the two dictionaries, and these two matches are compared.

    Parameters
    ----------
    Y : (n_samples, n_features)
    patients : (n_samples,), patient of each sample
    atoms : (n_atoms, n_features), atoms to assess
    rng : source of randomness for the splits
    n_rounds : number of splits
    learn : function of (Y, patients, rng) that returns a dictionary

    Returns
    -------
    (n_atoms,), mean over the rounds of |cos| between the two matches; None with fewer than 4
    patients
    """
    all_patients = np.unique(patients)
    if len(all_patients) < _MIN_PATIENTS:
        return None
    rounds = []
    for _ in range(n_rounds):
        half = rng.permutation(all_patients)[: len(all_patients) // 2]
        in_half = np.isin(patients, half)
        first, second = (
            _matched_atoms(
                atoms, learn(np.ascontiguousarray(Y[selection]), patients[selection], rng)
            )
            for selection in (in_half, ~in_half)
        )
        rounds.append(np.abs(np.einsum("ij,ij->i", first, second)))
    return np.asarray(np.mean(rounds, axis=0), np.float64)


def _matched_atoms(atoms: NDArray[Any], others: NDArray[Any]) -> NDArray[np.float64]:
    """Return the atom of `others` matched one-to-one to each of `atoms`; zeros if none is."""
    partners = match_atoms(atoms, others).partners
    return np.where((partners >= 0)[:, None], others[partners], 0.0).astype(np.float64)


def _mean_square(Y: NDArray[Any]) -> NDArray[np.float64]:
    squares: NDArray[np.float64] = np.einsum("ij,ij->j", Y, Y, dtype=np.float64) / len(Y)
    return squares
