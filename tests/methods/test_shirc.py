from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest

from histodict.kernels import encode_omp
from histodict.methods.shirc import SHIRC
from tests.kernels import reference as slow
from tests.problems import coherent, unit_rows


def planes(rng, n_per_class=(60, 40, 50), size=16, dimension=3, noise=0.05, dtype=float):
    """Return rows of three planes; in every plane each class fills its own subspace, up to
    noise."""
    parts = []
    for n in n_per_class:
        basis = rng.standard_normal((3, dimension, size))
        clean = np.einsum("cnr,crm->ncm", rng.standard_normal((3, n, dimension)), basis)
        parts.append(unit_rows(clean.reshape(n, -1)))
    X = np.concatenate(parts)
    X = X + noise * rng.standard_normal(X.shape) / np.sqrt(X.shape[1])
    return X.astype(dtype), np.repeat(np.arange(len(n_per_class)), n_per_class)


def halves(rng, X, y):
    order = rng.permutation(len(X))
    train, test = order[: len(X) // 2], order[len(X) // 2 :]
    return X[train], y[train], X[test], y[test]


def split(X):
    return X.reshape(len(X), 3, -1).transpose(1, 0, 2)


# --- the mathematics


def test_codes_and_residuals_equal_the_reference(rng):
    X, y, Z, _ = halves(rng, *planes(rng, noise=0.5))
    model = SHIRC(None, n_nonzero=6).fit(X, y)
    codes, residuals = model.encode(Z)
    D, Y = split(model.atoms_), split(unit_rows(Z))
    S = slow.encode_joint(D, Y, 6, selection="correlation")
    np.testing.assert_allclose(codes.toarray().reshape(len(Z), -1, 3), S.transpose(1, 2, 0))
    for i in range(3):
        left = Y - (S * (model.atom_classes_ == i)) @ D
        np.testing.assert_allclose(residuals[:, i] ** 2, np.sum(left**2, axis=(0, 2)), atol=1e-9)


def test_equal_channels_give_the_residuals_of_plain_pursuit(rng):
    X, y, Z, _ = halves(rng, *planes(rng, noise=0.5))
    grey, grey_z = unit_rows(X[:, :16]), unit_rows(Z[:, :16])
    model = SHIRC(None, n_nonzero=5).fit(np.tile(grey, 3), y)
    order = np.argsort(y, kind="stable")
    S = encode_omp(grey[order], grey_z, 5, selection="correlation")
    expected = slow.class_residuals(grey[order], grey_z, S.toarray(), y[order])
    np.testing.assert_allclose(model.class_residuals(np.tile(grey_z, 3)), expected, atol=1e-9)
    np.testing.assert_array_equal(model.predict(np.tile(grey_z, 3)), expected.argmin(axis=1))


def test_one_channel_is_plain_pursuit(rng):
    X, y, Z, _ = halves(rng, *planes(rng, noise=0.5))
    model = SHIRC(None, n_nonzero=5, n_channels=1).fit(X, y)
    S = encode_omp(model.atoms_, unit_rows(Z), 5, selection="correlation")
    np.testing.assert_allclose(model.encode(Z)[0].toarray(), S.toarray(), atol=1e-9)


def test_order_of_the_channels_does_not_matter(rng):
    X, y, Z, _ = halves(rng, *planes(rng, noise=0.5))
    residuals = SHIRC(None).fit(X, y).class_residuals(Z)
    for order in itertools.permutations(range(3)):
        turned, turned_z = (
            rows.reshape(-1, 3, 16)[:, order].reshape(rows.shape) for rows in (X, Z)
        )
        other = SHIRC(None).fit(turned, y).class_residuals(turned_z)
        np.testing.assert_allclose(other, residuals, atol=1e-9)


def test_classes_of_different_subspaces_are_recognised(rng):
    X, y, Z, truth = halves(rng, *planes(rng, (100, 60, 20)))
    assert SHIRC(None).fit(X, y).score(Z, truth) > 0.97
    assert SHIRC(8, random_state=0).fit(X, y).score(Z, truth) > 0.9


def test_channel_gains_do_not_matter(rng):
    """Illumination: every plane is scaled by its own factor, without effect."""
    X, y, Z, truth = halves(rng, *planes(rng, noise=0.02))
    model = SHIRC(None).fit(X, y)
    tinted = (Z.reshape(-1, 3, 16) * np.array([0.7, 1.0, 1.4])[:, None]).reshape(Z.shape)
    assert model.score(tinted, truth) > 0.97


def test_scale_and_sign_of_samples_do_not_matter(rng):
    X, y, Z, _ = halves(rng, *planes(rng, noise=0.3))
    model = SHIRC(None).fit(X, y)
    residuals = model.class_residuals(Z)
    for factor in (1e-6, -1.0, 1e6):
        np.testing.assert_allclose(model.class_residuals(factor * Z), residuals, atol=1e-9)
    factors = rng.choice([-1, 1], (len(X), 1)) * rng.uniform(0.01, 100, (len(X), 1))
    rescaled = SHIRC(None).fit(factors * X, y)
    np.testing.assert_allclose(rescaled.class_residuals(Z), residuals, atol=1e-9)


def test_training_samples_are_classified_correctly(rng):
    X, y = planes(rng, noise=0.5)
    assert SHIRC(None).fit(X, y).score(X, y) == 1.0


# --- state


def test_keeps_at_most_n_atoms_per_class_and_codes_every_channel(rng):
    X, y = planes(rng, (30, 5, 12))
    model = SHIRC(10, n_nonzero=4, random_state=0).fit(X, y)
    np.testing.assert_array_equal(np.bincount(model.atom_classes_), [10, 5, 10])
    codes = model.encode(X)[0]
    assert codes.shape == (47, 75) and model.n_codes_ == 75
    used = codes.toarray().reshape(47, 25, 3) != 0
    np.testing.assert_array_equal(used[:, :, 0], used[:, :, 1])
    assert used[:, :, 0].sum(axis=1).max() <= 4


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_seed_determines_the_selection_for_any_number_of_threads(rng, dtype):
    X, y = planes(rng, (900, 700), dtype=dtype)
    one, two = (SHIRC(50, random_state=3, n_jobs=n).fit(X, y) for n in (1, 2))
    assert one.atoms_.dtype == dtype
    np.testing.assert_array_equal(one.atoms_, two.atoms_)
    np.testing.assert_array_equal(one.class_residuals(X), two.class_residuals(X))
    other = SHIRC(50, random_state=4).fit(X, y)
    assert not np.array_equal(one.atoms_, other.atoms_)


def test_fitted_arrays_restore_the_model(rng):
    X, y = planes(rng)
    model = SHIRC(20, n_nonzero=3, random_state=0).fit(X, np.array(["a", "b", "c"])[y])
    restored = SHIRC(20, n_nonzero=3)
    restored.classes_, restored.n_features_in_ = model.classes_, model.n_features_in_
    for name in SHIRC.fitted_arrays:
        setattr(restored, name, getattr(model, name))
    np.testing.assert_array_equal(restored.predict(X), model.predict(X))
    np.testing.assert_array_equal(restored.class_residuals(X), model.class_residuals(X))


# --- difficult input


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_zero_constant_and_repeated_samples(rng, dtype):
    tissue, _ = coherent(rng, 60, 1, 30, dtype)
    blank = np.full((40, 30), 1 / np.sqrt(30), dtype)
    tissue[:5, :10] = 0  # an empty plane
    X = np.concatenate([tissue[:30], blank, np.zeros((5, 30), dtype), tissue[30:], blank[:10]])
    y = np.repeat([0, 1], [75, 40])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        codes, residuals = SHIRC(None, n_nonzero=20).fit(X, y).encode(X)
    assert np.isfinite(codes.data).all() and np.isfinite(residuals).all()
    assert residuals[70:75].max() == 0
    np.testing.assert_allclose(residuals[30:70].min(axis=1), 0, atol=1e-3)


def test_classes_of_one_sample_and_of_zeros(rng):
    X = np.concatenate([rng.standard_normal((3, 12)), np.zeros((4, 12))])
    y = np.array(["one", "two", "two"] + ["zeros"] * 4)
    model = SHIRC(n_nonzero=1).fit(X, y)
    np.testing.assert_array_equal(model.predict(X[:3]), y[:3])
    np.testing.assert_allclose(model.class_residuals(X[:3])[:, 2], 1)
    nothing = SHIRC().fit(np.zeros((4, 6)), [0, 0, 1, 1])
    np.testing.assert_allclose(nothing.class_residuals(np.ones((1, 6))), [[1, 1]])


def test_incomplete_planes_are_refused(rng):
    X, y = planes(rng)
    with pytest.raises(ValueError, match="47 features, which is not a multiple of n_channels=3"):
        SHIRC().fit(X[:, 1:], y)
    model = SHIRC().fit(X, y).set_params(n_channels=5)
    with pytest.raises(ValueError, match="48 features, which is not a multiple of n_channels=5"):
        model.predict(X)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_atoms": 0}, "n_atoms"),
        ({"n_nonzero": 0}, "n_nonzero"),
        ({"n_nonzero": 2.5}, "n_nonzero"),
        ({"n_channels": 0}, "n_channels"),
    ],
)
def test_invalid_parameters_are_refused(rng, parameters, message):
    with pytest.raises(ValueError, match=message):
        SHIRC(**parameters).fit(*planes(rng))


def test_one_class_is_refused(rng):
    X, _ = planes(rng)
    with pytest.raises(ValueError, match="SHIRC needs at least two classes"):
        SHIRC().fit(X, np.ones(len(X)))
