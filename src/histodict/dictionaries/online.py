"""Online dictionary learning (ODL): l1 codes of mini-batches, atoms from running sums.

    min_{D, S}  Σ ½‖y − sD‖² + penalty·‖s‖₁   with unit-norm atoms

Reference: Mairal, Bach, Ponce, Sapiro, "Online learning for matrix factorization and sparse
coding", JMLR 2010.
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

from ..execution.local import map_blocks, single_blas_thread
from ..kernels import load_backend, to_numpy
from ..kernels.code_sums import SufficientStatistics
from .atoms import initial_atoms

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
