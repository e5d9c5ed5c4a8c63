from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from sklearn.model_selection import StratifiedGroupKFold

from histodict.datasets.manifest import Manifest, read_manifest
from histodict.model_selection.protocols import (
    k_folds,
    learning_curve_splits,
    leave_one_site_out,
    predefined_split,
)
from histodict.model_selection.splits import PatientLeakError, SplitError
from histodict.utils.validation import hints_for
from tests.model_selection.manifests import GLAS, UCSB, manifest_of

GLAS_SHAPED, UCSB_SHAPED = manifest_of(GLAS), manifest_of(UCSB)
SHAPES = pytest.mark.parametrize("manifest", [GLAS_SHAPED, UCSB_SHAPED], ids=["glas", "ucsb"])


def patients(manifest, places):
    return {manifest.records[place].patient for place in places}


def classes(manifest, places):
    return {manifest.records[place].label for place in places}


def max_deviation(manifest, tests):
    """Return the largest relative deviation of a class's images in a fold from an equal share."""
    F = np.array(
        [[sum(manifest.labels[i] == c for i in t) for c in manifest.classes] for t in tests]
    )
    return np.abs(F / F.mean(axis=0) - 1).max()


# --- folds --------------------------------------------------------------------------------------


@SHAPES
@pytest.mark.parametrize("n_folds", [2, 3, 5])
def test_folds_partition_patients_and_have_every_class(manifest, n_folds):
    splits = k_folds(manifest, n_folds, n_repeats=6)
    assert len(splits) == 6 * n_folds
    for repeat in range(6):
        folds = [split for split in splits if split.repeat == repeat]
        tested = [place for split in folds for place in split.test]
        assert sorted(tested) == list(range(len(manifest.records)))
        for split in folds:
            assert sorted(split.train + split.test) == sorted(tested)
            assert not patients(manifest, split.train) & patients(manifest, split.test)
            for side in (split.train, split.test):
                assert classes(manifest, side) == {"benign", "malignant"}


@SHAPES
@pytest.mark.parametrize("n_folds", [2, 3, 5])
def test_folds_are_as_even_as_those_of_scikit_learn(manifest, n_folds):
    ours, theirs = [], []
    for seed in range(15):
        ours.append(
            max_deviation(manifest, [s.test for s in k_folds(manifest, n_folds, random_state=seed)])
        )
        folds = StratifiedGroupKFold(n_folds, shuffle=True, random_state=seed)
        sides = folds.split(manifest.labels, manifest.labels, manifest.patients)
        theirs.append(max_deviation(manifest, [test for _, test in sides]))
    assert np.mean(ours) <= np.mean(theirs) + 0.01
    assert max(ours) <= max(theirs) + 0.01


def test_folds_of_glas_are_nearly_even():
    # 74 benign and 91 malignant images; two patients alone have 20 malignant ones, a fifth is 18.2.
    for split in k_folds(GLAS_SHAPED, 5, n_repeats=10):
        labels = [GLAS_SHAPED.labels[place] for place in split.test]
        assert 10 <= labels.count("benign") <= 20
        assert 12 <= labels.count("malignant") <= 24


def test_leave_one_patient_out():
    splits = k_folds(UCSB_SHAPED, 10)
    assert sorted(len(patients(UCSB_SHAPED, split.test)) for split in splits) == [1] * 10
    # One group has only benign images: its fold cannot test malignant ones, the others do.
    assert sum(classes(UCSB_SHAPED, split.test) == {"benign"} for split in splits) == 1


def test_seed_decides_and_manifest_order_does_not():
    splits = k_folds(GLAS_SHAPED, 5, n_repeats=3, random_state=7)
    assert k_folds(GLAS_SHAPED, 5, n_repeats=3, random_state=7) == splits
    assert k_folds(GLAS_SHAPED, 5, n_repeats=3, random_state=8).splits != splits.splits
    assert k_folds(GLAS_SHAPED, 5, n_repeats=2, random_state=7).splits == splits.splits[:10]
    turned = GLAS_SHAPED.select(range(164, -1, -1))
    for a, b in zip(splits, k_folds(turned, 5, n_repeats=3, random_state=7), strict=True):
        assert a.test == sorted(164 - place for place in b.test)


def test_repeats_differ():
    for manifest in (GLAS_SHAPED, UCSB_SHAPED):
        splits = k_folds(manifest, 2, n_repeats=30)
        halves = {frozenset([tuple(s.train), tuple(s.test)]) for s in splits}
        assert len(halves) == 30


def test_split_by_image_is_recorded_and_even():
    splits = k_folds(GLAS_SHAPED, 5, unit="image")
    assert {split.unit for split in splits} == {"image"}
    for split in splits:
        labels = [GLAS_SHAPED.labels[place] for place in split.test]
        assert labels.count("benign") in (14, 15)
        assert labels.count("malignant") in (18, 19)
        assert patients(GLAS_SHAPED, split.train) & patients(GLAS_SHAPED, split.test)


def test_three_classes_and_images_without_labels():
    three = manifest_of({str(i): tuple(np.eye(3, dtype=int)[i % 3] * 2) for i in range(9)}, "abc")
    for split in k_folds(three, 3):
        assert classes(three, split.test) == classes(three, split.train) == set("abc")
    masks = Manifest(tuple(replace(record, label="") for record in GLAS_SHAPED.records))
    assert len(k_folds(masks, 4)) == 4


# --- training sizes -----------------------------------------------------------------------------


@SHAPES
def test_training_sets_are_nested_and_the_test_half_is_constant(manifest):
    splits = learning_curve_splits(manifest, (2, 5, 8), n_repeats=5)
    assert [split.n_per_class for split in splits] == [2, 5, 8] * 5
    for repeat in range(5):
        sizes = [split for split in splits if split.repeat == repeat]
        assert len({tuple(split.test) for split in sizes}) == 1
        for smaller, larger in pairwise(sizes):
            assert set(smaller.train) < set(larger.train)
        for split in sizes:
            labels = [manifest.labels[place] for place in split.train]
            assert labels.count("benign") == labels.count("malignant") == split.n_per_class
            assert not patients(manifest, split.train) & patients(manifest, split.test)
        assert 0.4 < len(sizes[0].test) / len(manifest.records) < 0.6


def test_learning_curve_splits_depend_on_the_seed_alone():
    first = learning_curve_splits(GLAS_SHAPED, (5,), n_repeats=2, random_state=3)
    assert learning_curve_splits(GLAS_SHAPED, (5,), n_repeats=2, random_state=3) == first
    turned = learning_curve_splits(
        GLAS_SHAPED.select(range(164, -1, -1)), (5,), n_repeats=2, random_state=3
    )
    for a, b in zip(first, turned, strict=True):
        assert a.train == sorted(164 - place for place in b.train)
        assert a.test == sorted(164 - place for place in b.test)
    assert first.splits[0].train != first.splits[1].train


# --- sites and predefined splits -----------------------------------------------------------------


def with_field(manifest, field, value_of):
    records = (replace(r, **{field: value_of(i, r)}) for i, r in enumerate(manifest.records))
    return replace(manifest, records=tuple(records))


def test_leave_one_site_out():
    manifest = with_field(GLAS_SHAPED, "site", lambda i, r: f"s{int(r.patient) % 3}")
    splits = leave_one_site_out(manifest)
    assert [split.name for split in splits] == ["site s0", "site s1", "site s2"]
    for k, split in enumerate(splits):
        assert {int(patient) % 3 for patient in patients(manifest, split.test)} == {k}
        assert len(split.train) + len(split.test) == 165


def test_impossible_site_splits_are_refused():
    with pytest.raises(SplitError, match="no image has a site"):
        leave_one_site_out(GLAS_SHAPED)
    with pytest.raises(SplitError, match=r"164 images have no site, such as benign/1_1\.png"):
        leave_one_site_out(with_field(GLAS_SHAPED, "site", lambda i, r: None if i else "x"))
    with pytest.raises(SplitError, match="all images are from the site 'x'"):
        leave_one_site_out(with_field(GLAS_SHAPED, "site", lambda i, r: "x"))
    with pytest.raises(
        PatientLeakError, match=r"split 'site 0': patient '1' .*is in both training and test set"
    ):
        leave_one_site_out(with_field(GLAS_SHAPED, "site", lambda i, r: str(i % 2)))
    with pytest.raises(
        SplitError, match="split 'site benign': the training set has no image of class 'benign'"
    ):
        leave_one_site_out(
            with_field(manifest_of({"1": (2, 0), "2": (0, 2)}), "site", lambda i, r: r.label)
        )


def test_predefined_split():
    manifest = with_field(
        GLAS_SHAPED, "split", lambda i, r: "train" if int(r.patient) < 9 else "test"
    )
    (split,) = predefined_split(manifest)
    assert patients(manifest, split.train) == {str(i) for i in range(1, 9)}
    assert len(split.train) + len(split.test) == 165


def test_all_values_of_the_split_must_be_named():
    values = ["train", "testA", "validation", None]
    manifest = with_field(GLAS_SHAPED, "split", lambda i, r: values[int(r.patient) % 4])
    with pytest.raises(SplitError, match=r"'' \(52 images\), 'testA' .*'validation'.* rename"):
        predefined_split(manifest)
    with pytest.raises(SplitError, match=r"no image has a value in .* 'train' and 'test'$"):
        predefined_split(GLAS_SHAPED)
    (split,) = predefined_split(manifest, test=["testA"], leave_out=["validation", ""])
    assert {int(patient) % 4 for patient in patients(manifest, split.test)} == {1}


def test_predefined_split_with_shared_patients_needs_by_image():
    manifest = with_field(GLAS_SHAPED, "split", lambda i, r: ["train", "test"][i % 2])
    with pytest.raises(
        PatientLeakError,
        match=r"'predefined': patient '1' \(and \d+ more\) is in both training and test set",
    ):
        predefined_split(manifest)
    assert predefined_split(manifest, unit="image").splits[0].unit == "image"


def test_official_split_of_glas_shares_patients(data_folder):
    manifest = read_manifest(data_folder / "glas-colon", {"split": "official_split"})
    with pytest.raises(PatientLeakError, match="is in both training and test set"):
        predefined_split(manifest, test=["testA", "testB"])
    assert len(k_folds(manifest, 5, n_repeats=3)) == 15


# --- impossible requests ------------------------------------------------------------------------

LONELY = manifest_of({"1": (3, 0), "2": (3, 0), "3": (3, 5)})
TRIANGLE = manifest_of({"1": (1, 1, 0), "2": (0, 1, 1), "3": (1, 0, 1)}, ("a", "b", "c"))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: k_folds(GLAS_SHAPED, 17),
            "17 folds need at least 17 patients, but there are 16.*n_folds=16",
        ),
        (
            lambda: k_folds(GLAS_SHAPED.select([0]), 2),
            "all images are of a single patient, so none is left",
        ),
        (lambda: k_folds(GLAS_SHAPED, 1), "n_folds must be a whole number of at least 2"),
        (lambda: k_folds(GLAS_SHAPED, n_repeats=0), "n_repeats must be"),
        (lambda: k_folds(GLAS_SHAPED, random_state=-1), "random_state must be"),
        (
            lambda: k_folds(GLAS_SHAPED, unit="slide"),
            "unit must be 'patient' or 'image', not 'slide'",
        ),
        (lambda: k_folds(Manifest(())), "no images to split"),
        (lambda: k_folds(LONELY, 2), "'malignant' are of a single patient, '3', so the"),
        (lambda: k_folds(LONELY, 9), "'malignant' are of a single patient"),
        (lambda: learning_curve_splits(LONELY, (1,)), "'malignant' are of a single patient"),
        (lambda: k_folds(TRIANGLE, 2), "into 2 folds has class '.' in every"),
        (
            lambda: k_folds(manifest_of({str(i): (2, 2) for i in range(4)}), 2, n_repeats=9),
            "only 3 different divisions of 4 patients into 2 folds were found; use n_repeats=3",
        ),
        (
            lambda: learning_curve_splits(GLAS_SHAPED, (5, 60)),
            r"'repeat 1, 60 per class': the training half has \d+ images of class 'benign'",
        ),
        (lambda: learning_curve_splits(GLAS_SHAPED, ()), "n_per_class is empty"),
        (lambda: learning_curve_splits(GLAS_SHAPED, (0,)), "n_per_class must be"),
        (lambda: predefined_split(GLAS_SHAPED, leave_out=[""]), "the training set is empty"),
    ],
)
def test_impossible_requests_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_commands_name_their_options():
    with hints_for("cli"):
        for call, message in (
            (lambda: k_folds(GLAS_SHAPED, n_repeats=0), "^--repeats must be"),
            (lambda: learning_curve_splits(GLAS_SHAPED, (5,), n_repeats=0), "^--repeats must be"),
            (lambda: learning_curve_splits(GLAS_SHAPED, (0,)), "^--per-class must be"),
            (lambda: learning_curve_splits(GLAS_SHAPED, (60,)), r"at most --per-class \d+$"),
            (lambda: leave_one_site_out(GLAS_SHAPED), "--column site="),
            (lambda: predefined_split(GLAS_SHAPED), "--column split="),
        ):
            with pytest.raises(ValueError, match=message):
                call()


def test_maximum_in_the_error_message_works():
    with pytest.raises(SplitError) as error:
        learning_curve_splits(UCSB_SHAPED, (50,))
    most = int(str(error.value).rpartition("=")[2])
    try:
        learning_curve_splits(UCSB_SHAPED, (most,))
    except SplitError as other:  # the next class may have even fewer
        most = int(str(other).rpartition("=")[2])
        learning_curve_splits(UCSB_SHAPED, (most,))
