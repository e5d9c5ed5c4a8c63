"""Online dictionary learning (ODL): l1 codes of mini-batches, atoms from running sums.

    min_{D, S}  Σ ½‖y − sD‖² + penalty·‖s‖₁   with unit-norm atoms

Reference: Mairal, Bach, Ponce, Sapiro, "Online learning for matrix factorization and sparse
coding", JMLR 2010.

Atoms that other patients would give as well: a dictionary held to the encoder's own axes.

    min_{D, S}  Σ ½‖y − sD‖² + penalty·‖s‖₁ + ½·m·‖D − A‖²   with unit-norm atoms

A are axes of the space of vectors, one for each atom, and m = pull · mean_j Σ s_j²: as if a share
`pull` of an atom's uses were its axis itself. Where a dictionary is learnt from samples alone, a
rotation among atoms costs next to nothing, and other patients give another one. An axis of a
network is a feature that was learnt from millions of other pictures: it is the same for all
patients, and a good place to start from. Atoms leave it as far as many samples ask for.

The axes are those that vary in most patients, by the median over patients of the mean square: what
is large in one patient alone, such as a stain or a fold, gets no atom.

How far atoms can be relied on is measured, not assumed: `recurrence` learns anew from two halves of
the patients, axes and all, and says how near to each other the partners of each atom are.

Reference: Meinshausen, Bühlmann, "Stability selection", JRSS B 2010 (keep what recurs when learnt
anew from halves).
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
_MAX_CANDIDATES = 256


@dataclass(frozen=True)
class OnlineDictionary:
    """Atoms (n_atoms, n_features), and the mean number of them a sample used in the last epoch."""

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
    """A dictionary for the rows of Y, a C-contiguous float array in random order.

    `callback(done, total)` is called at the start and after every mini-batch.
    """
    with single_blas_thread():
        D = initial_atoms(Y, n_atoms, rng)
    total = count_batches(len(Y), n_epochs)
    done = itertools.count()

    def step() -> None:
        if callback:
            callback(next(done), total)

    step()
    return continue_online(
        D, Y, penalty, n_epochs=n_epochs, n_jobs=n_jobs, backend=backend, step=step
    )


def count_batches(n_samples: int, n_epochs: int) -> int:
    """Mini-batches of a training."""
    return n_epochs * -(-n_samples // _BATCH_ROWS)


def continue_online(
    D: NDArray,
    Y: NDArray,
    penalty: float,
    *,
    n_epochs: int,
    n_jobs: int | None,
    backend: str,
    step: Callable[[], None],
    pull: float = 0.0,
) -> OnlineDictionary:
    """A dictionary for the rows of Y that starts from the unit-norm atoms D.

    `step` is called after every mini-batch. With a `pull` atoms are drawn back to where they start
    (see `stable`), and idle ones stay there instead of giving way to samples.
    """
    module = load_backend(backend)
    samples, D = module.to_device(Y, D.dtype), module.to_device(D, D.dtype)
    anchors, identity = D, module.to_device(np.eye(len(D)), to_numpy(D).dtype)
    E, F = module.zeros(D.shape), module.zeros((len(D), len(D)))
    starts = range(0, len(Y), _BATCH_ROWS)
    for epoch in range(n_epochs):
        uses: Any = 0
        worst: SufficientStatistics | None = (
            None  # keeps the samples that were coded worst in this epoch
        )
        for position, start in enumerate(starts):
            n_before = epoch * len(starts) + position
            fading = n_before / (n_before + 1)
            E *= fading
            F *= fading
            for sums in _code(module, D, samples[start : start + _BATCH_ROWS], penalty, n_jobs):
                E += sums.E
                F += sums.F
                uses = uses + sums.usage_counts
                if worst:
                    worst.store_worst(sums, _MAX_CANDIDATES)
                else:
                    worst = sums
            with single_blas_thread():
                held = pull * F.diagonal().sum() / len(D)
                own = (E + held * anchors, F + held * identity) if pull else (E, F)
                D = module.update_atoms(D, *own, n_sweeps=1, tol=0.0)
            step()
        if worst and not pull and epoch < n_epochs - 1:
            candidates = worst.worst_samples[worst.worst_errors > 0]
            with single_blas_thread():
                D = module.replace_unused_atoms(D, uses, candidates)
    return OnlineDictionary(to_numpy(D), float(uses.sum()) / len(Y))


def _code(
    module: ModuleType, D: Any, batch: Any, penalty: float, n_jobs: int | None
) -> Iterator[SufficientStatistics]:
    """Per task: what is needed of the codes, and of 256 samples the 8 that were coded worst.

    `batch`: samples that the backend placed.
    """
    with single_blas_thread():
        coder = module.LassoCoder(D, penalty, 1e-3)

    def work(start: int) -> SufficientStatistics:
        rows = batch[start : start + module.TASK_ROWS]
        labels, weights = np.zeros(len(rows), np.int64), np.ones(1)
        n_worst = 8 * math.ceil(len(rows) / 256)
        sums: SufficientStatistics = module.encode_and_accumulate(
            coder, rows, labels, 0, weights, n_worst
        )
        return sums

    yield from map_blocks(
        work, range(0, len(batch), module.TASK_ROWS), module.count_threads(n_jobs)
    )


PENALTY, SHRINKAGE, N_EPOCHS = 0.1, 1.0, 5
_FEWEST_PATIENTS = 4  # of which halves can be learnt from


@dataclass(frozen=True)
class AxisAnchoredDictionary:
    """atoms (n_atoms, n_features), and the axis (a feature's number) that each was held to."""

    atoms: NDArray[Any]
    axes: NDArray[np.int64]


def learn_axis_anchored(
    Y: NDArray[Any],
    patients: NDArray[Any],
    n_atoms: int,
    rng: np.random.Generator,
    *,
    penalty: float = PENALTY,
    pull: float = SHRINKAGE,
    n_jobs: int | None = None,
    backend: str = "cpu",
    callback: Callable[[int, int], None] | None = None,
) -> AxisAnchoredDictionary:
    """A dictionary for centred unit vectors Y (n_samples, n_features).

    `patients` : (n_samples,), whose they are. `callback(done, total)` is called per mini-batch.
    """
    check_number("penalty", penalty, above=True)
    check_number("pull", pull, above=True)
    axes = most_variable_axes(Y, patients, n_atoms)
    anchors = np.zeros((n_atoms, Y.shape[1]), Y.dtype)
    anchors[np.arange(n_atoms), axes] = 1
    total, done = count_batches(len(Y), N_EPOCHS), iter(range(1, 2**62))

    def step() -> None:
        if callback:
            callback(next(done), total)

    learnt = continue_online(
        anchors,
        np.ascontiguousarray(Y[rng.permutation(len(Y))]),
        penalty,
        n_epochs=N_EPOCHS,
        n_jobs=n_jobs,
        backend=backend,
        step=step,
        pull=pull,
    )
    return AxisAnchoredDictionary(learnt.atoms, axes)


def most_variable_axes(Y: NDArray[Any], patients: NDArray[Any], n_axes: int) -> NDArray[np.int64]:
    """The features that vary most in the median patient, the most varied first."""
    check_whole_number("n_atoms", n_axes, 1)
    squares = [_mean_square(Y[patients == patient]) for patient in np.unique(patients)]
    typical = np.median(squares, axis=0)
    n_varied = int(np.count_nonzero(typical > 0))
    if n_axes > n_varied:
        raise ValueError(
            f"n_atoms is {n_axes}, but only {n_varied} of {Y.shape[1]} features vary in most "
            "patients: ask for fewer atoms"
        )
    return np.argsort(-typical, kind="stable")[:n_axes].astype(np.int64)


def split_half_similarity(
    Y: NDArray[Any],
    patients: NDArray[Any],
    atoms: NDArray[Any],
    rng: np.random.Generator,
    *,
    n_rounds: int = 4,
    learn: Callable[[NDArray[Any], NDArray[Any], np.random.Generator], NDArray[Any]],
) -> NDArray[np.float64] | None:
    """|cos| (n_atoms,) between the two atoms that halves of the patients give in an atom's place.

    `learn(Y, patients, rng)` gives a dictionary. Each round parts the patients anew and learns from
    both halves, which share no patient; an atom's partners in the two are held against each other.
    The mean over the rounds; None where there are too few patients to part.
    """
    everybody = np.unique(patients)
    if len(everybody) < _FEWEST_PATIENTS:
        return None
    found = []
    for _ in range(n_rounds):
        half = rng.permutation(everybody)[: len(everybody) // 2]
        inside = np.isin(patients, half)
        first, second = (
            _replace(atoms, learn(np.ascontiguousarray(Y[own]), patients[own], rng))
            for own in (inside, ~inside)
        )
        found.append(np.abs(np.einsum("ij,ij->i", first, second)))
    return np.asarray(np.mean(found, axis=0), np.float64)


def _replace(atoms: NDArray[Any], others: NDArray[Any]) -> NDArray[np.float64]:
    """The others' atoms in the order of their partners; zeros where there is no partner."""
    partners = match_atoms(atoms, others).partners
    return np.where((partners >= 0)[:, None], others[partners], 0.0).astype(np.float64)


def _mean_square(Y: NDArray[Any]) -> NDArray[np.float64]:
    squares: NDArray[np.float64] = np.einsum("ij,ij->j", Y, Y, dtype=np.float64) / len(Y)
    return squares
