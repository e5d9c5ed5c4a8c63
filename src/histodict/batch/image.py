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
from ..images.annotations.drawing import Drawing
from ..images.manifest import Record
from ..images.pixel_size import GivenSize
from ..images.readers import open_image
from ..patches.overlay import save_overlay
from ..pipeline import Answer, Model, RegionAnswer
from ..pipeline.answers import outlines, region_rows
from ..reports.geojson import ForQuPath, features, save_geojson
from ..spatial.atom_columns import read_facts
from ..spatial.patch_table import About, answer_into

# Of a file's name that goes into KEY: with it, no name may become longer than file systems allow.
_MOST_BYTES = 200


def image_key(image: Path) -> str:
    """A file name for what belongs to an image, the same each time."""
    place = hashlib.sha256(os.fsencode(os.path.realpath(image))).hexdigest()[:8]
    stem = os.fsencode(image.stem).decode("utf-8", "replace")
    name = stem.encode()[:_MOST_BYTES].decode("utf-8", "ignore")
    try:
        os.fsencode(name)
    except UnicodeEncodeError:  # a locale other than UTF-8 lacks some characters
        name = name.encode("ascii", "replace").decode("ascii").replace("?", "_")
    return f"{name}-{place}"


def text_of(path: Path) -> str:
    """Return a path for a table, with bytes that are not UTF-8 escaped."""
    return printable(str(path))


@dataclass(frozen=True)
class Task:
    """An image to be answered.

    key : of its files
    tabled : whether its patches with their codes are written as AnnData, too
    facts : the table of what is known of the atoms, that goes into it
    """

    record: Record
    given: GivenSize
    key: str
    model_digest: str
    qupath: ForQuPath
    tabled: bool
    facts: Path | None = None

    def knowing(self, before: Content) -> Task:
        """With what an earlier run on the same file knew and this one was not told."""
        record = self.record
        if not self.tabled or before.get("stamp", {}).get("file") != _file_key(record.path):
            return self
        earlier = before["stamp"].get("facts")
        facts = self.facts or (Path(earlier[0]) if earlier and Path(earlier[0]).exists() else None)
        record = replace(record, patient=record.patient or before["row"].get("patient", ""))
        if before.get("known") and not (record.label or record.is_mapped):
            told = record_of(before)
            record = replace(record, label=told.label, mask=told.mask, drawn=told.drawn)
        return replace(self, record=record, facts=facts)

    def stamp(self) -> Content:
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
            drawn = record.drawn.facts() if record.drawn else []
            found["anndata"] = [record.patient, record.label, mask, drawn]
            found |= {"facts": file_key(self.facts)} if self.facts else {}
        if record.image is not None:
            found["image"] = file_key(record.image)
        if record.within is not None:
            found["within"] = record.within.facts() if record.within.path.is_file() else []
        return found

    def told(self) -> Row:
        """Return the columns of a row for the outline file and the missing chunks."""
        within = self.record.within
        row: Row = {"within": within.path.name} if within else {}
        if missing_chunks_allowed():
            with open_image(self.record.path) as source:
                row["missing_chunks"] = getattr(source, "missing_chunks", 0)
        return row

    @property
    def size(self) -> GivenSize:
        return self.given.with_table(self.record.mpp)


def _file_key(path: Path) -> list[Any]:
    return file_key(path) if os.path.exists(path) else []


def whole(record: Record) -> Record:
    """Another machine may work in another folder: paths that are sent are whole."""
    mask, image = (file.absolute() if file else None for file in (record.mask, record.image))
    drawings = record.drawn, record.within
    drawn, within = (
        each and replace(each, path=each.path.absolute(), image=image) for each in drawings
    )
    return replace(
        record,
        path=record.path.absolute(),
        mask=mask,
        image=image,
        drawn=drawn,
        within=within,
    )


def facts_of(record: Record) -> Content:
    """What a later run needs to score the map."""
    known: Content = {
        "path": str(record.path),
        "label": record.label,
        "mpp": record.mpp,
        "mask": str(record.mask) if record.mask else None,
        "drawn": None,
    }
    drawn = record.drawn
    if drawn is not None:
        over = str(drawn.image) if drawn.image else None
        known["drawn"] = [str(drawn.path), list(drawn.names), drawn.coordinates, over]
    return known


def record_of(content: Content) -> Record:
    """The reverse, of an image whose content has it."""
    row, known = content["row"], content["known"]
    mask = Path(known["mask"]) if known["mask"] else None
    path, drawn = Path(known["path"]), known["drawn"]
    record = Record(path, known["label"], row["patient"], mpp=known["mpp"], mask=mask)
    if not drawn:
        return record
    file, names, coordinates, over = drawn
    image = Path(over) if over else None
    return replace(record, drawn=Drawing(Path(file), tuple(names), coordinates, image))


def answer_one(model: Model, folder: Path, callback: Callback, task: Task) -> Content | str:
    """The rows of an image, whose files are then written; or why there are none."""
    if task.record.trouble:
        return task.record.trouble
    try:
        return _answer(model, folder, callback, task)
    except Exception as error:
        return failure_reason(error)


def _ask(task: Task, callback: Callback, model: Model) -> Answer:
    """The answer, its map over the image where one lies beside a feature file."""
    image, within = task.record.image, task.record.within
    answer: Answer = model.answer(task.record.path, mpp=task.size, callback=callback, within=within)
    if within is not None and not answer.n_patches:
        raise ValueError(f"no patch with tissue lies inside of the outlines of {within.path}")
    if image is not None and answer.patch_map is not None:
        answer = replace(answer, patch_map=answer.patch_map.over(image))
        if model.finds_regions and isinstance(answer, RegionAnswer):  # they lie where the map does
            answer = model.redrawn(answer)
    return answer


def _answer(model: Model, folder: Path, callback: Callback, task: Task) -> Content:
    key, ask, files = task.key, partial(_ask, task, callback), list[Path]()
    if task.tabled:
        files.append(Path("anndata", f"{key}.h5ad"))
        facts = read_facts(task.facts) if task.facts else []
        about = About(key, task.record, task.model_digest, facts)
        answer = answer_into(folder / files[0], model, ask, about)
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
                save_overlay, folder / overlay, answer.patch_map, answer.words(), outlines(answer)
            )
            kept = pool.submit(answer.patch_map.save, folder / mapped)
            save_geojson(folder / outlined, features(answer, **kind))
            drawn.result()
            kept.result()
    return {
        "row": answer.row() | task.told() | {"key": key},
        "regions": region_rows(answer),
        "files": {file.as_posix(): content_digest(folder / file) for file in files},
    }
