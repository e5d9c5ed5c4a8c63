"""Online dictionary learning (ODL), separately for each class.

For each class, with samples Y and unit-norm atoms:

    min_{D, S}  ½‖Y − SD‖² + penalty·‖S‖₁

DFDL starts from these dictionaries. ODL is therefore the baseline for the discriminative term of
DFDL.

Reference: Mairal, Bach, Ponce, Sapiro, "Online learning for matrix factorization and sparse
coding", JMLR 2010.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..utils.progress import Callback, no_callback
from ..utils.validation import check_number, check_whole_number
from .class_dictionaries import learn_class_dictionaries, make_rng, validate_labelled_data
from .patch_classifier import ResidualClassifier


class ODL(ResidualClassifier):
    """Classifier with dictionaries that reconstruct their own class well.

    Parameters
    ----------
    n_atoms : int, default=500
        Number of atoms per class (k).
    penalty : float, default=0.1
        l1 penalty of training (λ) and of the codes of the classifier (γ).
    n_epochs : int, default=5
        Number of passes over the samples.
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
        Unit-norm atoms. With n_epochs=5 they are the initial atoms of a DFDL with the same seed,
        penalty and n_atoms.
    n_features_in_ : int
        Number of features seen during fit.
    """

    def __init__(
        self,
        n_atoms: int = 500,
        *,
        penalty: float = 0.1,
        n_epochs: int = 5,
        random_state: Any = None,
        n_jobs: int | None = None,
        backend: str = "cpu",
    ) -> None:
        self.n_atoms = n_atoms
        self.penalty = penalty
        self.n_epochs = n_epochs
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.backend = backend

    def check_parameters(self) -> None:
        """Raise ValueError if a parameter is invalid."""
        check_whole_number("n_atoms", self.n_atoms, 1)
        check_whole_number("n_epochs", self.n_epochs, 1)
        check_number("penalty", self.penalty, exclusive=True)

    def fit(self, X: ArrayLike, y: ArrayLike, *, callback: Callback = no_callback) -> ODL:
        """Learn the dictionaries.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training samples. At most 20,000 samples of a class are used, drawn at random.
        y : array-like of shape (n_samples,)
            Class labels.
        callback : callable, optional
            Called with a `Progress` of the stage "train" after every mini-batch. An exception in it
            ends the training.

        Returns
        -------
        ODL
            Fitted estimator.
        """
        self.check_parameters()
        samples, classes, labels = validate_labelled_data(self, X, y)
        results = learn_class_dictionaries(
            samples,
            labels,
            make_rng(self.random_state),
            n_atoms=int(self.n_atoms),
            penalty=float(self.penalty),
            n_epochs=int(self.n_epochs),
            n_jobs=self.n_jobs,
            backend=self.backend,
            stage="train",
            report=callback,
        )
        self.classes_ = classes
        self.dictionaries_ = np.stack([result.atoms for result in results])
        return self
