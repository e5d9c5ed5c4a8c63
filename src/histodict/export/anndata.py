"""Patches of one image as AnnData: a row per patch on tissue, a column per atom.

    X                 sparse codes
    obs               class, margin_CLASS, array_row, array_col, library_id, image_label,
                      image_top_label; truth
                      and patient if known
    obsm["spatial"]   x and y of the patch centres, in level-0 pixels of the image
    var               class: class of the atom
                      usage, usage_CLASS: fraction of patches that use the atom, of all patches
                      and of those predicted as CLASS
                      concept: annotated name, else CLASS:NUMBER; group, artefact, disabled
                      from `histodict atoms`, if given: auc, n_patients, variance_share_site,
                      is_site_confounded and similar statistics
    varm["atoms"]     the atoms
    varm["class_usage"] fraction of the training patches of each class that use an atom, if known
    uns["spatial"]    thumbnail, its scale and the patch side, as squidpy and scanpy expect them
    uns["histodict"]  image, prediction, model

Models without class-specific atoms omit the atoms and their annotations. `to_anndata` and
`to_spatialdata` return the table in memory and need anndata and spatialdata.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from ..datasets.manifest import ImageRecord
from ..datasets.record import read_csv_rows
from ..decision.atom_annotations import AtomAnnotations, atom_labels
from ..explain.atom_statistics import AtomStatistics
from ..images.pixel_size import MppLike
from ..images.source import ImageError, open_image
from ..methods.patch_classifier import DistanceContributions
from ..models import NO_TISSUE_LABEL, Model, Prediction
from ..models.image_pipeline import AtomTable, PatchRecorder
from ..models.inputs import coordinate_shift, resolve_inputs
from ..patches.patch_map import COLOURS, PatchMap
from ..utils.files import atomic_write
from ..utils.text_io import Row, printable
from ..utils.validation import import_optional
from .h5ad_writer import Categorical, LazyIndex, SparseRows, set_encoding, write, write_frame

if TYPE_CHECKING:
    from anndata import AnnData
    from spatialdata import SpatialData

# Columns of var that are numbers; fields of `AtomStatistics`.
_STATISTICS_COLUMNS = (
    "n_patients",
    "of_patients",
    "auc",
    "auc_low",
    "auc_high",
    "similarity_other_seeds",
    "similarity_half_of_patients",
    *(
        f"variance_share_{level}{bound}"
        for level in ("site", "patient", "slide")
        for bound in ("", "_low", "_high")
    ),
)
_TRUE_VALUES, _FALSE_VALUES = ("true", "1"), ("false", "0", "")


def read_atom_statistics(path: Path) -> list[Row]:
    """Read a table written by `histodict atoms --csv`.

    Raises
    ------
    ValueError
        If the file is not such a table.
    """
    (_, header), *records = read_csv_rows(path) or [(0, [])]
    rows: list[Row] = [dict(zip(header, cells, strict=False)) for _, cells in records]
    if not rows or not {"digest", "disabled", "auc", "is_site_confounded"} <= set(rows[0]):
        raise ValueError(
            f"{path}: is not an atom table. Atom tables are written by `histodict atoms --csv`"
        )
    return rows


def check_statistics(rows: Sequence[Row], atoms: AtomTable, annotations: AtomAnnotations) -> None:
    """Check that atom statistics belong to these atoms, with the same atoms disabled.

    Raises
    ------
    ValueError
        If the statistics belong to other atoms, or other atoms are disabled.
    """
    if not rows:
        return
    advice = "write the table again with `histodict atoms --csv`"
    digests = [atoms.digest(atom) for atom in range(len(atoms.D))]
    if [row["digest"] for row in rows] != digests:
        raise ValueError(
            f"the atom table is not of the {len(digests)} atoms of this model: {advice}"
        )
    if [
        index for index, row in enumerate(rows) if _parse_boolean("disabled", row["disabled"])
    ] != annotations.disabled:
        raise ValueError(f"the atom table is of this model with other disabled atoms: {advice}")


def statistics_columns(
    rows: Sequence[Row], atoms: AtomTable, annotations: AtomAnnotations
) -> dict[str, Any]:
    """Return a column of `var` per statistic, NaN for unknown values; {} if `rows` is empty.

    Parameters
    ----------
    rows : a row per atom, from `read_atom_statistics`
    atoms : atoms of the model
    annotations : annotations of the atoms
    """
    check_statistics(rows, atoms, annotations)
    if not rows:
        return {}
    columns: dict[str, Any] = {
        name: np.array([_parse_number(row.get(name)) for row in rows])
        for name in _STATISTICS_COLUMNS
    }
    return columns | {
        "is_site_confounded": np.array(
            [_parse_boolean("is_site_confounded", row["is_site_confounded"]) for row in rows]
        )
    }


def _parse_number(value: Any) -> float:
    return np.nan if value in (None, "") else float(value)


def _parse_boolean(name: str, value: Any) -> bool:
    text = str(value).lower()
    if text not in (*_TRUE_VALUES, *_FALSE_VALUES):
        raise ValueError(f"{name}: must be true or false, not {value!r}")
    return text in _TRUE_VALUES


_THUMBNAIL_PX = 512  # longer side of the thumbnail
_EMPTY_ELEMENTS = ("layers", "obsp", "varp")  # empty parts, which the format requires


@dataclass(frozen=True)
class ImageMetadata:
    """Metadata of an image for its .h5ad file.

    Attributes
    ----------
    library_id : name of the image, which is unique in a table of several images
    record : patient, label and mask of the image; None if unknown
    model_digest : digest of the model file; None for a model in memory
    atom_statistics : a row per atom, as written by `histodict atoms --csv`; empty if unknown
    """

    library_id: str
    record: ImageRecord | None = None
    model_digest: str | None = None
    atom_statistics: Sequence[Row] = ()


def check_patch_level(model: Model) -> None:
    """Check that the model predicts patches and that h5py is installed.

    Raises
    ------
    ValueError
        If the method uses the whole image.
    ImportError
        If h5py is missing.
    """
    import_optional("h5py", "anndata", "--anndata")
    if not model.model_.recipe.is_patch_level:
        raise ValueError(
            f"the method {model.model_.recipe.method!r} uses whole images and has no patches for "
            "AnnData"
        )


def check_statistics_file(model: Model, path: Path | None) -> None:
    """Check that a table of atom statistics belongs to the model's atoms.

    Parameters
    ----------
    model : trained model
    path : table written by `histodict atoms --csv`; None to check nothing

    Raises
    ------
    ValueError
        If the table belongs to other atoms, or the model has no atoms.
    """
    atoms = model.model_.atoms()
    if path is None:
        return
    if atoms is None:
        raise ValueError(model.model_.no_atoms_reason())
    check_statistics(read_atom_statistics(path), atoms, model.model_.atom_annotations)


def write_h5ad(
    path: Path, model: Model, predict: Callable[[Model], Prediction], metadata: ImageMetadata
) -> Prediction:
    """Write the patches of an image with their codes into an .h5ad file; return the prediction.

    Codes are written as they are computed, so that memory use does not grow with the image.

    Parameters
    ----------
    path : file to write
    model : trained model
    predict : function that predicts the image with the model passed to it, a copy of `model` that
        also records its codes
    metadata : metadata of the image
    """
    check_patch_level(model)
    h5py = import_optional("h5py", "anndata", "write AnnData")
    n_codes = model.model_.classifier_.n_codes_
    with atomic_write(path) as partial, h5py.File(partial, "w") as file:
        set_encoding(file, "anndata")
        codes = SparseRows(file, "X", n_codes)
        recorder = _CodeWriter(codes)
        prediction = predict(model.with_recorders([recorder]))
        codes.finish()
        assert prediction.patch_map is not None
        positions = np.concatenate(recorder.positions)
        _PatchTable(model, prediction, prediction.patch_map, metadata, positions).write(file, codes)
    return prediction


class _CodeWriter(PatchRecorder):
    """Recorder that writes codes to a file, and collects the positions of the patches."""

    def __init__(self, codes: SparseRows) -> None:
        self.positions = [np.empty((0, 2), np.int32)]
        self._codes = codes

    def add(
        self,
        positions: NDArray[np.int64],
        codes: csr_array,
        contributions: DistanceContributions | None,
    ) -> None:
        """Write the codes of a chunk."""
        self.positions.append(positions.astype(np.int32))
        self._codes.add(codes)


@dataclass(frozen=True)
class _PatchTable:
    """Content of an .h5ad file except X.

    Attributes
    ----------
    model : trained model
    prediction : prediction of the image
    patch_map : patch map of the prediction
    metadata : metadata of the image
    positions : (n_patches, 2), row and column of each patch on the grid
    """

    model: Model
    prediction: Prediction
    patch_map: PatchMap
    metadata: ImageMetadata
    positions: NDArray[np.int32]

    def write(self, file: Any, codes: SparseRows) -> None:
        """Write obs, obsm, var, varm, uns and the empty parts."""
        classes = self.patch_map.predicted_classes[self._grid_index]
        n_classes = self.patch_map.n_classes
        counts = codes.count_nonzero(classes, n_classes)
        write_frame(
            file, "obs", LazyIndex(len(self.positions), self._row_names), self._obs(classes)
        )
        write({"spatial": self._centres()}, file, "obsm")
        atoms, names = self.model.model_.atoms(), self._atom_names()
        sizes = np.bincount(classes, minlength=n_classes)
        write_frame(
            file, "var", LazyIndex(len(names), lambda rows: names[rows]), self._var(counts, sizes)
        )
        atom_rows: dict[str, NDArray[Any]] = {}
        if atoms is not None:
            fractions = [reference.usage for reference in self.model.model_.class_reference_]
            atom_rows = {"atoms": np.asarray(atoms.D), "class_usage": np.stack(fractions, axis=1)}
        write(atom_rows, file, "varm")
        write(self._uns(), file, "uns")
        for part in _EMPTY_ELEMENTS:
            write({}, file, part)

    @property
    def _grid_index(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        return self.positions[:, 0], self.positions[:, 1]

    # --- patches ----------------------------------------------------------------------------------

    def _row_names(self, rows: slice) -> list[str]:
        library = self.metadata.library_id
        return [f"{library}-{row}-{column}" for row, column in self.positions[rows].tolist()]

    def _obs(self, predicted: NDArray[np.int16]) -> dict[str, Any]:
        margins, n = self.patch_map.margins[self._grid_index], len(self.positions)
        classes = list(self.patch_map.classes)
        columns: dict[str, Any] = {"class": Categorical(predicted, classes)}
        columns |= {f"margin_{name}": margins[:, index] for index, name in enumerate(classes)}
        columns |= {"array_row": self.positions[:, 0], "array_col": self.positions[:, 1]}
        columns["library_id"] = Categorical.constant(self.metadata.library_id, n)
        for name in ("label", "top_label"):
            value = getattr(self.prediction, name) or NO_TISSUE_LABEL
            columns[f"image_{name}"] = Categorical.constant(value, n)
        record = self.metadata.record
        if record and record.patient:
            columns["patient"] = Categorical.constant(record.patient, n)
        if record and (record.label or record.has_regions):
            # An unreadable mask is reported when the predictions are scored.
            with suppress(ValueError, OSError):
                columns["truth"] = Categorical.from_values(self._true_labels(record))
        return columns

    def _true_labels(self, record: ImageRecord) -> list[str]:
        side = self.patch_map.grid.patch_side
        corners = self._corners() + coordinate_shift(record, self.patch_map)
        return self.model.patch_labels(record, corners.astype(np.int64), side)

    def _corners(self) -> NDArray[np.float64]:
        """Return (x, y) of the upper left corner of each patch, in coordinates of the patch map."""
        grid = self.patch_map.grid
        x = np.array([grid.corner(0, column)[0] for column in range(grid.n_columns)], np.float64)
        y = np.array([grid.corner(row, 0)[1] for row in range(grid.n_rows)], np.float64)
        return np.stack([x[self.positions[:, 1]], y[self.positions[:, 0]]], axis=1)

    def _centres(self) -> NDArray[np.float64]:
        return self._corners() + self.patch_map.grid.patch_side / 2

    # --- atoms ----------------------------------------------------------------------------------

    def _atom_names(self) -> list[str]:
        atoms, n = self.model.model_.atoms(), self.model.model_.classifier_.n_codes_
        if atoms is None:
            return [f"code_{index}" for index in range(n)]
        numbers = [count() for _ in self.patch_map.classes]
        names = self.patch_map.classes
        return [
            f"{names[class_index]}_{next(numbers[class_index])}"
            for class_index in atoms.classes.tolist()
        ]

    def _var(self, usage_counts: NDArray[np.int64], sizes: NDArray[np.int64]) -> dict[str, Any]:
        """Return the columns of var.

        Parameters
        ----------
        usage_counts : (n_classes, n_atoms), number of patches of each class that use each atom
        sizes : (n_classes,), number of patches of each class
        """
        atoms, classes = self.model.model_.atoms(), list(self.patch_map.classes)
        annotations = {} if atoms is None else self._annotation_columns(atoms, classes)
        fractions = usage_counts / np.maximum(sizes, 1)[:, None]
        by_class = {f"usage_{name}": fractions[index] for index, name in enumerate(classes)}
        return (
            annotations | {"usage": usage_counts.sum(axis=0) / max(1, int(sizes.sum()))} | by_class
        )

    def _annotation_columns(self, atoms: AtomTable, classes: list[str]) -> dict[str, Any]:
        """Return the columns of var with class, name, annotations and statistics of each atom."""
        labels, model = atom_labels(atoms.classes, classes), self.model.model_
        notes = [model.atom_annotations.get(atom) for atom in range(len(labels))]
        names = [note.name or label for note, label in zip(notes, labels, strict=True)]
        return {
            "class": Categorical(atoms.classes.astype(np.int16), classes),
            "concept": Categorical.from_values(names),
            "group": Categorical.from_values(note.group for note in notes),
            "artefact": np.array([note.artefact for note in notes]),
            "disabled": np.array([note.disabled for note in notes]),
        } | statistics_columns(self.metadata.atom_statistics, atoms, model.atom_annotations)

    # --- image and model --------------------------------------------------------------------------

    def _uns(self) -> dict[str, Any]:
        with open_image(self.patch_map.path) as source:
            thumbnail, size = source.thumbnail(min(_THUMBNAIL_PX, max(source.size))), source.size
        scales = {
            "tissue_hires_scalef": max(thumbnail.shape[:2]) / max(size),
            "spot_diameter_fullres": self.patch_map.grid.patch_side,
        }
        spatial = {"images": {"hires": thumbnail}, "scalefactors": scales, "metadata": {}}
        return {
            "spatial": {self.metadata.library_id: spatial},
            "class_colors": [_hex_colour(index) for index in range(self.patch_map.n_classes)],
            "histodict": self._histodict_metadata(size),
        }

    def _histodict_metadata(self, size: tuple[int, int]) -> dict[str, Any]:
        content, grid = self.model.to_model_data(), self.patch_map.grid
        prediction: Mapping[str, Any] = self.prediction.row()
        return {
            "version": version("histodict"),
            "image": printable(str(self.patch_map.path)),
            "size": np.array(size),
            "offset": np.array(self.patch_map.offset),
            "mpp": self.prediction.size.mpp,
            "patch_side": grid.patch_side,
            "step": grid.step,
            "answer": dict(prediction),
            "kind": content.kind,
            "classes": content.classes,
            "decision": self.model.describe_decision(),
            "recipe": json.dumps(content.recipe),
            "training": json.dumps(content.training_info),
            "model_digest": self.metadata.model_digest,
        }


def _hex_colour(class_index: int) -> str:
    return "#" + "".join(f"{int(part):02x}" for part in COLOURS[class_index % len(COLOURS)])


# Names used by wsidata, and therefore by LazySlide, for patches and their table.
_TILES, _TABLE, _TILE_ID = "tiles", "histodict_tiles", "tile_id"
_REGION = "region"  # column with the name of the element that a row describes
_IMAGE_KEY = "thumbnail"


def to_anndata(
    model: Model,
    image: Any,
    *,
    mpp: MppLike = None,
    library_id: str | None = None,
    statistics: Sequence[AtomStatistics] = (),
) -> AnnData:
    """Return the patches of an image as `anndata.AnnData`: predictions, sparse codes and atoms.

    A row is a patch on tissue, a column an atom: `X` holds the sparse codes, `obs["class"]` the
    predicted class of a patch, `obsm["spatial"]` its centre in level-0 pixels, `varm["atoms"]` the
    atoms, and `uns["spatial"]` a thumbnail for squidpy. See docs/anndata.md for the full layout.

    Parameters
    ----------
    model : trained model that predicts patches
    image : path of an image or slide, array (height, width, 3) of uint8, or Pillow image
    mpp : pixel size (µm) of the image; None to read it from the file
    library_id : name of the image in `uns["spatial"]` and in tables of several images; None for
        the name of the file
    statistics : statistics of the atoms, from `atom_statistics`, added as columns of `var`

    Returns
    -------
    anndata.AnnData

    Raises
    ------
    ImportError
        If anndata is not installed.
    """
    anndata = import_optional("anndata", "anndata", "to_anndata")
    model._check_fitted()
    inputs = resolve_inputs(image)
    if not inputs.is_single:
        raise ImageError(
            "an AnnData table is of one image. Give a single image, and concatenate the tables "
            "afterwards"
        )
    source = inputs.images[0][0]
    name = library_id or Path(str(source)).stem
    with TemporaryDirectory() as folder:
        path = Path(folder, "patches.h5ad")
        metadata = ImageMetadata(name, atom_statistics=[atom.row() for atom in statistics])
        write_h5ad(path, model, lambda fitted: fitted.predict_one(source, mpp=mpp), metadata)
        return anndata.read_h5ad(path)


def to_spatialdata(table: AnnData | Path | str) -> SpatialData:
    """Return the patches of an image as `spatialdata.SpatialData`, in level-0 pixels.

    Shapes "tiles" are the patches as squares, the table "histodict_tiles" describes them, and the
    image "thumbnail" is scaled to level 0. `.write("patches.zarr")` saves the result.

    Parameters
    ----------
    table : result of `to_anndata`, or path of a file written by `histodict predict --anndata`

    Returns
    -------
    spatialdata.SpatialData

    Raises
    ------
    ImportError
        If spatialdata is not installed.
    """
    spatialdata = import_optional("spatialdata", "spatialdata", "to_spatialdata")
    models = import_module("spatialdata.models")
    table = _copy_or_read(table)
    spatial = _single_spatial_entry(table)
    table.obs[_TILE_ID] = np.arange(table.n_obs)
    table.obs[_REGION] = import_module("pandas").Categorical([_TILES] * table.n_obs)
    keys = {"region": _TILES, "region_key": _REGION, "instance_key": _TILE_ID}
    return spatialdata.SpatialData(
        images={_IMAGE_KEY: _thumbnail_element(spatial)},
        shapes={_TILES: _tile_shapes(table, spatial["scalefactors"]["spot_diameter_fullres"])},
        tables={_TABLE: models.TableModel.parse(table, **keys)},
    )


def _copy_or_read(table: Any) -> Any:
    """Return a copy of an AnnData table; if `table` is a path, read the file."""
    if isinstance(table, str | Path):
        return import_optional("anndata", "anndata", "to_anndata").read_h5ad(table)
    return table.copy()


def _single_spatial_entry(table: Any) -> Any:
    images = table.uns.get("spatial", {}) if "histodict" in table.uns else {}
    if len(images) != 1:
        raise ValueError(
            f"uns['spatial'] of this table has {len(images)} images. Give a table of one image, "
            "from to_anndata or `histodict predict --anndata`"
        )
    return next(iter(images.values()))


def _tile_shapes(table: Any, side: float) -> Any:
    shapely, geopandas = import_module("shapely"), import_module("geopandas")
    x, y = (table.obsm["spatial"] - side / 2).T
    frame = geopandas.GeoDataFrame(
        {_TILE_ID: np.arange(table.n_obs), "x": x, "y": y},
        geometry=shapely.box(x, y, x + side, y + side),
    )
    return import_module("spatialdata.models").ShapesModel.parse(frame)


def _thumbnail_element(spatial: Any) -> Any:
    """Return the thumbnail as SpatialData image, with the transformation to level-0 pixels.

    `spatial` is the entry of an image in `uns["spatial"]`.
    """
    scale = 1 / spatial["scalefactors"]["tissue_hires_scalef"]
    transformation = import_module("spatialdata.transformations").Scale([scale, scale], ("y", "x"))
    pixels = np.moveaxis(spatial["images"]["hires"], 2, 0)
    return import_module("spatialdata.models").Image2DModel.parse(
        pixels, dims=("c", "y", "x"), transformations={"global": transformation}
    )
