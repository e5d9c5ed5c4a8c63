"""Tests of samples of patches with codes: fractions and top patches by hand, codes by the
method."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from scipy.sparse import csr_array

from histodict.datasets.manifest import ImageRecord, read_manifest
from histodict.explain.patch_sample import N_PATCHES, PatchSample
from histodict.models import TissueClassifier
from histodict.models.prepared_image import open_prepared_image
from histodict.models.recipe import Recipe
from histodict.synthetic.dataset import write_synthetic_dataset

RECIPE = Recipe(
    method_parameters={"n_atoms": 20, "n_iter": 3},
    patch_px=12,
    patches_per_class=300,
    features="centred",
)
CODES = np.array(
    [
        [5.0, 0.0, 0.1],
        [-4.0, 0.0, 0.0],
        [3.0, 2.0, 0.0],
        [2.0, 0.0, 0.0],
        [0.0, 0.0, 0.0],
        [-1.0, 0.0, 0.0],
    ]
)


def small_gallery() -> PatchSample:
    return PatchSample(
        np.array([0, 0, 0, 1, 1, 2]), np.zeros((6, 2), np.int64), np.full(6, 8.0), csr_array(CODES)
    )


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    folder = write_synthetic_dataset(tmp_path_factory.mktemp("set") / "t", 4, 2, size=(160, 120))
    return read_manifest(folder / "manifest.csv")


@pytest.fixture(scope="module")
def model(manifest):
    return TissueClassifier(RECIPE).fit(manifest)


@pytest.fixture(scope="module")
def gallery(model, manifest):
    return PatchSample.from_records(model.model_, manifest.records, 0)


def test_top_patches_have_the_largest_weights_two_per_image():
    found = small_gallery()
    assert found.top_patches(0) == [(0, 5.0), (1, -4.0), (3, 2.0), (5, -1.0)]
    assert found.top_patches(0, 2) == [(0, 5.0), (1, -4.0)]
    assert found.top_patches(1) == [(2, 2.0)]


def test_images_with_many_uses_do_not_hide_others():
    codes = csr_array(np.append(np.arange(999.0, 0.0, -1.0), 0.5)[:, None])
    images = np.append(np.zeros(999, np.int64), 1)
    many = PatchSample(images, np.zeros((1000, 2), np.int64), np.full(1000, 8.0), codes)
    assert many.top_patches(0, 3) == [(0, 999.0), (1, 998.0), (999, 0.5)]


def test_fractions_are_counted_by_group():
    shares = small_gallery().fractions(np.array([0, 0, 1, 1, 1, 1]), 3)
    np.testing.assert_allclose(shares, [[1, 0, 1 / 2], [3 / 4, 1 / 4, 0], [0, 0, 0]])


def test_stored_zero_is_not_a_use():
    codes = csr_array((np.array([0.0, 1.0]), np.array([0, 1]), np.array([0, 2])), shape=(1, 2))
    one = PatchSample(np.zeros(1, np.int64), np.zeros((1, 2), np.int64), np.full(1, 8.0), codes)
    np.testing.assert_array_equal(one.fractions(np.zeros(1, np.int64), 1), [[0, 1]])
    assert one.top_patches(0) == []


def test_codes_are_those_of_the_patch_at_the_position(model, manifest, gallery):
    for patch in (0, len(gallery.images) // 2, len(gallery.images) - 1):
        record = manifest.records[int(gallery.images[patch])]
        x, y = (int(at) // RECIPE.patch_px for at in gallery.corners[patch])
        with open_prepared_image(record.path, record.mpp, RECIPE) as prepared:
            vector = prepared.chunk_features(prepared.grid(), slice(y, y + 1), slice(x, x + 1))[1]
        code = model.model_.classifier_.encode(vector)[0].toarray()
        np.testing.assert_allclose(gallery.codes[[patch]].toarray(), code, atol=1e-5)


def test_every_image_contributes_and_threads_change_nothing(model, manifest, gallery):
    assert set(gallery.images.tolist()) == set(range(len(manifest.records)))
    assert np.bincount(gallery.images).max() <= -(-N_PATCHES // len(manifest.records))
    reported = []
    model.model_.n_jobs = 2
    again = PatchSample.from_records(model.model_, manifest.records, 0, reported.append)
    np.testing.assert_array_equal(again.corners, gallery.corners)
    assert (again.codes != gallery.codes).nnz == 0
    assert [progress.done for progress in reported] == list(range(len(manifest.records) + 1))


def test_nearest_patch_is_the_patch_itself(gallery, tmp_path):
    assert len(gallery.images) > 500
    place = int(np.argmax(np.diff(gallery.codes.indptr)))
    found = gallery.nearest_patches(gallery.codes[[place]])
    assert found[0][0] == place and found[0][1] == pytest.approx(1)
    values = [value for _, value in found]
    assert values == sorted(values, reverse=True)
    gallery.save(tmp_path / "gallery.npz")
    again = PatchSample.read(tmp_path / "gallery.npz").nearest_patches(gallery.codes[[place]])
    assert [patch for patch, _ in again] == [patch for patch, _ in found]
    assert [value for _, value in again] == pytest.approx(values, abs=1e-6)


def test_background_alone_is_refused(model, tmp_path):
    Image.new("RGB", (160, 120), "white").save(tmp_path / "background.png")
    with pytest.raises(ValueError, match="no tissue was found in any of the 1 images"):
        PatchSample.from_records(
            model.model_, [ImageRecord(tmp_path / "background.png", "a", "p")], 0
        )
