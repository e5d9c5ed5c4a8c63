"""Tests of the kernels and DFDL on patches of real slides, which are coherent and partly blank."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from histodict import DFDL
from histodict.kernels import encode_lasso, encode_omp
from tests.kernels import reference
from tests.problems import unit_rows


@pytest.fixture(scope="module")
def tissue(data_folder):
    """Unit-norm RGB vectors of 10 × 10 patches, and their class, one of two."""
    rng = np.random.default_rng(0)
    vectors, labels = [], []
    for label, name in enumerate(("benign", "malignant")):
        for path in sorted((data_folder / "ucsb-breast" / name).glob("*.jpg"))[:8]:
            pixels = np.asarray(Image.open(path).convert("RGB").reduce(4), np.float32)
            for y, x in rng.integers(0, np.array(pixels.shape[:2]) - 10, (150, 2)):
                vectors.append(pixels[y : y + 10, x : x + 10].transpose(2, 0, 1).ravel())
                labels.append(label)
    blank = np.full((300, 300), 243.0, np.float32)
    X = unit_rows(np.concatenate([vectors, blank]))
    return X, np.concatenate([labels, np.arange(300) % 2])


def test_pursuit_is_as_good_as_the_reference(tissue):
    X, _ = tissue
    D, Y = X[::19], X[5::37]
    S = encode_omp(D, Y, 10)
    assert np.isfinite(S.data).all()
    slow = reference.encode_omp(D.astype(float), Y.astype(float), 10)
    ours, theirs = (np.sum((Y - codes @ D) ** 2) for codes in (S.toarray(), slow))
    assert ours <= 1.001 * theirs


def test_lasso_codes_have_a_small_duality_gap(tissue):
    X, _ = tissue
    D, Y = X[::5], X[2::7]
    S = encode_lasso(D, Y, 0.1).toarray().astype(float)
    assert reference.lasso_gap(D.astype(float), Y.astype(float), S, 0.1).max() <= 1e-4


def test_dfdl_is_trained_on_tissue_with_background(tissue):
    X, y = tissue
    model = DFDL(n_atoms=60, n_iter=8, random_state=0).fit(X, y)
    assert np.isfinite(model.dictionaries_).all()
    for values in model.objective_:
        assert values[-1] < values[0]
    assert model.score(X[:-300], y[:-300]) > 0.6
