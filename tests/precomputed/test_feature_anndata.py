"""Tests of AnnData files as feature files: location of the vectors and positions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_array

from histodict.datasets.manifest import read_manifest
from histodict.export.anndata import ImageMetadata, write_h5ad
from histodict.export.h5ad_writer import SparseRows, set_encoding, write
from histodict.images import slide_reader as slide_process
from histodict.images.file_types import ImageError
from histodict.models import TissueClassifier
from histodict.models.recipe import PRESETS, Recipe
from histodict.precomputed.feature_file import FeatureMetadata, open_features
from histodict.synthetic.dataset import write_synthetic_dataset
from tests.precomputed.feature_files import planted_slides, write_lazyslide

h5py = pytest.importorskip("h5py")

CENTRES = np.array([[8.0, 8.0], [24.0, 8.0], [24.0, 40.0]])
VECTORS = np.array([[0.0, 1.5, 0.0], [2.0, 0.0, -1.0], [0.0, 0.0, 0.0]], np.float32)


def spatial(side):
    return {"spatial": {"a": {"scalefactors": {"spot_diameter_fullres": side}}}}


def make(path, X=VECTORS, uns=None, **obsm):
    with h5py.File(path, "w") as file:
        set_encoding(file, "anndata")
        if isinstance(X, csr_array):
            rows = SparseRows(file, "X", X.shape[1])
            rows.add(X[:2])
            rows.add(X[2:])
            rows.finish()
        elif X is not None:
            write(X, file, "X")
        write({"spatial": CENTRES} | obsm, file, "obsm")
        write(uns or {}, file, "uns")
    return path


@pytest.mark.parametrize("X", [VECTORS, csr_array(VECTORS)], ids=["dense", "sparse"])
def test_x_has_the_vectors_and_centres_are_converted_to_corners(X, tmp_path):
    with open_features(make(tmp_path / "a.h5ad", X, spatial(16.0))) as file:
        np.testing.assert_array_equal(file.read(slice(0, 3)), VECTORS)
        np.testing.assert_array_equal(file.read(slice(1, 2)), VECTORS[1:2])
        np.testing.assert_array_equal(file.coords, CENTRES - 8)
        assert file.side == 16 and file.metadata.length == 3
        file.check_values()


def test_obsm_features_have_precedence_over_x(tmp_path):
    with open_features(make(tmp_path / "a.h5ad", features=VECTORS * 2)) as file:
        np.testing.assert_array_equal(file.read(slice(0, 3)), VECTORS * 2)


def test_obsm_features_are_sufficient(tmp_path):
    with open_features(make(tmp_path / "a.h5ad", None, features=VECTORS)) as file:
        np.testing.assert_array_equal(file.read(slice(0, 3)), VECTORS)


def test_spot_beyond_the_border_is_clipped(tmp_path):
    with open_features(make(tmp_path / "a.h5ad", uns=spatial(20.0))) as file:
        assert file.coords.min() == 0 and file.side == 20


def test_file_of_predict_is_read(tmp_path):
    tissue = write_synthetic_dataset(tmp_path / "t", 2, 1, size=(120, 90))
    recipe = Recipe(
        "dfdl", {"n_atoms": 8, "n_iter": 1}, patch_px=12, downsample=1.5, patches_per_class=100
    )
    model = TissueClassifier(recipe).fit(manifest := read_manifest(tissue / "manifest.csv"))
    path, image = tmp_path / "a.h5ad", manifest.records[0].path
    about = ImageMetadata("a", model_digest="0123456789abcdef")
    prediction = write_h5ad(
        path, model, lambda evaluated: evaluated.predict_one(image, mpp=0.5), about
    )
    grid = prediction.patch_map.grid
    with open_features(path) as file, h5py.File(path) as again:
        cells = zip(again["obs/array_row"], again["obs/array_col"], strict=True)
        corners = [grid.corner(int(row), int(column)) for row, column in cells]
        np.testing.assert_array_equal(file.coords, corners)
        assert file.size == (120, 90) and file.mpp == 0.5 and file.side == 18
        assert file.metadata.encoder == "codes of the model 0123456789ab"
        found = file.read(slice(0, file.n_rows))
        assert found.shape == (prediction.n_patches, 16) and found.any()


def as_anndata(source, target, side):
    """Write the same vectors and positions like anndata."""
    with h5py.File(source) as file:
        vectors, corners = file["features"][()], file["coords"][()]
    empty = np.zeros((len(vectors), 2), np.float32)
    make(target, empty, spatial(side), features=vectors, spatial=corners + side / 2)


def test_anndata_and_trident_files_give_the_same_bits(tmp_path):
    table = planted_slides(tmp_path)
    (tmp_path / "h5ad").mkdir()
    for path in (tmp_path / "features").iterdir():
        as_anndata(path, tmp_path / "h5ad" / f"{path.stem}.h5ad", 512.0)
    recipe = replace(
        PRESETS["precomputed"], method_parameters={"n_atoms": 8, "n_iter": 2}, n_components=4
    )
    models, predictions = [], []
    for folder in ("features", "h5ad"):
        manifest = read_manifest(table, features=tmp_path / folder)
        models.append(TissueClassifier(recipe, n_jobs=1).fit(manifest))
        predictions.append(models[-1].predict(manifest))
    ours, theirs = (model.to_model_data().arrays for model in models)
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name], strict=True)
    for a, b in zip(*predictions, strict=True):
        assert a.scores == b.scores and a.patch_map.n_patches == b.patch_map.n_patches
        for row, column in zip(*np.nonzero(a.patch_map.tissue), strict=True):
            assert a.patch_map.grid.corner(row, column) == b.patch_map.grid.corner(row, column)
            assert (
                a.patch_map.predicted_classes[row, column]
                == b.patch_map.predicted_classes[row, column]
            )


@pytest.fixture
def no_check_process(monkeypatch):
    """Open files only in this process; the check in a child process ends it for unusable files."""
    monkeypatch.setattr(slide_process, "USE_SUBPROCESS", False)


# --- files of LazySlide ---------------------------------------------------------------------------

CORNERS = np.array([[243, 1089], [371, 1089], [371, 1217]])


def test_lazyslide_positions_are_corners_and_tile_size_is_read(tmp_path):
    path = write_lazyslide(tmp_path / "a.h5ad", VECTORS, CORNERS, mpp=1.0, has_graph=True)
    with open_features(path) as file:
        np.testing.assert_array_equal(file.coords, CORNERS)
        assert file.metadata == FeatureMetadata(3, None, 64, 10.0)
        assert (file.side, file.size, file.mpp) == (128, (2220, 2967), 0.499)


def test_overlapping_lazyslide_tiles_keep_their_side(tmp_path):
    path = write_lazyslide(tmp_path / "a.h5ad", VECTORS, CORNERS, stride=48)
    with open_features(path) as file:
        assert (file.side, file.overlap) == (64, 16)


@pytest.mark.parametrize(
    ("mpp", "slide", "expected"),
    [
        (None, {}, 20.04),  # of the slide
        (None, {"mpp": None}, 20.0),  # by the magnification of the slide
        (None, {"mpp": None, "magnification": None}, None),
    ],
)
def test_lazyslide_magnification_is_that_of_the_tiles(tmp_path, mpp, slide, expected):
    path = write_lazyslide(tmp_path / "a.h5ad", VECTORS, CORNERS, mpp=mpp, slide=slide)
    with open_features(path) as file:
        found = file.metadata.magnification
    assert found is None if expected is None else found == pytest.approx(expected, abs=0.01)


BAD_TILES = {
    "must be a number greater than 0, not nan": ("tile_spec/width", np.nan),
    "must be a number greater than 0, not 'small'": ("tile_spec/mpp", "small"),
    "must be a number greater than 0, not -1.0": ("slide_properties/mpp", -1.0),
    "tiles are not square .*: width 64.0, height 32.0": ("tile_spec/height", 32),
    "magnification .* must be a number from 0.001 to 10,000": ("tile_spec/mpp", 1e-8),
    "'shape'] must be two whole numbers": ("slide_properties/shape", np.arange(3)),
}


@pytest.mark.usefixtures("no_check_process")
@pytest.mark.parametrize("message", BAD_TILES)
def test_invalid_lazyslide_tiles_are_refused(tmp_path, message):
    path = write_lazyslide(tmp_path / "a.h5ad", VECTORS, CORNERS)
    name, value = BAD_TILES[message]
    with h5py.File(path, "a") as file:
        del file["uns"][name]
        file["uns"][name] = value
    message = message.replace("]", r"\]")
    with pytest.raises(ImageError, match=f"a.h5ad: .*{message}"), open_features(path) as file:
        file.check_values()


# --- unusable files ------------------------------------------------------------------------------


def without(path, name):
    with h5py.File(path, "a") as file:
        del file[name]
    return path


def by_columns(path):
    with h5py.File(path, "a") as file:
        file["X"].attrs["encoding-type"] = "csc_matrix"
    return path


def with_value(path, part, place, value):
    with h5py.File(make(path, csr_array(VECTORS)), "a") as file:
        file["X"][part][place] = value
    return path


BAD = {
    "a column too many": (
        lambda path: with_value(path, "indices", 1, 9_000_000),
        "invalid column indices",
    ),
    "a column before the first": (
        lambda path: with_value(path, "indices", 1, -1),
        "invalid column indices",
    ),
    "rows out of order": (lambda path: with_value(path, "indptr", 1, 1000), "invalid row pointers"),
    "no positions": (lambda path: without(make(path), "obsm/spatial"), r"obsm\['spatial'\]"),
    "no obsm": (lambda path: without(make(path), "obsm"), "not an AnnData file"),
    "no vectors": (lambda path: make(path, None), "not an AnnData file"),
    "by columns": (lambda path: by_columns(make(path, csr_array(VECTORS))), "CSR"),
    "counts": (lambda path: make(path, VECTORS.astype(np.int32)), "must be floating-point numbers"),
    "another number": (lambda path: make(path, VECTORS[:2]), "for 2 vectors"),
    "nan": (lambda path: make(path, VECTORS * np.nan), "contains NaN"),
}


@pytest.mark.usefixtures("no_check_process")
@pytest.mark.parametrize("name", BAD)
def test_unusable_file_is_refused(name, tmp_path):
    damage, text = BAD[name]
    path = damage(tmp_path / "a.h5ad")
    with pytest.raises(ImageError, match=text), open_features(path) as file:
        file.check_values()
