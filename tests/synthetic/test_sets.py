"""Tests of synthetic data sets: files, and properties that separate the classes."""

import csv
import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from histodict.synthetic import dataset as sets
from histodict.synthetic.dataset import write_synthetic_dataset

N_PATIENTS, IMAGES_PER_PATIENT, SIZE = 8, 2, (320, 240)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    new = tmp_path_factory.mktemp("drawn") / "set"
    return write_synthetic_dataset(new, N_PATIENTS, IMAGES_PER_PATIENT, SIZE, seed=1)


def read_manifest(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def read_image(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image)


def all_bytes(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


# --- files ----------------------------------------------------------------------------------------


def test_manifest_lists_every_image(folder):
    rows = read_manifest(folder / "manifest.csv")
    assert list(rows[0]) == ["path", "label", "patient", "mpp"]
    assert len(rows) == N_PATIENTS * IMAGES_PER_PATIENT
    written = {p.relative_to(folder).as_posix() for p in folder.glob("*/*.jpg")}
    assert {row["path"] for row in rows} == {p for p in written if not p.startswith("regions/")}
    for row in rows:
        label, name = row["path"].split("/")
        assert (label, name.rpartition("_")[0]) == (row["label"], row["patient"])
        assert float(row["mpp"]) == 0.5
        assert read_image(folder / row["path"]).shape == (SIZE[1], SIZE[0], 3)
    for patient in {row["patient"] for row in rows}:
        labels = [row["label"] for row in rows if row["patient"] == patient]
        assert labels.count("healthy") == labels.count("inflamed") == IMAGES_PER_PATIENT // 2


def test_region_manifest_has_masks_of_other_patients(folder):
    rows = read_manifest(folder / "regions" / "manifest.csv")
    assert list(rows[0]) == ["path", "label", "patient", "mpp", "mask"]
    assert {row["label"] for row in rows} == {"healthy", "inflamed"}
    seen = {row["patient"] for row in read_manifest(folder / "manifest.csv")}
    for row in rows:
        image = read_image(folder / "regions" / row["path"])
        mask = read_image(folder / "regions" / row["mask"])
        assert mask.shape == image.shape[:2]
        assert set(np.unique(mask)) <= {0, 255}
        assert mask.any() == (row["label"] == "inflamed")
        assert row["patient"] not in seen


def test_same_seed_gives_the_same_bytes(tmp_path):
    first = all_bytes(write_synthetic_dataset(tmp_path / "a", 2, 2, (96, 64), seed=5))
    again = all_bytes(write_synthetic_dataset(tmp_path / "b", 2, 2, (96, 64), seed=5))
    other = all_bytes(write_synthetic_dataset(tmp_path / "c", 2, 2, (96, 64), seed=6))
    more = all_bytes(write_synthetic_dataset(tmp_path / "d", 3, 2, (96, 64), seed=5))
    assert first == again
    synthetic = [name for name in first if name.endswith(".jpg")]
    assert all(first[name] != other[name] for name in synthetic)
    assert all(first[name] == more[name] for name in synthetic if not name.startswith("regions/"))


def test_interrupted_set_leaves_nothing(tmp_path, monkeypatch):
    def fail(*arguments):
        # images are written, but not yet under the final name
        assert not (tmp_path / "set").exists()
        assert list(tmp_path.rglob("*.jpg"))
        raise KeyboardInterrupt

    monkeypatch.setattr(sets, "_write_region_images", fail)
    with pytest.raises(KeyboardInterrupt):
        write_synthetic_dataset(tmp_path / "set", 1, 1, (64, 64))
    assert list(tmp_path.iterdir()) == []


def test_folder_with_files_is_refused_and_an_empty_one_filled(tmp_path):
    target = tmp_path / "set"
    target.mkdir()
    assert (write_synthetic_dataset(target, 1, 2, (64, 64)) / "manifest.csv").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["set"]
    before = all_bytes(target)
    with pytest.raises(FileExistsError, match="not empty"):
        write_synthetic_dataset(target, 1, 2, (64, 64), seed=1)
    assert all_bytes(target) == before


# --- properties of the classes
# ---------------------------------------------------------------------


def nearest_centroid_accuracy(features, labels, patients) -> float:
    """Return the accuracy with one patient left out at a time."""
    right = []
    for patient in np.unique(patients):
        left_out = patients == patient
        classes = np.unique(labels)
        centroids = [features[~left_out & (labels == c)].mean(axis=0) for c in classes]
        distances = [np.linalg.norm(features[left_out] - c, axis=1) for c in centroids]
        right.extend(classes[np.argmin(distances, axis=0)] == labels[left_out])
    return float(np.mean(right))


def scale_profile(image: np.ndarray) -> np.ndarray:
    """Return the distribution of density contrast over scales, independent of its strength."""
    density = -np.log((image[..., 0] + 1.0) / image[..., 0].max())
    blurred = [ndimage.gaussian_filter(density, s) for s in (0, 1, 2, 4, 8, 16)]
    contrast = np.log([np.std(a - b) for a, b in pairwise(blurred)])
    return contrast - contrast.mean()


@pytest.fixture(scope="module")
def labelled(folder):
    rows = read_manifest(folder / "manifest.csv")
    images = [read_image(folder / row["path"]) for row in rows]
    return (
        images,
        np.array([row["label"] for row in rows]),
        np.array([row["patient"] for row in rows]),
    )


def test_mean_colour_does_not_separate_the_classes(labelled):
    images, labels, patients = labelled
    colours = np.array([image.mean(axis=(0, 1)) for image in images])
    assert nearest_centroid_accuracy(colours, labels, patients) < 0.8


def test_stains_differ_more_than_class_means(labelled):
    images, labels, patients = labelled
    colours = np.array([image.mean(axis=(0, 1)) for image in images])
    of_patients = np.array([colours[patients == p].mean(axis=0) for p in np.unique(patients)])
    of_classes = [colours[labels == c].mean(axis=0) for c in ("healthy", "inflamed")]
    distances = np.linalg.norm(of_patients[:, None] - of_patients[None], axis=-1)
    reference = distances[np.triu_indices(len(of_patients), 1)].mean()
    assert reference > np.linalg.norm(of_classes[0] - of_classes[1])


def test_texture_separates_the_classes(labelled):
    images, labels, patients = labelled
    profiles = np.array([scale_profile(image) for image in images])
    assert nearest_centroid_accuracy(profiles, labels, patients) > 0.9


def test_two_processes_may_write_the_same_set(tmp_path, monkeypatch):
    from histodict.synthetic import dataset as sets

    folder = tmp_path / "tissue"
    draw = sets._write_region_images

    def draw_slowly(*args):
        if not folder.exists():  # the other process finishes first
            monkeypatch.setattr(sets, "_write_region_images", draw)
            sets.write_synthetic_dataset(folder, 1, 1, size=(96, 80))
        draw(*args)

    monkeypatch.setattr(sets, "_write_region_images", draw_slowly)
    assert (sets.cached_synthetic_dataset(folder, 1, 1, size=(96, 80)) / "manifest.csv").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["tissue"]


def test_folder_of_a_killed_process_is_removed_after_a_day(tmp_path):
    from histodict.synthetic.dataset import write_synthetic_dataset

    left = [tmp_path / f".tissue.unfinished-{age}" for age in ("new", "old")]
    for folder in left:
        folder.mkdir()
    os.utime(left[1], (0, 0))
    write_synthetic_dataset(tmp_path / "tissue", 1, 1, size=(96, 80))
    assert [folder.exists() for folder in left] == [True, False]
