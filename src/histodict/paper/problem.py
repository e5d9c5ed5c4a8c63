"""The sizes that decide what training costs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """n_samples and n_atoms are per class; the defaults are the paper's."""

    n_classes: int = 2
    n_atoms: int = 500
    n_samples: int = 10_000
    n_features: int = 1200
    n_nonzero: int = 30
    n_iter: int = 50

    def __str__(self) -> str:
        return (
            f"c = {self.n_classes}, k = {self.n_atoms}, N = {self.n_samples}, "
            f"d = {self.n_features}, L = {self.n_nonzero}"
        )


PAPER_PROBLEM = Problem()
SMALL_PROBLEM = Problem(n_atoms=50, n_samples=1000, n_features=300, n_nonzero=10, n_iter=5)
