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
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from ..decisions.atom_notes import atom_labels
from ..execution.files import atomic_write
from ..execution.tables import Row
from ..execution.texts import printable
from ..images.manifest import ImageRecord
from ..images.readers import open_image
from ..patches.patch_map import COLOURS, PatchMap
from ..pipeline import NO_TISSUE_LABEL, Model, Prediction
from ..pipeline.image_model import AtomTable
from ..pipeline.region_truth import coordinate_shift
from .atom_columns import check_statistics, read_atom_statistics, statistics_columns
from .h5ad import Categorical, LazyIndex, SparseRows, load_h5py, set_encoding, write, write_frame

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
