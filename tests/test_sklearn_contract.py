"""Every estimator passes the checks of scikit-learn."""

from __future__ import annotations

from sklearn.utils.estimator_checks import parametrize_with_checks

from histodict import DFDL
from histodict.methods.fddl import FDDL
from histodict.methods.lcksvd import LCKSVD
from histodict.methods.linear_baselines import (
    LogisticPatchClassifier,
    NearestMeanClassifier,
    NearestPatchClassifier,
)
from histodict.methods.nayak import Nayak
from histodict.methods.odl import ODL
from histodict.methods.shirc import SHIRC
from histodict.methods.src import SRC
from histodict.methods.svm import StandardizedSVM
from histodict.methods.wndcharm import WNDCHARM


@parametrize_with_checks(
    [
        DFDL(n_atoms=10, n_iter=5),
        ODL(n_atoms=10),
        LCKSVD(n_atoms=10, n_iter=5),
        LCKSVD(n_atoms=10, n_iter=5, decision="residual"),
        FDDL(n_atoms=10, n_iter=3),
        FDDL(n_atoms=10, n_iter=3, decision="local"),
        Nayak(n_atoms=10, n_iter=3),
        Nayak(n_atoms=10, n_iter=3, encoder="exact"),
        SRC(n_atoms=10),
        SHIRC(n_channels=1),  # the numbers of features in the checks are not divisible by 3
        StandardizedSVM(),
        WNDCHARM(1.0),
        WNDCHARM(1.0, decision="neighbours"),
        NearestMeanClassifier(),
        LogisticPatchClassifier(),
        NearestPatchClassifier(),
    ]
)
def test_estimator_passes_the_check(estimator, check):
    check(estimator)
