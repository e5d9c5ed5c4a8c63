from __future__ import annotations

import tracemalloc

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


def test_long_vectors_are_projected_without_their_covariance_matrix(monkeypatch):
    """Components of a planted subspace equal those from the covariance matrix."""
    generator = np.random.default_rng(3)
    scales = np.array([[9.0], [5.0], [3.0]])
    basis = np.linalg.qr(generator.normal(size=(400, 3)))[0].T * scales
    vectors = generator.normal(size=(300, 3)) @ basis + 0.01 * generator.normal(size=(300, 400)) + 2
    vectors = vectors.astype(np.float32)
    exact = Projection.fit(vectors, 3, whiten=True)
    monkeypatch.setattr("histodict.patches.vectors._MAX_COVARIANCE_FEATURES", 100)
    found = Projection.fit(vectors, 3, whiten=True)
    np.testing.assert_allclose(found.components, exact.components, rtol=1e-3, atol=1e-4)
    assert len(Projection.fit(vectors[:5], 30).components) == 4  # five centred vectors
    np.testing.assert_array_equal(
        Projection.fit(vectors, 3).components, Projection.fit(vectors, 3).components
    )
    with pytest.raises(ValueError, match="are equal"):
        Projection.fit(np.ones((10, 400), np.float32), 2)


def test_memory_of_long_vectors_grows_with_their_number_only():
    vectors = np.random.default_rng(4).normal(size=(60, 30_000)).astype(np.float32)
    tracemalloc.start()
    found = Projection.fit(vectors, 20)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.components.shape == (20, 30_000)
    assert peak < 20 * vectors.nbytes  # a covariance matrix would be 1,000 times as large
