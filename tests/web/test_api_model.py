"""The metrics of the model page follow the threshold for every kind of model."""

import pytest

from .conftest import MISSING

pytest.importorskip("starlette", reason=MISSING)

from histodict.models import load_model
from histodict.web.api.model import _results_at_threshold


@pytest.mark.parametrize(
    ("name", "kind", "value"),
    [
        ("dfdl", "margin", 0.5),
        ("textures", "score", 0.5),
        ("ensemble", "score", 0.5),
        ("regions", "patches", 3),
    ],
)
def test_predictions_are_evaluated_at_another_threshold(small_models, name, kind, value):
    model = load_model(small_models.path(name))
    first, second = model.classes_
    rows = [{"answer": first, "value": value + step} for step in (-0.1, 0.1)]
    results = {"operating_point": None, "images": [*rows, {"answer": None, "value": None}]}
    found = _results_at_threshold(model.with_threshold(value), results)
    assert [row["answer"] for row in found["images"]] == [first, second, None]
    assert found["operating_point"]["kind"] == kind
    assert found["operating_point"]["value"] == pytest.approx(value)


def test_more_than_two_classes_have_no_threshold(small_models):
    model = load_model(small_models.path("three"))
    results = {"operating_point": None, "images": [{"answer": "a", "value": 1.0}]}
    assert _results_at_threshold(model, results) is results
    with pytest.raises(ValueError, match="two classes"):
        model.with_threshold(0.5)
