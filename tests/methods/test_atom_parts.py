"""Tests of distance contributions: they add up, are Shapley values, and respect disabled atoms."""

from itertools import combinations
from math import factorial

import numpy as np
import pytest
from scipy.sparse import csr_array

from histodict.methods.dfdl import DFDL
from histodict.methods.fddl import FDDL
from histodict.methods.lcksvd import LCKSVD
from histodict.methods.linear_baselines import LogisticPatchClassifier, NearestMeanClassifier
from histodict.methods.nayak import Nayak
from histodict.methods.odl import ODL
from histodict.methods.patch_classifier import squared_residual_contributions
from histodict.methods.shirc import SHIRC
from histodict.methods.src import SRC

WITH_ATOMS = [
    DFDL(6, n_iter=2, random_state=0),
    ODL(6, n_epochs=1, random_state=0),
    SRC(20, random_state=0),
    FDDL(5, n_iter=2, random_state=0, decision="global"),
    LCKSVD(5, n_iter=2, n_nonzero=3, random_state=0),
    LCKSVD(5, n_iter=2, n_nonzero=3, random_state=0, decision="residual"),
]
WITHOUT_ATOMS = [
    Nayak(6, n_iter=2, random_state=0),
    NearestMeanClassifier(),
    LogisticPatchClassifier(),
    FDDL(5, n_iter=2, random_state=0, decision="local"),
    SHIRC(20, n_channels=3, random_state=0),
]


def samples(n_classes=2, dtype=np.float64):
    rng = np.random.default_rng(1)
    centres = rng.normal(size=(n_classes, 12))
    y = np.arange(90) % n_classes
    return (centres[y] + 0.6 * rng.normal(size=(90, 12))).astype(dtype), y


def names(method):
    return f"{type(method).__name__}-{getattr(method, 'decision', '')}"


def fitted(method, X, y):
    return type(method)(**method.get_params()).fit(X, y)


def test_squared_contributions_are_shapley_values():
    """By definition: the mean over all orders of an atom's decrease of ‖y − …‖²."""
    rng = np.random.default_rng(0)
    D, y, s = rng.normal(size=(4, 6)), rng.normal(size=6), rng.normal(size=4)

    def left(atoms):
        return float(np.sum((y - sum((s[j] * D[j] for j in atoms), np.zeros(6))) ** 2))

    expected = np.zeros(4)
    for j in range(4):
        others = [k for k in range(4) if k != j]
        for size in range(4):
            share = factorial(size) * factorial(3 - size) / factorial(4)
            for before in combinations(others, size):
                expected[j] += share * (left((*before, j)) - left(before))
    found = squared_residual_contributions(D, y[None], csr_array(s[None])).toarray()[0]
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("method", [*WITH_ATOMS, *WITHOUT_ATOMS], ids=names)
def test_contributions_and_rest_add_up_to_the_distance(method, n_classes):
    X, y = samples(n_classes)
    model = fitted(method, X, y)
    codes, distances = model.encode(X)
    parts = model.distance_contributions(X, codes, distances)
    for place in range(n_classes):
        others = (distances.sum(axis=1) - distances[:, place]) / (n_classes - 1)
        rest = (parts.rest.sum(axis=1) - parts.rest[:, place]) / (n_classes - 1)
        reported = parts.margin_contributions(place).sum(axis=1) + rest - parts.rest[:, place]
        np.testing.assert_allclose(reported, others - distances[:, place], atol=1e-9)


@pytest.mark.parametrize("method", WITH_ATOMS, ids=names)
def test_rest_is_zero_or_constant_per_class(method):
    X, y = samples()
    model = fitted(method, X, y)
    codes, distances = model.encode(X)
    rest = model.distance_contributions(X, codes, distances).rest
    # The part of FDDL's mean codes belongs to no atom, and depends on the class alone.
    if isinstance(model, FDDL):
        means = (model.code_means_**2).sum(axis=1) * model.mean_weight
        rest = rest - means / (distances + np.linalg.norm(X, axis=1)[:, None])
    np.testing.assert_allclose(rest, 0, atol=1e-9)


def test_unused_atoms_contribute_nothing():
    X, y = samples()
    model = fitted(WITH_ATOMS[0], X, y)
    codes, distances = model.encode(X)
    margin = model.distance_contributions(X, codes, distances).margin_contributions(1)
    assert not margin.toarray()[codes.toarray() == 0].any()


# --- disabled atoms -------------------------------------------------------------------------------


def reduced(model, off):
    """Return a model without these atoms in its arrays."""
    D, classes = model.labelled_atoms()
    stored = np.setdiff1d(np.arange(len(D)), off)
    other = type(model)(**model.get_params())
    other.__dict__ |= {k: v for k, v in model.__dict__.items() if k.endswith("_")}
    other.labelled_atoms = lambda: (np.ascontiguousarray(D[stored]), classes[stored])
    if isinstance(model, LCKSVD):
        other.classifier_ = model.classifier_[stored]
    if isinstance(model, FDDL):
        other.code_means_ = model.code_means_[:, stored]
    return other, stored


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("method", WITH_ATOMS, ids=names)
def test_disabled_atoms_equal_removed_atoms_bit_for_bit(method, dtype):
    X, y = samples(dtype=dtype)
    model = fitted(method, X, y)
    off = [1, 3, 7]
    without, stored = reduced(model, off)
    codes, distances = model.disable_atoms(off).encode(X)
    expected, expected_distances = without.encode(X)
    np.testing.assert_array_equal(codes.toarray()[:, stored], expected.toarray())
    np.testing.assert_array_equal(distances, expected_distances)
    assert not codes.toarray()[:, off].any() and codes.shape[1] == model.n_codes_
    assert not np.array_equal(distances, model.encode(X)[1])  # disabling changes the result
    np.testing.assert_array_equal(model.disable_atoms(off).distances(X), expected_distances)
    again = model.disable_atoms(off).disable_atoms([])
    np.testing.assert_array_equal(again.encode(X)[1], model.encode(X)[1])


def test_contributions_add_up_with_disabled_atoms():
    X, y = samples()
    model = fitted(WITH_ATOMS[0], X, y).disable_atoms([0, 8])
    codes, distances = model.encode(X)
    np.testing.assert_allclose(model.distance_contributions(X, codes, distances).rest, 0, atol=1e-9)


@pytest.mark.parametrize("off", [[99], [-1], [0, 1, 2, 3, 4, 5]])
def test_invalid_atoms_cannot_be_disabled(off):
    model = fitted(WITH_ATOMS[0], *samples())
    with pytest.raises(ValueError, match=r"unknown atoms|at least one enabled"):
        model.disable_atoms(off)


@pytest.mark.parametrize("method", WITHOUT_ATOMS, ids=names)
def test_methods_without_atoms_refuse_to_disable_any(method):
    with pytest.raises(ValueError, match="no atoms that can be disabled"):
        fitted(method, *samples()).disable_atoms([0])
