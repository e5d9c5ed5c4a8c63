"""Discriminative feature-oriented dictionary learning (DFDL).

For each class i of C, with Y_j the N_j samples of class j, DFDL learns a dictionary D of unit-norm
atoms that reconstructs the samples of the class well and those of the other classes badly:

    min_D  e_i(D) − ρ/(C − 1) · Σ_{j≠i} e_j(D)        e_j(D) = 1/N_j · min_{‖s‖₀≤L} ‖Y_j − S_j D‖²

For two classes this is the published objective. For more, the factors 1/(C − 1) and 1/N_j keep the
meaning of ρ. With fixed codes the objective is −2·tr(E Dᵀ) + tr(F D Dᵀ) up to a constant, where
E = Σ_j w_j·S_jᵀY_j, F = Σ_j w_j·S_jᵀS_j, w_i = 1/N_i and w_j = −ρ/((C − 1)·N_j). A pass over the
samples accumulates these sums and a few counts per class, but no codes. There are two update steps.

`PublishedStep` minimises the objective with all codes fixed. Coding the samples of the class again
with the new atoms lowers the first term further. Coding the other classes again lowers e_j too,
which reduces the gain of the step; for large ρ the objective rises.

`TangentStep` replaces the term of the other classes, −2·tr(Ē Dᵀ) + tr(F̄ D Dᵀ), by its tangent at
the current atoms D_t. The gradient at D_t is exact, as the codes are optimal for D_t. F̄, which is
negative semidefinite and rewards long steps, is absent. With F_own_class = F − F̄ and the weight μ
of a proximal term at D_t the step solves

    min_D  −2·tr((E − F̄ D_t + μ D_t) Dᵀ) + tr(F_own_class D Dᵀ)

The next pass evaluates the true objective. If it rose, the step is rejected and μ is increased.

Reference: Vu, Mousavi, Monga, Rao, Rao, "Histopathological image classification using
discriminative feature-oriented dictionary learning", IEEE Transactions on Medical Imaging, 2016.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from ..dictionaries.atoms import canonicalize
from ..kernels import BLOCK_ROWS, load_backend, to_numpy
from ..kernels.sufficient_statistics import SufficientStatistics
from ..utils.array_schema import ArraySpec
from ..utils.parallel import Executor, ThreadExecutor, map_blocks, single_blas_thread
from ..utils.progress import Callback, Progress, no_callback
from ..utils.validation import check_number, check_whole_number
from .class_dictionaries import (
    BlockGroup,
    Blocks,
    LabelledBlock,
    OpenBlocks,
    StoredBlock,
    StoredSamples,
    find_classes,
    group_blocks,
    learn_dictionary_per_class,
    open_arrays,
    open_blocks,
    open_stored_blocks,
    read_labels,
    sample_by_class,
)
from .patch_classifier import ResidualClassifier

__all__ = [
    "DFDL",
    "STEPS",
    "AtomUpdate",
    "ClassCoder",
    "PublishedStep",
    "SufficientStatistics",
    "TangentStep",
    "reduce_statistics",
]


@dataclass
class ClassCoder:
    """Function that encodes a group of blocks with the dictionaries of several classes.

    Attributes
    ----------
    backend : "cpu" or "cuda"
    dictionaries : for each class index, (dictionary, maximum number of atoms per sample)
    weights : (n_classes, n_classes), [i, j] weights samples of class j in the sums of class i
    with_own_class : whether to compute `SufficientStatistics.F_own_class`
    on_host : whether to return NumPy arrays, which can be sent to another machine
    """

    backend: str
    dictionaries: dict[int, tuple[NDArray[Any], int]]
    weights: NDArray[np.float64]
    with_own_class: bool = False
    on_host: bool = False

    def __call__(self, group: BlockGroup) -> dict[int, SufficientStatistics]:
        """Return the sufficient statistics of the samples of all blocks, by class index."""
        sums = reduce_statistics(map(self._code, group)) if len(group) > 1 else self._code(group[0])
        return {i: statistics.to_host() for i, statistics in sums.items()} if self.on_host else sums

    @cached_property
    def _coders(self) -> dict[int, Any]:
        """Coders by class index; they are not sent to workers but built there on first use."""
        coder_class = load_backend(self.backend).OMPCoder
        return {i: coder_class(D, L, 0.0, True) for i, (D, L) in self.dictionaries.items()}

    def _code(self, block: LabelledBlock | StoredBlock) -> dict[int, SufficientStatistics]:
        module = load_backend(self.backend)
        X, labels = block
        dtype = next(D.dtype for D, _ in self.dictionaries.values())
        Y = module.to_device(X, dtype)
        n_worst = 8 * math.ceil(len(labels) / BLOCK_ROWS)
        return {
            i: module.encode_and_accumulate(
                coder, Y, labels, i, self.weights[i], n_worst, self.with_own_class
            )
            for i, coder in self._coders.items()
        }


def reduce_statistics(
    statistics: Iterable[dict[int, SufficientStatistics]],
) -> dict[int, SufficientStatistics]:
    """Add up the statistics of several blocks, by class index and in double precision."""
    total: dict[int, SufficientStatistics] = {}
    for by_class in statistics:
        for i, sums in by_class.items():
            total[i] = total[i].add(sums) if i in total else sums.to_double_precision()
    for sums in total.values():
        sums.objective = float(sums.objective)
    return total


STEPS = ("published", "tangent")
# Number of consecutive steps with a small change of the objective after which a class converged.
_N_SMALL_CHANGES = 2
# μ as a multiple of the mean of the diagonal of F_own_class: value after the first rejected step,
# limit, and growth per rejected step. It decreases by a smaller factor, because otherwise every
# second step would be rejected. At the limit atoms in single precision no longer change.
_MIN_PROXIMAL_WEIGHT, _MAX_PROXIMAL_WEIGHT = 0.5, 2.0**26
_WEIGHT_GROWTH, _WEIGHT_DECAY = 4, 2


class AtomUpdate(Protocol):
    """Interface of functions that update the atoms of a class from its statistics."""

    def __call__(
        self, D: NDArray[Any], sums: SufficientStatistics, *, replace: bool
    ) -> NDArray[Any]:
        """Return updated atoms; with `replace`, samples replace unused atoms."""


@dataclass
class PublishedStep:
    """Update step of the DFDL paper: minimise the objective with all codes fixed.

    Attributes
    ----------
    atoms : (n_atoms, n_features), atoms for the next pass over the samples
    objective : objective before each step
    sums : statistics of the last pass; None before the first
    """

    atoms: NDArray[Any]
    objective: list[float] = field(default_factory=list)
    sums: SufficientStatistics | None = None

    def step(self, sums: SufficientStatistics, update: AtomUpdate, *, is_last: bool) -> None:
        """Update `atoms` from the statistics of a pass; replace unused atoms unless `is_last`."""
        self.sums = sums
        self.objective.append(sums.objective)
        self.atoms = update(self.atoms, sums, replace=not is_last)

    def has_converged(self, tol: float) -> bool:
        """Return whether the last two steps changed the objective by at most the fraction tol."""
        return _has_small_changes(pairwise(self.objective), tol)

    def result(self) -> NDArray[Any]:
        """Return the atoms in canonical order and sign."""
        return _canonical_atoms(self.atoms, self.sums)


@dataclass
class TangentStep:
    """Update step with a linearised discriminative term, which never raises the objective.

    Attributes
    ----------
    atoms : (n_atoms, n_features), candidate atoms for the next pass
    objective : objective of the best atoms after each pass
    sums : statistics of the pass with the best atoms; None before the first
    best_atoms : (n_atoms, n_features), best atoms so far
    step_objectives : (objective before, objective after) of each step, including rejected steps
    proximal_weight : weight μ of the proximal term, relative to the mean diagonal of F_own_class
    """

    atoms: NDArray[Any]
    objective: list[float] = field(default_factory=list)
    sums: SufficientStatistics | None = None
    best_atoms: NDArray[Any] = field(init=False)
    step_objectives: list[tuple[float, float]] = field(default_factory=list)
    proximal_weight: float = 0.0

    def __post_init__(self) -> None:
        self.best_atoms = self.atoms

    def step(self, sums: SufficientStatistics, update: AtomUpdate, *, is_last: bool) -> None:
        """Accept or reject `atoms` by their objective, then compute new candidate atoms.

        If `is_last`, no candidates are computed, because no pass follows.
        """
        if self.sums is not None:
            self.step_objectives.append((self.sums.objective, sums.objective))
        is_accepted = self.sums is None or sums.objective <= self.sums.objective
        if is_accepted:
            self.best_atoms, self.sums = self.atoms, sums
            self.proximal_weight /= _WEIGHT_DECAY
        else:
            increased = max(_MIN_PROXIMAL_WEIGHT, _WEIGHT_GROWTH * self.proximal_weight)
            self.proximal_weight = min(increased, _MAX_PROXIMAL_WEIGHT)
        self.objective.append(sums.objective if is_accepted else self.objective[-1])
        if not is_last:
            # Replaced atoms may have raised the objective: replace none after a rejected step.
            self.atoms = update(self.best_atoms, self.linearized_statistics(), replace=is_accepted)

    def linearized_statistics(self) -> SufficientStatistics:
        """Return statistics with the term of the other classes linearised at `best_atoms`."""
        assert self.sums is not None and self.sums.F_own_class is not None
        with single_blas_thread():
            return self.sums.linearize_at(self.best_atoms, self.proximal_weight)

    def has_converged(self, tol: float) -> bool:
        """Return whether the last two steps changed the objective by at most the fraction tol."""
        return _has_small_changes(self.step_objectives, tol)

    def result(self) -> NDArray[Any]:
        """Return the best atoms in canonical order and sign."""
        return _canonical_atoms(self.best_atoms, self.sums)


def _canonical_atoms(D: NDArray[Any], sums: SufficientStatistics | None) -> NDArray[Any]:
    """Return atoms with fixed signs, sorted by use; if `sums` is None, they are not sorted."""
    if sums is None:
        none = np.zeros(len(D), np.int64)
        return canonicalize(to_numpy(D), none, none)
    return canonicalize(*(to_numpy(x) for x in (D, sums.usage_counts, sums.sign_balance)))


def _has_small_changes(steps: Iterable[tuple[float, float]], tol: float) -> bool:
    """Return whether the last two steps (objective before, after) changed it by ≤ tol·after."""
    last = list(steps)[-_N_SMALL_CHANGES:]
    if tol == 0 or len(last) < _N_SMALL_CHANGES:
        return False
    return all(abs(after - before) <= tol * abs(after) for before, after in last)


# Maximum number of samples per class for the initial dictionary; they are held in memory.
_INITIAL_SAMPLES = 20_000


class DFDL(ResidualClassifier):
    """Classifier with dictionaries that reconstruct their own class well and the others badly.

    Parameters
    ----------
    n_atoms : int, default=500
        Number of atoms per class (k).
    rho : float, default=0.001
        Weight of the term of the other classes (ρ). 0 gives plain reconstruction.
    step : {"tangent", "published"}, default="tangent"
        Update of the atoms. "tangent" never raises the objective, for any ρ. "published" is the
        update of the paper, which raises it for large ρ. With ρ = 0 both are the same.
    penalty : float, default=0.1
        l1 penalty of the initial dictionaries (λ) and of the codes of the classifier (γ).
    n_nonzero : int or "auto", default="auto"
        Maximum number of atoms per sample during training (L). "auto" estimates it for each class
        from the initial dictionary.
    n_iter : int, default=50
        Maximum number of iterations, which code the samples, then update the atoms. With "tangent"
        the last iteration only checks the previous step, so 1 returns the initial dictionaries.
    tol : float, default=1e-4
        A class stops after two consecutive steps with a relative change of its objective of at
        most this value. 0 runs all iterations.
    warm_start : bool, default=False
        Whether a further `fit` starts from the fitted dictionaries, also with new samples.
    random_state : int, RandomState instance or None, default=None
        Seed. The result is the same for any `n_jobs`.
    n_jobs : int or None, default=None
        Number of threads. None uses all cores.
    backend : {"cpu", "cuda"}, default="cpu"
        Device that processes the samples; "cuda" is an NVIDIA GPU.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    dictionaries_ : ndarray of shape (n_classes, n_atoms, n_features)
        Unit-norm atoms, most used first, signed so that most coefficients are positive.
    n_nonzero_ : ndarray of shape (n_classes,)
        Maximum number of atoms per sample of each class (L).
    objective_ : list of ndarray
        For each class, the objective of the atoms before the step of each iteration. With
        "tangent" and ρ > 0 these are the best atoms so far: the values never rise, and the last
        one is that of `dictionaries_`.
    n_iter_ : int
        Number of iterations of the class that took longest.
    n_features_in_ : int
        Number of features seen during fit.
    """

    fitted_arrays: ClassVar[Mapping[str, ArraySpec]] = {
        **ResidualClassifier.fitted_arrays,
        "n_nonzero_": ArraySpec("classes", "positive whole numbers"),
    }
    n_nonzero_: NDArray[np.int64]

    def __init__(
        self,
        n_atoms: int = 500,
        *,
        rho: float = 0.001,
        step: str = "tangent",
        penalty: float = 0.1,
        n_nonzero: int | str = "auto",
        n_iter: int = 50,
        tol: float = 1e-4,
        warm_start: bool = False,
        random_state: Any = None,
        n_jobs: int | None = None,
        backend: str = "cpu",
    ) -> None:
        self.n_atoms = n_atoms
        self.rho = rho
        self.step = step
        self.penalty = penalty
        self.n_nonzero = n_nonzero
        self.n_iter = n_iter
        self.tol = tol
        self.warm_start = warm_start
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.backend = backend

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        callback: Callback = no_callback,
        executor: Executor | None = None,
    ) -> DFDL:
        """Learn the dictionaries.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training samples. A memory map is read a block at a time.
        y : array-like of shape (n_samples,)
            Class labels.
        callback : callable, optional
            Called with a `Progress` after every step of the stages "initialise" and "train". An
            exception in it ends the training.
        executor : Executor or None, default=None
            Executor that codes the samples. None uses threads.

        Returns
        -------
        DFDL
            Fitted estimator.
        """
        self.check_parameters()
        is_warm_start = self._should_continue()
        samples, targets = validate_data(
            self, X, y, dtype=[np.float64, np.float32], reset=not is_warm_start
        )
        check_classification_targets(targets)
        classes = self._choose_classes(np.unique(targets), is_warm_start)
        labels = np.searchsorted(classes, targets).astype(np.int64)
        open_ = open_arrays(samples, labels, load_backend(self.backend).BLOCK_ROWS)
        return self._train(open_, labels, classes, is_warm_start, callback, executor)

    def fit_blocks(
        self,
        blocks: Blocks | StoredSamples,
        *,
        callback: Callback = no_callback,
        executor: Executor | None = None,
    ) -> DFDL:
        """Learn the dictionaries from blocks of samples that need not fit into memory together.

        Parameters
        ----------
        blocks : iterable of pairs (X, y), or StoredSamples
            Pairs are read several times and must be the same each time: pass a list, or an object
            whose `__iter__` starts again. Blocks of 1024 rows give the same result, bit for bit, as
            one array passed to `fit`. An object with `labels` and `read(rows)`, such as
            `StoredPatches`, is read where its samples are coded, by several threads or machines.
        callback, executor
            As in `fit`.

        Returns
        -------
        DFDL
            Fitted estimator.
        """
        self.check_parameters()
        is_warm_start = self._should_continue()
        if isinstance(blocks, StoredSamples):
            classes = self._choose_classes(np.unique(blocks.labels), is_warm_start)
            open_ = open_stored_blocks(blocks, classes, load_backend(self.backend).BLOCK_ROWS)
            labels = np.searchsorted(classes, blocks.labels).astype(np.int64)
        else:
            classes = self._choose_classes(find_classes(blocks), is_warm_start)
            open_ = open_blocks(blocks, classes, self.n_features_in_ if is_warm_start else None)
            labels = read_labels(open_())
        X, _ = next(open_())
        if is_warm_start and X.shape[1] != self.n_features_in_:
            raise ValueError(f"samples have {X.shape[1]} features, expected {self.n_features_in_}")
        self._train(open_, labels, classes, is_warm_start, callback, executor)
        self.n_features_in_ = X.shape[1]
        return self

    def _should_continue(self) -> bool:
        return bool(self.warm_start) and hasattr(self, "dictionaries_")

    def _choose_classes(self, classes: NDArray[Any], is_warm_start: bool) -> NDArray[Any]:
        """Return `classes`, or with warm start the fitted classes; raise ValueError if invalid."""
        if is_warm_start:
            new = np.setdiff1d(classes, self.classes_).tolist()
            if new:
                raise ValueError(f"y has classes that the initial model lacks: {new}")
            if self.n_atoms != self.dictionaries_.shape[1]:
                raise ValueError(
                    f"n_atoms is {self.n_atoms}, but the initial model has "
                    f"{self.dictionaries_.shape[1]} atoms per class"
                )
            return self.classes_
        if len(classes) < 2:
            raise ValueError(
                f"DFDL needs at least two classes, but y has only one class: {classes.tolist()}"
            )
        return classes

    def _train(
        self,
        open_: OpenBlocks,
        labels: NDArray[np.int64],
        classes: NDArray[Any],
        is_warm_start: bool,
        report: Callback,
        executor: Executor | None,
    ) -> DFDL:
        seed = check_random_state(self.random_state).randint(2**31, size=4)
        rng = np.random.default_rng(seed)
        n_classes = len(classes)
        counts = np.bincount(labels, minlength=n_classes)
        if counts.max() == len(labels):
            raise ValueError("DFDL needs at least two classes, but y has only one class")
        if is_warm_start:
            dictionaries = list(self.dictionaries_)
            n_nonzero = np.array([self._max_nonzero(estimate) for estimate in self.n_nonzero_])
        else:
            samples = sample_by_class(open_(), labels, n_classes, _INITIAL_SAMPLES, rng)
            dictionaries, n_nonzero = self._initialize(samples, rng, report)
            del samples

        # Blocks are read in every iteration: cache them on the device, or let the executor do so.
        module = load_backend(self.backend)
        cached = open_ if executor else module.cache_blocks(open_)
        on_host = executor is not None
        if not on_host:
            dictionaries = [module.to_device(D, D.dtype) for D in dictionaries]
        executor = executor or ThreadExecutor(module.count_threads(self.n_jobs))
        groups = executor.broadcast(group_blocks(cached, len(labels)))
        weights = _sample_weights(counts, float(self.rho))
        steps = [self._make_step(D) for D in dictionaries]
        running = [i for i in range(n_classes) if counts[i]]
        report(Progress("train", 0, self.n_iter))
        for iteration in range(self.n_iter):
            dictionaries = [step.atoms for step in steps]
            coder = self._make_coder(dictionaries, n_nonzero, weights, running, on_host)
            sums = reduce_statistics(executor.map(coder, groups()))
            self._run_steps(steps, sums, is_last=iteration == self.n_iter - 1)
            running = [i for i in running if not steps[i].has_converged(self.tol)]
            latest = tuple(step.objective[-1] if step.objective else np.nan for step in steps)
            report(Progress("train", iteration + 1, self.n_iter, latest))
            if not running:
                break

        self.classes_ = classes
        self.dictionaries_ = np.stack([step.result() for step in steps])
        self.n_nonzero_ = np.asarray(n_nonzero)
        self.objective_ = [np.array(step.objective) for step in steps]
        self.n_iter_ = max(len(step.objective) for step in steps)
        return self

    def _make_step(self, D: NDArray[Any]) -> PublishedStep | TangentStep:
        return TangentStep(D) if self._uses_tangent_steps() else PublishedStep(D)

    def _uses_tangent_steps(self) -> bool:
        """Return whether tangent steps are used; for ρ = 0 there is no term to linearise."""
        return self.step == "tangent" and self.rho > 0

    def check_parameters(self) -> None:
        """Raise ValueError if a parameter is invalid."""
        check_whole_number("n_atoms", self.n_atoms, 1)
        check_whole_number("n_iter", self.n_iter, 1)
        check_number("rho", self.rho)
        if self.step not in STEPS:
            raise ValueError(f"step must be one of {', '.join(STEPS)}, not {self.step!r}")
        check_number("tol", self.tol)
        check_number("penalty", self.penalty, exclusive=True)
        if self.n_nonzero != "auto":
            check_whole_number("n_nonzero (if not 'auto')", self.n_nonzero, 1)

    def _initialize(
        self, samples: list[NDArray[Any]], rng: np.random.Generator, report: Callback
    ) -> tuple[list[NDArray[Any]], NDArray[np.int64]]:
        """Return the initial dictionary and maximum number of atoms per sample of each class."""
        results = learn_dictionary_per_class(
            samples,
            rng,
            n_atoms=self.n_atoms,
            penalty=float(self.penalty),
            n_jobs=self.n_jobs,
            backend=self.backend,
            stage="initialise",
            report=report,
        )
        n_nonzero = [self._max_nonzero(max(1, round(result.mean_nonzero))) for result in results]
        return [result.atoms for result in results], np.array(n_nonzero)

    def _max_nonzero(self, estimate: int) -> int:
        """Return the parameter `n_nonzero`, or `estimate` if the parameter is "auto"."""
        return int(estimate) if self.n_nonzero == "auto" else int(self.n_nonzero)

    def _make_coder(
        self,
        dictionaries: list[Any],
        n_nonzero: NDArray[np.int64],
        weights: NDArray[np.float64],
        running: list[int],
        on_host: bool,
    ) -> ClassCoder:
        """Return the function that encodes blocks for `running`, the classes not yet converged."""
        by_class = {i: (dictionaries[i], int(n_nonzero[i])) for i in running}
        return ClassCoder(self.backend, by_class, weights, self._uses_tangent_steps(), on_host)

    def _run_steps(
        self,
        steps: list[PublishedStep | TangentStep],
        sums: dict[int, SufficientStatistics],
        *,
        is_last: bool,
    ) -> None:
        """Run one update step of each class in `sums`, in parallel over the classes."""

        def run_step(i: int) -> None:
            steps[i].step(sums[i], self._update, is_last=is_last)

        n_threads = load_backend(self.backend).count_threads(self.n_jobs)
        deque(map_blocks(run_step, sums, n_threads), maxlen=0)

    def _update(
        self, D: NDArray[Any], sums: SufficientStatistics, *, replace: bool
    ) -> NDArray[Any]:
        """Return new atoms computed from the statistics of a class (an `AtomUpdate`).

        The paper first subtracts λ_min(F)·I from F. On unit-norm atoms this has no effect: see
        `kernels.cpu.atom_update`. Atoms that no sample of the class uses stay unchanged, because
        their update would only follow the samples of the other classes. With `replace` they are
        replaced by the worst reconstructed samples of the class.
        """
        module = load_backend(self.backend)
        unused = sums.usage_counts == 0
        with single_blas_thread():
            new = module.update_atoms(D, sums.E, sums.F, n_sweeps=10, tol=1e-3)
            new[unused] = D[unused]
            return (
                module.replace_unused_atoms(new, sums.usage_counts, sums.worst_reconstructed())
                if replace
                else new
            )


def _sample_weights(counts: NDArray[np.int64], rho: float) -> NDArray[np.float64]:
    """Return an array whose [i, j] is the weight of a sample of class j in the sums of class i.

    It is 1/N_i if i = j, else −ρ/((C − 1)·N_j), for N_i samples of class i and C non-empty classes.
    """
    n_others = max(1, np.count_nonzero(counts) - 1)
    weights = np.tile(-rho / (n_others * np.maximum(counts, 1)), (len(counts), 1))
    np.fill_diagonal(weights, 1 / np.maximum(counts, 1))
    return weights
