"""From the sums of one pass over the samples to the atoms of the next: DFDL's two steps.

Each class has a step of its own, which knows the atoms to code the samples with next.

PublishedStep minimises the objective with all codes fixed. Its own term is safe: coding the class
anew with the new atoms lowers it further. The other classes' term is not: their samples are coded
anew as well, which undoes what the step seemed to gain, and with a large ρ more than that.

TangentStep replaces the other classes' term, −2·tr(Ē Dᵀ) + tr(F̄ D Dᵀ), by its tangent at the
present atoms D_t: there the slope is right, since the codes are the best ones for D_t, and F̄, which
is negative, no longer rewards long steps. With F_own_class = F − F̄ and a pull μ to D_t this is

    min_D  −2·tr((E − F̄ D_t + μ D_t) Dᵀ) + tr(F_own_class D Dᵀ)

The next pass tells the true objective. If it rose, the step is taken back and μ grows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..dictionaries.atoms import canonicalize
from ..execution.local import single_blas_thread
from ..kernels import to_numpy
from .class_sums import SufficientStatistics

STEPS = ("published", "tangent")
# A class is done when this many steps in a row hardly changed its objective.
_FLAT_ITERATIONS = 2
# μ in units of the mean of F_own_class's diagonal: after the first step that was taken back, and
# how it
# grows with every further one. It eases more slowly, or every second step would be taken back. At
# the largest one atoms of single precision do not move any more.
_FIRST_STEP, _LARGEST_STEP = 0.5, 2.0**26
_GROWTH, _EASING = 4, 2


class AtomUpdate(Protocol):
    """New atoms from present ones and E, F; `replace`: idle atoms give way to samples."""

    def __call__(
        self, D: NDArray[Any], sums: SufficientStatistics, *, replace: bool
    ) -> NDArray[Any]: ...


@dataclass
class PublishedStep:
    """The minimum with all codes fixed, whatever the objective then does.

    atoms : (n_atoms, n_features), to code the samples with next
    objective : that of the atoms before each step
    """

    atoms: NDArray[Any]
    objective: list[float] = field(default_factory=list)
    sums: SufficientStatistics | None = None

    def step(self, sums: SufficientStatistics, update: AtomUpdate, *, last: bool) -> None:
        """Go on from the sums of a pass with `atoms`."""
        self.sums = sums
        self.objective.append(sums.objective)
        self.atoms = update(self.atoms, sums, replace=not last)

    def has_converged(self, tol: float) -> bool:
        return _is_flat(pairwise(self.objective), tol)

    def result(self) -> NDArray[Any]:
        return _ordered(self.atoms, self.sums)


@dataclass
class TangentStep:
    """Steps that do not raise the objective.

    atoms : (n_atoms, n_features), to code the samples with next; a trial until they were
    best, sums : the best atoms so far and the sums of the pass with them
    objective : that of the best atoms, after each pass
    tried : per step, the objective before and after it, also if it was then taken back
    pull : μ, in units of the mean of F_own_class's diagonal
    """

    atoms: NDArray[Any]
    objective: list[float] = field(default_factory=list)
    sums: SufficientStatistics | None = None
    best: NDArray[Any] = field(init=False)
    tried: list[tuple[float, float]] = field(default_factory=list)
    gradient: float = 0.0

    def __post_init__(self) -> None:
        self.best = self.atoms

    def step(self, sums: SufficientStatistics, update: AtomUpdate, *, last: bool) -> None:
        """Judge `atoms` by the sums of a pass with them; then a step from the best ones.

        No pass follows the last one, so no step does.
        """
        if self.sums is not None:
            self.tried.append((self.sums.objective, sums.objective))
        fell = self.sums is None or sums.objective <= self.sums.objective
        if fell:
            self.best, self.sums = self.atoms, sums
            self.gradient /= _EASING
        else:
            self.gradient = min(max(_FIRST_STEP, _GROWTH * self.gradient), _LARGEST_STEP)
        self.objective.append(sums.objective if fell else self.objective[-1])
        if not last:
            # Atoms that were replaced may be why the objective rose: then none is, this time.
            self.atoms = update(self.best, self.surrogate(), replace=fell)

    def surrogate(self) -> SufficientStatistics:
        """The sums with E and F of the problem that a step solves."""
        assert self.sums is not None and self.sums.F_own_class is not None
        with single_blas_thread():
            return self.sums.with_tangent(self.best, self.gradient)

    def has_converged(self, tol: float) -> bool:
        return _is_flat(self.tried, tol)

    def result(self) -> NDArray[Any]:
        return _ordered(self.best, self.sums)


def _ordered(D: NDArray[Any], sums: SufficientStatistics | None) -> NDArray[Any]:
    """Most used atoms first; those of a class without samples as they are, but for their signs."""
    if sums is None:
        none = np.zeros(len(D), np.int64)
        return canonicalize(to_numpy(D), none, none)
    return canonicalize(*(to_numpy(x) for x in (D, sums.usage_counts, sums.code_sum)))


def _is_flat(steps: Iterable[tuple[float, float]], tol: float) -> bool:
    """Whether each of the last steps (objective before, after) is within tol; with 0, never."""
    last = list(steps)[-_FLAT_ITERATIONS:]
    if tol == 0 or len(last) < _FLAT_ITERATIONS:
        return False
    return all(abs(after - before) <= tol * abs(after) for before, after in last)
