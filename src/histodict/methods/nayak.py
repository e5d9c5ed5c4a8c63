"""Predictive sparse decomposition and a linear SVM: the method of Nayak et al.

One dictionary D of unit-norm atoms for the samples Y of all classes, their sparse codes S, and a
matrix W that predicts codes by one matrix product:

    min_{D, S, W}  ½‖Y − SD‖² + penalty·‖S‖₁ + ½‖S − YW‖² + ½ε‖W‖²

The published objective lacks the ½ and the last term. A small ε keeps W defined with fewer samples
than features, and prevents it from following directions in which samples hardly differ. A linear
SVM then classifies the positive and negative parts of a code. Only the SVM uses the labels.

With E = SᵀY, F = SᵀS and A = YᵀY each subproblem is simple. The codes have the curvature DDᵀ + I
and the products Y(Dᵀ + W); W = (A + εI)⁻¹Eᵀ; the atoms depend on E and F alone.

Reference: Nayak, Chang, Borowsky, Spellman, Parvin, "Classification of tumor histopathology via
sparse feature learning", ISBI 2013.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.sparse import csr_array, vstack
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.utils.validation import check_is_fitted, validate_data

from ..dictionaries.fista import FistaCodes
from ..dictionaries.online import learn_online
from ..kernels import load_backend, row_blocks, warn_not_converged
from ..utils.array_schema import UNIT_VECTORS, ArraySpec
from ..utils.parallel import map_blocks, single_blas_thread
from ..utils.progress import Callback, Progress, no_callback
from ..utils.validation import check_number, check_whole_number
from .class_dictionaries import make_rng, validate_labelled_data
from .patch_classifier import PatchClassifier

# ε as a fraction of the mean eigenvalue of A. On tissue, values between 0.01 and 1 best predict the
# codes of unseen patches.
_RIDGE = 0.1
_INITIAL_SAMPLES = 20_000
_ENCODERS = ("fast", "exact")
_CODE_TOLERANCE = 1e-4  # relative duality gap of exact codes


class Nayak(PatchClassifier):
    """Classifier by a linear SVM on the codes of one dictionary for all classes.

    The distance d_i to class i is the negative score of a one-versus-rest SVM. For two classes one
    SVM is fitted, with the score d_0 − d_1.

    Parameters
    ----------
    n_atoms : int, default=1000
        Number of atoms of all classes together.
    penalty : float, default=0.1
        l1 penalty of the codes (λ).
    n_iter : int, default=10
        Number of rounds, which update the encoder and the atoms, then the codes.
    n_coding_steps : int, default=20
        Gradient steps per coding (q), which starts from the codes of the previous round.
    encoder : {"fast", "exact"}, default="fast"
        How a sample y is encoded: "fast" computes the code s = yW, "exact" minimises the objective
        for y as in training.
    svm_cost : float, default=0.01
        Weight of margin violations in the SVM (its C).
    random_state : int, RandomState instance or None, default=None
        Seed. The result is the same for any `n_jobs`.
    n_jobs : int or None, default=None
        Number of threads. None uses all cores.
    backend : {"cpu", "cuda"}, default="cpu"
        Device for all steps except the coding of training samples, which uses the CPU.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    dictionary_ : ndarray of shape (n_atoms, n_features)
        Unit-norm atoms.
    encoder_ : ndarray of shape (n_features, n_atoms)
        Encoder W.
    svm_weights_ : ndarray of shape (n_scores, 2 * n_atoms)
        Weights of the positive, then of the negative parts of codes. Two classes have one score,
        positive for the second class; more classes have one score each.
    svm_bias_ : ndarray of shape (n_scores,)
        Intercepts of the scores.
    objective_ : ndarray of shape (n_iter,)
        Objective after the coding of each round.
    n_features_in_ : int
        Number of features seen during fit.
    """

    fitted_arrays: ClassVar[Mapping[str, ArraySpec]] = {
        "dictionary_": ArraySpec("atoms, features", UNIT_VECTORS),
        "encoder_": ArraySpec("features, atoms"),
        "svm_weights_": ArraySpec("scores, 2*atoms"),
        "svm_bias_": ArraySpec("scores"),
    }
    code_dimension = "atoms"
    dictionary_: NDArray[Any]
    encoder_: NDArray[Any]
    svm_weights_: NDArray[np.float64]
    svm_bias_: NDArray[np.float64]

    def __init__(
        self,
        n_atoms: int = 1000,
        *,
        penalty: float = 0.1,
        n_iter: int = 10,
        n_coding_steps: int = 20,
        encoder: str = "fast",
        svm_cost: float = 0.01,
        random_state: Any = None,
        n_jobs: int | None = None,
        backend: str = "cpu",
    ) -> None:
        self.n_atoms = n_atoms
        self.penalty = penalty
        self.n_iter = n_iter
        self.n_coding_steps = n_coding_steps
        self.encoder = encoder
        self.svm_cost = svm_cost
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.backend = backend

    def fit(self, X: ArrayLike, y: ArrayLike, *, callback: Callback = no_callback) -> Nayak:
        """Learn the dictionary, the encoder and the SVM.

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
        Nayak
            Fitted estimator.
        """
        self.check_parameters()
        Y, classes, labels = validate_labelled_data(self, X, y)
        Y = np.ascontiguousarray(Y)
        rng = make_rng(self.random_state)
        D = learn_online(
            Y[rng.permutation(len(Y))[:_INITIAL_SAMPLES]],
            self.n_atoms,
            float(self.penalty),
            rng,
            n_jobs=self.n_jobs,
            backend=self.backend,
            callback=lambda done, total: callback(Progress("initialise", done, total)),
        ).atoms
        D, W, objective = self._train(D, Y, callback)
        codes = np.concatenate([S for S, _ in self._encode_blocks(Y, D, W)])
        weights, bias = _fit_svm(_positive_and_negative_parts(codes), labels, float(self.svm_cost))
        self.classes_ = classes
        self.dictionary_, self.encoder_ = D, W
        self.svm_weights_, self.svm_bias_ = weights, bias
        self.objective_ = np.array(objective)
        return self

    def encode(self, X: ArrayLike) -> tuple[csr_array, NDArray[np.float64]]:
        """Encode samples and compute their distances to the classes.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.

        Returns
        -------
        codes : csr_array of shape (n_samples, n_atoms)
            Codes.
        distances : ndarray of shape (n_samples, n_classes)
            Negative scores of the SVM.
        """
        check_is_fitted(self)
        self.check_parameters()
        samples: NDArray[Any] = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        codes, distances, n_unfinished = [], [], 0
        for S, n_missed in self._encode_blocks(samples, self.dictionary_, self.encoder_):
            scores = _positive_and_negative_parts(S) @ self.svm_weights_.T + self.svm_bias_
            distances.append(-scores if scores.shape[1] > 1 else scores * [0.5, -0.5])
            codes.append(csr_array(S))
            n_unfinished += n_missed
        warn_not_converged(n_unfinished, len(samples), _CODE_TOLERANCE)
        return vstack(codes, format="csr"), np.concatenate(distances)

    @property
    def n_codes_(self) -> int:
        """Number of atoms."""
        return len(self.dictionary_)

    def check_parameters(self) -> None:
        """Raise ValueError if a parameter is invalid."""
        for name in ("n_atoms", "n_iter", "n_coding_steps"):
            check_whole_number(name, getattr(self, name), 1)
        check_number("penalty", self.penalty, exclusive=True)
        check_number("svm_cost", self.svm_cost, exclusive=True)
        if self.encoder not in _ENCODERS:
            raise ValueError(f"encoder must be one of {_ENCODERS}, not {self.encoder!r}")

    def _train(
        self, D: NDArray[Any], Y: NDArray[Any], report: Callback
    ) -> tuple[NDArray[Any], NDArray[Any], list[float]]:
        """Return the trained D and W, and the objective after the coding of each round."""
        module = load_backend(self.backend)
        codes = FistaCodes([len(Y)], len(D), Y.dtype, self.n_jobs)
        statistics = EncoderStatistics.from_samples(Y, self.n_jobs)
        W = np.zeros(D.T.shape, D.dtype)
        self._code(codes, Y, D, W, 0.0)
        E, F, _ = codes.compute_sums(Y)
        objective = []
        report(Progress("train", 0, self.n_iter))
        for iteration in range(self.n_iter):
            W = statistics.fit_encoder(E).astype(D.dtype)
            with single_blas_thread():
                E, F = E.astype(D.dtype), F.astype(D.dtype)
                D = module.update_atoms(D, E, F, n_sweeps=10, tol=1e-3)
            self._code(codes, Y, D, W, 1.0)
            E, F, l1 = codes.compute_sums(Y)
            objective.append(statistics.objective(D, W, E, F) + float(self.penalty) * l1)
            report(Progress("train", iteration + 1, self.n_iter, (objective[-1],)))
        return D, W, objective

    def _code(
        self, codes: FistaCodes, Y: NDArray[Any], D: NDArray[Any], W: NDArray[Any], weight: float
    ) -> None:
        """Improve `codes` for D and W, in place; `weight` is the factor 0 or 1 of ½‖S − YW‖²."""
        H, P = coding_matrices(D, W, weight)
        codes.improve(H, lambda b: Y[b.rows] @ P, float(self.penalty), self.n_coding_steps)

    def _encode_blocks(
        self, X: NDArray[Any], D: NDArray[Any], W: NDArray[Any]
    ) -> Iterator[tuple[NDArray[Any], int]]:
        """Yield the dense codes of each block of X, and its number of unconverged samples."""
        if self.encoder == "fast":
            return map_blocks(
                lambda rows: (X[rows].astype(D.dtype) @ W, 0), row_blocks(len(X)), self.n_jobs
            )
        # With the identity appended to D and yW to y, ½‖s − yW‖² is part of the fit.
        wide = np.hstack([D, np.eye(len(D), dtype=D.dtype)])
        with single_blas_thread():
            coder = load_backend(self.backend).LassoCoder(wide, self.penalty, _CODE_TOLERANCE)

        def encode_exactly(rows: slice) -> tuple[NDArray[Any], int]:
            Y = X[rows].astype(D.dtype)
            S, n_missed = coder.code(np.hstack([Y, Y @ W]))
            return S.toarray(), n_missed

        return map_blocks(encode_exactly, row_blocks(len(X)), self.n_jobs)


@dataclass(frozen=True)
class EncoderStatistics:
    """Statistics of the samples from which the encoder W and the objective are computed.

    E = SᵀY (n_atoms, n_features) and F = SᵀS (n_atoms, n_atoms) are arguments of the methods.

    Attributes
    ----------
    A : (n_features, n_features), YᵀY for the samples Y
    ridge : weight ε of the term ½ε‖W‖² in the objective
    """

    A: NDArray[np.float64]
    ridge: float

    @classmethod
    def from_samples(cls, Y: NDArray[Any], n_jobs: int | None) -> EncoderStatistics:
        """Compute the statistics of the samples Y (n_samples, n_features)."""
        A = np.zeros((Y.shape[1],) * 2)
        for A_block in map_blocks(lambda rows: Y[rows].T @ Y[rows], row_blocks(len(Y)), n_jobs):
            A += A_block
        return cls(A, _RIDGE * float(np.trace(A)) / len(A) or 1.0)

    def fit_encoder(self, E: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the encoder W = (A + εI)⁻¹Eᵀ, (n_features, n_atoms)."""
        with single_blas_thread():
            factor = cho_factor(self.A + self.ridge * np.eye(len(self.A)))
            W: NDArray[np.float64] = cho_solve(factor, E.T)
        return W

    def objective(
        self, D: NDArray[Any], W: NDArray[Any], E: NDArray[np.float64], F: NDArray[np.float64]
    ) -> float:
        """Return the objective for D, W and codes with sums E and F, without the l1 penalty."""
        with single_blas_thread():
            AW = self.A @ W + self.ridge * W
            G = (D @ D.T).astype(np.float64)
        fit = np.trace(self.A) - 2 * np.vdot(E, D) + np.vdot(F, G)
        prediction = np.trace(F) - 2 * np.vdot(E, W.T) + np.vdot(W, AW)
        return float(fit + prediction) / 2


def coding_matrices(
    D: NDArray[Any], W: NDArray[Any], weight: float
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return H = DDᵀ + weight·I and P = Dᵀ + weight·W of the coding objective ½ s H sᵀ − yP sᵀ."""
    w = np.asarray(weight, D.dtype)
    with single_blas_thread():
        return D @ D.T + w * np.eye(len(D), dtype=D.dtype), np.ascontiguousarray(D.T + w * W)


def _positive_and_negative_parts(S: NDArray[Any]) -> NDArray[Any]:
    """Return [max(S, 0), max(−S, 0)], (n_samples, 2 · n_atoms).

    In tissue an atom occurs about as often with positive as with negative sign. A mean of scores
    linear in s is therefore about 0, and scores of |s| do not distinguish the signs.
    """
    return np.hstack([np.maximum(S, 0), np.maximum(-S, 0)])


def _fit_svm(
    features: NDArray[Any], labels: NDArray[np.int64], cost: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Fit a linear SVM with balanced classes, and return its weights and intercepts.

    The features are scaled to unit variance for the fit. The returned weights are for features that
    are not scaled.
    """
    # Not centred: at least half of the features are 0, and the solver skips zeros.
    scaler = StandardScaler(with_mean=False).fit(features.astype(np.float64))
    svm = LinearSVC(C=cost, dual=False, class_weight="balanced", tol=1e-3)
    svm.fit(scaler.transform(features), labels)
    return svm.coef_ / scaler.scale_, svm.intercept_
