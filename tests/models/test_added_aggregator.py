"""Tests of an aggregator that is added to the registry and has no fitted arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from histodict.decision.aggregation import AGGREGATORS, Aggregator
from histodict.models import TissueClassifier, load_model, save_model
from histodict.models.model_file import read_header
from histodict.reports.model_card import _AGGREGATION_DESCRIPTIONS, describe_model


@dataclass(frozen=True)
class Majority(Aggregator):
    """The class of most patches."""

    name: str = "majority"

    @classmethod
    def fit(cls, name, statistics, labels):
        return cls(name)

    def scores(self, statistics):
        counts = statistics.class_counts
        return np.array([(counts[1] - counts[0]) / max(counts.sum(), 1)])

    @classmethod
    def array_schema(cls, name):
        return {}

    def atom_contributions(self, atoms):
        return np.zeros((1, atoms.n_codes))

    def select_atoms(self, indices, n_codes):
        return self


@pytest.fixture
def images(rng):
    """Fine and coarse stripes, on which every aggregator is right."""
    stripes = np.array([[[200, 120, 160]], [[90, 40, 120]]], np.uint8)
    fine, coarse = np.tile(stripes, (32, 64, 1)), np.tile(stripes.repeat(4, 0), (8, 64, 1))
    noise = rng.integers(0, 12, (12, 64, 64, 3), dtype=np.uint8)
    return [noise[i] + (fine if i % 2 else coarse) for i in range(12)], ["a", "b"] * 6


def test_aggregator_without_arrays_survives_a_model_file(monkeypatch, tmp_path, images):
    monkeypatch.setitem(AGGREGATORS, "majority", Majority)
    settings = {"n_atoms": 4, "n_iter": 2, "patch_px": 8, "patches_per_class": 100, "downsample": 1}
    model = TissueClassifier("fast", aggregation="majority", **settings).fit(*images)
    save_model(model, tmp_path / "model.histodict")
    loaded = load_model(tmp_path / "model.histodict")
    for pixels, label in zip(*images, strict=True):
        prediction = model.predict(pixels)
        assert prediction.label == label and prediction.score != 0
        assert loaded.predict(pixels).score == prediction.score
    assert "majority" in str(describe_model(read_header(tmp_path / "model.histodict")))


def test_own_aggregators_are_described():
    assert set(_AGGREGATION_DESCRIPTIONS) == set(AGGREGATORS)
