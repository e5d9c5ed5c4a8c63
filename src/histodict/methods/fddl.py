"""Fisher discrimination dictionary learning (FDDL).

FDDL learns one dictionary D of unit-norm atoms, with one part D_i per class i, and the codes S of
all samples. S_i are the codes of class i, and S_i^j their coefficients over D_j. The objective
favours codes that use the part of their own class, are close within and distant between classes:

    min_{D, S}  ½ Σ_i ( ‖Y_i − S_i D‖² + ‖Y_i − S_i^i D_i‖² + Σ_{j≠i} ‖S_i^j D_j‖² )
                + λ₁‖S‖₁ + ½λ₂ ( tr S_W − tr S_B + ‖S‖² )

The scatter within and between classes is tr S_W = Σ_i ‖S_i − m_i‖² and
tr S_B = Σ_i n_i‖m_i − m‖², with the class means m_i and the overall mean m of the codes. The
published objective lacks the ½: its λ₁ is twice `penalty`, its λ₂ is the same.

Codes. The first sum is ½ s H sᵀ − b sᵀ with one H = DDᵀ + (its blocks D_iDᵢᵀ alone) for all classes
and b = yDᵀ, where the part of the sample's own class counts twice. The last bracket is
2‖S‖² − 2Σ n_i‖m_i‖² + n‖m‖². It is convex, and couples samples through the class means only.

Atoms. With Q = SᵀS, the terms that depend on D are −tr(E Dᵀ) + ½tr(F D Dᵀ), where F = Q + (its
class blocks alone), and E = SᵀY with the part of the own class counted twice.

Reference: Yang, Zhang, Feng, Zhang, "Fisher discrimination dictionary learning for sparse
representation", ICCV 2011.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array, hstack

from ..dictionaries.atoms import canonicalize
from ..dictionaries.fista import FistaCodes, GroupBlock
from ..kernels import load_backend
from ..utils.array_schema import ArraySpec
from ..utils.parallel import single_blas_thread
from ..utils.progress import Callback, Progress, no_callback
from ..utils.validation import check_number, check_whole_number
from .class_dictionaries import learn_class_dictionaries, make_rng, validate_labelled_data
from .patch_classifier import (
    BlockEncoder,
    DistanceContributions,
    PatchClassifier,
    ResidualClassifier,
    pad_columns,
    scale_rows,
    squared_residual_contributions,
)

_DECISIONS = ("global", "local")
_CODE_TOLERANCE = 1e-4  # relative duality gap of the local codes


class FDDL(ResidualClassifier):
    """Classifier by a dictionary with class-specific parts and Fisher discriminative codes.

    FDDL predicts the class i with the smallest distance d_i of a sample y. The dictionary D
    consists of the parts D_i of the classes, and m_i is the mean code of class i.

    decision="global" codes y over all of D, min_s ½‖y − sD‖² + penalty·‖s‖₁. The distance is
    d_i² = ‖y − δ_i(s)D‖² + w‖s − m_i‖², where δ_i(s) is s with 0 for the atoms of other classes.

    decision="local" codes y over each D_i separately. The squared distance d_i² is twice the
    minimum of ½‖y − sD_i‖² + penalty·‖s‖₁ + ½w‖s − m_i^i‖², where m_i^i is the part of m_i for D_i.
    This decision is intended for classes with many samples.

    Parameters
    ----------
    n_atoms : int, default=500
        Number of atoms per class (k).
    penalty : float, default=0.1
        l1 penalty of training (λ₁) and of the codes of the classifier.
    fisher_weight : float, default=0.01
        Weight of the Fisher criterion of the codes (λ₂).
    n_iter : int, default=15
        Number of rounds, which code the samples, then update the atoms. A final coding follows.
    n_coding_steps : int, default=30
        Gradient steps per coding (q), which starts from the codes of the previous round.
    decision : {"global", "local"}, default="global"
        Distance of a sample to a class.
    mean_weight : float, default=0.5
        Weight of the distance between a code and the class mean (w).
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
    dictionaries_ : ndarray of shape (n_classes, n_atoms, n_features)
        Unit-norm atoms, most used first, signed so that most coefficients are positive.
    code_means_ : ndarray of shape (n_classes, n_classes * n_atoms)
        Mean code m_i of each class.
    objective_ : ndarray of shape (n_iter + 1,)
        Objective after every coding.
    n_features_in_ : int
        Number of features seen during fit.
    """

    fitted_arrays: ClassVar[Mapping[str, ArraySpec]] = {
        **ResidualClassifier.fitted_arrays,
        "code_means_": ArraySpec("classes, classes*atoms"),
    }
    code_means_: NDArray[np.float64]

    def __init__(
        self,
        n_atoms: int = 500,
        *,
        penalty: float = 0.1,
        fisher_weight: float = 0.01,
        n_iter: int = 15,
        n_coding_steps: int = 30,
        decision: str = "global",
        mean_weight: float = 0.5,
        random_state: Any = None,
        n_jobs: int | None = None,
        backend: str = "cpu",
    ) -> None:
        self.n_atoms = n_atoms
        self.penalty = penalty
        self.fisher_weight = fisher_weight
        self.n_iter = n_iter
        self.n_coding_steps = n_coding_steps
        self.decision = decision
        self.mean_weight = mean_weight
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.backend = backend

    def fit(self, X: ArrayLike, y: ArrayLike, *, callback: Callback = no_callback) -> FDDL:
        """Learn the dictionary.

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
        FDDL
            Fitted estimator.
        """
        self.check_parameters()
        samples, classes, labels = validate_labelled_data(self, X, y)
        initial = learn_class_dictionaries(
            samples,
            labels,
            make_rng(self.random_state),
            n_atoms=self.n_atoms,
            penalty=float(self.penalty),
            n_jobs=self.n_jobs,
            backend=self.backend,
            stage="initialise",
            report=callback,
        )
        Y = np.ascontiguousarray(samples[np.argsort(labels, kind="stable")])
        codes = FistaCodes(
            np.bincount(labels).tolist(), len(classes) * self.n_atoms, Y.dtype, self.n_jobs
        )
        D = np.concatenate([part.atoms for part in initial])
        D, objective = self._train(D, Y, codes, callback)
        self.classes_ = classes
        self.dictionaries_, self.code_means_ = _in_canonical_order(D, codes)
        self.objective_ = np.array(objective)
        return self

    def check_parameters(self) -> None:
        """Raise ValueError if a parameter is invalid."""
        for name in ("n_atoms", "n_iter", "n_coding_steps"):
            check_whole_number(name, getattr(self, name), 1)
        check_number("penalty", self.penalty, exclusive=True)
        check_number("fisher_weight", self.fisher_weight)
        check_number("mean_weight", self.mean_weight)
        if self.decision not in _DECISIONS:
            raise ValueError(f"decision must be one of {_DECISIONS}, not {self.decision!r}")

    def _train(
        self, D: NDArray[Any], Y: NDArray[Any], codes: FistaCodes, report: Callback
    ) -> tuple[NDArray[Any], list[float]]:
        """Return the trained D and the objective after every coding.

        `codes` are replaced by the codes for the trained D, in place.
        """
        module = load_backend(self.backend)
        objective: list[float] = []
        report(Progress("train", 0, self.n_iter + 1))
        for iteration in range(self.n_iter + 1):
            self._code(codes, Y, D)
            E, F, value = self._compute_statistics(codes, Y, D)
            objective.append(value)
            report(Progress("train", iteration + 1, self.n_iter + 1, (value,)))
            if iteration < self.n_iter:
                with single_blas_thread():
                    E, F = E.astype(D.dtype), F.astype(D.dtype)
                    D = module.update_atoms(D, E, F, n_sweeps=10, tol=1e-3)
        return D, objective

    def _code(self, codes: FistaCodes, Y: NDArray[Any], D: NDArray[Any]) -> None:
        """Improve the codes for the dictionary D, in place."""
        weight = float(self.fisher_weight)
        with single_blas_thread():
            H = code_curvature(D, len(codes.group_sizes), weight)
        C = class_mean_coupling(codes.group_sizes, weight)

        def products(block: GroupBlock) -> NDArray[Any]:
            return double_own_class_columns(Y[block.rows] @ D.T, block.group, self.n_atoms)

        codes.improve(H, products, float(self.penalty), self.n_coding_steps, C)

    def _compute_statistics(
        self, codes: FistaCodes, Y: NDArray[Any], D: NDArray[Any]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
        """Return the sums E and F for the atom update (module docstring), and the objective."""
        E, Q, l1 = codes.compute_sums(
            Y, lambda S, group: double_own_class_columns(S, group, self.n_atoms)
        )
        F = Q + class_blocks(Q, len(codes.group_sizes))
        sizes, means = codes.group_sizes, codes.means
        overall = sizes @ means / sizes.sum()
        with single_blas_thread():
            G = (D @ D.T).astype(np.float64)
        reconstruction = (
            np.einsum("ij,ij->", Y, Y, dtype=np.float64) - np.vdot(E, D) + np.vdot(F, G) / 2
        )
        within_scatter = np.trace(Q) - sizes @ np.sum(means**2, axis=1)
        fisher = 2 * within_scatter + sizes.sum() * (overall @ overall)
        return E, F, float(reconstruction + self.penalty * l1 + self.fisher_weight / 2 * fisher)

    def _make_block_encoder(self, D: NDArray[Any], atom_classes: NDArray[np.int64]) -> BlockEncoder:
        self.check_parameters()
        if self.decision == "local":
            return self._make_local_encoder()
        encode_over_all = super()._make_block_encoder(D, atom_classes)
        m, w = self.code_means_, float(self.mean_weight)
        m = m[:, self._active_rows] if self.disabled_atoms_ else m

        def encode(Y: NDArray[Any]) -> tuple[csr_array, NDArray[np.float64], int]:
            S, residuals, n_unfinished = encode_over_all(Y)
            squared = np.asarray(S.multiply(S).sum(axis=1), np.float64).reshape(-1, 1)
            to_means = np.maximum(squared - 2 * (S @ m.T) + np.sum(m**2, axis=1), 0)
            return S, np.sqrt(residuals**2 + w * to_means), n_unfinished

        return encode

    def distance_contributions(
        self, X: ArrayLike, codes: csr_array, distances: NDArray[np.float64]
    ) -> DistanceContributions:
        """Attribute the distance d_i of a sample y to each class i to the atoms.

        With decision="global", d_i² = r_i² + w‖s − m_i‖² for the residual r_i and the code s. The
        contribution of atom j is (q_j + w(s_j² − 2 s_j m_ij)) / (d_i + ‖y‖), where q_j is its
        contribution to r_i² (`squared_residual_contributions`), which is 0 if the atom belongs to
        another class, and m_ij is entry j of m_i. `rest` is w‖m_i‖² / (d_i + ‖y‖).

        With decision="local", nothing is attributed to atoms: `rest` contains the distances, up to
        a constant per sample.

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
        if self.decision == "local":
            return PatchClassifier.distance_contributions(self, X, codes, distances)
        D, atom_classes = self.labelled_atoms()
        S, samples = codes.astype(np.float64), np.asarray(X, np.float64)
        by_class, norms = [], np.linalg.norm(samples, axis=1)
        for class_index, means in enumerate(self.code_means_):
            in_class = np.flatnonzero(atom_classes == class_index)
            squares = squared_residual_contributions(D[in_class], samples, S[:, in_class])
            from_mean = csr_array(S.multiply(S) - S.multiply(2 * means)) * float(self.mean_weight)
            scale = 1 / np.maximum(distances[:, class_index] + norms, np.finfo(np.float64).tiny)
            contributions = pad_columns(squares, in_class, len(D)) + from_mean
            by_class.append(scale_rows(csr_array(contributions), scale))
        return DistanceContributions.from_distances(by_class, distances, norms)

    def disable_atoms(self, atoms: Sequence[int]) -> Self:
        """Return a copy in which these atoms, and no others, are disabled.

        With decision="local" no atom can be disabled.

        Parameters
        ----------
        atoms : sequence of int
            Indices of the atoms to disable; empty to enable all.

        Returns
        -------
        Self
        """
        if self.decision == "local":
            return PatchClassifier.disable_atoms(self, atoms)
        return super().disable_atoms(atoms)

    def _make_local_encoder(self) -> BlockEncoder:
        """Return the function that encodes a block of samples for decision="local".

        With √w·I appended to D_i and √w·m_i^i to y, the term ½w‖s − m_i^i‖² is part of the fit.
        """
        k = self.dictionaries_.shape[1]
        penalty, root = float(self.penalty), float(self.mean_weight) ** 0.5
        module = load_backend(self.backend)
        dictionaries = np.stack([np.hstack([D, root * np.eye(k)]) for D in self.dictionaries_])
        dictionaries = dictionaries.astype(self.dictionaries_.dtype)
        coders = [module.LassoCoder(D, penalty, _CODE_TOLERANCE) for D in dictionaries]
        one_class = np.zeros(k, np.int64)
        means = [m[i * k : (i + 1) * k] for i, m in enumerate(self.code_means_)]

        def encode(Y: NDArray[Any]) -> tuple[csr_array, NDArray[np.float64], int]:
            codes, distances, n_unfinished = [], [], 0
            for D, coder, m in zip(dictionaries, coders, means, strict=True):
                Y_i = np.hstack([Y, np.tile(root * m, (len(Y), 1))]).astype(D.dtype)
                S, n_missed = coder.code(Y_i)
                residuals = module.class_residuals(D, Y_i, S, one_class, 1)[:, 0]
                l1 = np.asarray(abs(S).sum(axis=1), np.float64).ravel()
                distances.append(np.sqrt(residuals**2 + 2 * penalty * l1))
                codes.append(S)
                n_unfinished = max(n_unfinished, n_missed)
            return hstack(codes, format="csr"), np.stack(distances, axis=1), n_unfinished

        return encode


def code_curvature(D: NDArray[Any], n_classes: int, fisher_weight: float) -> NDArray[Any]:
    """Return the curvature of the objective: DDᵀ + its class blocks + 2·fisher_weight·I."""
    G = D @ D.T
    ridge = np.asarray(2 * fisher_weight, G.dtype) * np.eye(len(G), dtype=G.dtype)
    H: NDArray[Any] = G + class_blocks(G, n_classes) + ridge
    return H


def class_mean_coupling(sizes: NDArray[np.int64], fisher_weight: float) -> NDArray[np.float64]:
    """Return the matrix C (n_classes, n_classes) for `coupling` of `FistaCodes.improve`.

    With n_i = sizes[i] samples of class i, n = Σ n_i, the class means m_i and the overall mean m of
    the codes, and λ₂ = fisher_weight, C satisfies

        ½Σ_ij n_i C_ij m_i m_jᵀ = −λ₂Σ n_i‖m_i‖² + ½λ₂n‖m‖².

    The gradient of this term with respect to the code of a sample of class i is Σ_j C_ij m_j.
    """
    fractions = np.broadcast_to(sizes / sizes.sum(), (len(sizes), len(sizes)))
    return fisher_weight * (fractions - 2 * np.eye(len(sizes)))


def class_blocks(matrix: NDArray[Any], n_classes: int) -> NDArray[Any]:
    """Return a copy of `matrix` (n_atoms, n_atoms) with 0 for two atoms of different classes."""
    k = len(matrix) // n_classes
    blocks = np.zeros_like(matrix)
    for i in range(n_classes):
        in_class = slice(i * k, (i + 1) * k)
        blocks[in_class, in_class] = matrix[in_class, in_class]
    return blocks


def double_own_class_columns(products: NDArray[Any], i: int, n_atoms: int) -> NDArray[Any]:
    """Multiply the columns of class i by 2, in place, and return `products`.

    Each class has n_atoms columns.
    """
    products[:, i * n_atoms : (i + 1) * n_atoms] *= 2
    return products


def _in_canonical_order(
    D: NDArray[Any], codes: FistaCodes
) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Return `dictionaries_`, with atoms sorted by use and fixed signs, and `code_means_`."""
    means, n_classes = codes.means, len(codes.group_sizes)
    k = len(D) // n_classes
    ends = np.cumsum(codes.group_sizes)
    dictionaries, ordered_means = [], []
    for i, (end, size) in enumerate(zip(ends, codes.group_sizes, strict=True)):
        in_class = slice(i * k, (i + 1) * k)
        S = codes.S[end - size : end, in_class]
        uses, positive = np.count_nonzero(S, axis=0), np.count_nonzero(S > 0, axis=0)
        with_means = np.hstack([D[in_class].astype(np.float64), means[:, in_class].T])
        ordered = canonicalize(with_means, uses, 2 * positive - uses)
        dictionaries.append(ordered[:, : D.shape[1]].astype(D.dtype))
        ordered_means.append(ordered[:, D.shape[1] :].T)
    return np.stack(dictionaries), np.hstack(ordered_means)
