"""One image of a run: what decides its files, what is known of it, and the answer to it."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ..execution.failures import failure_reason
from ..execution.files import content_digest, file_key
from ..execution.missing_chunks import missing_chunks_allowed
from ..execution.progress import Callback
from ..execution.run_folder import Content
from ..execution.tables import Row
from ..execution.texts import printable
from ..images.annotations.drawing import AnnotationFile
from ..images.manifest import ImageRecord
from ..images.pixel_size import PixelSizeOption
from ..images.readers import open_image
from ..patches.overlay import save_overlay
from ..pipeline import Model, Prediction, RegionPrediction
from ..pipeline.answers import region_rings, region_rows
from ..reports.geojson import GeoJSONOptions, geojson_features, save_geojson
from ..spatial.atom_columns import read_atom_statistics
from ..spatial.patch_table import ImageMetadata, write_h5ad

# Of a file's name that goes into KEY: with it, no name may become longer than file systems allow.
_MAX_BYTES = 200


def output_key(image: Path) -> str:
    """A file name for what belongs to an image, the same each time."""
    place = hashlib.sha256(os.fsencode(os.path.realpath(image))).hexdigest()[:8]
    stem = os.fsencode(image.stem).decode("utf-8", "replace")
    name = stem.encode()[:_MAX_BYTES].decode("utf-8", "ignore")
    try:
        os.fsencode(name)
    except UnicodeEncodeError:  # a locale other than UTF-8 lacks some characters
        name = name.encode("ascii", "replace").decode("ascii").replace("?", "_")
    return f"{name}-{place}"


def printable_path(path: Path) -> str:
    """Return a path for a table, with bytes that are not UTF-8 escaped."""
    return printable(str(path))


@dataclass(frozen=True)
class ImageTask:
    """An image to be answered.

    key : of its files
    tabled : whether its patches with their codes are written as AnnData, too
    facts : the table of what is known of the atoms, that goes into it
    """

    record: ImageRecord
    pixel_size_option: PixelSizeOption
    key: str
    model_digest: str
    qupath: GeoJSONOptions
    tabled: bool
    metadata: Path | None = None

    def with_previous_metadata(self, before: Content) -> ImageTask:
        """With what an earlier run on the same file knew and this one was not told."""
        record = self.record
        if not self.tabled or before.get("stamp", {}).get("file") != _file_key(record.path):
            return self
        earlier = before["stamp"].get("facts")
        facts = self.metadata or (
            Path(earlier[0]) if earlier and Path(earlier[0]).exists() else None
        )
        record = replace(record, patient=record.patient or before["row"].get("patient", ""))
        if before.get("known") and not (record.label or record.is_mapped):
            told = record_from_json(before)
            record = replace(record, label=told.label, mask=told.mask, annotations=told.annotations)
        return replace(self, record=record, metadata=facts)

    def fingerprint(self) -> Content:
        """Changes when the image does, what is said of it, where to look in it, or its files."""
        record = self.record
        found: Content = {
            "size": list(astuple(self.size)),
            "outlines": self.qupath.form,
            "file": _file_key(record.path),
        }
        if missing_chunks_allowed():
            found["missing_chunks"] = "allowed"
        if self.tabled:
            mask = _file_key(record.mask) if record.mask else []
            drawn = record.annotations.fingerprint() if record.annotations else []
            found["anndata"] = [record.patient, record.label, mask, drawn]
            found |= {"facts": file_key(self.metadata)} if self.metadata else {}
        if record.image is not None:
            found["image"] = file_key(record.image)
        if record.region_of_interest is not None:
            found["within"] = (
                record.region_of_interest.fingerprint()
                if record.region_of_interest.path.is_file()
                else []
            )
        return found

    def roi_columns(self) -> Row:
        """Return the columns of a row for the outline file and the missing chunks."""
        within = self.record.region_of_interest
        row: Row = {"within": within.path.name} if within else {}
        if missing_chunks_allowed():
            with open_image(self.record.path) as source:
                row["missing_chunks"] = getattr(source, "missing_chunks", 0)
        return row

    @property
    def size(self) -> PixelSizeOption:
        return self.pixel_size_option.with_table(self.record.mpp)


def _file_key(path: Path) -> list[Any]:
    return file_key(path) if os.path.exists(path) else []


def with_absolute_paths(record: ImageRecord) -> ImageRecord:
    """Another machine may work in another folder: paths that are sent are whole."""
    mask, image = (file.absolute() if file else None for file in (record.mask, record.image))
    drawings = record.annotations, record.region_of_interest
    drawn, within = (
        each and replace(each, path=each.path.absolute(), image=image) for each in drawings
    )
    return replace(
        record,
        path=record.path.absolute(),
        mask=mask,
        image=image,
        annotations=drawn,
        region_of_interest=within,
    )


def record_to_json(record: ImageRecord) -> Content:
    """What a later run needs to score the map."""
    known: Content = {
        "path": str(record.path),
        "label": record.label,
        "mpp": record.mpp,
        "mask": str(record.mask) if record.mask else None,
        "annotations": None,
    }
    drawn = record.annotations
    if drawn is not None:
        over = str(drawn.image) if drawn.image else None
        known["annotations"] = [str(drawn.path), list(drawn.names), drawn.coordinates, over]
    return known


def record_from_json(content: Content) -> ImageRecord:
    """The reverse, of an image whose content has it."""
    row, known = content["row"], content["known"]
    mask = Path(known["mask"]) if known["mask"] else None
    path, drawn = Path(known["path"]), known["annotations"]
    record = ImageRecord(path, known["label"], row["patient"], mpp=known["mpp"], mask=mask)
    if not drawn:
        return record
    file, names, coordinates, over = drawn
    image = Path(over) if over else None
    return replace(record, annotations=AnnotationFile(Path(file), tuple(names), coordinates, image))


def predict_and_export(
    model: Model, folder: Path, callback: Callback, task: ImageTask
) -> Content | str:
    """The rows of an image, whose files are then written; or why there are none."""
    if task.record.error:
        return task.record.error
    try:
        return _predict_and_write(model, folder, callback, task)
    except Exception as error:
        return failure_reason(error)


def _predict(task: ImageTask, callback: Callback, model: Model) -> Prediction:
    """The answer, its map over the image where one lies beside a feature file."""
    image, within = task.record.image, task.record.region_of_interest
    answer: Prediction = model.predict_one(
        task.record.path, mpp=task.size, callback=callback, within=within
    )
    if within is not None and not answer.n_patches:
        raise ValueError(f"no patch with tissue lies inside of the outlines of {within.path}")
    if image is not None and answer.patch_map is not None:
        answer = replace(answer, patch_map=answer.patch_map.covering(image))
        if model.finds_regions and isinstance(
            answer, RegionPrediction
        ):  # they lie where the map does
            answer = model.apply_threshold(answer)
    return answer


def _predict_and_write(model: Model, folder: Path, callback: Callback, task: ImageTask) -> Content:
    key, ask, files = task.key, partial(_predict, task, callback), list[Path]()
    if task.tabled:
        files.append(Path("anndata", f"{key}.h5ad"))
        facts = read_atom_statistics(task.metadata) if task.metadata else []
        about = ImageMetadata(key, task.record, task.model_digest, facts)
        answer = write_h5ad(folder / files[0], model, ask, about)
    else:
        answer = ask(model)
    if answer.patch_map is not None:
        overlay, outlined, mapped = drawings = [
            Path("overlays", f"{key}.png"),
            Path("geojson", f"{key}{task.qupath.ending}"),
            Path("maps", f"{key}.npz"),
        ]
        files += drawings
        kind = {"of_regions": model.finds_regions, "of_patches": task.qupath.of_patches}
        with ThreadPoolExecutor(2) as pool:  # of a slide each takes its time
            drawn = pool.submit(
                save_overlay,
                folder / overlay,
                answer.patch_map,
                answer.summary(),
                region_rings(answer),
            )
            kept = pool.submit(answer.patch_map.save, folder / mapped)
            save_geojson(folder / outlined, geojson_features(answer, **kind))
            drawn.result()
            kept.result()
    return {
        "row": answer.row() | task.roi_columns() | {"key": key},
        "regions": region_rows(answer),
        "files": {file.as_posix(): content_digest(folder / file) for file in files},
    }
