"""Atoms that other patients would give as well: a dictionary held to the encoder's own axes.

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

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..parameters import check_number, check_whole_number
from .matching import match_atoms
from .online import continue_online, count_batches

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
