"""Tables opened with anndata, scanpy, squidpy and spatialdata.

These need older versions of pandas and Dask than the other tests, hence their own environment
(docs/anndata.md); elsewhere the tests are skipped.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import histodict
from histodict.synthetic.dataset import write_synthetic_dataset

PAGE = Path(__file__).parents[2] / "docs" / "anndata.md"
NOT_INSTALLED = "not installed here: see docs/anndata.md"
anndata = pytest.importorskip("anndata", reason=f"anndata is {NOT_INSTALLED}")


@pytest.fixture(scope="module")
def tissue(tmp_path_factory):
    return write_synthetic_dataset(tmp_path_factory.mktemp("set") / "t", 2, 1, size=(800, 600))


@pytest.fixture(scope="module")
def model(tissue):
    model = histodict.TissueClassifier("fast", n_atoms=20, n_iter=3, patches_per_class=300)
    return model.fit(tissue)


@pytest.fixture(scope="module")
def images(tissue):
    return [next((tissue / name).iterdir()) for name in ("healthy", "inflamed")]


@pytest.fixture(scope="module")
def spatial_data(model, images):
    return histodict.to_anndata(model, images[1], mpp=0.5)


@pytest.fixture
def table(spatial_data):
    return spatial_data.copy()


def test_table_in_memory_equals_the_prediction(model, images, table):
    prediction = model.predict(images[1], mpp=0.5)
    assert table.shape == (prediction.n_patches, 40)
    shares = table.obs["class"].value_counts(normalize=True)
    assert shares["inflamed"] == pytest.approx(prediction.proportions["inflamed"])
    assert table.obs["margin_inflamed"].mean() == pytest.approx(prediction.score, abs=1e-4)
    assert list(table.uns["spatial"]) == [images[1].stem]


def test_pixels_in_memory_give_the_same_table(model, images, table):
    from PIL import Image

    with Image.open(images[1]) as picture:
        pixels = np.asarray(picture)
    other = histodict.to_anndata(model, pixels, mpp=0.5, library_id=images[1].stem)
    assert (other.X != table.X).nnz == 0
    np.testing.assert_array_equal(other.obsm["spatial"], table.obsm["spatial"])


def test_tables_of_several_images_are_concatenated_by_anndata(model, images):
    tables = [histodict.to_anndata(model, image, mpp=0.5) for image in images]
    both = anndata.concat(tables, uns_merge="unique", merge="same")
    assert both.n_obs == sum(map(len, tables)) and both.obs_names.is_unique
    assert set(both.uns["spatial"]) == {image.stem for image in images}
    np.testing.assert_array_equal(both.varm["atoms"], tables[0].varm["atoms"])


def test_folder_is_refused(model, tissue):
    with pytest.raises(ValueError, match="of one image"):
        histodict.to_anndata(model, tissue / "healthy", mpp=0.5)


def test_table_written_by_anndata_is_a_feature_file(table, tmp_path):
    from histodict.precomputed.feature_file import open_features

    table.write_h5ad(tmp_path / "a.h5ad")
    with open_features(tmp_path / "a.h5ad") as file:
        found = file.read(slice(0, file.n_rows))
        np.testing.assert_array_equal(found, table.X.toarray())
        np.testing.assert_array_equal(file.coords + file.side / 2, table.obsm["spatial"])


def test_scanpy_computes_neighbours_and_clusters(table):
    scanpy = pytest.importorskip("scanpy", reason=f"scanpy is {NOT_INSTALLED}")
    scanpy.pp.pca(table, n_comps=8)
    scanpy.pp.neighbors(table, n_neighbors=8)
    assert table.obsp["connectivities"].shape == (table.n_obs, table.n_obs)
    scanpy.tl.rank_genes_groups(table, "class", method="t-test")
    names = table.uns["rank_genes_groups"]["names"]
    # Most marker atoms of a class among its patches belong to that class.
    own = [names[name][0].startswith(name) for name in ("healthy", "inflamed")]
    assert all(own)


def test_squidpy_counts_neighbours(table):
    squidpy = pytest.importorskip("squidpy", reason=f"squidpy is {NOT_INSTALLED}")
    squidpy.gr.spatial_neighbors(table, coord_type="grid", n_neighs=4)
    steps = table.obsp["spatial_distances"].data
    assert table.obsp["spatial_connectivities"].sum(axis=1).max() == 4 and len(steps)
    squidpy.gr.nhood_enrichment(table, cluster_key="class", n_perms=50, seed=0)
    found = table.uns["class_nhood_enrichment"]["zscore"]
    assert found.shape == (2, 2) and np.isfinite(found).all()
    squidpy.gr.spatial_autocorr(table, mode="moran", genes=list(table.var_names[:5]))
    assert "moranI" in table.uns


def test_squidpy_plots_patches_on_the_image(table, tmp_path):
    squidpy = pytest.importorskip("squidpy", reason=f"squidpy is {NOT_INSTALLED}")
    import matplotlib

    matplotlib.use("Agg")
    squidpy.pl.spatial_scatter(table, color="class", save=tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 5000


def test_spatialdata_round_trip_keeps_positions(table, tmp_path):
    spatialdata = pytest.importorskip("spatialdata", reason=f"spatialdata is {NOT_INSTALLED}")
    made = histodict.to_spatialdata(table)
    made.write(tmp_path / "a.zarr")
    again = spatialdata.read_zarr(tmp_path / "a.zarr")
    tiles, found = again.shapes["tiles"], again.tables["histodict_tiles"]
    side = table.uns["spatial"][next(iter(table.uns["spatial"]))]["scalefactors"]
    centres = np.array([[shape.centroid.x, shape.centroid.y] for shape in tiles.geometry])
    np.testing.assert_allclose(centres, table.obsm["spatial"])
    np.testing.assert_allclose(tiles.area, side["spot_diameter_fullres"] ** 2)
    assert (found.X != table.X).nnz == 0 and list(found.obs["class"]) == list(table.obs["class"])
    extent = spatialdata.get_extent(again["thumbnail"])
    assert extent["x"] == pytest.approx((0, 800)) and extent["y"] == pytest.approx((0, 600))


def test_rows_are_selected_by_position(table):
    spatialdata = pytest.importorskip("spatialdata", reason=f"spatialdata is {NOT_INSTALLED}")
    spatial_data = histodict.to_spatialdata(table)
    half = spatialdata.bounding_box_query(
        spatial_data, axes=("x", "y"), min_coordinate=[0, 0], max_coordinate=[400, 600],
        target_coordinate_system="global",
    )  # fmt: skip
    side = table.uns["histodict"]["patch_side"]
    inside = (table.obsm["spatial"][:, 0] - side / 2 <= 400).sum()
    assert half.tables["histodict_tiles"].n_obs == inside < table.n_obs


def test_documentation_page_can_be_followed(model, images, tmp_path, monkeypatch):
    for package in ("scanpy", "squidpy", "spatialdata"):
        pytest.importorskip(package, reason=f"{package} is {NOT_INSTALLED}")
    import matplotlib

    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)
    model.save("tissue.histodict")
    (tmp_path / "new" / "inflamed").mkdir(parents=True)
    shutil.copy(images[1], "new/inflamed/patient02_1.jpg")
    known: dict = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL):
        exec(block, known)
    assert (tmp_path / "patient02.zarr").is_dir()


def test_table_of_two_images_is_refused(table):
    pytest.importorskip("spatialdata", reason=f"spatialdata is {NOT_INSTALLED}")
    table.uns["spatial"]["other"] = {}
    with pytest.raises(ValueError, match="of 2 images"):
        histodict.to_spatialdata(table)
