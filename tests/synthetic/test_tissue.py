"""Tests of one synthetic image: shape, seed, background and planted regions."""

import numpy as np
import pytest
from scipy import ndimage

from histodict.synthetic.tissue_generator import (
    Stain,
    make_region_image,
    make_tissue_image,
    random_stain,
)

SIZE = (320, 240)


def concentrations(image: np.ndarray, stain: Stain) -> np.ndarray:
    """Return haematoxylin and eosin (height, width, 2), solved from the Beer-Lambert model."""
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
        image = make_tissue_image(kind, random_stain(rng), rng, size)
        assert image.shape == (size[1], size[0], 3)
        assert image.dtype == np.uint8
        assert image.std() > 10


def test_same_generator_gives_the_same_image():
    stain = random_stain(np.random.default_rng(0))
    first, second, other = (
        make_tissue_image("inflamed", stain, np.random.default_rng(seed), (128, 96))
        for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, second)
    assert np.mean(first != other) > 0.5


def test_invalid_arguments_are_refused():
    rng = np.random.default_rng(0)
    stain = random_stain(rng)
    with pytest.raises(ValueError, match="kind must be one of healthy, inflamed, not 'ill'"):
        make_tissue_image("ill", stain, rng)
    with pytest.raises(ValueError, match="height"):
        make_tissue_image("healthy", stain, rng, (480, 10))
    with pytest.raises(ValueError, match="n_regions"):
        make_region_image(stain, rng, SIZE, -1)


def test_some_images_show_background_of_the_stain_white():
    stain = random_stain(np.random.default_rng(0))
    shares = []
    for seed in range(30):
        image = make_tissue_image("inflamed", stain, np.random.default_rng(seed), (160, 120))
        smooth = ndimage.uniform_filter(image.astype(float), (9, 9, 0))
        shares.append(np.mean(np.all(np.abs(smooth - stain.white) < 3, axis=-1)))
    assert 1 <= np.sum(np.array(shares) > 0.05) <= 15


# --- planted regions ------------------------------------------------------------------------------


@pytest.mark.parametrize("n_regions", [0, 1, 2, 3])
def test_mask_has_the_requested_number_of_regions(n_regions):
    for seed in range(5):
        rng = np.random.default_rng(seed)
        image, mask = make_region_image(random_stain(rng), rng, SIZE, n_regions)
        assert image.shape == (SIZE[1], SIZE[0], 3)
        assert mask.shape == image.shape[:2]
        assert mask.dtype == bool
        assert ndimage.label(mask)[1] == n_regions
        assert (mask.mean() > 0.02) == (n_regions > 0)


def test_mask_covers_the_focus():
    """Haematoxylin is much denser inside, and decreases within a nucleus's width of the outline."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        stain = random_stain(rng)
        image, mask = make_region_image(stain, rng, (480, 360), 1)
        H = concentrations(image, stain)[..., 0]
        assert H[mask].mean() > 1.7 * H[~mask].mean()
        crowd = H > 0.65  # lymphocytes are darker than nuclei of epithelium and stroma
        outside = ndimage.distance_transform_edt(~mask)
        ring = (outside > 10) & (outside < 30)
        assert crowd[mask].mean() > 2 * crowd[ring].mean()


def test_region_is_aligned_with_the_mask():
    """The best shift of the mask on the haematoxylin is no shift."""
    rng = np.random.default_rng(4)
    stain = random_stain(rng)
    image, mask = make_region_image(stain, rng, (480, 360), 1)
    dark = (concentrations(image, stain)[..., 0] > 0.65).astype(float)
    template = mask - mask.mean()
    shifts = [(dy, dx) for dy in range(-40, 41, 10) for dx in range(-40, 41, 10)]
    scores = [np.sum(dark * np.roll(template, shift, (0, 1))) for shift in shifts]
    assert shifts[int(np.argmax(scores))] == (0, 0)
