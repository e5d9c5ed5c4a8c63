from __future__ import annotations

import time

import numpy as np
import pytest

from histodict.images.source import open_image
from histodict.preprocessing.stain import (
    NORMALIZERS,
    LookupTransform,
    Macenko,
    Reinhard,
    lab_statistics,
    to_lab,
)
from histodict.preprocessing.tissue import tissue_mask
from tests.images.files import EOSIN, HAEMATOXYLIN, amounts, stained, tissue

CHANGING = ["reinhard", "macenko"]


def everywhere(pixels):
    return np.ones(pixels.shape[:-1], bool)


# --- the mathematics ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rgb", "lab"),
    [
        ((255, 255, 255), (100, 0, 0)),
        ((0, 0, 0), (0, 0, 0)),
        ((255, 0, 0), (53.24, 80.09, 67.20)),
        ((0, 255, 0), (87.73, -86.18, 83.18)),
        ((0, 0, 255), (32.30, 79.19, -107.86)),
        ((119, 119, 119), (50.03, 0, 0)),
        ((8, 8, 8), (2.19, 0, 0)),
    ],
)
def test_lab_of_known_colours(rgb, lab):
    np.testing.assert_allclose(to_lab(np.array([rgb], np.uint8))[0], lab, atol=0.1)


def test_reinhard_reaches_the_target_statistics(rng):
    pixels = tissue(rng)
    transform = Reinhard.estimate(pixels, everywhere(pixels))
    assert transform.unchanged_reason == ""
    mean, deviation = lab_statistics(transform(pixels).reshape(-1, 3))
    # colours beyond sRGB are clipped, hence approximately
    np.testing.assert_allclose(mean, Reinhard.TARGET_MEAN, atol=2)
    np.testing.assert_allclose(deviation, Reinhard.TARGET_DEVIATION, atol=2)


def test_reinhard_towards_its_own_statistics_changes_nothing(rng):
    pixels = rng.integers(0, 256, (500, 3), dtype=np.uint8)
    same = Reinhard(Reinhard.TARGET_MEAN, Reinhard.TARGET_DEVIATION)(pixels)
    assert np.abs(same.astype(int) - pixels).max() <= 1


def test_macenko_recovers_the_planted_stains(rng):
    amount = amounts(rng, 20_000)
    transform = Macenko.estimate(stained(amount), np.ones(20_000, bool))
    assert isinstance(transform, Macenko)
    for found, planted in zip(transform.stains, (HAEMATOXYLIN, EOSIN), strict=True):
        cosine = found @ planted / np.linalg.norm(planted)
        assert np.degrees(np.arccos(cosine)) < 4
    np.testing.assert_allclose(transform.strength, np.percentile(amount, 99, axis=0), rtol=0.1)


def test_macenko_maps_planted_amounts_to_the_target_stains(rng):
    amount = amounts(rng, 20_000)
    transform = Macenko.estimate(stained(amount), np.ones(20_000, bool))
    scaled = amount * np.array(Macenko.TARGET_STRENGTH) / np.percentile(amount, 99, axis=0)
    expected = stained(scaled, *np.array(Macenko.TARGET_STAINS))
    assert np.abs(transform(stained(amount)).astype(int) - expected).mean() < 6


@pytest.mark.parametrize("name", CHANGING)
def test_differently_stained_tissue_becomes_similar(rng, name):
    amount = amounts(rng, 10_000)
    first = stained(amount)
    W = HAEMATOXYLIN + np.array([-0.15, 0.05, 0.1]), EOSIN + np.array([0.1, 0, 0.1])
    second = stained(amount * 1.4, *W)
    before = np.abs(first.astype(int) - second).mean()
    assert before > 15
    mask = np.ones(10_000, bool)
    first, second = (NORMALIZERS[name].estimate(p, mask)(p).astype(int) for p in (first, second))
    assert np.abs(first - second).mean() < 0.4 * before


@pytest.mark.parametrize("name", CHANGING)
def test_estimate_uses_tissue_only(rng, name):
    image = np.full((100, 240, 3), 250, np.uint8)
    image[:, :120] = tissue(rng)
    mask = np.zeros((100, 240), bool)
    mask[:, :120] = True
    alone = NORMALIZERS[name].estimate(image[:, :120], mask[:, :120])
    assert NORMALIZERS[name].estimate(image, mask) == alone


@pytest.mark.parametrize("name", sorted(NORMALIZERS))
def test_tiles_give_the_same_result_as_the_image(rng, name):
    pixels = tissue(rng, 200, 240)
    transform = NORMALIZERS[name].estimate(pixels, everywhere(pixels))
    expected = transform(pixels)
    assert expected.shape == pixels.shape
    assert expected.dtype == np.uint8
    tiles = pixels.reshape(4, 50, 240, 3)
    np.testing.assert_array_equal(transform(tiles), expected.reshape(tiles.shape))
    np.testing.assert_array_equal(transform(pixels[17:60, 31:90]), expected[17:60, 31:90])
    assert transform(pixels[:0]).shape == (0, 240, 3)


def test_none_changes_nothing(rng):
    pixels = tissue(rng)
    transform = NORMALIZERS["none"].estimate(pixels, everywhere(pixels))
    np.testing.assert_array_equal(transform(pixels), pixels)
    assert transform.unchanged_reason == ""


# --- nothing to estimate from -------------------------------------------------------------------


def one_stain(rng):
    return stained(amounts(rng, 10_000) * [0, 1]).reshape(100, 100, 3)


DEGENERATE = {
    "blank": lambda rng: np.full((50, 60, 3), 255, np.uint8),
    "black": lambda rng: np.zeros((50, 60, 3), np.uint8),
    "one colour": lambda rng: np.full((50, 60, 3), (200, 100, 150), np.uint8),
    "one pixel": lambda rng: np.full((1, 1, 3), (200, 100, 150), np.uint8),
    "grey noise": lambda rng: np.repeat(rng.integers(0, 256, (50, 60, 1), np.uint8), 3, axis=2),
}


@pytest.mark.parametrize("name", CHANGING)
@pytest.mark.parametrize("kind", sorted(DEGENERATE))
@pytest.mark.parametrize("all_tissue", [True, False])
def test_images_without_stain_are_unchanged_with_a_note(rng, name, kind, all_tissue):
    pixels = DEGENERATE[kind](rng)
    mask = everywhere(pixels) if all_tissue else tissue_mask(pixels)
    transform = NORMALIZERS[name].estimate(pixels, mask)
    assert transform.unchanged_reason.startswith("not normalised: ")
    np.testing.assert_array_equal(transform(pixels), pixels)


def test_macenko_leaves_a_single_stain_unchanged(rng):
    pixels = one_stain(rng)
    transform = Macenko.estimate(pixels, everywhere(pixels))
    assert "stain" in transform.unchanged_reason
    np.testing.assert_array_equal(transform(pixels), pixels)


def test_reinhard_handles_a_single_stain(rng):
    pixels = one_stain(rng)
    transform = Reinhard.estimate(pixels, everywhere(pixels))
    assert len(np.unique(transform(pixels).reshape(-1, 3), axis=0)) > 10


@pytest.mark.parametrize("name", CHANGING)
def test_any_pixels_can_be_transformed(rng, name):
    """A tile may contain colours that are not in the thumbnail: every corner of the colour cube
    works."""
    pixels = tissue(rng)
    transform = NORMALIZERS[name].estimate(pixels, everywhere(pixels))
    values = np.array([0, 1, 127, 254, 255], np.uint8)
    cube = np.stack(np.meshgrid(values, values, values), axis=-1)
    with np.errstate(all="raise"):
        assert transform(cube).shape == cube.shape


@pytest.mark.parametrize("name", CHANGING)
def test_megapixel_takes_less_than_half_a_second(rng, name):
    pixels = tissue(rng, 1000, 1000)
    transform = NORMALIZERS[name].estimate(pixels, everywhere(pixels))
    seconds = []
    for _ in range(3):
        start = time.process_time()
        transform(pixels)
        seconds.append(time.process_time() - start)
    assert min(seconds) < 0.5


# --- real tissue --------------------------------------------------------------------------------


def thumbnails(folder, step):
    for path in sorted(p for p in folder.rglob("*.jp*g") if "masks" not in p.parts)[::step]:
        pixels = open_image(path).thumbnail(512)
        yield pixels, tissue_mask(pixels)


COLLECTIONS = ("lc25000-lung", "ucsb-breast", "glas-colon", "camelyon-tumour")


def test_targets_are_close_to_real_collections(data_folder):
    statistics = []
    for name in COLLECTIONS:
        images = list(thumbnails(data_folder / name, 8))
        lab = [np.concatenate(lab_statistics(pixels[mask])) for pixels, mask in images]
        stains = [Macenko.estimate(*image) for image in images]
        assert all(isinstance(transform, Macenko) for transform in stains)
        both = [np.concatenate([*t.stains, t.strength]) for t in stains]
        statistics.append(np.concatenate([np.median(lab, axis=0), np.median(both, axis=0)]))
    middle = np.median(statistics, axis=0)
    np.testing.assert_allclose(middle[:3], Reinhard.TARGET_MEAN, atol=4)
    np.testing.assert_allclose(middle[3:6], Reinhard.TARGET_DEVIATION, atol=2)
    np.testing.assert_allclose(middle[6:12], np.ravel(Macenko.TARGET_STAINS), atol=0.08)
    np.testing.assert_allclose(middle[12:], Macenko.TARGET_STRENGTH, rtol=0.2)


@pytest.mark.parametrize("name", CHANGING)
def test_real_images_become_more_similar(data_folder, name):
    """The mean tissue colours of images of one collection vary less than before."""
    before, after = [], []
    for pixels, mask in thumbnails(data_folder / "ucsb-breast", 4):
        transform = NORMALIZERS[name].estimate(pixels, mask)
        assert transform.unchanged_reason == ""
        before.append(pixels[mask].mean(axis=0))
        after.append(transform(pixels[mask]).mean(axis=0))
    assert np.std(after, axis=0).sum() < 0.6 * np.std(before, axis=0).sum()


# --- lookup table ---------------------------------------------------------------------------------


@pytest.mark.parametrize("normaliser", [Reinhard, Macenko])
def test_lookup_table_equals_the_transform(rng, normaliser):
    pixels = tissue(rng)
    transform = normaliser.estimate(pixels, everywhere(pixels))
    assert not transform.unchanged_reason
    remembered = LookupTransform(transform)
    for part in (pixels[: len(pixels) // 2], pixels, pixels[:0], pixels[:, ::-1]):
        np.testing.assert_array_equal(remembered(part), transform(part))
