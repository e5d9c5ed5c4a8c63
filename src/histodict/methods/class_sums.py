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
from ..kernels.code_sums import SufficientStatistics
from .labelled_blocks import LabelledBlock, StoredBlock, Unit

__all__ = ["ClassEncoder", "SufficientStatistics", "reduce_statistics"]


@dataclass
class ClassEncoder:
    """Codes a unit of samples with every running class's dictionary; gives what is left of it.

    running : by place of the class, its dictionary and the most atoms per sample
    weights : weights[i, j], of a sample of class j in the sums of class i
    split : whether the own samples' part of F is wanted as well
    travels : whether the sums go to another machine, as numpy's arrays; else they stay where the
        backend made them
    """

    backend: str
    running: dict[int, tuple[NDArray[Any], int]]
    weights: NDArray[np.float64]
    split: bool = False
    travels: bool = False

    def __call__(self, unit: Unit) -> dict[int, SufficientStatistics]:
        sums = reduce_statistics(map(self._code, unit)) if len(unit) > 1 else self._code(unit[0])
        return {i: part.on_host() for i, part in sums.items()} if self.travels else sums

    @cached_property
    def _coders(self) -> dict[int, Any]:
        """Made at the first unit: another machine gets the dictionaries and makes its own."""
        make = load_backend(self.backend).OMPCoder
        return {i: make(D, L, 0.0, True) for i, (D, L) in self.running.items()}

    def _code(self, block: LabelledBlock | StoredBlock) -> dict[int, SufficientStatistics]:
        module = load_backend(self.backend)
        X, labels = block
        dtype = next(D.dtype for D, _ in self.running.values())
        Y = module.to_device(X, dtype)
        n_worst = 8 * math.ceil(len(labels) / BLOCK_ROWS)
        return {
            i: module.encode_and_accumulate(
                coder, Y, labels, i, self.weights[i], n_worst, self.split
            )
            for i, coder in self._coders.items()
        }


def reduce_statistics(
    parts: Iterable[dict[int, SufficientStatistics]],
) -> dict[int, SufficientStatistics]:
    """The sums of all parts per class, added in their order, in double precision."""
    total: dict[int, SufficientStatistics] = {}
    for part in parts:
        for i, sums in part.items():
            total[i] = total[i].plus(sums) if i in total else sums.in_double_precision()
    for sums in total.values():
        sums.objective = float(sums.objective)
    return total
