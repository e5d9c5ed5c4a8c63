"""Tests of patches with their context: the same centre at two scales."""

from __future__ import annotations

import numpy as np
import pytest

from histodict.patches.grid import (
    PatchGrid,
    block_means,
    downsample_contexts,
    extract_patches,
    read_mirrored,
    read_with_context,
)
from histodict.patches.sampling import rotate_and_mirror_randomly, sample_patches
from histodict.patches.vectors import centred, to_images


class FakeImage:
    """Pixels in memory, as an image source."""

    def __init__(self, pixels):
        self.pixels = pixels
        self.size = (pixels.shape[1], pixels.shape[0])

    def read(self, x, y, width, height, downsample=1.0):
        assert x >= 0 and y >= 0, "read inside the image"
        step = int(downsample)
        part = self.pixels[y : y + height, x : x + width]
        return block_means(part, step) if step > 1 else part


@pytest.fixture
def image(rng):
    return FakeImage(rng.integers(0, 256, (70, 90, 3)).astype(np.uint8))


def read_pairs(grid, source, rows, columns, context):
    """Return the patches of a chunk and their context: (n_patches, 2, patch_px, patch_px, 3)."""
    area, inner = read_with_context(grid, source, rows, columns, context)
    own = extract_patches(inner, grid.patch_px, grid.stride_px)
    every = np.ones((rows.stop - rows.start, columns.stop - columns.start), bool)
    around = downsample_contexts(area, grid.patch_px * context, grid.stride_px, context, every)
    return np.stack([own, around], axis=1)


@pytest.mark.parametrize(("context", "downsample"), [(2, 1), (3, 1), (4, 1), (2, 2)])
def test_pairs_are_the_patch_and_the_mean_of_its_context(image, context, downsample):
    grid = PatchGrid.from_size(image.size, 8, 6, downsample)
    rows, columns = slice(0, grid.n_rows), slice(0, grid.n_columns)
    pairs = read_pairs(grid, image, rows, columns, context)
    np.testing.assert_array_equal(pairs[:, 0], grid.read(image, rows, columns))

    expected = image.read(0, 0, *image.size, downsample)
    half = 8 * context // 2
    wide = np.pad(expected, ((half, half), (half, half), (0, 0)), mode="symmetric")
    for place in (0, 7, len(pairs) // 2, len(pairs) - 1):
        row, column = divmod(place, grid.n_columns)
        # the centre of the patch; in `wide`, the corner of the context
        y, x = row * 6 + 4, column * 6 + 4
        field = wide[y : y + 2 * half, x : x + 2 * half].astype(float)
        blocks = field.reshape(8, context, 8, context, 3).mean(axis=(1, 3))
        assert np.abs(pairs[place, 1] - blocks).max() <= 0.5


def test_chunks_equal_the_complete_grid(image):
    grid = PatchGrid.from_size(image.size, 8, 8, 1)
    expected = read_pairs(grid, image, slice(0, grid.n_rows), slice(0, grid.n_columns), 4)
    shape = (grid.n_rows, grid.n_columns)
    part = read_pairs(grid, image, slice(2, 5), slice(3, 7), 4)
    np.testing.assert_array_equal(
        part, expected.reshape(*shape, *expected.shape[1:])[2:5, 3:7].reshape(part.shape)
    )


def test_samples_are_pairs_of_the_grid(image, rng):
    """Random positions on the grid give the pairs of the grid."""
    grid = PatchGrid.from_size(image.size, 8, 1, 1)
    pairs = read_pairs(grid, image, slice(0, grid.n_rows), slice(0, grid.n_columns), 2)
    grid_pairs = {pair.tobytes() for pair in pairs}
    synthetic = sample_patches(
        image, 50, grid, rng, lambda p: p[..., 0].mean((1, 2)) > 100, context=2
    )
    assert synthetic.shape == (50, 2, 8, 8, 3)
    assert all(pair.tobytes() in grid_pairs for pair in synthetic)
    turned = rotate_and_mirror_randomly(synthetic, rng)
    for before, after in zip(synthetic, turned, strict=True):
        ways = [np.rot90(before, k, axes=(1, 2)) for k in range(4)]
        assert any(np.array_equal(after, w) or np.array_equal(after, w[:, :, ::-1]) for w in ways)


def test_image_is_mirrored_beyond_its_border(image):
    area = read_mirrored(image, -3, 5, -2, 4, 1.0)
    np.testing.assert_array_equal(area[2:, 3:], image.pixels[:4, :5])
    np.testing.assert_array_equal(area[:2], area[2:4][::-1])
    np.testing.assert_array_equal(area[:, :3], area[:, 3:6][:, ::-1])
    wider = read_mirrored(image, -100, 190, 0, 70, 1.0)  # more than the image width
    assert wider.shape == (70, 290, 3)


def test_rendered_vectors_are_side_by_side(rng):
    patches = rng.integers(0, 256, (5, 2, 8, 8, 3)).astype(np.uint8)
    vectors = np.hstack([centred(patches[:, 0]), centred(patches[:, 1])])
    rendered = to_images(vectors, 8)
    assert rendered.shape == (5, 8, 16, 3)
    for i, half in enumerate((rendered[:, :, :8], rendered[:, :, 8:])):
        flat = half.reshape(5, -1)
        values = patches[:, i].reshape(5, -1).astype(float)
        values -= values.mean(axis=1, keepdims=True)
        np.testing.assert_allclose(
            flat / np.linalg.norm(flat, axis=1, keepdims=True),
            values / np.linalg.norm(values, axis=1, keepdims=True),
            atol=1e-5,
        )
