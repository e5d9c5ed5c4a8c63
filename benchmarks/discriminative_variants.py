"""Other ways to make class dictionaries discriminative, to hold against DFDL's own term.

Each is DFDL with one thing changed, so that differences are due to that thing. They change what the
published step sees: use step="published".

| class | what is added to the objective of a class's dictionary D |
|---|---|
| IncoherentDFDL | η·‖D D̄ᵀ‖² with D̄ the other classes' atoms, η_self/2·‖D Dᵀ − I‖² |
| SharedDFDL | nothing, but codes may also use a dictionary D₀ that belongs to all classes |
| ContrastDFDL | weights: samples near the border between classes count, those far from it do not |

`mine` leaves out training samples that look like another class, and fits again.

References: Ramirez, Sprechmann, Sapiro, CVPR 2010 (incoherence); Vu, Monga, IEEE TIP 2017 (shared
dictionary); Mairal, Bach, Ponce, Sapiro, Zisserman, CVPR 2008 (softmax of residuals).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from histodict.decisions.image_rules import patch_margins
from histodict.dictionaries.atoms import replace_idle
from histodict.dictionaries.online import learn_online
from histodict.execution.executor import Executor
from histodict.execution.local import one_blas_thread
from histodict.execution.progress import Callback
from histodict.kernels import encode_lasso, load_backend
from histodict.methods.class_sums import ClassSums, Coding, add_up
from histodict.methods.dfdl import DFDL
from histodict.methods.labelled_blocks import LabelledBlock, StoredBlock, Unit
from histodict.methods.residual_rule import BlockCoder

# Linearisations of the coherence terms per update of the atoms.
_N_ROUNDS = 3


class IncoherentDFDL(DFDL):
    """DFDL whose atoms keep away from those of the other classes, and from each other.

    On unit vectors dᵀMd is μ plus dᵀ(M − μI)d, which is concave once μ ≥ λ_max(M): its tangent at
    the atoms there are bounds it from above. The tangent is linear in D, so it goes into E, and the
    product's own update lowers the bound and with it the objective. For the atoms among themselves
    the term is of fourth degree, its second derivatives are at most 6·λ_max(DᵀD), and μ = 3·λ_max.
    """

    apart: float = 0.0
    own: float = 0.0

    def _pass(
        self,
        units: Iterator[Unit],
        dictionaries: list[NDArray[Any]],
        n_nonzero: NDArray[np.int64],
        weights: NDArray[np.float64],
        running: list[int],
        executor: Executor,
    ) -> dict[int, ClassSums]:
        sums = super()._pass(units, dictionaries, n_nonzero, weights, running, executor)
        for i, found in sums.items():
            # The update is told no more than D and its sums.
            others = [D for j, D in enumerate(dictionaries) if j != i]
            found.others = np.concatenate(others)  # type: ignore[attr-defined]
        return sums

    def _update(self, D: NDArray[Any], sums: ClassSums, *, replace: bool) -> NDArray[Any]:
        scale = float(np.trace(sums.F)) / len(D)  # makes η a number without dimension
        unused = sums.uses == 0
        E, F = sums.E.astype(D.dtype), sums.F.astype(D.dtype)
        with one_blas_thread():
            others = sums.others  # type: ignore[attr-defined]
            most = _largest(others @ others.T)
            new = D
            for _ in range(_N_ROUNDS):
                tangent = self.apart * (most * new - (new @ others.T) @ others)
                G = new @ new.T
                tangent += self.own * (3 * _largest(G) * new - G @ new + new)
                pulled = (E + scale * tangent).astype(D.dtype)
                new = load_backend(self.backend).update_atoms(new, pulled, F, n_sweeps=2, tol=1e-3)
                new[unused] = D[unused]
            return replace_idle(new, sums.uses, sums.badly_coded()) if replace else new


def _largest(G: NDArray[Any]) -> float:
    return float(np.linalg.eigvalsh(G)[-1])


class SharedDFDL(DFDL):
    """DFDL in which a class codes with D₀ and its own atoms; D₀ is the same for all classes.

    D₀ is learnt online from the samples of all classes and stays; the dictionary of a class starts
    from what D₀ leaves of its samples. With codes (S₀, S) the residual is Y − S₀D₀ − SD, so the
    update of D is the usual one with E − F_{D D₀}·D₀ for E. A sample's class is the one with the
    smallest ‖y − s₀D₀ − δ_i(s)D‖.
    """

    n_shared: int = 20

    def _initialise(
        self, samples: list[NDArray[Any]], rng: np.random.Generator, report: Callback
    ) -> tuple[list[NDArray[Any]], NDArray[np.int64]]:
        least = min(len(Y) for Y in samples)
        pooled = np.concatenate([Y[:least] for Y in samples])
        pooled = np.ascontiguousarray(pooled[rng.permutation(len(pooled))])
        options: dict[str, Any] = {"n_jobs": self.n_jobs, "backend": self.backend}
        penalty = float(self.penalty)
        self.shared_ = learn_online(pooled, self.n_shared, penalty, rng, **options).atoms
        dictionaries, n_nonzero = [], []
        for Y in samples:
            left = Y - encode_lasso(self.shared_, Y, penalty, tol=1e-3, **options) @ self.shared_
            left = np.ascontiguousarray(left, dtype=Y.dtype)
            dictionaries.append(learn_online(left, self.n_atoms, penalty, rng, **options).atoms)
            both = np.concatenate([self.shared_, dictionaries[-1]])
            used = encode_lasso(both, Y[:1024], penalty, tol=1e-3, **options).nnz / len(Y[:1024])
            n_nonzero.append(self._limit(max(1, round(used))))
        return dictionaries, np.array(n_nonzero)

    def _pass(
        self,
        units: Iterator[Unit],
        dictionaries: list[NDArray[Any]],
        n_nonzero: NDArray[np.int64],
        weights: NDArray[np.float64],
        running: list[int],
        executor: Executor,
    ) -> dict[int, ClassSums]:
        both = [np.concatenate([self.shared_, D]) for D in dictionaries]
        sums = super()._pass(units, both, n_nonzero, weights, running, executor)
        m = self.n_shared
        for found in sums.values():
            found.E = found.E[m:] - found.F[m:, :m] @ self.shared_
            found.F = found.F[m:, m:]
            found.uses, found.leaning = found.uses[m:], found.leaning[m:]
        return sums

    def labelled_atoms(self) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The classes' atoms, then the shared ones, which have the place after the last class."""
        D, atom_classes = super().labelled_atoms()
        places = np.full(self.n_shared, len(self.classes_))
        return np.concatenate([D, self.shared_]), np.concatenate([atom_classes, places])

    def _open_coder(self, D: NDArray[Any], atom_classes: NDArray[np.int64]) -> BlockCoder:
        module = load_backend(self.backend)
        coder = module.LassoCoder(D, float(self.penalty), 1e-4)
        n_own = len(D) - self.n_shared

        def code(Y: NDArray[Any]) -> tuple[Any, NDArray[np.float64], int]:
            S, n_unfinished = coder.code(Y)
            left = np.ascontiguousarray(Y - S[:, n_own:] @ D[n_own:], dtype=D.dtype)
            residuals = module.class_residuals(
                D[:n_own], left, S[:, :n_own].tocsr(), atom_classes[:n_own], len(self.classes_)
            )
            return S, residuals, n_unfinished

        return code


@dataclass
class ContrastCoding(Coding):
    """Weights from the squared residuals e of a sample under all dictionaries.

    p = 1/(1 + exp(−z/0.1)), z = (e_own − e_other)/(e_own + e_other): near 1 where the sample looks
    like the other class. Its own dictionary sees it with the weight (1 + ρp)/N, the others with
    −ρp/N̄: the derivative of the softmax cost ρ·log(1 + exp(z/0.1)) in e, up to its scale.
    """

    def _code(self, block: LabelledBlock | StoredBlock) -> dict[int, ClassSums]:
        module = load_backend(self.backend)
        Y, labels = block
        coded = {i: coder.code(Y) for i, coder in self._coders.items()}
        e = np.stack([coded[i][1] for i in sorted(coded)], axis=1)
        rows = np.arange(len(labels))
        own_error = e[rows, labels]
        other = (e.sum(axis=1) - own_error) / (e.shape[1] - 1)
        p = expit((own_error - other) / np.maximum(0.1 * (own_error + other), 1e-12))
        sums = {}
        for i, (S, errors) in coded.items():
            is_own = labels == i
            # On the diagonal the plain weight 1/N; beside it −ρ/N̄.
            rho = -self.weights[i][1 - i] * self.n_others[i]
            w = self.weights[i][labels] * np.where(is_own, 1 + rho * p, p)
            E, F = module.statistics(Y, S, w)
            own = np.flatnonzero(is_own)
            codes = S[own]
            uses = np.bincount(codes.indices, minlength=len(F))
            positive = np.bincount(codes.indices[codes.data > 0], minlength=len(F))
            worst = own[np.argsort(-errors[own], kind="stable")[:8]]
            leaning = 2 * positive - uses
            sums[i] = ClassSums(E, F, uses, leaning, float(w @ errors), errors[worst], Y[worst])
        return sums

    @property
    def n_others(self) -> NDArray[np.float64]:
        """N̄ of two classes: the other's N."""
        return 1 / np.diagonal(self.weights)[::-1]


class ContrastDFDL(DFDL):
    """DFDL of two classes whose discriminative term looks at the border between them."""

    def _pass(
        self,
        units: Iterator[Unit],
        dictionaries: list[NDArray[Any]],
        n_nonzero: NDArray[np.int64],
        weights: NDArray[np.float64],
        running: list[int],
        executor: Executor,
    ) -> dict[int, ClassSums]:
        everyone = {i: (D, int(n_nonzero[i])) for i, D in enumerate(dictionaries)}
        sums = add_up(executor.map(ContrastCoding(self.backend, everyone, weights), units))
        return {i: sums[i] for i in running}


def mine(
    make: Callable[[], DFDL],
    first: DFDL,
    X: NDArray[Any],
    y: NDArray[np.int64],
    *,
    share: float,
    mined: tuple[int, ...],
    n_rounds: int,
    rng: np.random.Generator | None = None,
) -> Iterator[DFDL]:
    """A model per round, fitted without those samples that the model before it judges worst.

    Left out is the `share` of the `mined` classes' samples that look most clearly like another
    class; with `rng`, as many at random.
    """
    model = first
    for _ in range(n_rounds):
        margins = patch_margins(model.class_residuals(X))[np.arange(len(y)), y]
        keep = np.ones(len(y), bool)
        for label in mined:
            own = np.flatnonzero(y == label)
            order = rng.permutation(len(own)) if rng else np.argsort(margins[own], kind="stable")
            keep[own[order[: int(share * len(own))]]] = False
        model = make().fit(X[keep], y[keep])
        yield model


def coherence(model: DFDL) -> tuple[float, float]:
    """Mean squared cosine between atoms of different classes, and of the same class."""
    D = model.dictionaries_
    across = np.mean([np.mean((a @ b.T) ** 2) for i, a in enumerate(D) for b in D[:i]])
    within = np.mean([(np.sum((a @ a.T) ** 2) - len(a)) / (len(a) * (len(a) - 1)) for a in D])
    return float(across), float(within)
