"""Every estimator keeps scikit-learn's rules."""

from __future__ import annotations

from sklearn.utils.estimator_checks import parametrize_with_checks

from histodict import DFDL


@parametrize_with_checks([DFDL(n_atoms=10, n_iter=5)])
def test_estimator(estimator, check):
    check(estimator)
