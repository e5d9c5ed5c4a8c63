from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array

from histodict.kernels import class_residuals, encode_lasso
from tests.kernels import reference
from tests.problems import coherent


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-5), (np.float64, 1e-12)])
def test_equals_the_reference(rng, dtype, tolerance):
    D, Y = coherent(rng, 60, 2100, 40, dtype)
    S = encode_lasso(D, Y, 0.02)
    classes = rng.integers(0, 3, 60)
    residuals = class_residuals(D, Y, S, classes)
    assert residuals.shape == (2100, 3)
    expected = reference.class_residuals(D, Y, S.toarray(), classes)
    np.testing.assert_allclose(residuals, expected, atol=tolerance)


def test_one_class_gives_the_plain_residual_and_zero_codes_the_norm(rng):
    D, Y = coherent(rng, 30, 20, 25)
    S = encode_lasso(D, Y, 0.02)
    plain = np.linalg.norm(Y - S.toarray() @ D, axis=1)
    np.testing.assert_allclose(class_residuals(D, Y, S, np.zeros(30, int))[:, 0], plain)
    empty = csr_array(S.shape)
    norms = np.linalg.norm(Y, axis=1)
    np.testing.assert_allclose(class_residuals(D, Y, empty, np.zeros(30, int))[:, 0], norms)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"S": csr_array((4, 6))}, "S must have shape"),
        ({"S": csr_array(np.full((4, 5), np.nan))}, "S contains NaN"),
        ({"atom_classes": [0, 1]}, "atom_classes"),
        ({"atom_classes": [0, 1, -1, 0, 1]}, "atom_classes"),
        ({"atom_classes": [0.5] * 5}, "atom_classes"),
    ],
)
def test_invalid_arguments_are_refused(arguments, message):
    valid = {
        "D": np.eye(5, 8),
        "Y": np.ones((4, 8)),
        "S": csr_array((4, 5)),
        "atom_classes": [0, 0, 1, 1, 1],
    }
    with pytest.raises(ValueError, match=message):
        class_residuals(**(valid | arguments))
