"""The patches of one image as AnnData: a row per patch on tissue, a column per atom.

    X                 sparse codes
    obs               class, margin_CLASS, array_row, array_col, library_id, image_class; where
                      known truth and patient
    obsm["spatial"]   x and y of the patches' centres, in level-0 pixels of the image
    var               class of each atom, usage: the share of this image's patches that use it, and
                      usage_CLASS: of the patches that CLASS won
                      concept: the name people gave it, else CLASS:NUMBER; group, artefact, off
                      where `histodict atoms` has said them: auc, n_patients, stability_seeds,
                      variance_share_site, is_site_confounded and the like
    varm["atoms"]     the atoms
    varm["usual_use"] share of the training patches of each class that use an atom, where known
    uns["spatial"]    as squidpy and scanpy expect it: a small picture, its scale, the patches' side
    uns["histodict"]  image, answer, model

A model without atoms that belong to classes leaves out what is said of these.

What is known of a model's atoms, as columns of a table of them: from `histodict atoms`.

The same table in memory, for those who have anndata or spatialdata installed.
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
from ..models import NO_TISSUE_LABEL, Model, Prediction
from ..models.image_pipeline import AtomTable
from ..models.inputs import resolve_inputs
from ..models.region_detector import coordinate_shift
from ..patches.patch_map import COLOURS, PatchMap
from ..utils.files import atomic_write
from ..utils.text_io import Row, printable
from .h5ad_writer import (
    Categorical,
    LazyIndex,
    SparseRows,
    load_h5py,
    set_encoding,
    write,
    write_frame,
)

if TYPE_CHECKING:
    from anndata import AnnData
    from spatialdata import SpatialData

# By the name of a fact, its column; see `pipeline.atom_facts.AtomFacts`.
_NUMBERS = {
    "n_patients": "n_patients",
    "of_patients": "of_patients",
    "auc": "auc",
    "auc_low": "auc_low",
    "auc_high": "auc_high",
    "seeds": "stability_seeds",
    "halves": "stability_halves",
    **{
        name: name
        for level in ("site", "patient", "slide")
        for name in (
            f"variance_share_{level}",
            f"variance_share_{level}_low",
            f"variance_share_{level}_high",
        )
    },
}
_YES, _NO = ("true", "1"), ("false", "0", "")


def read_atom_statistics(path: Path) -> list[Row]:
    """The table that `histodict atoms --csv` wrote."""
    (_, header), *lines = read_csv_rows(path) or [(0, [])]
    rows: list[Row] = [dict(zip(header, cells, strict=False)) for _, cells in lines]
    if not rows or not {"digest", "disabled", "auc", "is_site_confounded"} <= set(rows[0]):
        raise ValueError(f"{path}: is no table of atoms, as `histodict atoms --csv` writes it")
    return rows


def check_statistics(facts: Sequence[Row], atoms: AtomTable, notes: AtomAnnotations) -> None:
    """Refuses facts of another model, and of one in which other atoms were off."""
    if not facts:
        return
    anew = "write them anew with `histodict atoms --csv`"
    own = [atoms.digest(atom) for atom in range(len(atoms.D))]
    if [row["digest"] for row in facts] != own:
        raise ValueError(f"the facts are of other atoms than this model's {len(own)}: {anew}")
    if [
        place for place, row in enumerate(facts) if _is_yes("disabled", row["disabled"])
    ] != notes.disabled:
        raise ValueError(f"the facts are of this model with other atoms switched off: {anew}")


def statistics_columns(
    facts: Sequence[Row], atoms: AtomTable, notes: AtomAnnotations
) -> dict[str, Any]:
    """A column per fact, NaN where it is not known; none without facts."""
    check_statistics(facts, atoms, notes)
    if not facts:
        return {}
    found: dict[str, Any] = {
        column: np.array([_number(row.get(name)) for row in facts])
        for name, column in _NUMBERS.items()
    }
    return found | {
        "is_site_confounded": np.array(
            [_is_yes("is_site_confounded", row["is_site_confounded"]) for row in facts]
        )
    }


def _number(value: Any) -> float:
    return np.nan if value in (None, "") else float(value)


def _is_yes(name: str, value: Any) -> bool:
    text = str(value).lower()
    if text not in (*_YES, *_NO):
        raise ValueError(f"{name}: must be true or false, not {value!r}")
    return text in _YES


_IMAGE_PX = 512  # of the longer side
_EMPTY = ("layers", "obsp", "varp")  # parts that every file has


@dataclass(frozen=True)
class ImageMetadata:
    """What is known of an image beside its pixels.

    library_id : the name that tells its patches from those of other images in one table
    record : what a table says of it; None where there is none
    model_digest : of the model's file, where it is from one
    facts : a row per atom, as `histodict atoms --csv` writes them; none where they are not known
    """

    library_id: str
    record: ImageRecord | None = None
    model_digest: str | None = None
    atom_statistics: Sequence[Row] = ()


def check_patch_level(model: Model) -> None:
    """Refuses a model that does not judge patches, and one for which a package is missing."""
    load_h5py("AnnData")
    if not model.model_.recipe.is_patch_level:
        raise ValueError(
            f"the method {model.model_.recipe.method!r} looks at the image as a whole: it has no "
            "patches to make AnnData of"
        )


def check_statistics_match(model: Model, facts: Path | None) -> None:
    """Refuses a table of facts that is of other atoms than the model's."""
    atoms = model.model_.atoms()
    if facts is None:
        return
    if atoms is None:
        raise ValueError(model.model_.no_atoms_reason())
    check_statistics(read_atom_statistics(facts), atoms, model.model_.atom_annotations)


def write_h5ad(
    path: Path, model: Model, ask: Callable[[Model], Prediction], about: ImageMetadata
) -> Prediction:
    """What a model answers when it is asked; its patches with their codes are in the .h5ad file.

    Codes are written as they come, so that memory does not grow with them.
    """
    check_patch_level(model)
    h5py = load_h5py("AnnData")
    n_codes = model.model_.method_.n_codes_
    with atomic_write(path) as partial, h5py.File(partial, "w") as file:
        set_encoding(file, "anndata")
        places: list[NDArray[np.int32]] = [np.empty((0, 2), np.int32)]
        codes = SparseRows(file, "X", n_codes)

        def take(cells: NDArray[np.int64], S: csr_array) -> None:
            places.append(cells.astype(np.int32))
            codes.add(S)

        answer = ask(model.with_code_callback(take))
        codes.end()
        assert answer.patch_map is not None
        _Table(model, answer, answer.patch_map, about, np.concatenate(places)).write(file, codes)
    return answer


@dataclass(frozen=True)
class _Table:
    """All of the file but X. cells : (n_patches, 2), row and column of every patch on the grid"""

    model: Model
    prediction: Prediction
    patch_map: PatchMap
    about: ImageMetadata
    positions: NDArray[np.int32]

    def write(self, file: Any, codes: SparseRows) -> None:
        winners = self.patch_map.predicted_classes[self._at]
        n_classes = self.patch_map.n_classes
        use = codes.count(winners, n_classes)
        write_frame(file, "obs", LazyIndex(len(self.positions), self._names), self._obs(winners))
        write({"spatial": self._centres()}, file, "obsm")
        atoms, names = self.model.model_.atoms(), self._atom_names()
        sizes = np.bincount(winners, minlength=n_classes)
        write_frame(
            file, "var", LazyIndex(len(names), lambda rows: names[rows]), self._var(use, sizes)
        )
        atom_rows: dict[str, NDArray[Any]] = {}
        if atoms is not None:
            shares = [each.usage for each in self.model.model_.class_reference_]
            atom_rows = {"atoms": np.asarray(atoms.D), "usual_use": np.stack(shares, axis=1)}
        write(atom_rows, file, "varm")
        write(self._uns(), file, "uns")
        for part in _EMPTY:
            write({}, file, part)

    @property
    def _at(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        return self.positions[:, 0], self.positions[:, 1]

    # --- patches --------------------------------------------------------------------------------

    def _names(self, rows: slice) -> list[str]:
        library = self.about.library_id
        return [f"{library}-{row}-{column}" for row, column in self.positions[rows].tolist()]

    def _obs(self, winners: NDArray[np.int16]) -> dict[str, Any]:
        margins, n = self.patch_map.margins[self._at], len(self.positions)
        classes = list(self.patch_map.classes)
        found: dict[str, Any] = {"class": Categorical(winners, classes)}
        found |= {f"margin_{name}": margins[:, place] for place, name in enumerate(classes)}
        found |= {"array_row": self.positions[:, 0], "array_col": self.positions[:, 1]}
        found["library_id"] = Categorical.constant(self.about.library_id, n)
        found["image_class"] = Categorical.constant(self.prediction.label or NO_TISSUE_LABEL, n)
        record = self.about.record
        if record and record.patient:
            found["patient"] = Categorical.constant(record.patient, n)
        if record and (record.label or record.is_mapped):
            # Of a mask that cannot be read, whoever scores the answers complains.
            with suppress(ValueError, OSError):
                found["truth"] = Categorical.of(self._true_labels(record))
        return found

    def _true_labels(self, record: ImageRecord) -> list[str]:
        side = self.patch_map.grid.patch_side
        corners = self._corners() + coordinate_shift(record, self.patch_map)
        return self.model.patch_labels(record, corners.astype(np.int64), side)

    def _corners(self) -> NDArray[np.float64]:
        """x and y, as the pixels were read."""
        grid = self.patch_map.grid
        x = np.array([grid.corner(0, column)[0] for column in range(grid.n_columns)], np.float64)
        y = np.array([grid.corner(row, 0)[1] for row in range(grid.n_rows)], np.float64)
        return np.stack([x[self.positions[:, 1]], y[self.positions[:, 0]]], axis=1)

    def _centres(self) -> NDArray[np.float64]:
        return self._corners() + self.patch_map.grid.patch_side / 2

    # --- atoms ----------------------------------------------------------------------------------

    def _atom_names(self) -> list[str]:
        atoms, n = self.model.model_.atoms(), self.model.model_.method_.n_codes_
        if atoms is None:
            return [f"code_{place}" for place in range(n)]
        numbers = [count() for _ in self.patch_map.classes]
        names = self.patch_map.classes
        return [f"{names[own]}_{next(numbers[own])}" for own in atoms.classes.tolist()]

    def _var(self, use: NDArray[np.int64], sizes: NDArray[np.int64]) -> dict[str, Any]:
        """`use` : (n_classes, n_atoms), patches that each class won and that use the atom"""
        atoms, classes = self.model.model_.atoms(), list(self.patch_map.classes)
        own = {} if atoms is None else self._notes(atoms, classes)
        shares = use / np.maximum(sizes, 1)[:, None]
        by_class = {f"usage_{name}": shares[place] for place, name in enumerate(classes)}
        return own | {"usage": use.sum(axis=0) / max(1, int(sizes.sum()))} | by_class

    def _notes(self, atoms: AtomTable, classes: list[str]) -> dict[str, Any]:
        """What each atom goes by, and what people have said of it."""
        labels, model = atom_labels(atoms.classes, classes), self.model.model_
        notes = [model.atom_annotations.of(atom) for atom in range(len(labels))]
        names = [note.name or label for note, label in zip(notes, labels, strict=True)]
        return {
            "class": Categorical(atoms.classes.astype(np.int16), classes),
            "concept": Categorical.of(names),
            "group": Categorical.of(note.group for note in notes),
            "artefact": np.array([note.artefact for note in notes]),
            "disabled": np.array([note.disabled for note in notes]),
        } | statistics_columns(self.about.atom_statistics, atoms, model.atom_annotations)

    # --- the image and the model ----------------------------------------------------------------

    def _uns(self) -> dict[str, Any]:
        with open_image(self.patch_map.path) as source:
            picture, size = source.thumbnail(min(_IMAGE_PX, max(source.size))), source.size
        scales = {
            "tissue_hires_scalef": max(picture.shape[:2]) / max(size),
            "spot_diameter_fullres": self.patch_map.grid.patch_side,
        }
        spatial = {"images": {"hires": picture}, "scalefactors": scales, "metadata": {}}
        return {
            "spatial": {self.about.library_id: spatial},
            "class_colors": [_hex(place) for place in range(self.patch_map.n_classes)],
            "histodict": self._statistics(size),
        }

    def _statistics(self, size: tuple[int, int]) -> dict[str, Any]:
        content, grid = self.model.to_model_data(), self.patch_map.grid
        answer: Mapping[str, Any] = self.prediction.row()
        return {
            "version": version("histodict"),
            "image": printable(str(self.patch_map.path)),
            "size": np.array(size),
            "offset": np.array(self.patch_map.offset),
            "mpp": self.prediction.size.mpp,
            "patch_side": grid.patch_side,
            "step": grid.step,
            "answer": dict(answer),
            "kind": content.kind,
            "classes": content.classes,
            "decision": self.model.describe_decision(),
            "recipe": json.dumps(content.recipe),
            "training": json.dumps(content.training_info),
            "model_digest": self.about.model_digest,
        }


def _hex(place: int) -> str:
    return "#" + "".join(f"{int(part):02x}" for part in COLOURS[place % len(COLOURS)])


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
