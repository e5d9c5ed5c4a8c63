"""Planted blur, pen marks and folds are found, and clean tissue is kept."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFilter

from histodict.images.source import open_image
from histodict.models import TissueClassifier, load_model, save_model
from histodict.models.model_file import read_header
from histodict.models.recipe import Recipe, with_method
from histodict.preprocessing.quality import (
    QUALITY_FILTERS,
    SQUARE_PX,
    QualityMap,
    median_tissue_density,
    parse_quality_filters,
)
from histodict.preprocessing.tissue import TissueThreshold
from tests.images.files import save_plain

SIDE = 4 * SQUARE_PX
EVERY = ",".join(QUALITY_FILTERS)
INKS = {"blue": (35, 60, 170), "green": (30, 120, 70), "black": (30, 28, 32)}
LEFT = (slice(None), slice(0, 2))
RIGHT = (slice(None), slice(2, None))


@pytest.fixture(scope="module")
def clean():
    return draw_tissue(0)


def draw_tissue(seed):
    """Return nuclei and fibres with camera noise: (SIDE, SIDE, 3)."""
    rng = np.random.default_rng(seed)
    amounts = np.zeros((SIDE, SIDE, 2))
    amounts[..., 1] = 0.5 + 0.1 * np.sin(np.arange(SIDE) / 9.0)
    picture = Image.new("L", (SIDE, SIDE))
    pen = ImageDraw.Draw(picture)
    for x, y in rng.uniform(0, SIDE, (800, 2)):
        radius = rng.uniform(4, 7)
        pen.ellipse([x - radius, y - radius, x + radius, y + radius], int(rng.integers(120, 255)))
    amounts[..., 0] = np.asarray(picture) / 160
    return render(amounts, rng)


def render(amounts, rng):
    from tests.images.files import stained

    noise = rng.normal(0, 2, (*amounts.shape[:2], 3))
    return np.clip(stained(amounts) + noise, 0, 255).astype(np.uint8)


def assess(tmp_path, pixels, rules=tuple(QUALITY_FILTERS)):
    with open_image(save_plain(tmp_path / "image.png", pixels)) as source:
        thumbnail = source.thumbnail(1024)
        threshold = TissueThreshold.from_thumbnail(thumbnail)
        return QualityMap(source, threshold, median_tissue_density(thumbnail, threshold), rules)


def halves(clean, change):
    """Return the image with its left half changed."""
    pixels = clean.copy()
    pixels[:, : SIDE // 2] = change(Image.fromarray(clean[:, : SIDE // 2]))
    return pixels


def test_clean_tissue_is_accepted(tmp_path, clean):
    found = assess(tmp_path, clean)
    assert found.tissue.all()
    assert not any(bad.any() for bad in found.excluded.values())
    assert found.describe_excluded() == ""


@pytest.mark.parametrize("sigma", [4, 6, 10])
def test_blur_is_found_where_it_is(tmp_path, clean, sigma):
    blurred = halves(clean, lambda part: part.filter(ImageFilter.GaussianBlur(sigma)))
    found = assess(tmp_path, blurred)
    assert found.excluded["blur"][LEFT].all()
    assert not found.excluded["blur"][RIGHT].any()
    assert not found.excluded["pen"].any()
    assert "50% blurred" in found.describe_excluded()


@pytest.mark.parametrize("contrast", [0.4, 1.0])
def test_pale_tissue_is_as_sharp_as_strong_tissue(tmp_path, clean, contrast):
    pale = (255 - (255 - clean.astype(float)) * contrast).astype(np.uint8)
    assert not assess(tmp_path, pale, ["blur"]).excluded["blur"].any()


@pytest.mark.parametrize("ink", INKS)
def test_pen_strokes_are_found(tmp_path, clean, ink):
    """A stroke two squares wide; the ink lets some tissue show through."""
    pixels = clean.copy()
    stroke = (slice(None), slice(SQUARE_PX, 3 * SQUARE_PX))
    pixels[stroke] = np.rint(0.15 * clean[stroke] + 0.85 * np.array(INKS[ink])).astype(np.uint8)
    found = assess(tmp_path, pixels)
    assert found.excluded["pen"][:, 1:3].all()
    assert not found.excluded["pen"][:, 3:].any() and not found.excluded["pen"][:, 0].any()


def test_folds_are_found(tmp_path, clean):
    """The transmittance of two layers is the product of theirs."""
    clean = np.concatenate([clean, clean[: SIDE // 2]])  # the fold is a sixth of the tissue
    pixels = clean.copy()
    fold = (slice(2 * SQUARE_PX, 3 * SQUARE_PX), slice(None))
    layers = clean[fold].astype(float) * clean[fold][:, ::-1] / 255
    pixels[fold] = np.rint(layers).astype(np.uint8)
    found = assess(tmp_path, pixels)
    assert found.excluded["folds"][2].all()
    assert not np.delete(found.excluded["folds"], 2, axis=0).any()


def test_background_is_not_assessed(tmp_path, clean):
    pixels = np.full_like(clean, 240)
    pixels[:SQUARE_PX] = clean[:SQUARE_PX]
    found = assess(tmp_path, pixels)
    assert found.tissue[0].all() and not found.tissue[1:].any()
    assert not any(bad.any() for bad in found.excluded.values())


def test_positions_are_those_of_the_image(tmp_path, clean):
    blurred = halves(clean, lambda part: part.filter(ImageFilter.GaussianBlur(6)))
    found = assess(tmp_path, blurred[: SIDE - 40, : SIDE - 40])
    x, y = np.array([10.0, SIDE / 2 + 10, SIDE]), np.array([700.0, 700.0, 700.0])
    assert found.is_usable(x, y).tolist() == [False, True, True]


def test_parse_quality_filters():
    assert parse_quality_filters("none") == [] and parse_quality_filters("pen, blur") == [
        "pen",
        "blur",
    ]
    for wrong in ("", "dirt", "blur,blur", "blur,none"):
        with pytest.raises(
            ValueError,
            match="quality_filters must be 'none' or a comma-separated list of blur, pen, folds",
        ):
            Recipe(quality_filters=wrong)
    with pytest.raises(ValueError) as error:
        Recipe(quality_filters="a" * 10_000)
    assert len(str(error.value)) < 200


def test_real_tissue_is_accepted(data_folder):
    """At most a hundredth of the tissue in some images of GlaS."""
    n_tissue, n_bad = 0, 0
    for path in sorted((data_folder / "glas-colon").glob("*/*.jpg"))[::30]:
        with open_image(path) as source:
            thumbnail = source.thumbnail(1024)
            threshold = TissueThreshold.from_thumbnail(thumbnail)
            density = median_tissue_density(thumbnail, threshold)
            found = QualityMap(source, threshold, density, list(QUALITY_FILTERS))
        n_tissue += int(found.tissue.sum())
        n_bad += int(np.logical_or.reduce(list(found.excluded.values())).sum())
    assert n_tissue > 100 and n_bad <= n_tissue / 100


# --- in the pipeline ----------------------------------------------------------------------------

RECIPE = Recipe(
    method_parameters={"n_atoms": 6, "n_iter": 2},
    patch_px=16,
    downsample=2.0,
    patches_per_class=150,
    features="centred",
    aggregation="margin",
    quality_filters=EVERY,
)


@pytest.fixture(scope="module")
def model(tmp_path_factory, clean):
    folder = tmp_path_factory.mktemp("set")
    for label, pixels in (("a", clean), ("b", clean[:, :, [2, 1, 0]])):
        for place in range(2):
            (folder / label).mkdir(exist_ok=True)
            half = pixels[place * SIDE // 2 :][: SIDE // 2]
            save_plain(folder / label / f"{place}.png", half)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return TissueClassifier(RECIPE, random_state=0).fit(folder)


def test_patches_of_bad_tissue_are_excluded(model, tmp_path, clean):
    blurred = halves(clean, lambda part: part.filter(ImageFilter.GaussianBlur(6)))
    prediction = model.predict(save_plain(tmp_path / "a.png", blurred))
    n = prediction.patch_map.predicted_classes.shape[1] // 2
    assert not prediction.patch_map.tissue[:, :n].any()
    assert prediction.patch_map.tissue[:, n:].all()
    assert prediction.row()["left_out"] == "50% blurred (of the tissue)"
    whole = model.predict(save_plain(tmp_path / "b.png", clean))
    assert whole.row()["left_out"] == "" and whole.patch_map.tissue.all()


def test_image_without_usable_tissue_gets_no_label(model, tmp_path, clean):
    blurred = Image.fromarray(clean).filter(ImageFilter.GaussianBlur(6))
    prediction = model.predict(save_plain(tmp_path / "a.png", np.asarray(blurred)))
    assert prediction.label is None and prediction.n_patches == 0
    assert prediction.summary() == "no tissue of sufficient quality: 100% blurred (of the tissue)"


def test_bad_tissue_is_excluded_from_training(tmp_path, clean):
    """The left half of the images is blurred: all training patches come from the right half."""
    from histodict.models.prepared_image import open_prepared_image
    from histodict.patches.sampling import LocationConstraint

    blurred = halves(clean, lambda part: part.filter(ImageFilter.GaussianBlur(6)))
    path = save_plain(tmp_path / "a.png", blurred)
    corners_seen = []
    with open_prepared_image(path, None, RECIPE) as prepared:
        allowed = LocationConstraint(
            lambda corners: corners_seen.append(corners) or np.ones(len(corners), bool)
        )
        prepared.sample_features(100, np.random.default_rng(0), allowed)
        good = prepared._is_usable(8, np.concatenate(corners_seen))
        corners = np.concatenate(corners_seen)
        assert (corners[good][:, 0] + 8 >= SIDE / 4).all() and good.any() and not good.all()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for label, picture in (("x", clean), ("y", clean[::-1])):
            (tmp_path / "set" / label).mkdir(parents=True)
            whole = Image.fromarray(picture).filter(ImageFilter.GaussianBlur(6))
            save_plain(tmp_path / "set" / label / f"{label}.png", np.asarray(whole))
        with pytest.raises(ValueError, match=r"no tissue was found.*after quality_filters=blur"):
            TissueClassifier(RECIPE, random_state=0).fit(tmp_path / "set")


def test_quality_filters_are_stored_in_model_and_map(model, tmp_path, clean):
    from histodict.patches.patch_map import PatchMap

    path = save_model(model, tmp_path / "m.histodict")
    assert read_header(path)["recipe"]["quality_filters"] == EVERY
    assert load_model(path).recipe == RECIPE
    prediction = model.predict(save_plain(tmp_path / "a.png", clean))
    prediction.patch_map.save(tmp_path / "map.npz")
    assert PatchMap.load(tmp_path / "map.npz").excluded == ""


def test_whole_image_methods_refuse_quality_filters():
    assert with_method(RECIPE, "lbp-colour").quality_filters == "none"
    assert (
        with_method(Recipe(), "lbp-colour")
        .with_applicable_settings({"quality_filters": "blur"})
        .quality_filters
        == "none"
    )
    with pytest.raises(ValueError, match="lbp-colour uses whole images"):
        with_method(Recipe(), "lbp-colour").parse_settings({"quality_filters": "blur"})
