"""Benchmark problem: samples, one dictionary per class, and the parameters of the paper."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

PENALTY = 0.1
_SEED = 0
_EPOCHS = 3


@dataclass(frozen=True)
class Size:
    """Samples of both classes, atoms per class, maximum atoms per code, and iterations."""

    n_samples: int
    n_atoms: int
    n_nonzero: int
    n_iter: int


# full: size of the paper; small: for a test run.
SIZES = {"full": Size(20_000, 500, 30, 50), "small": Size(2_000, 100, 10, 5)}


@dataclass(frozen=True)
class Problem:
    """Y (n_samples, n_features), labels 0/1, dictionaries (2, n_atoms, n_features), L, λ."""

    Y: NDArray[np.float32]
    labels: NDArray[np.int64]
    dictionaries: NDArray[np.float32]
    n_nonzero: int
    penalty: float = PENALTY

    @property
    def D(self) -> NDArray[np.float32]:  # noqa: N802
        """Return the atoms of the first class, which a pursuit uses in training."""
        return self.dictionaries[0]

    @property
    def all_atoms(self) -> NDArray[np.float32]:
        """Return the stacked atoms of both classes, which l1 codes use in classification."""
        return self.dictionaries.reshape(-1, self.Y.shape[1])

    def head(self, n_rows: int | None) -> Problem:
        """Return the problem with the first rows only; None for all."""
        return replace(self, Y=self.Y[:n_rows], labels=self.labels[:n_rows])

    def save(self, path: Path) -> None:
        np.savez(path, allow_pickle=False, **vars(self))


def load_problem(path: Path) -> Problem:
    with np.load(path) as file:
        arrays = (file["Y"], file["labels"], file["dictionaries"])
        return Problem(*arrays, int(file["n_nonzero"]), float(file["penalty"]))


def build_problem(size: Size) -> tuple[Problem, str]:
    """Return patches with dictionaries learnt from them, and a description of their source."""
    from histodict.dictionaries.online import learn_online

    from .patches import draw_patches

    patches = draw_patches(size.n_samples // 2, _SEED)
    dictionaries = [
        learn_online(
            patches.Y[patches.labels == i],
            size.n_atoms,
            PENALTY,
            np.random.default_rng(_SEED + i),
            n_epochs=_EPOCHS,
        ).atoms
        for i in (0, 1)
    ]
    problem = Problem(patches.Y, patches.labels, np.stack(dictionaries), size.n_nonzero)
    return problem, patches.source
