"""Tests of the page's metrics with intervals by patient, and of differences between models."""

from __future__ import annotations

import pytest

from .conftest import MISSING

pytest.importorskip("starlette", reason=MISSING)

from histodict.web.model_report import accuracy_difference, describe_interval, summarize_scores

CLASSES = ["benign", "malignant"]


def rows(*groups):
    """Return n rows for each (label, prediction, patient, n)."""
    return [
        {"label": label, "answer": response, "patient": patient}
        for label, response, patient, n in groups
        for _ in range(n)
    ]


def test_patients_are_counted_per_class():
    found = summarize_scores(
        CLASSES,
        rows(
            ("malignant", "malignant", "1", 11),
            ("malignant", "malignant", "2", 11),
            *(("benign", "benign", str(patient), 3) for patient in range(3, 8)),
        ),
    )
    benign, malignant = found["classes"]
    assert (malignant["n_right"], malignant["n_images"], malignant["n_patients"]) == (22, 22, 2)
    assert malignant["interval"] is None and found["few_patients"].startswith(
        "few patients (5 with images of 'benign', 2 with images of 'malignant')"
    )
    assert found["balanced"] is None
    assert benign["n_patients"] == 5 and 0 < benign["interval"]["low"] < 1
    assert describe_interval(malignant["interval"]) == "no interval, too few patients"


def test_enough_patients_give_intervals():
    some = [("malignant", "malignant", f"m{n}", 2) for n in range(4)]
    some += [("benign", "malignant" if n == 0 else "benign", f"b{n}", 2) for n in range(4)]
    found = summarize_scores(CLASSES, rows(*some))
    assert found["balanced"]["low"] < 0.875 < found["balanced"]["high"]
    assert found["overlap"] == {}


def test_unknown_labels_give_a_mean_without_interval():
    some = [(name, name, f"{name}{n}", 1) for name in CLASSES for n in range(4)]
    assert summarize_scores(CLASSES, rows(*some))["balanced"] is not None
    assert summarize_scores(CLASSES, rows(*some, ("sick", "benign", "9", 1)))["balanced"] is None


def test_overlap_of_regions_has_an_interval():
    some = [
        {"label": "b", "answer": "b", "patient": str(n), "overlap": [[8, n, 1]]} for n in range(4)
    ]
    found = summarize_scores(["a", "b"], some, min_patches=1)["overlap"]
    assert found["Dice"]["low"] < 64 / 74 < found["Dice"]["high"]
    assert summarize_scores(["a", "b"], some[:2], min_patches=1)["overlap"] == {
        "Dice": None,
        "IoU": None,
    }
    assert summarize_scores(["a", "b"], some, min_patches=3)["overlap"] == {}


def compared(*groups):
    """Return n rows for each (label, previous prediction, current prediction, patient, n)."""
    found = [
        ({"label": label, "answer_before": before, "answer": now}, patient)
        for label, before, now, patient, n in groups
        for _ in range(n)
    ]
    return [row for row, _ in found], [patient for _, patient in found]


def test_interval_of_a_difference_in_one_patient_includes_zero():
    """33 of 41 correct now, 31 before: two images of one patient."""
    same = [("a", "a", "a", str(n), 4) for n in range(7)] + [("a", "b", "b", "7", 8)]
    found = accuracy_difference(*compared(*same, ("a", "a", "a", "8", 3), ("a", "b", "a", "8", 2)))
    assert found["value"] == pytest.approx(2 / 41)
    assert found["low"] <= 0 <= found["high"]


def test_interval_of_a_difference_in_all_patients_excludes_zero():
    found = accuracy_difference(*compared(*(("a", "b", "a", str(n), 3) for n in range(8))))
    assert found == {"value": 1.0, "low": 1.0, "high": 1.0}


def test_two_patients_give_no_interval():
    assert accuracy_difference(*compared(("a", "b", "a", "1", 9), ("a", "b", "a", "2", 9))) is None
