"""Online dictionary learning (ODL), class by class: dictionaries that know nothing of each other.

Per class, with Y its samples:

    min_{D, S}  ½‖Y − SD‖² + penalty·‖S‖₁   with unit-norm atoms

It is what DFDL starts from, and so the method to hold it against: what the discriminative term
brings is the difference.

Reference: Mairal, Bach, Ponce, Sapiro, "Online learning for matrix factorization and sparse
coding", JMLR 2010.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..utils.progress import Callback, no_callback
from ..utils.validation import check_number, check_whole_number
from .class_dictionaries import check_labelled, learn_class_dictionaries, make_rng
from .patch_classifier import ResidualClassifier


class ODL(ResidualClassifier):
    """Class-specific dictionaries that code their own class well.

    Parameters
    ----------
    n_atoms : atoms per class (k)
    penalty : l1 penalty of training (λ) and of the classifier's codes (γ)
    n_epochs : passes over the samples
    random_state : seed; the same seed gives the same result for any n_jobs
    n_jobs : threads; None for all cores
    backend : arithmetic inside a block of samples, "cpu" or "cuda"

    Attributes
    ----------
    classes_ : (n_classes,)
    dictionaries_ : (n_classes, n_atoms, n_features), unit-norm atoms; with n_epochs=5, those that
        DFDL with the same seed, penalty and n_atoms starts from
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
        check_whole_number("n_atoms", self.n_atoms, 1)
        check_whole_number("n_epochs", self.n_epochs, 1)
        check_number("penalty", self.penalty, above=True)

    def fit(self, X: ArrayLike, y: ArrayLike, *, callback: Callback = no_callback) -> ODL:
        """Learn the dictionaries from samples X (n_samples, n_features) and their labels.

        Each class is learnt from 20,000 of its samples at most, drawn at random. `callback` gets a
        `Progress` of stage "train" after every mini-batch; an exception in it ends the training.
        """
        self.check_parameters()
        samples, classes, labels = check_labelled(self, X, y)
        learnt = learn_class_dictionaries(
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
        self.dictionaries_ = np.stack([start.atoms for start in learnt])
        return self
