"""What the page asks for becomes a plan, also as it was written down before there were plans."""

import pytest

from histodict.pipeline import Plan
from histodict.web.data_sources import DataSources
from histodict.web.datasets import open_dataset
from histodict.web.folders import DataFolders
from histodict.web.training import (
    _CHANGED,
    OFFERS,
    Wish,
    offered_plan,
    train_and_test,
    training_request,
)
from histodict.web.workspace import User


@pytest.fixture
def dataset(tissue, tmp_path):
    user = User.of(tmp_path / "workspace", "local")
    return open_dataset(user, DataSources(DataFolders([tissue])), tissue / "tissue")


@pytest.mark.parametrize("offer", OFFERS)
def test_offers_are_presets_with_changes(offer):
    base, changes = _CHANGED.get(offer, (offer, {}))
    plan = offered_plan(offer, "dfdl")
    assert plan == Plan.named(base, "dfdl").with_settings(changes)
    assert {"panel", "calibration_folds"} <= set(plan.to_dict())  # fields of the page


def test_settings_that_a_method_lacks_are_left_out():
    plan = offered_plan("quick", "lbp-colour")
    assert "n_atoms" not in plan.recipe.method_parameters
    assert plan.recipe.patches_per_class == 2000
    with pytest.raises(ValueError, match="preset must be one of"):
        offered_plan("slow", "dfdl")


def test_a_request_is_read_back_as_the_same_wish(dataset):
    plan = offered_plan("pixels", "dfdl").with_settings({"panel": "false", "n_atoms": "9"})
    request = training_request(dataset, Wish(plan, None, 7, test_folds=2))
    again = Wish.again(request)
    assert (again.plan, again.regions, again.seed) == (plan, None, 7)
    assert training_request(dataset, again) == request
    learn, test = train_and_test(request)
    assert set(test.patients) == set(request["test_patients"])
    assert not set(test.patients) & set(learn.patients)


def test_requests_of_before_there_were_plans_are_read(dataset):
    request = training_request(dataset, Wish(offered_plan("quick", "dfdl"), None, 0))
    old = request | {"recipe": request["recipe"] | {"candidates": 0}}
    assert Wish.again(old) == Wish.again(request)
    with pytest.raises(ValueError, match="no longer chosen among candidates"):
        Wish.again(old | {"recipe": old["recipe"] | {"candidates": 4}})


@pytest.mark.parametrize(
    ("settings", "regions", "words"),
    [
        ({"vectors": "timm:x"}, None, "command line only"),
        ({}, "bone", "not among the classes"),
        ({"calibration_folds": "3"}, "inflamed", "not for regions"),
    ],
)
def test_what_does_not_fit_together_is_refused(dataset, settings, regions, words):
    settings = settings | ({"context": "1"} if "vectors" in settings else {})
    plan = offered_plan("quick", "dfdl").with_settings(settings)
    with pytest.raises(ValueError, match=words):
        training_request(dataset, Wish(plan, regions, 0))
