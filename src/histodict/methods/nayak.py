"""Predictive sparse decomposition and a linear SVM: the method of Nayak and others.

One dictionary D of unit-norm atoms for the samples Y of all classes together, their sparse codes S,
and a matrix W that predicts codes at the price of one product:

    min_{D, S, W}  ½‖Y − SD‖² + penalty·‖S‖₁ + ½‖S − YW‖² + ½ε‖W‖²

It is published without the ½, and without the last term: a small ε keeps W defined for fewer
samples than features, and from following directions in which samples hardly differ. A linear SVM
then tells the classes apart by the parts of a code above and below 0: labels are used there and
nowhere before.

With E = SᵀY, F = SᵀS and A = YᵀY the parts are each other's simple problems. Codes have the
curvature DDᵀ + I and the products Y(Dᵀ + W); W = (A + εI)⁻¹Eᵀ; atoms need E and F alone.

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
from ..utils.array_schema import UNIT, ArraySpec
from ..utils.parallel import map_blocks, single_blas_thread
from ..utils.progress import Callback, Progress, no_callback
from ..utils.validation import check_number, check_whole_number
from .class_dictionaries import check_labelled, make_rng
from .patch_classifier import PatchClassifier

# ε as a share of the mean eigenvalue of A. On tissue, codes of patches that were not trained on are
# predicted best between 0.01 and 1.
_RIDGE = 0.1
_INITIAL_SAMPLES = 20_000
_ENCODERS = ("fast", "exact")
_CODE_TOLERANCE = 1e-4  # relative duality gap of exact codes


class Nayak(PatchClassifier):
    """A linear SVM on the codes of one dictionary for all classes.

    Distances are the negative scores of the SVM, one class against the rest; with two classes their
    difference is the score.

    Parameters
    ----------
    n_atoms : atoms, of all classes together
    penalty : l1 penalty of the codes (λ)
    n_iter : rounds of atoms and encoder, then codes
    n_coding_steps : gradient steps per coding (q), which starts from the codes of the last round
    encoder : "fast" takes s = yW; "exact" the minimiser of the objective for y, as in training
    svm_cost : weight of violated margins in the SVM (its C)
    random_state : seed; the same seed gives the same result for any n_jobs
    n_jobs : threads; None for all cores
    backend : arithmetic of all but the coding of training samples, "cpu" or "cuda"

    Attributes
    ----------
    classes_ : (n_classes,)
    dictionary_ : (n_atoms, n_features), unit-norm atoms
    encoder_ : (n_features, n_atoms), W
    svm_weights_, svm_bias_ : (n_scores, 2 · n_atoms) and (n_scores,), of the parts of codes above 0
        and those below; one score for two classes, positive for the second, else one per class
    objective_ : the objective after every round's coding
    """

    fitted_arrays: ClassVar[Mapping[str, ArraySpec]] = {
        "dictionary_": ArraySpec("atoms, features", UNIT),
        "encoder_": ArraySpec("features, atoms"),
        "svm_weights_": ArraySpec("scores, 2*atoms"),
        "svm_bias_": ArraySpec("scores"),
    }
    code_length = "atoms"
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
        """Learn from samples X (n_samples, n_features) and their labels.

        `callback` gets a `Progress` after every step of the stages "initialise" and "train"; an
        exception in it ends the training.
        """
        self.check_parameters()
        Y, classes, labels = check_labelled(self, X, y)
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
        codes = np.concatenate([S for S, _ in self._codes(Y, D, W)])
        weights, bias = _fit_svm(_rectified(codes), labels, float(self.svm_cost))
        self.classes_ = classes
        self.dictionary_, self.encoder_ = D, W
        self.svm_weights_, self.svm_bias_ = weights, bias
        self.objective_ = np.array(objective)
        return self

    def encode(self, X: ArrayLike) -> tuple[csr_array, NDArray[np.float64]]:
        """Codes (n_samples, n_atoms), and the distance to every class (n_samples, n_classes)."""
        check_is_fitted(self)
        self.check_parameters()
        samples: NDArray[Any] = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        codes, distances, n_unfinished = [], [], 0
        for S, missed in self._codes(samples, self.dictionary_, self.encoder_):
            scores = _rectified(S) @ self.svm_weights_.T + self.svm_bias_
            distances.append(-scores if scores.shape[1] > 1 else scores * [0.5, -0.5])
            codes.append(csr_array(S))
            n_unfinished += missed
        warn_not_converged(n_unfinished, len(samples), _CODE_TOLERANCE)
        return vstack(codes, format="csr"), np.concatenate(distances)

    @property
    def n_codes_(self) -> int:
        """Atoms."""
        return len(self.dictionary_)

    def check_parameters(self) -> None:
        for name in ("n_atoms", "n_iter", "n_coding_steps"):
            check_whole_number(name, getattr(self, name), 1)
        check_number("penalty", self.penalty, above=True)
        check_number("svm_cost", self.svm_cost, above=True)
        if self.encoder not in _ENCODERS:
            raise ValueError(f"encoder must be one of {_ENCODERS}, not {self.encoder!r}")

    def _train(
        self, D: NDArray[Any], Y: NDArray[Any], report: Callback
    ) -> tuple[NDArray[Any], NDArray[Any], list[float]]:
        """D, W, and the objective's course; the first codes are made without W."""
        module = load_backend(self.backend)
        codes = FistaCodes([len(Y)], len(D), Y.dtype, self.n_jobs)
        samples = EncoderStatistics.of(Y, self.n_jobs)
        W = np.zeros(D.T.shape, D.dtype)
        self._code(codes, Y, D, W, 0.0)
        E, F, _ = codes.sums(Y)
        objective = []
        report(Progress("train", 0, self.n_iter))
        for iteration in range(self.n_iter):
            W = samples.encoder(E).astype(D.dtype)
            with single_blas_thread():
                E, F = E.astype(D.dtype), F.astype(D.dtype)
                D = module.update_atoms(D, E, F, n_sweeps=10, tol=1e-3)
            self._code(codes, Y, D, W, 1.0)
            E, F, l1 = codes.sums(Y)
            objective.append(samples.objective(D, W, E, F) + float(self.penalty) * l1)
            report(Progress("train", iteration + 1, self.n_iter, (objective[-1],)))
        return D, W, objective

    def _code(
        self, codes: FistaCodes, Y: NDArray[Any], D: NDArray[Any], W: NDArray[Any], weight: float
    ) -> None:
        """Better codes S for D and W; `weight` 0 leaves the prediction YW out of account."""
        H, P = quadratic(D, W, weight)
        codes.improve(H, lambda b: Y[b.rows] @ P, float(self.penalty), self.n_coding_steps)

    def _codes(
        self, X: NDArray[Any], D: NDArray[Any], W: NDArray[Any]
    ) -> Iterator[tuple[NDArray[Any], int]]:
        """Per block: dense codes, and how many of them missed the tolerance."""
        if self.encoder == "fast":
            return map_blocks(
                lambda rows: (X[rows].astype(D.dtype) @ W, 0), row_blocks(len(X)), self.n_jobs
            )
        # ½‖s − yW‖² is part of the fit once the identity and yW are set beside D and y.
        wide = np.hstack([D, np.eye(len(D), dtype=D.dtype)])
        with single_blas_thread():
            coder = load_backend(self.backend).LassoCoder(wide, self.penalty, _CODE_TOLERANCE)

        def work(rows: slice) -> tuple[NDArray[Any], int]:
            Y = X[rows].astype(D.dtype)
            S, missed = coder.code(np.hstack([Y, Y @ W]))
            return S.toarray(), missed

        return map_blocks(work, row_blocks(len(X)), self.n_jobs)


@dataclass(frozen=True)
class EncoderStatistics:
    """What the encoder and the objective need of the samples: A = YᵀY, and ε."""

    A: NDArray[np.float64]
    ridge: float

    @classmethod
    def of(cls, Y: NDArray[Any], n_jobs: int | None) -> EncoderStatistics:
        A = np.zeros((Y.shape[1],) * 2)
        for part in map_blocks(lambda rows: Y[rows].T @ Y[rows], row_blocks(len(Y)), n_jobs):
            A += part
        return cls(A, _RIDGE * float(np.trace(A)) / len(A) or 1.0)

    def encoder(self, E: NDArray[np.float64]) -> NDArray[np.float64]:
        """W = (A + εI)⁻¹Eᵀ."""
        with single_blas_thread():
            factor = cho_factor(self.A + self.ridge * np.eye(len(self.A)))
            W: NDArray[np.float64] = cho_solve(factor, E.T)
        return W

    def objective(
        self, D: NDArray[Any], W: NDArray[Any], E: NDArray[np.float64], F: NDArray[np.float64]
    ) -> float:
        """The objective without the penalty of the codes."""
        with single_blas_thread():
            AW = self.A @ W + self.ridge * W
            G = (D @ D.T).astype(np.float64)
        fit = np.trace(self.A) - 2 * np.vdot(E, D) + np.vdot(F, G)
        prediction = np.trace(F) - 2 * np.vdot(E, W.T) + np.vdot(W, AW)
        return float(fit + prediction) / 2


def quadratic(D: NDArray[Any], W: NDArray[Any], weight: float) -> tuple[NDArray[Any], NDArray[Any]]:
    """H and P of the codes' problem ½ s H sᵀ − yP sᵀ: DDᵀ + I and Dᵀ + W for weight 1."""
    w = np.asarray(weight, D.dtype)
    with single_blas_thread():
        return D @ D.T + w * np.eye(len(D), dtype=D.dtype), np.ascontiguousarray(D.T + w * W)


def _rectified(S: NDArray[Any]) -> NDArray[Any]:
    """max(s, 0) and max(−s, 0), side by side.

    Tissue shows an atom bright on dark about as often as dark on bright, so a score that is linear
    in s cancels out, and one in |s| cannot tell the two apart.
    """
    return np.hstack([np.maximum(S, 0), np.maximum(-S, 0)])


def _fit_svm(
    features: NDArray[Any], labels: NDArray[np.int64], cost: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Weights and biases of a linear SVM on scaled features, classes weighted equally."""
    # Not centred: every second feature is 0, and the solver passes over zeros.
    scaler = StandardScaler(with_mean=False).fit(features.astype(np.float64))
    svm = LinearSVC(C=cost, dual=False, class_weight="balanced", tol=1e-3)
    svm.fit(scaler.transform(features), labels)
    return svm.coef_ / scaler.scale_, svm.intercept_
