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
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from ..execution.executor import Executor, Threads
from ..execution.local import map_blocks, single_blas_thread
from ..execution.progress import Callback, Progress, no_callback
from ..kernels import load_backend
from ..learnt_arrays import ArraySpec
from ..parameters import check_number, check_whole_number
from .atom_steps import STEPS, PublishedStep, TangentStep
from .class_dictionaries import learn_per_class
from .class_sums import ClassEncoder, SufficientStatistics, reduce_statistics
from .labelled_blocks import (
    Blocks,
    OpenBlocks,
    StoredSamples,
    draw_samples,
    find_classes,
    group_blocks,
    open_arrays,
    open_blocks,
    open_stored_blocks,
    read_labels,
)
from .residual_rule import ResidualClassifier

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
