"""Requests of the page become training plans."""

from dataclasses import replace

import pytest

from histodict.models import Plan
from histodict.utils.text_io import write_checked_json
from histodict.web.datasets import (
    DatasetIndexCache,
    DatasetSettings,
    add_correction,
    open_dataset,
    remove_correction,
    update_settings,
)
from histodict.web.model_report import applied_corrections
from histodict.web.training import (
    _PRESET_CHANGES,
    PRESET_LABELS,
    TrainingSettings,
    make_preset_plan,
    make_training_request,
    split_training_and_test,
)
from histodict.web.workspace import DataFolders, UserWorkspace


@pytest.fixture
def dataset(tissue, tmp_path):
    user = UserWorkspace.open(tmp_path / "workspace", "local")
    return open_dataset(user, DatasetIndexCache(DataFolders([tissue])), tissue / "tissue")


@pytest.mark.parametrize("offer", PRESET_LABELS)
def test_presets_of_the_page_are_presets_with_changes(offer):
    base, changes = _PRESET_CHANGES.get(offer, (offer, {}))
    plan = make_preset_plan(offer, "dfdl")
    assert plan == Plan.named(base, "dfdl").parse_settings(changes)
    assert {"ensemble", "calibration_folds"} <= set(plan.to_dict())  # fields of the page


def test_settings_that_a_method_lacks_are_omitted():
    plan = make_preset_plan("quick", "lbp-colour")
    assert "n_atoms" not in plan.recipe.method_parameters
    assert plan.recipe.patches_per_class == 2000
    with pytest.raises(ValueError, match="preset must be one of"):
        make_preset_plan("slow", "dfdl")


def test_request_round_trip(dataset):
    plan = make_preset_plan("pixels", "dfdl").parse_settings({"ensemble": "false", "n_atoms": "9"})
    request = make_training_request(dataset, TrainingSettings(plan, None, 7, test_folds=2))
    again = TrainingSettings.from_request(request)
    assert (again.plan, again.region_class, again.seed) == (plan, None, 7)
    assert make_training_request(dataset, again) == request
    learn, test = split_training_and_test(request)
    assert set(test.patients) == set(request["test_patients"])
    assert not set(test.patients) & set(learn.patients)


@pytest.mark.parametrize(
    ("settings", "regions", "message"),
    [
        ({"features": "timm:x"}, None, "command line only"),
        ({}, "bone", "not among the classes"),
        (
            {"calibration_folds": "3"},
            "inflamed",
            "cannot have probabilities: omit calibration_folds",
        ),
    ],
)
def test_incompatible_settings_are_refused(dataset, settings, regions, message):
    settings = settings | ({"context_scale": "1"} if "features" in settings else {})
    plan = make_preset_plan("quick", "dfdl").parse_settings(settings)
    with pytest.raises(ValueError, match=message):
        make_training_request(dataset, TrainingSettings(plan, regions, 0))


def corrected_in(dataset, requested, image, box):
    """Return the request of a training after a correction of this image, and the correction's
    status."""
    add_correction(dataset, image, "inflamed", box)
    request = make_training_request(dataset, requested)
    remove_correction(dataset, dataset.corrections()[0]["id"])
    return request, [c["use"] for c in applied_corrections(request)]


def test_status_of_a_correction_is_reported(dataset):
    """Marking a region makes its patient a training patient; former test patients stay in the test
    set."""
    first = TrainingSettings(make_preset_plan("quick", "dfdl"), None, 0, test_folds=2)
    request = make_training_request(dataset, first)
    stored = request["test_patients"]
    by_id = dataset.index.by_id
    tested, trained = (
        next(
            i for i, r in by_id.items() if (r.patient in stored) is is_test and r.label == "healthy"
        )
        for is_test in (True, False)
    )
    again, box = TrainingSettings.from_request(request), [0, 0, 60, 60]
    assert corrected_in(dataset, again, trained, box)[1] == ["learnt"]
    assert corrected_in(dataset, again, tested, None)[1] == ["truth"]
    found, uses = corrected_in(dataset, again, tested, box)
    assert uses == ["unused"] and found["test_patients"] == stored
    found, uses = corrected_in(dataset, first, tested, box)
    assert uses == ["learnt"] and by_id[tested].patient not in found["test_patients"]
    assert found["test_patients"]


def test_moved_patient_is_used_for_training(dataset):
    requested = TrainingSettings(make_preset_plan("quick", "dfdl"), None, 0, test_folds=2)
    moved, *others = make_training_request(dataset, requested)["test_patients"]
    update_settings(dataset, {"learn_from": [moved]})
    again = replace(dataset, settings=DatasetSettings.read(dataset.folder))
    assert make_training_request(again, replace(requested, test_patients=(moved, *others)))[
        "test_patients"
    ] == list(others)
    assert moved not in make_training_request(again, requested)["test_patients"]
    with pytest.raises(ValueError, match="patients of this data set"):
        update_settings(dataset, {"learn_from": ["nobody"]})


def test_missing_patients_are_not_in_the_test_set(dataset):
    requested = TrainingSettings(
        make_preset_plan("quick", "dfdl"), None, 0, test_patients=("gone", "patient01")
    )
    assert make_training_request(dataset, requested)["test_patients"] == ["patient01"]


def test_invalid_patient_names_in_settings_are_damage(tmp_path):
    DatasetSettings(mpp=0.5, learn_from=("a",)).write(tmp_path)
    assert DatasetSettings.read(tmp_path) == DatasetSettings(mpp=0.5, learn_from=("a",))
    write_checked_json(tmp_path / "about.json", {"positive": None, "mpp": 0.5, "learn_from": [1]})
    with pytest.raises(ValueError, match="learn_from is not a list of patients"):
        DatasetSettings.read(tmp_path)
