"""Label-consistent K-SVD (LC-KSVD): one dictionary whose codes also tell the class.

    min_{D, A, W, S}  ‖Y − SD‖² + α‖Q − SA‖² + β‖H − SW‖²   with ‖s‖₀ ≤ L for every sample

H (n_samples, n_classes) is 1 at a sample's class, Q (n_samples, n_codes) is 1 at the atoms of its
class: they are what linear maps A and W of the code should give. Variant 1 has no β term. All of
it is K-SVD on the rows [y √α·q √β·h], whose atoms are [d √α·a √β·w].

Q is the columns of H, each repeated n_atoms times, and A starts, and so stays, with the same
columns as W, repeated likewise. So α‖Q − SA‖² + β‖H − SW‖² = (α·n_atoms + β)‖H − SW‖², and K-SVD
runs on the short rows [y √(α·n_atoms + β)·h] instead.

References: Jiang, Lin, Davis, "Label consistent K-SVD: learning a discriminative dictionary for
recognition", IEEE TPAMI 2013; Kviatkovsky, Gabel, Rivlin, Shimshoni, "On the equivalence of the
LC-KSVD and the D-KSVD algorithms", IEEE TPAMI 2017 (the short rows).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import solve
from scipy.sparse import csr_array
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from ..dictionaries.atoms import canonicalize, normalise
from ..dictionaries.ksvd import learn_ksvd
from ..kernels import encode_omp
from ..utils.array_schema import ArraySpec
from ..utils.parallel import single_blas_thread
from ..utils.progress import Callback, Progress, no_callback
from ..utils.validation import check_number, check_whole_number
from .patch_classifier import DistanceContributions, ResidualClassifier

# Iterations of K-SVD within each class, for the dictionary to start from.
_INITIAL_ITERATIONS = 20
# Weight of ‖W‖² in the regressions for W, as in the paper's experiments.
_RIDGE = 1.0
_DECISIONS = ("classifier", "residual")


class LCKSVD(ResidualClassifier):
    """A dictionary learnt together with a linear classifier of its codes.

    Parameters
    ----------
    n_atoms : atoms per class
    variant : 1, labels only shape the codes (LC-KSVD1), or 2, the classifier is learnt along with
        the dictionary (LC-KSVD2)
    label_weight : weight of the term that ties atoms to classes (α); as every sample asks for
        n_atoms ones there, it weighs α·n_atoms against the sample's squared norm
    classifier_weight : weight of the classifier's term (β), in variant 2
    n_nonzero : most atoms per sample (L)
    n_iter : iterations (coding, then atoms)
    decision : "classifier", the linear classifier of the greedy code, as published, or "residual",
        the class whose atoms leave the least of a sample after an l1 code
    penalty : l1 penalty of the residual rule's codes
    random_state : seed; the same seed gives the same result for any n_jobs
    n_jobs : threads; None for all cores
    backend : arithmetic of the coding, "cpu" or "cuda"

    Attributes
    ----------
    classes_ : (n_classes,)
    dictionaries_ : (n_classes, n_atoms, n_features), unit-norm atoms by class, most used first,
        each in the sign in which it is used more often
    classifier_ : (n_classes · n_atoms, n_classes), W for these atoms
    objective_ : (n_iter,), the objective per sample, before each update of the atoms
    n_iter_ : iterations
    """

    fitted_arrays: ClassVar[Mapping[str, ArraySpec]] = {
        **ResidualClassifier.fitted_arrays,
        "classifier_": ArraySpec("classes*atoms, classes"),
    }
    classifier_: NDArray[Any]

    def __init__(
        self,
        n_atoms: int = 500,
        *,
        variant: int = 2,
        label_weight: float = 0.001,
        classifier_weight: float = 0.5,
        n_nonzero: int = 30,
        n_iter: int = 50,
        decision: str = "classifier",
        penalty: float = 0.1,
        random_state: Any = None,
        n_jobs: int | None = None,
        backend: str = "cpu",
    ) -> None:
        self.n_atoms = n_atoms
        self.variant = variant
        self.label_weight = label_weight
        self.classifier_weight = classifier_weight
        self.n_nonzero = n_nonzero
        self.n_iter = n_iter
        self.decision = decision
        self.penalty = penalty
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.backend = backend

    def fit(self, X: ArrayLike, y: ArrayLike, *, callback: Callback = no_callback) -> LCKSVD:
        """Learn dictionary and classifier from samples X (n_samples, n_features) and their labels.

        `callback` gets a `Progress` after every step of the stages "initialise" and "train"; an
        exception in it ends the training.
        """
        self.check_parameters()
        samples, targets = validate_data(self, X, y, dtype=[np.float64, np.float32], order="C")
        check_classification_targets(targets)
        classes, labels = np.unique(targets, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(
                f"LC-KSVD compares classes, but y has only one class: {classes.tolist()}"
            )
        seed = check_random_state(self.random_state).randint(2**31, size=4)
        return self._train(samples, classes, labels, np.random.default_rng(seed), callback)

    def _train(
        self,
        Y: NDArray[Any],
        classes: NDArray[Any],
        labels: NDArray[np.intp],
        rng: np.random.Generator,
        report: Callback,
    ) -> LCKSVD:
        H = np.eye(len(classes), dtype=Y.dtype)[labels]
        weight = self._weight_of_labels()

        def tell(done: int, total: int, objective: float) -> None:
            report(Progress("train", done, total, (objective,)))

        initial = self._initialise(Y, H, weight, rng, report)
        report(Progress("train", 0, self.n_iter))
        learnt = learn_ksvd(
            _stack(Y, H, weight),
            len(classes) * self.n_atoms,
            self.n_nonzero,
            rng,
            n_iter=self.n_iter,
            initial=initial,
            groups=(np.repeat(np.arange(len(classes)), self.n_atoms), labels),
            n_jobs=self.n_jobs,
            backend=self.backend,
            callback=tell,
        )
        D, W, norms = _unstack(learnt.atoms, Y, weight)
        S = learnt.codes
        S.data *= norms[S.indices]
        if not self._joint_classifier():
            with single_blas_thread():
                W = _regress(S, H)
        D, W = _order_atoms(D, W, S, len(classes))
        self.classes_ = classes
        self.dictionaries_ = D.reshape(len(classes), self.n_atoms, -1)
        self.classifier_ = W
        self.objective_ = learnt.objective
        self.n_iter_ = self.n_iter
        return self

    def check_parameters(self) -> None:
        for name in ("n_atoms", "n_nonzero", "n_iter"):
            check_whole_number(name, getattr(self, name), 1)
        for name in ("label_weight", "classifier_weight"):
            check_number(name, getattr(self, name))
        check_number("penalty", self.penalty, above=True)
        if self.variant not in (1, 2):
            raise ValueError(f"variant must be 1 or 2, not {self.variant!r}")
        self._check_decision()

    def _check_decision(self) -> None:
        if self.decision not in _DECISIONS:
            raise ValueError(f"decision must be one of {_DECISIONS}, not {self.decision!r}")

    def _joint_classifier(self) -> bool:
        """Whether W is learnt along with D; if not, a regression on the final codes gives it."""
        return self.variant == 2 and self.classifier_weight > 0

    def _weight_of_labels(self) -> float:
        """α·n_atoms + β: what the labels' terms come to on short rows."""
        classifier_weight = self.classifier_weight if self._joint_classifier() else 0.0
        return float(self.label_weight * self.n_atoms + classifier_weight)

    def _initialise(
        self,
        Y: NDArray[Any],
        H: NDArray[Any],
        weight: float,
        rng: np.random.Generator,
        report: Callback,
    ) -> NDArray[Any]:
        """Atoms from K-SVD on each class's own samples, W from a regression on their codes."""
        n_classes = H.shape[1]
        dictionaries = []
        report(Progress("initialise", 0, n_classes * _INITIAL_ITERATIONS))
        for i in range(n_classes):

            def tell(done: int, total: int, objective: float, before: int = i) -> None:
                report(Progress("initialise", before * total + done, n_classes * total))

            start = learn_ksvd(
                Y[H[:, i] == 1],
                self.n_atoms,
                self.n_nonzero,
                rng,
                n_iter=_INITIAL_ITERATIONS,
                n_jobs=self.n_jobs,
                backend=self.backend,
                callback=tell,
            )
            dictionaries.append(start.atoms)
        D = np.concatenate(dictionaries)
        if weight == 0:
            return D
        with single_blas_thread():
            W = _regress(self._code(D, Y), H)
        return normalise(_stack(D, W, weight))

    def _code(self, D: NDArray[Any], Y: NDArray[Any]) -> csr_array:
        return encode_omp(D, Y, self.n_nonzero, n_jobs=self.n_jobs, backend=self.backend)

    def encode(self, X: ArrayLike) -> tuple[csr_array, NDArray[np.float64]]:
        """Codes over the atoms of all classes in turn, and the distances of the decision in use.

        "classifier": greedy codes s and −sW; "residual": l1 codes and the residual of every class.
        """
        check_is_fitted(self)
        self._check_decision()
        if self.decision == "residual":
            return super().encode(X)
        samples = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        D, _ = self._active_atoms()
        S = self._code(D, samples.astype(D.dtype, copy=False))
        W = self.classifier_[self._is_active] if self.disabled_atoms_ else self.classifier_
        return self._over_all(S), -(S @ W).astype(np.float64)

    def distance_contributions(
        self, X: ArrayLike, codes: csr_array, distances: NDArray[np.float64]
    ) -> DistanceContributions:
        """Of the classifier's scores every atom has its term."""
        if self.decision == "residual":
            return super().distance_contributions(X, codes, distances)
        S, W = codes.astype(np.float64), self.classifier_.astype(np.float64)
        by_class = [csr_array(S.multiply(-W[:, place])) for place in range(W.shape[1])]
        return DistanceContributions.of(by_class, distances, np.zeros(len(distances)))

    def distances(self, X: ArrayLike) -> NDArray[np.float64]:
        return self.encode(X)[1]


def _stack(left: NDArray[Any], right: NDArray[Any], weight: float) -> NDArray[Any]:
    """[left √weight·right]; without weight, left alone: plain K-SVD."""
    if weight == 0:
        return left
    return np.hstack([left, (np.sqrt(weight) * right).astype(left.dtype)])


def _unstack(
    atoms: NDArray[Any], Y: NDArray[Any], weight: float
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Unit-norm D, the W that goes with it, and the norms before, of atoms [d √weight·w].

    A part d that is mere rounding of the samples has no direction: the atom becomes zero, and no
    code will use it.
    """
    D, W = np.split(atoms.astype(np.float64), [Y.shape[1]], axis=1)
    norms = np.linalg.norm(D, axis=1)
    size = np.sqrt(np.einsum("ij,ij->", Y, Y, dtype=np.float64) / len(Y))
    rounding = 16 * np.finfo(Y.dtype).eps * size / np.hypot(size, np.sqrt(weight))
    norms[norms <= rounding] = 0
    scale = np.divide(1, norms, out=np.zeros_like(norms), where=norms > 0)[:, None]
    if weight > 0:
        W = W / np.sqrt(weight)
    return tuple(array.astype(Y.dtype) for array in (scale * D, scale * W, norms))


def _regress(S: csr_array, H: NDArray[Any]) -> NDArray[Any]:
    """W = argmin ‖H − SW‖² + ridge·‖W‖²."""
    S = S.astype(np.float64)
    F = (S.T @ S).toarray()
    # Codes of huge samples drown the ridge: keep the system solvable in double precision.
    F[np.diag_indices_from(F)] += _RIDGE + 1e-10 * np.diagonal(F).max()
    return solve(F, S.T @ H, assume_a="pos").astype(H.dtype)


def _order_atoms(
    D: NDArray[Any], W: NDArray[Any], S: csr_array, n_classes: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Within each class the most used atoms first, each in its usual sign; W's rows with them."""
    uses = np.bincount(S.indices, minlength=len(D))
    leaning = np.bincount(S.indices, np.sign(S.data), minlength=len(D))
    by_class = (np.split(values, n_classes) for values in (np.hstack([D, W]), uses, leaning))
    atoms = np.concatenate([canonicalize(*parts) for parts in zip(*by_class, strict=True)])
    return np.ascontiguousarray(atoms[:, : D.shape[1]]), np.ascontiguousarray(
        atoms[:, D.shape[1] :]
    )
