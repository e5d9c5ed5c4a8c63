"""What a pass over the samples leaves of them: E, F and a few counts per class, not the codes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..kernels import BLOCK_ROWS, load_backend
from .labelled_blocks import LabelledBlock, StoredBlock, Unit


@dataclass
class ClassSums:
    """What a pass over samples leaves of them, for one class's dictionary.

    F_own : the part of F that is due to the class's own samples, where it was asked for
    """

    E: NDArray[Any]
    F: NDArray[Any]
    uses: NDArray[np.int64]
    leaning: NDArray[np.int64]
    objective: float
    worst_errors: NDArray[np.float64]
    worst_samples: NDArray[Any]
    F_own: NDArray[Any] | None = None

    def in_double_precision(self) -> ClassSums:
        self.E, self.F = self.E.astype(np.float64), self.F.astype(np.float64)
        if self.F_own is not None:
            self.F_own = self.F_own.astype(np.float64)
        return self

    def plus(self, other: ClassSums) -> ClassSums:
        self.E += other.E
        self.F += other.F
        if self.F_own is not None and other.F_own is not None:
            self.F_own += other.F_own
        self.uses = self.uses + other.uses
        self.leaning = self.leaning + other.leaning
        self.objective += other.objective
        errors = np.concatenate([self.worst_errors, other.worst_errors])
        samples = np.concatenate([self.worst_samples, other.worst_samples])
        keep = np.argsort(-errors, kind="stable")[:64]
        self.worst_errors, self.worst_samples = errors[keep], samples[keep]
        return self

    def badly_coded(self) -> NDArray[Any]:
        """The worst samples, less those that are coded to within rounding."""
        norms = np.einsum("ij,ij->i", self.worst_samples, self.worst_samples)
        return self.worst_samples[self.worst_errors > 1e-6 * norms]


@dataclass
class Coding:
    """Codes a unit of samples with every running class's dictionary; gives what is left of it.

    running : by place of the class, its dictionary and the most atoms per sample
    weights : weights[i, j], of a sample of class j in the sums of class i
    split : whether the own samples' part of F is wanted as well
    """

    backend: str
    running: dict[int, tuple[NDArray[Any], int]]
    weights: NDArray[np.float64]
    split: bool = False

    def __call__(self, unit: Unit) -> dict[int, ClassSums]:
        return add_up(map(self._code, unit)) if len(unit) > 1 else self._code(unit[0])

    @cached_property
    def _coders(self) -> dict[int, Any]:
        """Made at the first unit: another machine gets the dictionaries and makes its own."""
        make = load_backend(self.backend).OMPCoder
        return {i: make(D, L, 0.0, True) for i, (D, L) in self.running.items()}

    def _code(self, block: LabelledBlock | StoredBlock) -> dict[int, ClassSums]:
        module = load_backend(self.backend)
        X, labels = block
        dtype = next(D.dtype for D, _ in self.running.values())
        Y = module.place(X, dtype)
        n_worst = 8 * math.ceil(len(labels) / BLOCK_ROWS)
        sums = {}
        for i, coder in self._coders.items():
            S, errors = coder.code(Y)
            w = self.weights[i][labels]
            E, F = module.statistics(Y, S, w)
            own = np.flatnonzero(labels == i)
            own_codes = S[own]
            uses = np.bincount(own_codes.indices, minlength=len(F))
            positive = np.bincount(own_codes.indices[own_codes.data > 0], minlength=len(F))
            worst = own[np.argsort(-errors[own], kind="stable")[:n_worst]]
            objective = float(w @ errors)
            sums[i] = ClassSums(
                E, F, uses, 2 * positive - uses, objective, errors[worst], module.take(Y, worst)
            )
            if self.split:
                sums[i].F_own = float(self.weights[i, i]) * module.code_products(own_codes)
        return sums


def add_up(parts: Iterable[dict[int, ClassSums]]) -> dict[int, ClassSums]:
    """The sums of all parts per class, added in their order, in double precision."""
    total: dict[int, ClassSums] = {}
    for part in parts:
        for i, sums in part.items():
            total[i] = total[i].plus(sums) if i in total else sums.in_double_precision()
    return total
