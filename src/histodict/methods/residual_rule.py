"""The classifier that class-specific dictionaries share: the class that leaves the least wins.

A sample is coded over all dictionaries at once, min_s ½‖y − sD‖² + penalty·‖s‖₁, and gets the class
whose share δ_i(s) of the code leaves the smallest residual r_i = ‖y − δ_i(s)D‖.

Reference: Wright, Yang, Ganesh, Sastry, Ma, "Robust face recognition via sparse representation",
IEEE TPAMI 2009.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array, vstack
from sklearn.utils.validation import check_is_fitted, validate_data

from ..execution.local import map_blocks, one_blas_thread
from ..kernels import load_backend, row_blocks, warn_unfinished
from ..learnt_arrays import UNIT, Learnt
from ..parameters import check_number
from .patch_classifier import PatchClassifier

_CODE_TOLERANCE = 1e-4  # relative duality gap of the codes

# Of a block of samples: codes, residuals, and how many samples missed the tolerance.
BlockCoder = Callable[[NDArray[Any]], tuple[csr_array, NDArray[np.float64], int]]


class ResidualClassifier(PatchClassifier):
    """Answers from `classes_` and `dictionaries_` (n_classes, n_atoms, n_features).

    A method derives from it and learns these two; `penalty`, `n_jobs` and `backend` are its
    parameters. One with other numbers of atoms per class gives its own `labelled_atoms` instead of
    `dictionaries_`; one with other codes than l1 its own `_open_coder`.
    """

    fitted_arrays: ClassVar[Mapping[str, Learnt]] = {
        "dictionaries_": Learnt("classes, atoms, features", UNIT)
    }
    code_length = "classes*atoms"
    has_class_atoms: ClassVar[bool] = True
    penalty: float
    backend: str
    dictionaries_: NDArray[Any]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        # Directions are compared, up to sign: three blobs in a plane are not its kind of data.
        tags.classifier_tags.poor_score = True
        return tags

    def labelled_atoms(self) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The atoms of all classes in turn (n, n_features), and the place of each one's class."""
        n_classes, n_atoms, n_features = self.dictionaries_.shape
        D = np.ascontiguousarray(self.dictionaries_.reshape(-1, n_features))
        return D, np.repeat(np.arange(n_classes), n_atoms)

    def encode(self, X: ArrayLike) -> tuple[csr_array, NDArray[np.float64]]:
        """Codes s over the atoms of all classes in turn, and the residual r_i of every class.

        (n_samples, n_codes_) and (n_samples, n_classes).
        """
        check_is_fitted(self)
        samples: NDArray[Any] = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        D, atom_classes = self.labelled_atoms()
        with one_blas_thread():
            code = self._open_coder(D, atom_classes)

        def work(rows: slice) -> tuple[csr_array, NDArray[np.float64], int]:
            return code(np.ascontiguousarray(samples[rows], dtype=D.dtype))

        blocks = row_blocks(len(samples), load_backend(self.backend).BLOCK_ROWS)
        codes, residuals, missed = zip(*map_blocks(work, blocks, self.n_jobs), strict=True)
        warn_unfinished(sum(missed), len(samples), _CODE_TOLERANCE)
        return vstack(codes, format="csr"), np.concatenate(residuals)

    def class_residuals(self, X: ArrayLike) -> NDArray[np.float64]:
        """r_i = ‖y − δ_i(s)D‖ for every sample and class: (n_samples, n_classes)."""
        return self.encode(X)[1]

    @property
    def n_codes_(self) -> int:
        """Atoms of all classes."""
        return len(self.labelled_atoms()[0])

    def _open_coder(self, D: NDArray[Any], atom_classes: NDArray[np.int64]) -> BlockCoder:
        """What codes a block: here by the l1 problem."""
        penalty = check_number("penalty", self.penalty, above=True)
        module = load_backend(self.backend)
        coder = module.LassoCoder(D, penalty, _CODE_TOLERANCE)
        n_classes = len(self.classes_)

        def code(Y: NDArray[Any]) -> tuple[csr_array, NDArray[np.float64], int]:
            Y = module.place(Y, D.dtype)
            S, n_unfinished = coder.code(Y)
            return S, module.class_residuals(D, Y, S, atom_classes, n_classes), n_unfinished

        return code
