"""Discriminative feature-oriented dictionary learning (DFDL).

Per class i of C, with Y_j the N_j samples of class j, a dictionary D of unit-norm atoms that codes
the class well and the rest badly:

    min_D  e_i(D) − ρ/(C − 1) · Σ_{j≠i} e_j(D)        e_j(D) = 1/N_j · min_{‖s‖₀≤L} ‖Y_j − S_j D‖²

For two classes this is the published objective; for more, ρ means the same whatever the classes'
sizes. Codes fixed, it is −2·tr(E Dᵀ) + tr(F D Dᵀ) with the sums E = Σ_j w_j·S_jᵀY_j and
F = Σ_j w_j·S_jᵀS_j, w_i = 1/N_i and w_j = −ρ/((C − 1)·N_j): all that a pass over the samples has to
bring home. `atom_steps` says what becomes of them.

Reference: Vu, Mousavi, Monga, Rao, Rao, "Histopathological image classification using
discriminative feature-oriented dictionary learning", IEEE Transactions on Medical Imaging, 2016.

What a pass over the samples leaves of them: E, F and a few counts per class, not the codes.

From the sums of one pass over the samples to the atoms of the next: DFDL's two steps.

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
from ..utils.parallel import Executor, Threads, map_blocks, single_blas_thread
from ..utils.progress import Callback, Progress, no_callback
from ..utils.validation import check_number, check_whole_number
from .class_dictionaries import (
    Blocks,
    LabelledBlock,
    OpenBlocks,
    StoredBlock,
    StoredSamples,
    Unit,
    draw_samples,
    find_classes,
    group_blocks,
    learn_per_class,
    open_arrays,
    open_blocks,
    open_stored_blocks,
    read_labels,
)
from .patch_classifier import ResidualClassifier

__all__ = [
    "DFDL",
    "STEPS",
    "AtomUpdate",
    "ClassEncoder",
    "PublishedStep",
    "SufficientStatistics",
    "TangentStep",
    "reduce_statistics",
]


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


# Samples per class, at most, that the initial dictionary is learnt from; they are held in memory.
_INITIAL_SAMPLES = 20_000


class DFDL(ResidualClassifier):
    """Class-specific dictionaries that code their own class well and the others badly.

    Parameters
    ----------
    n_atoms : atoms per class (k)
    rho : weight of the other classes' term (ρ); 0 gives plain reconstruction
    step : how the atoms change. "tangent" never raises the objective, for any ρ; "published" is the
        paper's update, which does once ρ is large. With ρ = 0 they are the same
    penalty : l1 penalty of the initial dictionaries (λ) and of the classifier's codes (γ)
    n_nonzero : most atoms per sample while training (L); "auto" estimates it per class from the
        initial dictionary
    n_iter : most iterations (coding, then atoms). With "tangent" the last one only checks the step
        before it, so 1 leaves the initial dictionaries
    tol : a class stops once its objective changes by less than this, relatively, twice in a row;
        0 runs all iterations
    warm_start : a further `fit` goes on from the dictionaries there are, also on new samples
    random_state : seed; the same seed gives the same result for any n_jobs
    n_jobs : threads; None for all cores
    backend : arithmetic inside a block of samples, "cpu" or "cuda"

    Attributes
    ----------
    classes_ : (n_classes,)
    dictionaries_ : (n_classes, n_atoms, n_features), unit-norm atoms, most used first, each in the
        sign in which it is used more often
    n_nonzero_ : (n_classes,), L per class
    objective_ : per class, the objective of the atoms that each iteration's step starts from. With
        "tangent" and ρ > 0 these are the best atoms so far: it never rises, and its last value is
        that of dictionaries_
    n_iter_ : iterations of the class that took longest
    """

    fitted_arrays: ClassVar[Mapping[str, ArraySpec]] = {
        **ResidualClassifier.fitted_arrays,
        "n_nonzero_": ArraySpec("classes", "whole numbers from 1 on"),
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
        """Learn the dictionaries from samples X (n_samples, n_features) and their labels.

        X may be a memory map: it is read a block at a time. `callback` gets a `Progress` after
        every step of the stages "initialise" and "train"; an exception in it ends the training.
        `executor` codes the samples; None: threads.
        """
        self.check_parameters()
        going_on = self._should_continue()
        samples, targets = validate_data(
            self, X, y, dtype=[np.float64, np.float32], reset=not going_on
        )
        check_classification_targets(targets)
        classes = self._choose_classes(np.unique(targets), going_on)
        labels = np.searchsorted(classes, targets).astype(np.int64)
        open_ = open_arrays(samples, labels, load_backend(self.backend).BLOCK_ROWS)
        return self._train(open_, labels, classes, going_on, callback, executor)

    def fit_blocks(
        self,
        blocks: Blocks | StoredSamples,
        *,
        callback: Callback = no_callback,
        executor: Executor | None = None,
    ) -> DFDL:
        """Learn from samples that need not fit into memory together.

        `blocks` are pairs (X, y). They are read several times, and must be the same each time: a
        list, or an object whose `__iter__` opens the data anew. Blocks of 1024 rows give the same
        result, bit for bit, as one array given to `fit`.

        An object with `labels` and `read(rows)` instead, such as `StoredPatches`, is read where the
        samples are coded, by many threads or machines.
        """
        self.check_parameters()
        going_on = self._should_continue()
        if isinstance(blocks, StoredSamples):
            classes = self._choose_classes(np.unique(blocks.labels), going_on)
            open_ = open_stored_blocks(blocks, classes, load_backend(self.backend).BLOCK_ROWS)
            labels = np.searchsorted(classes, blocks.labels).astype(np.int64)
        else:
            classes = self._choose_classes(find_classes(blocks), going_on)
            open_ = open_blocks(blocks, classes, self.n_features_in_ if going_on else None)
            labels = read_labels(open_())
        X, _ = next(open_())
        if going_on and X.shape[1] != self.n_features_in_:
            raise ValueError(f"samples have {X.shape[1]} features, not {self.n_features_in_}")
        self._train(open_, labels, classes, going_on, callback, executor)
        self.n_features_in_ = X.shape[1]
        return self

    def _should_continue(self) -> bool:
        return bool(self.warm_start) and hasattr(self, "dictionaries_")

    def _choose_classes(self, classes: NDArray[Any], going_on: bool) -> NDArray[Any]:
        """The classes to train: those there are when going on, else those given."""
        if going_on:
            new = np.setdiff1d(classes, self.classes_).tolist()
            if new:
                raise ValueError(f"y has classes that the model to go on from lacks: {new}")
            if self.n_atoms != self.dictionaries_.shape[1]:
                raise ValueError(
                    f"n_atoms is {self.n_atoms}, but the model to go on from has "
                    f"{self.dictionaries_.shape[1]} atoms per class"
                )
            return self.classes_
        if len(classes) < 2:
            raise ValueError(f"DFDL compares classes, but y has only one class: {classes.tolist()}")
        return classes

    def _train(
        self,
        open_: OpenBlocks,
        labels: NDArray[np.int64],
        classes: NDArray[Any],
        going_on: bool,
        report: Callback,
        executor: Executor | None,
    ) -> DFDL:
        seed = check_random_state(self.random_state).randint(2**31, size=4)
        rng = np.random.default_rng(seed)
        n_classes = len(classes)
        counts = np.bincount(labels, minlength=n_classes)
        if counts.max() == len(labels):
            raise ValueError("DFDL compares classes, but y has only one class")
        if going_on:
            dictionaries = list(self.dictionaries_)
            n_nonzero = np.array([self._limit(auto) for auto in self.n_nonzero_])
        else:
            samples = draw_samples(open_(), labels, n_classes, _INITIAL_SAMPLES, rng)
            dictionaries, n_nonzero = self._initialise(samples, rng, report)
            del samples

        # Read several times: kept on the device, or where the executor codes them.
        module = load_backend(self.backend)
        held = open_ if executor else module.cache_blocks(open_)
        travels = executor is not None
        if not travels:
            dictionaries = [module.to_device(D, D.dtype) for D in dictionaries]
        executor = executor or Threads(module.count_threads(self.n_jobs))
        units = executor.broadcast(group_blocks(held, len(labels)))
        weights = _sample_weights(counts, float(self.rho))
        steps = [self._new_step(D) for D in dictionaries]
        running = [i for i in range(n_classes) if counts[i]]
        report(Progress("train", 0, self.n_iter))
        for iteration in range(self.n_iter):
            dictionaries = [step.atoms for step in steps]
            coding = self._coding(dictionaries, n_nonzero, weights, running, travels)
            sums = reduce_statistics(executor.map(coding, units()))
            self._run_iterations(steps, sums, last=iteration == self.n_iter - 1)
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

    def _new_step(self, D: NDArray[Any]) -> PublishedStep | TangentStep:
        return TangentStep(D) if self._checks_steps() else PublishedStep(D)

    def _checks_steps(self) -> bool:
        """Without other classes in the objective there is nothing to put a tangent to."""
        return self.step == "tangent" and self.rho > 0

    def check_parameters(self) -> None:
        check_whole_number("n_atoms", self.n_atoms, 1)
        check_whole_number("n_iter", self.n_iter, 1)
        check_number("rho", self.rho)
        if self.step not in STEPS:
            raise ValueError(f"step must be one of {', '.join(STEPS)}, not {self.step!r}")
        check_number("tol", self.tol)
        check_number("penalty", self.penalty, above=True)
        if self.n_nonzero != "auto":
            check_whole_number("n_nonzero (if not 'auto')", self.n_nonzero, 1)

    def _initialise(
        self, samples: list[NDArray[Any]], rng: np.random.Generator, report: Callback
    ) -> tuple[list[NDArray[Any]], NDArray[np.int64]]:
        """The initial D and L of every class, by online dictionary learning on its own samples."""
        learnt = learn_per_class(
            samples,
            rng,
            n_atoms=self.n_atoms,
            penalty=float(self.penalty),
            n_jobs=self.n_jobs,
            backend=self.backend,
            stage="initialise",
            report=report,
        )
        n_nonzero = [self._limit(max(1, round(start.mean_nonzero))) for start in learnt]
        return [start.atoms for start in learnt], np.array(n_nonzero)

    def _limit(self, auto: int) -> int:
        """L: the estimate, unless a number was asked for."""
        return int(auto) if self.n_nonzero == "auto" else int(self.n_nonzero)

    def _coding(
        self,
        dictionaries: list[Any],
        n_nonzero: NDArray[np.int64],
        weights: NDArray[np.float64],
        running: list[int],
        travels: bool,
    ) -> ClassEncoder:
        """Codes samples with every running class's dictionary, and adds up what is needed."""
        chosen = {i: (dictionaries[i], int(n_nonzero[i])) for i in running}
        return ClassEncoder(self.backend, chosen, weights, self._checks_steps(), travels)

    def _run_iterations(
        self,
        steps: list[PublishedStep | TangentStep],
        sums: dict[int, SufficientStatistics],
        *,
        last: bool,
    ) -> None:
        """A step of every class that was coded with; each is work for one thread."""

        def take(i: int) -> None:
            steps[i].step(sums[i], self._update, last=last)

        n_threads = load_backend(self.backend).count_threads(self.n_jobs)
        deque(map_blocks(take, sums, n_threads), maxlen=0)

    def _update(
        self, D: NDArray[Any], sums: SufficientStatistics, *, replace: bool
    ) -> NDArray[Any]:
        """New atoms from E and F.

        The paper first subtracts λ_min(F)·I from F. On unit-norm atoms that changes nothing: see
        `kernels.cpu_atoms`. Atoms that no sample of the class uses stay as they are (their update
        would only follow the other classes' samples) or, if `replace`, give way to samples of the
        class that are coded badly.
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
    """weights[i, j], of a sample of class j in the sums of class i.

    1/N_i if j = i, else −ρ/((C − 1)·N_j) with the C classes that there are samples of.
    """
    n_others = max(1, np.count_nonzero(counts) - 1)
    weights = np.tile(-rho / (n_others * np.maximum(counts, 1)), (len(counts), 1))
    np.fill_diagonal(weights, 1 / np.maximum(counts, 1))
    return weights
