from __future__ import annotations

import pytest

from histodict.model_selection.protocols import k_folds
from histodict.model_selection.splits import (
    PatientLeakError,
    Split,
    SplitError,
    check_patients_disjoint,
    check_splits,
    is_cross_validated,
)
from tests.model_selection.manifests import UCSB, manifest_of

# positions 0, 1: patient 1; 2, 3: patient 2; 4, 5: patient 3; benign and malignant in turn
MANIFEST = manifest_of({"1": (1, 1), "2": (1, 1), "3": (1, 1)})


def test_disjoint_patients_pass():
    check_patients_disjoint(MANIFEST, Split("good", [0, 1, 2, 3], [4, 5]))


def test_planted_leakage_is_named():
    with pytest.raises(
        PatientLeakError, match="split 'bad': patient '2' is in both training and test set"
    ):
        check_patients_disjoint(MANIFEST, Split("bad", [0, 1, 2], [3, 4, 5]))
    with pytest.raises(
        PatientLeakError, match=r"patient '1' \(and 1 more\) is in both training and test set"
    ):
        check_patients_disjoint(MANIFEST, Split("bad", [0, 2], [1, 3, 4, 5]))


def test_leakage_is_checked_unless_splitting_by_image():
    with pytest.raises(PatientLeakError, match="patient '2'"):
        check_splits(MANIFEST, [Split("bad", [0, 1, 2], [3, 4, 5])])
    by_image = Split("said so", [0, 1, 2], [3, 4, 5], unit="image")
    check_splits(MANIFEST, [by_image])
    with pytest.raises(PatientLeakError):  # with an explicit check, whatever `by` of the split
        check_patients_disjoint(MANIFEST, by_image)


def test_every_tested_class_must_be_in_training():
    with pytest.raises(SplitError, match="the training set has no image of class 'malignant'"):
        check_splits(MANIFEST, [Split("half", [0, 2], [4, 5])])


@pytest.mark.parametrize(
    ("sides", "message"),
    [
        (([0, 1], [1, 2]), "an image occurs twice"),
        (([0, 0], [1]), "an image occurs twice"),
        (([], [1]), "the training set is empty"),
        (([1], []), "the test set is empty"),
    ],
)
def test_invalid_splits_are_refused(sides, message):
    with pytest.raises(SplitError, match=message):
        Split("x", *sides)


def test_positions_beyond_the_manifest_are_refused():
    for place in (6, -1):
        with pytest.raises(SplitError, match="indices exceed the 6 images"):
            check_splits(MANIFEST, [Split("x", [0, 1], [place])])


def test_cross_validated_detects_patients_in_training_and_test():
    manifest = manifest_of(UCSB)
    assert is_cross_validated(manifest, k_folds(manifest, 3))
    first = k_folds(manifest, 3).splits[0]
    assert not is_cross_validated(manifest, [first, first])
    by_image = Split("x", [0, 2], [1, 3], unit="image")  # of the same patients
    assert not is_cross_validated(MANIFEST, [by_image, by_image])
