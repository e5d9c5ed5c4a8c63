from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from histodict.decision.threshold import DecisionThreshold
from histodict.models import load_model
from histodict.models.predictions import ImagePrediction


@pytest.mark.parametrize("rises", [True, False])
@pytest.mark.parametrize("reached", [True, False])
def test_threshold_is_compared_up_to_rounding(rises, reached):
    for value in (0.3, -0.3, 1e6 / 3):
        for error in (-1e-15, 0.0, 1e-15):
            point = DecisionThreshold("proportion", value * (1 + error), rises, reached)
            assert point.is_positive(value) is reached
    assert DecisionThreshold("proportion", 0.3, rises).is_positive(0.3001) is rises
    assert DecisionThreshold("proportion", 0.3, rises).is_positive(0.2999) is not rises


def test_threshold_of_the_model_leaves_the_score_exactly(small_models):
    """A score that is converted to a decision value and back may differ in its last bits."""
    model = load_model(small_models.path("dfdl"))
    assert model.threshold is not None
    for score in np.linspace(-2, 2, 101).tolist():
        stored = ImagePrediction(
            Path("a.png"), "", (score,), {}, model.threshold, 0, None, model._decision_value(score)
        )
        assert model.apply_threshold(stored).score == score
