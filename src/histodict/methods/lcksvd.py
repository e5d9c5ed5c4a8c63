"""Label-consistent K-SVD (LC-KSVD): a dictionary with codes that also predict the class.

    min_{D, A, W, S}  ‖Y − SD‖² + α‖Q − SA‖² + β‖H − SW‖²   with ‖s‖₀ ≤ L for every sample

H (n_samples, n_classes) is 1 at the class of a sample, and Q (n_samples, n_codes) is 1 at the atoms
of its class. They are the targets of the linear maps A and W of the code. Variant 1 has no β term.
The problem is K-SVD on the rows [y √α·q √β·h] with the atoms [d √α·a √β·w].

The columns of Q are those of H, each repeated n_atoms times. A starts with the columns of W
repeated in the same way, and therefore keeps this form. So
α‖Q − SA‖² + β‖H − SW‖² = (α·n_atoms + β)‖H − SW‖², and K-SVD runs on the shorter rows
[y √(α·n_atoms + β)·h] instead.

References: Jiang, Lin, Davis, "Label consistent K-SVD: learning a discriminative dictionary for
recognition", IEEE TPAMI 2013; Kviatkovsky, Gabel, Rivlin, Shimshoni, "On the equivalence of the
LC-KSVD and the D-KSVD algorithms", IEEE TPAMI 2017 (the shorter rows).
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

from ..dictionaries.atoms import canonicalize, normalize
from ..dictionaries.ksvd import learn_ksvd
from ..kernels import encode_omp
from ..utils.array_schema import ArraySpec
from ..utils.parallel import single_blas_thread
from ..utils.progress import Callback, Progress, no_callback
from ..utils.validation import check_number, check_whole_number
from .patch_classifier import DistanceContributions, ResidualClassifier

# Iterations of K-SVD within each class for the initial dictionary.
_INITIAL_ITERATIONS = 20
# Weight of ‖W‖² in the regressions for W, as in the paper's experiments.
_RIDGE = 1.0
_DECISIONS = ("classifier", "residual")


class LCKSVD(ResidualClassifier):
    """Classifier by a dictionary that is learned together with a linear classifier of its codes.

    Parameters
    ----------
    n_atoms : int, default=500
        Number of atoms per class.
    variant : {1, 2}, default=2
        1 uses labels only to shape the codes (LC-KSVD1). 2 learns the classifier together with the
        dictionary (LC-KSVD2).
    label_weight : float, default=0.001
        Weight of the term that associates atoms with classes (α). The target of a sample has
        n_atoms ones, so its squared norm in the objective is α·n_atoms.
    classifier_weight : float, default=0.5
        Weight of the term of the classifier (β), for variant 2.
    n_nonzero : int, default=30
        Maximum number of atoms per sample (L).
    n_iter : int, default=50
        Number of iterations, which code the samples, then update the atoms and the codes.
    decision : {"classifier", "residual"}, default="classifier"
        "classifier" applies the linear classifier to the greedy code, as published. "residual"
        predicts the class with the smallest residual of an l1 code.
    penalty : float, default=0.1
        l1 penalty of the codes of decision="residual".
    random_state : int, RandomState instance or None, default=None
        Seed. The result is the same for any `n_jobs`.
    n_jobs : int or None, default=None
        Number of threads. None uses all cores.
    backend : {"cpu", "cuda"}, default="cpu"
        Device that computes the codes; "cuda" is an NVIDIA GPU.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    dictionaries_ : ndarray of shape (n_classes, n_atoms, n_features)
        Unit-norm atoms by class, most used first, signed so that most coefficients are positive.
    classifier_ : ndarray of shape (n_classes * n_atoms, n_classes)
        Linear classifier W of the codes over these atoms.
    objective_ : ndarray of shape (n_iter,)
        Objective before each update of the atoms, divided by the number of samples.
    n_iter_ : int
        Number of iterations.
    n_features_in_ : int
        Number of features seen during fit.
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
        """Learn the dictionary and the classifier.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training samples.
        y : array-like of shape (n_samples,)
            Class labels.
        callback : callable, optional
            Called with a `Progress` after every step of the stages "initialise" and "train". An
            exception in it ends the training.

        Returns
        -------
        LCKSVD
            Fitted estimator.
        """
        self.check_parameters()
        samples, targets = validate_data(self, X, y, dtype=[np.float64, np.float32], order="C")
        check_classification_targets(targets)
        classes, labels = np.unique(targets, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(
                f"LC-KSVD needs at least two classes, but y has only one class: {classes.tolist()}"
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
        weight = self._total_label_weight()

        def on_progress(done: int, total: int, objective: float) -> None:
            report(Progress("train", done, total, (objective,)))

        initial = self._initialize(Y, H, weight, rng, report)
        report(Progress("train", 0, self.n_iter))
        result = learn_ksvd(
            _append_labels(Y, H, weight),
            len(classes) * self.n_atoms,
            self.n_nonzero,
            rng,
            n_iter=self.n_iter,
            initial=initial,
            groups=(np.repeat(np.arange(len(classes)), self.n_atoms), labels),
            n_jobs=self.n_jobs,
            backend=self.backend,
            callback=on_progress,
        )
        D, W, norms = _split_atoms(result.atoms, Y, weight)
        S = result.codes
        S.data *= norms[S.indices]
        if not self._learns_classifier_jointly():
            with single_blas_thread():
                W = _fit_linear_classifier(S, H)
        D, W = _order_atoms(D, W, S, len(classes))
        self.classes_ = classes
        self.dictionaries_ = D.reshape(len(classes), self.n_atoms, -1)
        self.classifier_ = W
        self.objective_ = result.objective
        self.n_iter_ = self.n_iter
        return self

    def check_parameters(self) -> None:
        """Raise ValueError if a parameter is invalid."""
        for name in ("n_atoms", "n_nonzero", "n_iter"):
            check_whole_number(name, getattr(self, name), 1)
        for name in ("label_weight", "classifier_weight"):
            check_number(name, getattr(self, name))
        check_number("penalty", self.penalty, exclusive=True)
        if self.variant not in (1, 2):
            raise ValueError(f"variant must be 1 or 2, not {self.variant!r}")
        self._check_decision()

    def _check_decision(self) -> None:
        if self.decision not in _DECISIONS:
            raise ValueError(f"decision must be one of {_DECISIONS}, not {self.decision!r}")

    def _learns_classifier_jointly(self) -> bool:
        """Return whether W is learned together with D; if not, it is fitted to the final codes."""
        return self.variant == 2 and self.classifier_weight > 0

    def _total_label_weight(self) -> float:
        """Return α·n_atoms + β, the weight of the labels; see the module docstring."""
        classifier_weight = self.classifier_weight if self._learns_classifier_jointly() else 0.0
        return float(self.label_weight * self.n_atoms + classifier_weight)

    def _initialize(
        self,
        Y: NDArray[Any],
        H: NDArray[Any],
        weight: float,
        rng: np.random.Generator,
        report: Callback,
    ) -> NDArray[Any]:
        """Return initial atoms [d √weight·w] of unit norm; for weight 0 only d.

        The atoms d are learned by K-SVD on each class. The row w of an atom is from the matrix W
        that is fitted to the codes of all samples Y, with H as targets.
        """
        n_classes = H.shape[1]
        dictionaries = []
        report(Progress("initialise", 0, n_classes * _INITIAL_ITERATIONS))
        for i in range(n_classes):

            def on_progress(done: int, total: int, objective: float, n_before: int = i) -> None:
                report(Progress("initialise", n_before * total + done, n_classes * total))

            result = learn_ksvd(
                Y[H[:, i] == 1],
                self.n_atoms,
                self.n_nonzero,
                rng,
                n_iter=_INITIAL_ITERATIONS,
                n_jobs=self.n_jobs,
                backend=self.backend,
                callback=on_progress,
            )
            dictionaries.append(result.atoms)
        D = np.concatenate(dictionaries)
        if weight == 0:
            return D
        with single_blas_thread():
            W = _fit_linear_classifier(self._code(D, Y), H)
        return normalize(_append_labels(D, W, weight))

    def _code(self, D: NDArray[Any], Y: NDArray[Any]) -> csr_array:
        return encode_omp(D, Y, self.n_nonzero, n_jobs=self.n_jobs, backend=self.backend)

    def encode(self, X: ArrayLike) -> tuple[csr_array, NDArray[np.float64]]:
        """Encode samples and compute their distances to the classes, as `decision` defines them.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.

        Returns
        -------
        codes : csr_array of shape (n_samples, n_codes_)
            Codes over the atoms of all classes: greedy for "classifier", l1 for "residual".
        distances : ndarray of shape (n_samples, n_classes)
            Negative scores −sW, where s is the code, for "classifier"; residuals of the classes for
            "residual".
        """
        check_is_fitted(self)
        self._check_decision()
        if self.decision == "residual":
            return super().encode(X)
        samples = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        D, _ = self._active_atoms()
        S = self._code(D, samples.astype(D.dtype, copy=False))
        W = self.classifier_[self._active_rows] if self.disabled_atoms_ else self.classifier_
        return self._expand_codes(S), -(S @ W).astype(np.float64)

    def distance_contributions(
        self, X: ArrayLike, codes: csr_array, distances: NDArray[np.float64]
    ) -> DistanceContributions:
        """Attribute the distances to the classes, see `distances`, to the atoms.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.
        codes : csr_array of shape (n_samples, n_codes_)
            Codes of these samples, from `encode`.
        distances : ndarray of shape (n_samples, n_classes)
            Distances of these samples, from `encode`.

        Returns
        -------
        DistanceContributions
        """
        if self.decision == "residual":
            return super().distance_contributions(X, codes, distances)
        S, W = codes.astype(np.float64), self.classifier_.astype(np.float64)
        by_class = [csr_array(S.multiply(-W[:, class_index])) for class_index in range(W.shape[1])]
        return DistanceContributions.from_distances(by_class, distances, np.zeros(len(distances)))

    def distances(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the distances to the classes.

        They are negative classifier scores for decision="classifier", and residuals for "residual".

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
        """
        return self.encode(X)[1]


def _append_labels(left: NDArray[Any], right: NDArray[Any], weight: float) -> NDArray[Any]:
    """Return the matrix [left √weight·right], or `left` for weight 0 (plain K-SVD)."""
    if weight == 0:
        return left
    return np.hstack([left, (np.sqrt(weight) * right).astype(left.dtype)])


def _split_atoms(
    atoms: NDArray[Any], Y: NDArray[Any], weight: float
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Split atoms [d √weight·w] into D and W, and return D, W and the norms ‖d‖.

    The rows of D and W are d and w divided by ‖d‖. If d is zero up to rounding errors, which depend
    on the samples Y, both rows are set to zero, so that no code uses the atom.
    """
    D, W = np.split(atoms.astype(np.float64), [Y.shape[1]], axis=1)
    norms = np.linalg.norm(D, axis=1)
    sample_norm = np.sqrt(np.einsum("ij,ij->", Y, Y, dtype=np.float64) / len(Y))
    rounding = 16 * np.finfo(Y.dtype).eps * sample_norm / np.hypot(sample_norm, np.sqrt(weight))
    norms[norms <= rounding] = 0
    scale = np.divide(1, norms, out=np.zeros_like(norms), where=norms > 0)[:, None]
    if weight > 0:
        W = W / np.sqrt(weight)
    return tuple(array.astype(Y.dtype) for array in (scale * D, scale * W, norms))


def _fit_linear_classifier(S: csr_array, H: NDArray[Any]) -> NDArray[Any]:
    """Return W = argmin ‖H − SW‖² + _RIDGE·‖W‖² for targets H and codes S (ridge regression)."""
    S = S.astype(np.float64)
    F = (S.T @ S).toarray()
    # The ridge is negligible for large codes: keep the system solvable in double precision.
    F[np.diag_indices_from(F)] += _RIDGE + 1e-10 * np.diagonal(F).max()
    return solve(F, S.T @ H, assume_a="pos").astype(H.dtype)


def _order_atoms(
    D: NDArray[Any], W: NDArray[Any], S: csr_array, n_classes: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return D and W with the atoms of each class sorted by their use in S and signs fixed."""
    usage_counts = np.bincount(S.indices, minlength=len(D))
    sign_balance = np.bincount(S.indices, np.sign(S.data), minlength=len(D))
    by_class = (
        np.split(values, n_classes) for values in (np.hstack([D, W]), usage_counts, sign_balance)
    )
    atoms = np.concatenate([canonicalize(*arrays) for arrays in zip(*by_class, strict=True)])
    return np.ascontiguousarray(atoms[:, : D.shape[1]]), np.ascontiguousarray(
        atoms[:, D.shape[1] :]
    )
