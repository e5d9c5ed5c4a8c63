from __future__ import annotations

import numpy as np
import pytest
from sklearn.decomposition import PCA

from histodict.patches.vectors import Projection


@pytest.fixture
def vectors(rng):
    return (rng.standard_normal((500, 6)) @ rng.standard_normal((6, 30)) + 3).astype(np.float32)


def test_components_equal_scikit_learn(vectors):
    found = Projection.fit(vectors, 4)
    other = PCA(4).fit(vectors)
    np.testing.assert_allclose(abs(found.components @ other.components_.T), np.eye(4), atol=1e-4)
    np.testing.assert_allclose(np.linalg.norm(found(vectors), axis=1), 1, atol=1e-5)


def test_whitened_components_have_equal_variance(vectors):
    found = Projection.fit(vectors, 5, whiten=True)
    values = (vectors - found.mean) @ found.components.T
    np.testing.assert_allclose(np.cov(values.T), np.eye(5), atol=0.02)


def test_number_of_components_is_limited_by_the_rank(vectors):
    assert len(Projection.fit(vectors, 30).components) == 6
    with pytest.raises(ValueError, match="all training vectors are equal"):
        Projection.fit(np.ones((10, 4), np.float32), 2)
    assert (Projection.fit(vectors, 3)(vectors.mean(axis=0, keepdims=True)) ** 2).sum() <= 1 + 1e-5
