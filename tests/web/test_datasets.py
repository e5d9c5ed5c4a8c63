"""Corrections change the training set, never the user's files."""

import numpy as np
import pytest
from PIL import Image

from histodict.web.datasets import (
    DatasetIndexCache,
    add_correction,
    find_dataset,
    open_dataset,
    remove_correction,
    training_manifest,
)
from histodict.web.workspace import DataFolders, UserWorkspace, short_id


@pytest.fixture
def place(tissue, tmp_path):
    return UserWorkspace.open(tmp_path / "workspace", "local"), DatasetIndexCache(
        DataFolders([tissue])
    )


@pytest.fixture
def dataset(place, tissue):
    return open_dataset(*place, tissue / "tissue")


def some_id(dataset, label):
    record = next(r for r in dataset.manifest.records if r.label == label)
    return short_id(dataset.manifest.name(record)), record


def test_data_set_is_found_again(place, dataset):
    again = find_dataset(*place, dataset.id)
    assert again.manifest.digest() == dataset.manifest.digest()
    with pytest.raises(KeyError):
        find_dataset(*place, "../../..")


def test_labels_are_changed_and_changed_back(dataset):
    image, record = some_id(dataset, "healthy")
    before = record.path.read_bytes()
    add_correction(dataset, image, "inflamed", None)
    add_correction(dataset, image, "inflamed", None)
    assert len(dataset.corrections()) == 1
    labels = {r.path: r.label for r in training_manifest(dataset).records}
    assert labels.pop(record.path) == "inflamed"
    assert labels == {r.path: r.label for r in dataset.manifest.records if r != record}
    add_correction(dataset, image, "healthy", None)
    assert dataset.corrections() == []
    assert record.path.read_bytes() == before


def test_corrected_rectangle_becomes_an_image_of_the_same_patient(dataset):
    image, record = some_id(dataset, "healthy")
    add_correction(dataset, image, "inflamed", [30, 20, 1000, 90])
    (correction,) = dataset.corrections()
    assert correction["box"] == [30, 20, 160, 90]
    corrected = training_manifest(dataset).records[-1]
    assert (corrected.label, corrected.patient, corrected.mpp) == (
        "inflamed",
        record.patient,
        record.mpp,
    )
    with Image.open(record.path) as full_mask, Image.open(corrected.path) as part:
        np.testing.assert_array_equal(np.asarray(full_mask)[20:90, 30:160], np.asarray(part))
    remove_correction(dataset, correction["id"])
    assert len(training_manifest(dataset).records) == len(dataset.manifest.records)


def test_masks_are_edited_if_there_are_any(place, tissue):
    dataset = open_dataset(*place, tissue / "tissue" / "regions")
    record = next(r for r in dataset.manifest.records if r.label == "inflamed")
    image = short_id(dataset.manifest.name(record))
    before = np.asarray(Image.open(record.mask)).copy()
    for label, box in (("region", [0, 0, 60, 50]), ("no region", [10, 10, 50, 50])):
        add_correction(dataset, image, label, box)
    (painted,) = (r for r in training_manifest(dataset).records if r.path == record.path)
    after = np.asarray(Image.open(painted.mask))
    assert after[5, 5] == 255 and after[20, 20] == 0
    np.testing.assert_array_equal(after[50:, 60:] > 0, before[50:, 60:] > 0)
    np.testing.assert_array_equal(np.asarray(Image.open(record.mask)), before)


@pytest.mark.parametrize(
    ("label", "box"),
    [
        ("sick", None),
        ("inflamed", [0, 0, 10, 10]),
        ("inflamed", [0, 0, 100, 5]),
        ("inflamed", [90, 90, 0, 0]),
    ],
)
def test_invalid_correction_is_refused(dataset, label, box):
    with pytest.raises(ValueError, match=r"class|must be between"):
        add_correction(dataset, some_id(dataset, "healthy")[0], label, box)


def test_folder_without_classes_can_be_viewed(place, tissue):
    dataset = open_dataset(*place, tissue / "tissue" / "healthy")
    assert not dataset.is_labelled
    assert len(dataset.manifest.records) == 4
