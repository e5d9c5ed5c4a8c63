"""Tests of patches as AnnData: values and positions equal those computed by the model."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_array

from histodict.datasets.manifest import ImageRecord, read_manifest
from histodict.export.anndata import ImageMetadata, write_h5ad
from histodict.models import EnsembleClassifier, RegionDetector, TissueClassifier
from histodict.models.prepared_image import open_prepared_image
from histodict.models.recipe import Recipe
from histodict.patches.patch_map import NO_TISSUE
from histodict.synthetic.dataset import write_synthetic_dataset

h5py = pytest.importorskip("h5py")

RECIPE = Recipe(
    method_parameters={"n_atoms": 12, "n_iter": 2},
    patch_px=12,
    patches_per_class=200,
    features="centred",
    smoothing_radius=1,
)
HEAD = Recipe("nearest-mean", patch_px=12, aggregation="margin", patches_per_class=200)


def read(element):
    """Read an element of an .h5ad file by its format specification alone."""
    kind = element.attrs["encoding-type"]
    if kind in ("anndata", "dict"):
        return {name: read(part) for name, part in element.items()}
    if kind == "dataframe":
        assert element.attrs["_index"] == "_index"
        names = ["_index", *element.attrs["column-order"]]
        assert set(names) == set(element)
        return {name: read(element[name]) for name in names}
    if kind == "categorical":
        names = [*read(element["categories"]), None]
        return [names[code] for code in element["codes"][()]]
    if kind == "csr_matrix":
        parts = [element[name][()] for name in ("data", "indices", "indptr")]
        return csr_array(tuple(parts), shape=tuple(element.attrs["shape"]))
    if kind == "string-array":
        return element.asstr()[()].tolist()
    if kind == "string":
        return element.asstr()[()]
    assert kind in ("array", "numeric-scalar"), kind
    return element[()]


def table_of(model, image, path, mpp=None, **known):
    prediction = write_h5ad(
        path,
        model,
        lambda evaluated: evaluated.predict_one(image, mpp=mpp),
        ImageMetadata("slide", **known),
    )
    with h5py.File(path) as file:
        return prediction, read(file)


@pytest.fixture(scope="module")
def tissue(tmp_path_factory):
    return write_synthetic_dataset(tmp_path_factory.mktemp("set") / "t", 4, 1, size=(160, 120))


@pytest.fixture(scope="module")
def manifest(tissue):
    return read_manifest(tissue / "manifest.csv")


@pytest.fixture(scope="module")
def model(manifest):
    return TissueClassifier(RECIPE, n_jobs=1).fit(manifest)


@pytest.fixture(scope="module")
def image(manifest):
    return manifest.records[0].path


@pytest.fixture(scope="module")
def found(model, image, tmp_path_factory):
    return table_of(model, image, tmp_path_factory.mktemp("table") / "a.h5ad", mpp=0.5)


def cells_of(table):
    return np.array(table["obs"]["array_row"]), np.array(table["obs"]["array_col"])


def test_prediction_is_the_same_with_and_without_a_table(model, image, found):
    plain, (prediction, _) = model.predict_one(image, mpp=0.5), found
    assert prediction.row() == plain.row()
    np.testing.assert_array_equal(prediction.patch_map.margins, plain.patch_map.margins)


def test_codes_are_those_of_the_patch_at_the_position(model, image, found):
    _, table = found
    pipeline = model.model_
    codes = {}
    with open_prepared_image(image, 0.5, pipeline.recipe, pipeline.mpp_) as prepared:
        grid = prepared.grid()
        # one row of patches at a time: other chunks than those of the model
        for row in range(grid.n_rows):
            tissue, vectors = prepared.chunk_features(
                grid, slice(row, row + 1), slice(0, grid.n_columns)
            )
            if len(vectors):
                S = pipeline.classifier_.encode(pipeline.project(vectors))[0].toarray()
                codes |= {(row, int(c)): s for c, s in zip(np.flatnonzero(tissue), S, strict=True)}
    places = list(zip(*(part.tolist() for part in cells_of(table)), strict=True))
    assert sorted(places) == sorted(codes)
    expected = np.array([codes[place] for place in places])
    assert expected.any()
    np.testing.assert_allclose(table["X"].toarray(), expected, atol=2e-5)


def test_every_tissue_patch_is_a_row_with_its_prediction(found):
    prediction, table = found
    patch_map, obs = prediction.patch_map, table["obs"]
    cells = cells_of(table)
    assert len(set(obs["_index"])) == len(obs["_index"]) == patch_map.n_patches
    predicted_classes = [patch_map.classes[w] for w in patch_map.predicted_classes[cells]]
    assert obs["class"] == predicted_classes and len(set(predicted_classes)) == 2
    for place, name in enumerate(patch_map.classes):
        np.testing.assert_array_equal(obs[f"margin_{name}"], patch_map.margins[cells][:, place])
    centres = [
        np.add(patch_map.grid.corner(row, column), patch_map.grid.patch_side / 2)
        for row, column in zip(*cells, strict=True)
    ]
    np.testing.assert_array_equal(table["obsm"]["spatial"], centres)
    assert set(obs["image_label"]) == {prediction.label} and "patient" not in obs


def test_atoms_have_their_class_and_usage(model, found):
    _, table = found
    atoms, var = model.model_.atoms(), table["var"]
    np.testing.assert_array_equal(table["varm"]["atoms"], atoms.D)
    assert var["class"] == [model.classes_[own] for own in atoms.classes]
    assert var["_index"][0] == "healthy_0" and len(set(var["_index"])) == len(atoms.D)
    used, classes = table["X"].toarray() != 0, np.array(table["obs"]["class"])
    np.testing.assert_allclose(var["usage"], used.mean(axis=0))
    for name in model.classes_:
        np.testing.assert_allclose(var[f"usage_{name}"], used[classes == name].mean(axis=0))


def test_image_and_metadata(model, image, found):
    prediction, table = found
    spatial, metadata = table["uns"]["spatial"]["slide"], table["uns"]["histodict"]
    assert spatial["images"]["hires"].shape == (120, 160, 3)
    assert spatial["scalefactors"]["tissue_hires_scalef"] == 1
    assert spatial["scalefactors"]["spot_diameter_fullres"] == prediction.patch_map.grid.patch_side
    assert len(table["uns"]["class_colors"]) == 2
    assert metadata["image"] == str(image) and metadata["mpp"] == 0.5
    assert (
        metadata["answer"]["label"] == prediction.label and metadata["kind"] == "tissue-classifier"
    )
    assert '"method": "dfdl"' in metadata["recipe"] and "model_digest" not in metadata


def test_large_image_is_reduced_with_its_scale(model, tissue, tmp_path):
    from PIL import Image

    wide = tmp_path / "wide.png"
    first = next((tissue / "healthy").iterdir())
    with Image.open(first) as picture:
        pixels = np.tile(np.asarray(picture), (1, 7, 1))
    Image.fromarray(pixels).save(wide)
    _, table = table_of(model, wide, tmp_path / "a.h5ad", mpp=0.5)
    spatial = table["uns"]["spatial"]["slide"]
    scale = spatial["scalefactors"]["tissue_hires_scalef"]
    assert spatial["images"]["hires"].shape[1] == 512
    assert scale == pytest.approx(512 / pixels.shape[1])


# --- other models, other images -------------------------------------------------------------------


def test_ensemble_table_has_the_codes_of_the_first_member(manifest, image, tmp_path):
    ensemble = EnsembleClassifier([RECIPE, replace(HEAD, stain="none")], folds=2, n_jobs=1).fit(
        manifest
    )
    _, table = table_of(ensemble, image, tmp_path / "a.h5ad", mpp=0.5)
    np.testing.assert_array_equal(table["varm"]["atoms"], ensemble.estimators_[0].model_.atoms().D)
    assert "probability_inflamed" in table["uns"]["histodict"]["answer"]


def test_regions_and_mask_labels_of_patches(tissue, tmp_path):
    manifest = read_manifest(tissue / "regions" / "manifest.csv")
    finder = RegionDetector(RECIPE, region="inflamed", n_jobs=1).fit(manifest)
    record = manifest.records[0]
    prediction, table = table_of(
        finder, record.path, tmp_path / "a.h5ad", mpp=record.mpp, record=record
    )
    cells, grid = cells_of(table), prediction.patch_map.grid
    corners = np.array([grid.corner(*cell) for cell in zip(*cells, strict=True)])
    assert table["obs"]["truth"] == finder.patch_labels(record, corners, grid.patch_side)
    assert len(set(table["obs"]["truth"])) == 2
    assert set(table["obs"]["patient"]) == {record.patient}


def test_vector_head_has_scores_as_codes_and_no_atoms(manifest, image, tmp_path):
    head = TissueClassifier(HEAD).fit(manifest)
    _, table = table_of(head, image, tmp_path / "a.h5ad", mpp=0.5)
    assert table["X"].shape[1] == 2 and table["varm"] == {}
    assert table["var"]["_index"] == ["code_0", "code_1"] and "class" not in table["var"]


def test_background_image_is_a_table_without_rows(model, tmp_path):
    from PIL import Image

    background = tmp_path / "background.png"
    Image.new("RGB", (160, 120), (250, 250, 250)).save(background)
    prediction, table = table_of(model, background, tmp_path / "a.h5ad", mpp=0.5)
    assert prediction.label is None and (prediction.patch_map.predicted_classes == NO_TISSUE).all()
    assert table["X"].shape == (0, 24) and table["obs"]["_index"] == []
    assert not np.any(table["var"]["usage"])


def test_slash_in_a_class_name_is_replaced(model, image, tmp_path):
    from copy import copy

    odd = copy(model)
    odd.class_names_ = odd._model.classes = ["a/b", "c"]
    try:
        _, table = table_of(odd, image, tmp_path / "a.h5ad", mpp=0.5)
    finally:
        odd._model.classes = model.class_names_
    assert "margin_a⁄b" in table["obs"] and set(table["obs"]["class"]) <= {"a/b", "c"}  # noqa: RUF001


def test_record_metadata_are_in_every_row(model, image, tmp_path):
    record = ImageRecord(image, "healthy", "patient 7")
    _, table = table_of(model, image, tmp_path / "a.h5ad", mpp=0.5, record=record)
    assert set(table["obs"]["patient"]) == {"patient 7"}
    assert set(table["obs"]["truth"]) == {"healthy"}


def test_whole_image_method_is_refused_without_a_file(manifest, image, tmp_path):
    whole_image = TissueClassifier("fast", method="mean-logistic").fit(manifest)
    with pytest.raises(ValueError, match="uses whole images"):
        table_of(whole_image, image, tmp_path / "a.h5ad", 0.5)
    assert list(tmp_path.iterdir()) == []


def test_missing_h5py_is_reported(model, image, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ImportError, match=r"pip install .*\[anndata\]"):
        table_of(model, image, tmp_path / "a.h5ad", 0.5)
