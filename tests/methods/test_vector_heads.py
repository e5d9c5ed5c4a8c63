from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

from histodict.methods.linear_baselines import (
    LogisticPatchClassifier,
    NearestMeanClassifier,
    NearestPatchClassifier,
)

HEADS = [NearestMeanClassifier(), LogisticPatchClassifier(), NearestPatchClassifier(random_state=0)]


@pytest.fixture
def clouds(rng):
    """Vectors of three classes, each around its own direction."""
    centres = rng.standard_normal((3, 12))
    y = rng.integers(0, 3, 240)
    return centres[y] + 0.7 * rng.standard_normal((240, 12)), y


@pytest.mark.parametrize("head", HEADS, ids=lambda h: type(h).__name__)
def test_separates_classes_for_any_number_of_threads(head, clouds):
    X, y = clouds
    head.fit(X[:120], y[:120])
    assert (head.predict(X[120:]) == y[120:]).mean() > 0.9
    codes, distances = head.encode(X[120:])
    np.testing.assert_array_equal(codes.toarray(), -distances)
    assert codes.shape[1] == head.n_codes_
    for n_jobs in (1, 2):
        np.testing.assert_array_equal(
            head.set_params(n_jobs=n_jobs).encode(np.tile(X, (10, 1)))[1][:120],
            head.encode(X[:120])[1],
        )


def test_logistic_distances_are_minus_log_probabilities(clouds):
    X, y = clouds
    for labels in (y, (y > 0).astype(int)):
        distances = LogisticPatchClassifier(C=0.5).fit(X, labels).encode(X)[1]
        other = LogisticRegression(C=0.5, class_weight="balanced", max_iter=2000).fit(X, labels)
        np.testing.assert_allclose(np.exp(-distances), other.predict_proba(X), atol=1e-4)


def test_votes_are_those_of_cosine_neighbours(clouds):
    X, y = clouds
    head = NearestPatchClassifier(7, random_state=0).fit(X[:150], y[:150])
    other = KNeighborsClassifier(7, metric="cosine").fit(X[:150], y[:150])
    np.testing.assert_allclose(1 - head.encode(X[150:])[1], other.predict_proba(X[150:]))


def test_mean_of_patch_margins_is_the_margin_of_the_mean(clouds):
    """Squared distances: averaging over the patches of an image equals SimpleShot on the image."""
    X, y = clouds
    head = NearestMeanClassifier().fit(X, y)
    unit = X - head.centre_
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    image = unit[:30].mean(axis=0)
    of_image = ((image - head.means_) ** 2).sum(axis=1)
    of_patches = head.encode(X[:30])[1].mean(axis=0)
    np.testing.assert_allclose(
        of_patches - of_patches[0], of_image - of_image[0], rtol=1e-9, atol=1e-12
    )


def test_seed_and_max_patches(clouds):
    X, y = clouds
    one, two = (NearestPatchClassifier(max_patches=10, random_state=3).fit(X, y) for _ in range(2))
    np.testing.assert_array_equal(one.patches_, two.patches_)
    assert len(one.patches_) == 30
