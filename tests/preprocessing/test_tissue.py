from __future__ import annotations

import numpy as np
import pytest

from histodict.images.source import open_image
from histodict.preprocessing.tissue import TissueThreshold, tissue_fraction, tissue_mask
from tests.images.files import tissue


def background(rng, height, width, level=243, noise=3):
    grey = rng.normal(level, noise, (height, width, 1)) + rng.normal(0, 1, (height, width, 3))
    return np.clip(grey, 0, 255).astype(np.uint8)


def test_tissue_alone_is_all_tissue(rng):
    assert tissue_mask(tissue(rng)).all()


@pytest.mark.parametrize("level", [255, 243, 200, 150])
def test_background_alone_is_all_background_at_any_brightness(rng, level):
    assert not tissue_mask(background(rng, 80, 90, level)).any()


@pytest.mark.parametrize("colour", [0, 5, 255])
def test_constant_padding_is_not_tissue(colour):
    assert not tissue_mask(np.full((30, 40, 3), colour, np.uint8)).any()


@pytest.mark.parametrize("level", [255, 243, 180])
def test_tissue_on_background_is_located(rng, level):
    image = background(rng, 200, 240, level)
    image[50:150, 60:180] = tissue(rng) * (level / 255)  # the same illumination
    mask = tissue_mask(image)
    assert mask.shape == (200, 240)
    assert mask[50:150, 60:180].mean() > 0.99
    mask[50:150, 60:180] = False
    assert mask.mean() < 0.005


@pytest.mark.parametrize("lamp", [(1, 0.97, 0.9), (0.8, 0.9, 1)], ids=["yellowish", "bluish"])
def test_background_with_wrong_white_balance(rng, lamp):
    image = background(rng, 200, 240, 245)
    image[50:150, 60:180] = tissue(rng)
    image = (image * np.array(lamp)).astype(np.uint8)
    expected = np.zeros((200, 240), bool)
    expected[50:150, 60:180] = True
    assert np.mean(tissue_mask(image) == expected) > 0.99
    assert not tissue_mask(image[:50]).any()


def test_black_padding_with_compression_noise_is_not_tissue(rng):
    image = background(rng, 200, 240)
    image[50:150, 60:180] = tissue(rng)
    image[:, :40] = rng.integers(0, 12, (200, 40, 3))
    mask = tissue_mask(image)
    assert not mask[:, :40].any()
    assert mask[50:150, 60:180].mean() > 0.99


def test_tile_fractions_use_the_threshold_of_the_image(rng):
    image = background(rng, 200, 240)
    image[50:150, 60:180] = tissue(rng)
    threshold = TissueThreshold.from_thumbnail(image)
    tiles = np.stack([image[:50, :60], image[50:100, 60:120], image[50:100, 30:90]])
    np.testing.assert_allclose(tissue_fraction(tiles, threshold), [0, 1, 0.5], atol=0.01)
    assert tissue_fraction(tiles[:0], threshold).shape == (0,)


def test_mask_follows_the_documented_rule(rng):
    """In floating point; 16-bit integers may differ by 0.01 at a threshold."""
    white = np.array([221.0, 240, 203])
    pixels = rng.integers(0, 256, (50_000, 3), dtype=np.uint8)
    red, green, blue = (pixels / white).T

    def lack(one, other, another):
        return 1 - 2 * one / np.maximum(other + another, 1e-9)

    measures = np.stack(
        [
            lack(green, red, blue) - 0.05,
            lack(red, green, blue) - 0.12,
            lack(blue, red, green) - 0.12,
            0.8 - (red + green + blue) / 3,
        ]
    )
    ink = 0.7 * green - red
    clear = (abs(measures) > 0.01).all(axis=0) & (abs(ink) > 0.01)
    expected = (measures > 0).any(axis=0) & (ink < 0) & (pixels.max(axis=1) >= 20)
    assert 0.1 < expected[clear].mean() < 0.9
    assert clear.mean() > 0.8
    mask = TissueThreshold(tuple(white)).mask(pixels)
    np.testing.assert_array_equal(mask[clear], expected[clear])


GAINS = [(1.2, 1, 1.2), (0.8, 1, 0.8), (1.2, 1, 0.8), (0.8, 1, 1.2), (0.7, 0.7, 0.7)]


@pytest.mark.parametrize("gains", GAINS)
def test_white_balance_and_brightness_do_not_change_the_mask(rng, gains):
    image = background(rng, 200, 240, 235)
    image[50:150, 60:180] = tissue(rng)
    shifted = np.clip(np.rint(image * np.array(gains)), 0, 255).astype(np.uint8)
    assert np.mean(tissue_mask(shifted) == tissue_mask(image)) > 0.99


@pytest.mark.parametrize("gains", [(1, 1, 1), *GAINS])
def test_dense_haematoxylin_without_background_is_tissue(rng, gains):
    """Grey-blue nuclei from edge to edge, with light gaps of single pixels between them."""
    nuclei = rng.normal((95, 100, 120), 12, (200, 240, 3))
    gaps = rng.random((200, 240)) < 0.04
    nuclei[gaps] = rng.normal((205, 208, 205), 8, (int(gaps.sum()), 3))
    image = np.clip(np.rint(nuclei * np.array(gains)), 0, 255).astype(np.uint8)
    assert not TissueThreshold.from_thumbnail(image).has_background
    assert tissue_mask(image).mean() > 0.95


@pytest.mark.parametrize("colour", [(60, 50, 130), (225, 160, 200), (150, 110, 70), (190, 30, 50)])
def test_each_stain_alone_is_tissue_on_background(rng, colour):
    """Haematoxylin, eosin, diaminobenzidine, blood."""
    image = background(rng, 120, 150)
    image[30:90, 40:110] = np.clip(rng.normal(colour, 5, (60, 70, 3)), 0, 255)
    mask = tissue_mask(image)
    assert mask[30:90, 40:110].mean() > 0.99
    mask[30:90, 40:110] = False
    assert mask.mean() < 0.005


@pytest.mark.parametrize("ink", [(30, 140, 70), (40, 60, 170), (20, 90, 200)])
def test_ink_is_unusable_and_neither_tissue_nor_background(rng, ink):
    image = background(rng, 120, 150)
    image[30:90, 40:110] = tissue(rng, 60, 70)
    image[:, :20] = ink
    threshold = TissueThreshold.from_thumbnail(image)
    assert threshold.is_unusable(image)[:, :20].all()
    assert not threshold.is_unusable(image)[:, 20:].any()
    assert not threshold.mask(image)[:, :20].any()


def test_white_is_that_of_the_background(rng):
    image = background(rng, 120, 150, 240)
    image[:, :100] = tissue(rng, 120, 100)
    lamp = np.array([0.95, 0.8, 1.0])
    threshold = TissueThreshold.from_thumbnail((image * lamp).astype(np.uint8))
    assert threshold.has_background
    np.testing.assert_allclose(threshold.white, 240 * lamp, atol=3)


def test_brown_pigment_is_tissue(rng):
    image = background(rng, 80, 90)
    image[20:40, 20:40] = (150, 110, 70)
    assert tissue_mask(image).sum() == 400


def test_single_pixel(rng):
    assert tissue_mask(np.full((1, 1, 3), (200, 80, 150), np.uint8)).all()
    assert not tissue_mask(np.full((1, 1, 3), 240, np.uint8)).any()


@pytest.mark.parametrize("colour", [(255, 255, 0), (0, 200, 90), (0, 200, 0), (0, 0, 255)])
@pytest.mark.parametrize("side", [1, 40])
@pytest.mark.filterwarnings("error")
def test_white_has_all_colours(colour, side):
    pixels = np.full((side, side, 3), colour, np.uint8)
    threshold = TissueThreshold.from_tile(pixels)
    assert min(threshold.white) >= 20
    assert threshold.mask(pixels).shape == (side, side)


def test_real_slide(data_folder):
    thumbnail = open_image(data_folder / "slides" / "CMU-1-Small-Region.svs").thumbnail(600)
    mask = tissue_mask(thumbnail)
    assert 0.25 < mask.mean() < 0.4
    assert mask[300:580, 170:230].mean() > 0.7  # skin
    assert mask[:, :10].mean() < 0.02  # the left margin


def test_real_images_are_mostly_tissue(data_folder):
    for path in sorted((data_folder / "camelyon-tumour" / "images").iterdir())[::8]:
        assert tissue_mask(open_image(path).thumbnail(512)).mean() > 0.8


# --- images without colours ---------------------------------------------------------------------


def as_grey(pixels):
    light = pixels @ np.array([0.3, 0.6, 0.1])
    return np.repeat(np.rint(light).astype(np.uint8)[..., None], 3, axis=-1)


@pytest.mark.parametrize("lamp", [1, 0.7])
def test_grey_tissue_is_darker_than_the_background(rng, lamp):
    image = background(rng, 200, 240)
    image[50:150, 60:180] = tissue(rng)
    mask = tissue_mask(as_grey(lamp * image))
    assert mask[50:150, 60:180].mean() > 0.9
    mask[50:150, 60:180] = False
    assert mask.mean() < 0.005


@pytest.mark.parametrize("level", [255, 243, 200, 150])
def test_grey_background_alone_is_all_background(rng, level):
    assert tissue_mask(as_grey(background(rng, 80, 90, level))).mean() < 0.01


def test_white_of_grey_images_is_that_of_the_whole_image(rng):
    image = as_grey(np.concatenate([background(rng, 50, 60), tissue(rng, 50, 60)]))
    threshold = TissueThreshold.from_thumbnail(image)
    tiles = np.stack([image[:50], image[50:]])
    np.testing.assert_allclose(tissue_fraction(tiles, threshold), [0, 1], atol=0.1)


def test_real_images_in_grey_keep_their_tissue(data_folder):
    same = []
    for path in sorted((data_folder / "ucsb-breast").glob("*/*.jpg"))[::10]:
        thumbnail = open_image(path).thumbnail(512)
        same.append(np.mean(tissue_mask(as_grey(thumbnail)) == tissue_mask(thumbnail)))
    assert np.mean(same) > 0.9


# --- real images --------------------------------------------------------------------------------


def test_real_images_have_tissue(data_folder):
    """Includes dense lymphocytes from edge to edge, which have little background."""
    fractions = {}
    for folder in ("lymphoma", "ucsb-breast", "glas-colon", "lc25000-lung"):
        paths = sorted((data_folder / folder).glob("*/*.jp*g"))[::8]
        fractions[folder] = [tissue_mask(open_image(path).thumbnail(400)).mean() for path in paths]
    assert {name: min(found) > 0.25 for name, found in fractions.items()} == dict.fromkeys(
        fractions, True
    )
    assert min(fractions["lymphoma"]) > 0.8
    dense = ["CLL/sj-03-5521_009.jpg", "MCL/sj-04-6010-R3_009.jpg"]
    for name in dense:
        assert tissue_mask(open_image(data_folder / "lymphoma" / name).thumbnail(400)).mean() > 0.9
