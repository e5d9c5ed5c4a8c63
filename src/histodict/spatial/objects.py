"""The same table in memory, for those who have anndata or spatialdata installed."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from ..images.pixel_size import MppLike
from ..images.readers import ImageError
from ..pipeline import Model
from ..pipeline.atom_facts import AtomStatistics
from ..pipeline.inputs import resolve_inputs
from .patch_table import ImageMetadata, write_h5ad

if TYPE_CHECKING:
    from anndata import AnnData
    from spatialdata import SpatialData

# The names that wsidata, and so LazySlide, gives to patches and to a table of them.
_TILES, _TABLE, _TILE_ID = "tiles", "histodict_tiles", "tile_id"
_REGION = "region"  # the column that says which element a row is of
_IMAGE_KEY = "thumbnail"


def to_anndata(
    model: Model,
    image: Any,
    *,
    mpp: MppLike = None,
    library_id: str | None = None,
    facts: Sequence[AtomStatistics] = (),
) -> AnnData:
    """What a model says of an image's patches, as `anndata.AnnData`: answers, codes, atoms.

    A row is a patch on tissue, a column an atom: `X` are the sparse codes, `obs["class"]` the class
    that won a patch, `obsm["spatial"]` its centre in level-0 pixels, `varm["atoms"]` the atoms;
    `uns["spatial"]` has a small picture, for squidpy. See docs/anndata.md for all of it.

    Parameters
    ----------
    model : one that has learnt and judges patches
    image : the path of an image or slide, an array (height, width, 3) of uint8 or a picture of
        Pillow
    mpp : as in `predict`
    library_id : what the image is called in `uns["spatial"]`, and where its patches are put into
        one table with those of others; None takes the file's name
    facts : of the model's atoms, from `atom_facts`: they become columns of `var`
    """
    anndata = _load("anndata", "anndata")
    model._check_fitted()
    found = resolve_inputs(image)
    if not found.is_one:
        raise ImageError("a table is of one image: give one, and put tables together afterwards")
    one = found.images[0][0]
    name = library_id or Path(str(one)).stem
    with TemporaryDirectory() as folder:
        path = Path(folder, "patches.h5ad")
        about = ImageMetadata(name, atom_statistics=[fact.row() for fact in facts])
        write_h5ad(path, model, lambda heard: heard.predict_one(one, mpp=mpp), about)
        return anndata.read_h5ad(path)


def to_spatialdata(table: AnnData | Path | str) -> SpatialData:
    """The patches of an image as `spatialdata.SpatialData`, all in level-0 pixels of the image.

    Shapes "tiles" are the patches, as squares; the table "histodict_tiles" is about them; the image
    "thumbnail" is a small picture, scaled to its true size. `.write("patches.zarr")` keeps it.

    table : of `to_anndata`, or the path of an .h5ad file that `histodict predict --anndata` wrote
    """
    spatialdata = _load("spatialdata", "spatialdata")
    models = import_module("spatialdata.models")
    table = _opened(table)
    spatial = _single_image(table)
    table.obs[_TILE_ID] = np.arange(table.n_obs)
    table.obs[_REGION] = import_module("pandas").Categorical([_TILES] * table.n_obs)
    keys = {"region": _TILES, "region_key": _REGION, "instance_key": _TILE_ID}
    return spatialdata.SpatialData(
        images={_IMAGE_KEY: _image(spatial)},
        shapes={_TILES: _squares(table, spatial["scalefactors"]["spot_diameter_fullres"])},
        tables={_TABLE: models.TableModel.parse(table, **keys)},
    )


def _opened(table: Any) -> Any:
    """A table of its own, which may be added to."""
    if isinstance(table, str | Path):
        return _load("anndata", "anndata").read_h5ad(table)
    return table.copy()


def _single_image(table: Any) -> Any:
    found = table.uns.get("spatial", {}) if "histodict" in table.uns else {}
    if len(found) != 1:
        raise ValueError(
            f"this table is of {len(found)} images, as uns['spatial'] has it: give one that "
            "to_anndata or `histodict predict --anndata` made of one image"
        )
    return next(iter(found.values()))


def _squares(table: Any, side: float) -> Any:
    shapely, geopandas = import_module("shapely"), import_module("geopandas")
    x, y = (table.obsm["spatial"] - side / 2).T
    frame = geopandas.GeoDataFrame(
        {_TILE_ID: np.arange(table.n_obs), "x": x, "y": y},
        geometry=shapely.box(x, y, x + side, y + side),
    )
    return import_module("spatialdata.models").ShapesModel.parse(frame)


def _image(spatial: Any) -> Any:
    """With the scale that takes its pixels to those of level 0."""
    scale = 1 / spatial["scalefactors"]["tissue_hires_scalef"]
    transformation = import_module("spatialdata.transformations").Scale([scale, scale], ("y", "x"))
    pixels = np.moveaxis(spatial["images"]["hires"], 2, 0)
    return import_module("spatialdata.models").Image2DModel.parse(
        pixels, dims=("c", "y", "x"), transformations={"global": transformation}
    )


def _load(package: str, extra: str) -> Any:
    try:
        return import_module(package)
    except ImportError as error:
        raise ImportError(
            f"this needs {error.name}, which is not installed: pip install 'histodict[{extra}]'"
        ) from error
