from __future__ import annotations

import pytest

from histodict.decision.threshold import DecisionThreshold


@pytest.mark.parametrize("rises", [True, False])
@pytest.mark.parametrize("reached", [True, False])
def test_threshold_is_compared_up_to_rounding(rises, reached):
    for value in (0.3, -0.3, 1e6 / 3):
        for error in (-1e-15, 0.0, 1e-15):
            point = DecisionThreshold("proportion", value * (1 + error), rises, reached)
            assert point.is_positive(value) is reached
    assert DecisionThreshold("proportion", 0.3, rises).is_positive(0.3001) is rises
    assert DecisionThreshold("proportion", 0.3, rises).is_positive(0.2999) is not rises
