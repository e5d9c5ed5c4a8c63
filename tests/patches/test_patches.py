from __future__ import annotations

import numpy as np
import pytest

from histodict.patches.grid import PatchGrid, extract_patches
from histodict.patches.sampling import (
    LocationConstraint,
    rotate_and_mirror_randomly,
    sample_patches,
)
from histodict.patches.vectors import PATCH_FEATURES, centred, channel_centred, rgb

SIXTEEN = PatchGrid(1, 1, 16, 16, 1.0)  # patches 16 wide, unreduced


class FakeImage:
    """An image in memory, reduced by taking every n-th pixel."""

    def __init__(self, pixels):
        self.pixels = pixels
        self.size = (pixels.shape[1], pixels.shape[0])
        self.largest = 0

    def read(self, x, y, width, height, downsample=1.0):
        self.largest = max(self.largest, width * height)
        step = round(downsample)
        return self.pixels[y : y + height, x : x + width][::step, ::step]


def coordinates(width, height):
    """Return an image whose pixels contain their position: red is x, green is y."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[..., 0] = np.arange(width) % 256
    pixels[..., 1] = (np.arange(height) % 256)[:, None]
    return pixels


@pytest.mark.parametrize(("patch", "stride", "downsample"), [(20, 20, 1), (7, 3, 1), (10, 10, 4)])
def test_every_patch_is_where_the_grid_states(patch, stride, downsample):
    image = FakeImage(coordinates(250, 230))
    grid = PatchGrid.from_size(image.size, patch, stride, downsample)
    n_covered = np.zeros((grid.n_rows, grid.n_columns), int)
    for rows, columns in grid.chunks():
        patches = grid.read(image, rows, columns)
        shape = (rows.stop - rows.start, columns.stop - columns.start)
        patches = patches.reshape(*shape, patch, patch, 3)
        for i in range(shape[0]):
            for j in range(shape[1]):
                x, y = grid.corner(rows.start + i, columns.start + j)
                assert tuple(patches[i, j, 0, 0, :2]) == (x, y)
                n_covered[rows.start + i, columns.start + j] += 1
    assert (n_covered == 1).all()
    x, y = grid.corner(grid.n_rows - 1, grid.n_columns - 1)
    assert x + grid.patch_side <= 250 < x + grid.patch_side + stride * downsample
    assert y + grid.patch_side <= 230 < y + grid.patch_side + stride * downsample


def test_large_image_is_read_in_pieces():
    image = FakeImage(np.zeros((5000, 4000, 3), np.uint8))
    grid = PatchGrid.from_size(image.size, 20, 20, 1)
    n_patches = sum(len(grid.read(image, *chunk)) for chunk in grid.chunks())
    assert n_patches == grid.n_rows * grid.n_columns == 250 * 200
    assert image.largest <= 1024 * 1024


def test_image_smaller_than_a_patch_is_refused():
    with pytest.raises(ValueError, match=r"30 x 19 pixels.* is smaller than a patch .20 x 20"):
        PatchGrid.from_size((30, 19), 20, 20, 1)


def test_patches_are_extracted_row_by_row():
    patches = extract_patches(coordinates(40, 60), 20, 20)
    assert [tuple(p[0, 0, :2]) for p in patches] == [(x, y) for y in (0, 20, 40) for x in (0, 20)]


def everything(patches):
    return np.ones(len(patches), bool)


def test_samples_are_accepted_and_inside_and_seeded(rng):
    image = FakeImage(coordinates(200, 150))

    def accept(patches):
        return patches[:, 0, 0, 0] < 100

    patches = sample_patches(image, 300, SIXTEEN, rng, accept)
    assert patches.shape == (300, 16, 16, 3)
    assert patches[:, 0, 0, 0].max() < 100
    assert patches[:, 0, 0, 1].max() > 120
    again = sample_patches(image, 300, SIXTEEN, np.random.default_rng(0), accept)
    np.testing.assert_array_equal(patches, again)


def test_samples_satisfy_the_location_constraint(rng):
    image = FakeImage(coordinates(200, 150))

    def allowed(corners):
        return (abs(corners - [50, 60]) <= 1).all(axis=1)

    patches = sample_patches(image, 40, SIXTEEN, rng, everything, LocationConstraint(allowed))
    assert len(patches) == 40
    np.testing.assert_array_less(abs(patches[:, 0, 0, :2].astype(int) - [50, 60]), 2)
    nowhere = LocationConstraint(lambda corners: np.zeros(len(corners), bool))
    none = sample_patches(image, 40, SIXTEEN, rng, everything, nowhere)
    assert none.shape == (0, 16, 16, 3)


def test_sampling_ends_with_few_or_no_acceptable_patches(rng):
    image = FakeImage(coordinates(50, 50))
    assert len(sample_patches(image, 10, SIXTEEN, rng, lambda p: np.zeros(len(p), bool))) == 0
    assert len(sample_patches(image, 10, PatchGrid(1, 1, 60, 60, 1.0), rng, everything)) == 0


def test_random_orientations_are_the_eight_symmetries(rng):
    patch = coordinates(5, 5)
    turned = rotate_and_mirror_randomly(np.repeat(patch[None], 400, axis=0), rng)
    assert len({t.tobytes() for t in turned}) == 8
    assert all(
        sorted(t.reshape(-1, 3).tolist()) == sorted(patch.reshape(-1, 3).tolist())
        for t in turned[:20]
    )


@pytest.mark.parametrize("name", sorted(PATCH_FEATURES))
def test_vectors_are_finite_and_have_at_most_unit_norm(rng, name):
    patches = rng.integers(0, 256, (50, 8, 8, 3)).astype(np.uint8)
    patches[:3] = [[[255, 255, 255]]], [[[0, 0, 0]]], [[[200, 150, 180]]]
    vectors = PATCH_FEATURES[name](patches)
    assert vectors.shape == (50, PATCH_FEATURES[name](patches[:1]).shape[1])
    assert vectors.dtype == np.float32
    assert np.isfinite(vectors).all()
    np.testing.assert_allclose(np.linalg.norm(vectors[3:], axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize("name", sorted(PATCH_FEATURES))
def test_no_patches_give_no_vectors(name):
    n_features = PATCH_FEATURES[name](np.zeros((1, 8, 8, 3), np.uint8)).shape[1]
    assert PATCH_FEATURES[name](np.empty((0, 8, 8, 3), np.uint8)).shape == (0, n_features)


def test_vectors_are_invariant_as_documented(rng):
    patches = rng.integers(60, 120, (20, 8, 8, 3)).astype(np.uint8)
    np.testing.assert_allclose(rgb(patches), rgb(2 * patches), atol=1e-6)
    np.testing.assert_allclose(centred(patches), centred(patches + 40), atol=1e-5)
    tinted = patches + np.array([10, 60, 100], np.uint8)
    np.testing.assert_allclose(channel_centred(patches), channel_centred(tinted), atol=1e-5)
    assert np.abs(centred(patches) - centred(tinted)).max() > 0.05


def test_channels_are_concatenated(rng):
    patches = rng.integers(0, 256, (3, 4, 4, 3)).astype(np.uint8)
    vector = rgb(patches)[1]
    expected = patches[1].transpose(2, 0, 1).ravel() / np.linalg.norm(patches[1].astype(float))
    np.testing.assert_allclose(vector, expected, rtol=1e-5)


@pytest.mark.parametrize("name", PATCH_FEATURES)
def test_vectors_declare_whether_they_are_images(rng, name):
    """Vectors that can be displayed are three planes of the patch's pixels; reports rely on
    this."""
    patches = rng.integers(0, 256, (5, 8, 8, 3), dtype=np.uint8)
    assert PATCH_FEATURES[name].atoms_are_images == (
        PATCH_FEATURES[name](patches).shape == (5, 3 * 8 * 8)
    )
