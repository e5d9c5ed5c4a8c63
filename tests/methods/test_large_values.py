"""Samples whose squares overflow give the same labels or an error, but no NaN."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from histodict.methods.registry import METHODS, get_method

PATCHES = sorted(name for name, entry in METHODS.items() if entry.is_patch_level)
SMALL = {
    "n_atoms": 6,
    "n_iter": 2,
    "n_nonzero": 3,
    "n_epochs": 1,
    "n_channels": 1,
    "random_state": 0,
}


def finite(model, X):
    arrays = [np.asarray(getattr(model, name)) for name in model.fitted_arrays]
    scores = model.decision_function(X)
    return all(np.isfinite(array).all() for array in [*arrays, scores] if array.dtype.kind == "f")


@pytest.mark.parametrize("name", PATCHES)
@pytest.mark.parametrize(
    ("dtype", "scale"),
    [(np.float32, 1e19), (np.float32, 1e25), (np.float32, 3e37), (float, 1e155), (float, 1e300)],
)
def test_overflowing_samples_give_the_same_labels_or_an_error(rng, name, dtype, scale):
    X = rng.random((40, 8)) + 0.2
    y = np.arange(40) % 2
    X[y == 1, :4] += 1
    method = get_method(name).load_class()
    expected = {k: v for k, v in SMALL.items() if k in method().get_params()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # overflow warnings before the error
        try:
            model = method(**expected).fit((X * scale).astype(dtype), y)
        except ValueError as error:
            assert "scale" in str(error) or "too large" in str(error)
            return
        assert finite(model, (X * scale).astype(dtype))
