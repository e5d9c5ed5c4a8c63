"""The encoder is created once per estimator, and again if the estimator changes."""

from __future__ import annotations

import gc
from copy import copy

import numpy as np
import pytest

from histodict.methods import patch_classifier as residual_rule
from histodict.methods.fddl import FDDL
from histodict.methods.odl import ODL
from histodict.methods.shirc import SHIRC
from histodict.methods.src import SRC

KINDS = [
    ODL(n_atoms=6, n_epochs=1, random_state=0),
    SRC(n_atoms=6, random_state=0),
    SHIRC(n_channels=3, n_atoms=6, random_state=0),
    FDDL(n_atoms=6, n_iter=2, random_state=0),
    FDDL(n_atoms=6, n_iter=2, decision="local", random_state=0),
]


@pytest.fixture
def samples(rng):
    X = rng.standard_normal((60, 12))
    y = np.repeat([0, 1], 30)
    X[y == 1, :6] *= 4
    return X, y


@pytest.fixture
def created_encoders(monkeypatch):
    """Record of created encoders."""
    counted: list[object] = []
    made = residual_rule._CachedEncoder.__init__

    def count(self, *arguments):
        counted.append(arguments)
        made(self, *arguments)

    monkeypatch.setattr(residual_rule._CachedEncoder, "__init__", count)
    return counted


@pytest.mark.parametrize("model", KINDS, ids=str)
def test_encoder_is_created_once_and_freed_with_the_model(model, samples, created_encoders):
    X, y = samples
    gc.collect()
    n_before = len(residual_rule._ENCODER_CACHE)
    fitted = type(model)(**model.get_params()).fit(X, y)
    created_encoders.clear()
    first = fitted.distances(X)
    for _ in range(3):  # images are predicted by copies on one thread
        assert np.array_equal(copy(fitted).set_params(n_jobs=1).distances(X), first)
    assert len(created_encoders) == 1
    assert len(residual_rule._ENCODER_CACHE) == n_before + 1
    created_encoders.clear()
    del fitted
    gc.collect()
    assert len(residual_rule._ENCODER_CACHE) == n_before


def test_encoder_is_created_again_after_a_change(samples, created_encoders):
    X, y = samples
    model = ODL(n_atoms=6, n_epochs=1, penalty=0.1, random_state=0).fit(X, y)
    before = model.distances(X)
    created_encoders.clear()

    def creates_encoder():
        changed = model.distances(X)
        n_opened = len(created_encoders)
        created_encoders.clear()
        return n_opened == 1 and not np.array_equal(changed, before)

    model.set_params(penalty=0.3)
    assert creates_encoder()
    model.set_params(penalty=0.1)
    assert np.array_equal(model.distances(X), before)
    created_encoders.clear()
    model.dictionaries_[0, 0] *= -1
    model.dictionaries_[0, 0, :3] = 0
    assert creates_encoder()
    less = model.disable_atoms([0])
    assert not np.array_equal(less.distances(X), model.distances(X))
