"""Drawn tissue: the files, the stain model, planted regions, and what tells the classes apart."""

import csv
from dataclasses import astuple, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from histodict.demo.tissue import (
    Stain,
    draw_image,
    draw_region_image,
    draw_stain,
    write_synthetic_set,
)
from histodict.demo import tissue as synthetic

N_PATIENTS, IMAGES_PER_PATIENT, SIZE = 10, 4, (320, 240)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    new = tmp_path_factory.mktemp("drawn") / "set"
    return write_synthetic_set(new, N_PATIENTS, IMAGES_PER_PATIENT, SIZE, seed=1)


def read_manifest(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def read_image(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image)


def all_bytes(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def concentrations(image: np.ndarray, stain: Stain) -> np.ndarray:
    """Haematoxylin and eosin (height, width, 2), solved from the Beer-Lambert model."""
    density = np.log10(np.array(stain.white) / np.maximum(image, 1))
    h = stain.haematoxylin_strength * np.array(stain.haematoxylin)
    e = stain.eosin_strength * np.array(stain.eosin)
    return density @ np.linalg.pinv(np.stack([h, e]))


# --- images ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["healthy", "inflamed"])
@pytest.mark.parametrize("size", [(64, 64), (200, 130)])
def test_shape_and_dtype(kind, size):
    rng = np.random.default_rng(0)
    for _ in range(5):
        image = draw_image(kind, draw_stain(rng), rng, size)
        assert image.shape == (size[1], size[0], 3)
        assert image.dtype == np.uint8
        assert image.std() > 10


def test_same_generator_same_image():
    stain = draw_stain(np.random.default_rng(0))
    first, second, other = (
        draw_image("inflamed", stain, np.random.default_rng(seed), (128, 96)) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, second)
    assert np.mean(first != other) > 0.5


def test_wrong_arguments_are_named():
    rng = np.random.default_rng(0)
    stain = draw_stain(rng)
    with pytest.raises(ValueError, match="kind must be one of healthy, inflamed, not 'ill'"):
        draw_image("ill", stain, rng)
    with pytest.raises(ValueError, match="height"):
        draw_image("healthy", stain, rng, (480, 10))
    with pytest.raises(ValueError, match="n_regions"):
        draw_region_image(stain, rng, SIZE, -1)


def test_stain_vectors_are_unit_and_differ_between_patients():
    stains = [draw_stain(np.random.default_rng(i)) for i in range(50)]
    for vectors in ([s.haematoxylin for s in stains], [s.eosin for s in stains]):
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1)
        assert np.min(vectors) > 0
        assert np.std(vectors, axis=0).min() > 0.005
    strengths = np.array([(s.haematoxylin_strength, s.eosin_strength) for s in stains])
    assert np.all(strengths.max(axis=0) > 2 * strengths.min(axis=0))
    assert 190 < np.min([s.white for s in stains]) <= np.max([s.white for s in stains]) < 255
    assert len({astuple(s) for s in stains}) == len(stains)


def test_density_is_proportional_to_the_strength_of_the_stain():
    """Beer-Lambert: twice the dye, twice the optical density, on the same tissue."""
    stain = replace(draw_stain(np.random.default_rng(0)), haematoxylin_strength=0.5)
    stain = replace(stain, eosin_strength=0.5)
    twice = replace(stain, haematoxylin_strength=1.0, eosin_strength=1.0)
    weak, strong = (
        ndimage.gaussian_filter(
            draw_image("healthy", s, np.random.default_rng(3), SIZE).astype(float), (6, 6, 0)
        )
        for s in (stain, twice)
    )
    ratio = np.log(strong / np.array(stain.white)) / np.log(weak / np.array(stain.white))
    assert np.median(ratio) == pytest.approx(2, abs=0.15)


def test_some_images_show_glass_of_the_stain_s_white():
    stain = draw_stain(np.random.default_rng(0))
    shares = []
    for seed in range(30):
        image = draw_image("inflamed", stain, np.random.default_rng(seed), (160, 120))
        smooth = ndimage.uniform_filter(image.astype(float), (9, 9, 0))
        shares.append(np.mean(np.all(np.abs(smooth - stain.white) < 3, axis=-1)))
    assert 1 <= np.sum(np.array(shares) > 0.05) <= 15


# --- planted regions ------------------------------------------------------------------------------


@pytest.mark.parametrize("n_regions", [0, 1, 2, 3])
def test_mask_has_as_many_regions_as_asked(n_regions):
    for seed in range(5):
        rng = np.random.default_rng(seed)
        image, mask = draw_region_image(draw_stain(rng), rng, SIZE, n_regions)
        assert image.shape == (SIZE[1], SIZE[0], 3)
        assert mask.shape == image.shape[:2]
        assert mask.dtype == bool
        assert ndimage.label(mask)[1] == n_regions
        assert (mask.mean() > 0.02) == (n_regions > 0)


def test_mask_lies_on_the_focus():
    """Haematoxylin is far denser inside, and drops within a nucleus's width of the outline."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        stain = draw_stain(rng)
        image, mask = draw_region_image(stain, rng, (480, 360), 1)
        H = concentrations(image, stain)[..., 0]
        assert H[mask].mean() > 1.7 * H[~mask].mean()
        crowd = H > 0.65  # lymphocytes are darker than the nuclei of epithelium and stroma
        outside = ndimage.distance_transform_edt(~mask)
        ring = (outside > 10) & (outside < 30)
        assert crowd[mask].mean() > 2 * crowd[ring].mean()


def test_region_is_drawn_where_the_mask_says():
    """The best shift of the mask over the haematoxylin is no shift."""
    rng = np.random.default_rng(4)
    stain = draw_stain(rng)
    image, mask = draw_region_image(stain, rng, (480, 360), 1)
    dark = (concentrations(image, stain)[..., 0] > 0.65).astype(float)
    template = mask - mask.mean()
    shifts = [(dy, dx) for dy in range(-40, 41, 10) for dx in range(-40, 41, 10)]
    scores = [np.sum(dark * np.roll(template, shift, (0, 1))) for shift in shifts]
    assert shifts[int(np.argmax(scores))] == (0, 0)


# --- the written set ------------------------------------------------------------------------------


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


def test_region_manifest_gives_masks_of_other_patients(folder):
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


def test_same_seed_same_bytes(tmp_path):
    first = all_bytes(write_synthetic_set(tmp_path / "a", 2, 2, (96, 64), seed=5))
    again = all_bytes(write_synthetic_set(tmp_path / "b", 2, 2, (96, 64), seed=5))
    other = all_bytes(write_synthetic_set(tmp_path / "c", 2, 2, (96, 64), seed=6))
    more = all_bytes(write_synthetic_set(tmp_path / "d", 3, 2, (96, 64), seed=5))
    assert first == again
    drawn = [name for name in first if name.endswith(".jpg")]
    assert all(first[name] != other[name] for name in drawn)
    assert all(first[name] == more[name] for name in drawn if not name.startswith("regions/"))


def test_an_interrupted_set_leaves_nothing(tmp_path, monkeypatch):
    def fail(*arguments):
        assert not (tmp_path / "set").exists()  # images are there, but not under the final name
        assert list(tmp_path.rglob("*.jpg"))
        raise KeyboardInterrupt

    monkeypatch.setattr(synthetic, "_write_regions", fail)
    with pytest.raises(KeyboardInterrupt):
        write_synthetic_set(tmp_path / "set", 1, 1, (64, 64))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_files_is_refused_and_an_empty_one_filled(tmp_path):
    target = tmp_path / "set"
    target.mkdir()
    assert (write_synthetic_set(target, 1, 2, (64, 64)) / "manifest.csv").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["set"]
    before = all_bytes(target)
    with pytest.raises(FileExistsError, match="not empty"):
        write_synthetic_set(target, 1, 2, (64, 64), seed=1)
    assert all_bytes(target) == before


# --- what tells the classes apart -----------------------------------------------------------------


def nearest_centroid_accuracy(features, labels, patients) -> float:
    """Accuracy with one patient left out at a time."""
    right = []
    for patient in np.unique(patients):
        held_out = patients == patient
        classes = np.unique(labels)
        centroids = [features[~held_out & (labels == c)].mean(axis=0) for c in classes]
        distances = [np.linalg.norm(features[held_out] - c, axis=1) for c in centroids]
        right.extend(classes[np.argmin(distances, axis=0)] == labels[held_out])
    return float(np.mean(right))


def scale_profile(image: np.ndarray) -> np.ndarray:
    """How the contrast of optical density is shared out over scales, whatever its strength."""
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


def test_mean_colour_does_not_tell_the_classes_apart(labelled):
    images, labels, patients = labelled
    colours = np.array([image.mean(axis=(0, 1)) for image in images])
    assert nearest_centroid_accuracy(colours, labels, patients) < 0.8


def test_stains_differ_more_than_the_classes_in_mean_colour(labelled):
    images, labels, patients = labelled
    colours = np.array([image.mean(axis=(0, 1)) for image in images])
    of_patients = np.array([colours[patients == p].mean(axis=0) for p in np.unique(patients)])
    of_classes = [colours[labels == c].mean(axis=0) for c in ("healthy", "inflamed")]
    distances = np.linalg.norm(of_patients[:, None] - of_patients[None], axis=-1)
    typical = distances[np.triu_indices(len(of_patients), 1)].mean()
    assert typical > np.linalg.norm(of_classes[0] - of_classes[1])


def test_texture_tells_the_classes_apart(labelled):
    images, labels, patients = labelled
    profiles = np.array([scale_profile(image) for image in images])
    assert nearest_centroid_accuracy(profiles, labels, patients) > 0.9
