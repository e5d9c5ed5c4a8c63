from __future__ import annotations

import numpy as np
import pytest

from histodict.patches.grid import PatchGrid, extract_patches
from histodict.patches.sampling import LocationConstraint, random_dihedral, sample_patches
from histodict.patches.vectors import PATCH_FEATURES, centred, channel_centred, rgb

SIXTEEN = PatchGrid(1, 1, 16, 16, 1.0)  # of patches 16 wide, unreduced


class Picture:
    """An image in memory; reduction by taking every n-th pixel is enough here."""

    def __init__(self, pixels):
        self.pixels = pixels
        self.size = (pixels.shape[1], pixels.shape[0])
        self.largest = 0

    def read(self, x, y, width, height, downsample=1.0):
        self.largest = max(self.largest, width * height)
        step = round(downsample)
        return self.pixels[y : y + height, x : x + width][::step, ::step]


def coordinates(width, height):
    """A picture whose pixels say where they are: red is x, green is y."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[..., 0] = np.arange(width) % 256
    pixels[..., 1] = (np.arange(height) % 256)[:, None]
    return pixels


@pytest.mark.parametrize(("patch", "stride", "downsample"), [(20, 20, 1), (7, 3, 1), (10, 10, 4)])
def test_every_patch_is_where_the_grid_says(patch, stride, downsample):
    picture = Picture(coordinates(250, 230))
    grid = PatchGrid.covering(picture.size, patch, stride, downsample)
    seen = np.zeros((grid.n_rows, grid.n_columns), int)
    for rows, columns in grid.chunks():
        patches = grid.read(picture, rows, columns)
        shape = (rows.stop - rows.start, columns.stop - columns.start)
        patches = patches.reshape(*shape, patch, patch, 3)
        for i in range(shape[0]):
            for j in range(shape[1]):
                x, y = grid.corner(rows.start + i, columns.start + j)
                assert tuple(patches[i, j, 0, 0, :2]) == (x, y)
                seen[rows.start + i, columns.start + j] += 1
    assert (seen == 1).all()
    x, y = grid.corner(grid.n_rows - 1, grid.n_columns - 1)
    assert x + grid.patch_side <= 250 < x + grid.patch_side + stride * downsample
    assert y + grid.patch_side <= 230 < y + grid.patch_side + stride * downsample


def test_a_large_image_is_read_in_pieces():
    picture = Picture(np.zeros((5000, 4000, 3), np.uint8))
    grid = PatchGrid.covering(picture.size, 20, 20, 1)
    n_patches = sum(len(grid.read(picture, *chunk)) for chunk in grid.chunks())
    assert n_patches == grid.n_rows * grid.n_columns == 250 * 200
    assert picture.largest <= 1024 * 1024


def test_an_image_smaller_than_a_patch_is_named():
    with pytest.raises(ValueError, match="30 x 19 pixels, less than one patch of 20 x 20"):
        PatchGrid.covering((30, 19), 20, 20, 1)


def test_cut_is_row_by_row():
    patches = extract_patches(coordinates(40, 60), 20, 20)
    assert [tuple(p[0, 0, :2]) for p in patches] == [(x, y) for y in (0, 20, 40) for x in (0, 20)]


def everything(patches):
    return np.ones(len(patches), bool)


def test_samples_are_accepted_seeded_and_inside(rng):
    picture = Picture(coordinates(200, 150))

    def accept(patches):
        return patches[:, 0, 0, 0] < 100

    patches = sample_patches(picture, 300, SIXTEEN, rng, accept)
    assert patches.shape == (300, 16, 16, 3)
    assert patches[:, 0, 0, 0].max() < 100
    assert patches[:, 0, 0, 1].max() > 120
    again = sample_patches(picture, 300, SIXTEEN, np.random.default_rng(0), accept)
    np.testing.assert_array_equal(patches, again)


def test_samples_keep_to_allowed_places_however_few(rng):
    picture = Picture(coordinates(200, 150))

    def allowed(corners):
        return (abs(corners - [50, 60]) <= 1).all(axis=1)

    patches = sample_patches(picture, 40, SIXTEEN, rng, everything, LocationConstraint(allowed))
    assert len(patches) == 40
    np.testing.assert_array_less(abs(patches[:, 0, 0, :2].astype(int) - [50, 60]), 2)
    nowhere = LocationConstraint(lambda corners: np.zeros(len(corners), bool))
    none = sample_patches(picture, 40, SIXTEEN, rng, everything, nowhere)
    assert none.shape == (0, 16, 16, 3)


def test_few_or_no_acceptable_patches_end_the_search(rng):
    picture = Picture(coordinates(50, 50))
    assert len(sample_patches(picture, 10, SIXTEEN, rng, lambda p: np.zeros(len(p), bool))) == 0
    assert len(sample_patches(picture, 10, PatchGrid(1, 1, 60, 60, 1.0), rng, everything)) == 0


def test_turning_gives_the_eight_symmetries(rng):
    patch = coordinates(5, 5)
    turned = random_dihedral(np.repeat(patch[None], 400, axis=0), rng)
    assert len({t.tobytes() for t in turned}) == 8
    assert all(
        sorted(t.reshape(-1, 3).tolist()) == sorted(patch.reshape(-1, 3).tolist())
        for t in turned[:20]
    )


@pytest.mark.parametrize("name", sorted(PATCH_FEATURES))
def test_vectors_are_short_or_unit_and_finite(rng, name):
    patches = rng.integers(0, 256, (50, 8, 8, 3)).astype(np.uint8)
    patches[:3] = [[[255, 255, 255]]], [[[0, 0, 0]]], [[[200, 150, 180]]]
    vectors = PATCH_FEATURES[name](patches)
    assert vectors.shape == (50, 192)
    assert vectors.dtype == np.float32
    assert np.isfinite(vectors).all()
    np.testing.assert_allclose(np.linalg.norm(vectors[3:], axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize("name", sorted(PATCH_FEATURES))
def test_no_patches_have_no_vectors(name):
    assert PATCH_FEATURES[name](np.empty((0, 8, 8, 3), np.uint8)).shape == (0, 192)


def test_what_each_vector_ignores(rng):
    patches = rng.integers(60, 120, (20, 8, 8, 3)).astype(np.uint8)
    np.testing.assert_allclose(rgb(patches), rgb(2 * patches), atol=1e-6)
    np.testing.assert_allclose(centred(patches), centred(patches + 40), atol=1e-5)
    tinted = patches + np.array([10, 60, 100], np.uint8)
    np.testing.assert_allclose(channel_centred(patches), channel_centred(tinted), atol=1e-5)
    assert np.abs(centred(patches) - centred(tinted)).max() > 0.05


def test_channels_come_one_after_another(rng):
    patches = rng.integers(0, 256, (3, 4, 4, 3)).astype(np.uint8)
    vector = rgb(patches)[1]
    expected = patches[1].transpose(2, 0, 1).ravel() / np.linalg.norm(patches[1].astype(float))
    np.testing.assert_allclose(vector, expected, rtol=1e-5)


@pytest.mark.parametrize("name", PATCH_FEATURES)
def test_vectors_say_whether_they_are_pictures(rng, name):
    """What can be shown is three planes of the patch's pixels; a report takes their word for it."""
    patches = rng.integers(0, 256, (5, 8, 8, 3), dtype=np.uint8)
    assert PATCH_FEATURES[name].are_images == (
        PATCH_FEATURES[name](patches).shape == (5, 3 * 8 * 8)
    )
