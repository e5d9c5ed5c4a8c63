"""Images answered by a model, in a folder that a later run goes on in.

One image of a run: what decides its files, what is known of it, and the answer to it.

A model over many images, into a folder: goes past bad files, and goes on where it was stopped.

    DIR/predictions.csv, .parquet    one row per image (detections.csv for regions)
    DIR/regions.csv, .parquet        one row per region found
    DIR/overlays/KEY.png             the image with its patch map, the regions' outlines, a legend
    DIR/maps/KEY.npz                 the patch map, for `PatchMap.load`
    DIR/geojson/KEY.geojson          areas of a class, the regions, or patches, for QuPath (.gz)
    DIR/qupath/                      a QuPath project of all images, where it was asked for
    DIR/anndata/KEY.h5ad             the patches with their codes, for scanpy and squidpy, if asked
    DIR/scores.json                  how good the answers are, where it is known what they should be
    DIR/failures.csv                 failed images of the last command, with the reasons
    DIR/done/KEY.json                one image's rows, and the digests of its files; what is there
                                     and whole is not done again

The tables hold all that is there: rows of earlier runs stay, if model and settings were the same.
KEY is the file's name and a few letters that tell equal names apart.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .annotations.annotation_file import AnnotationFile
from .datasets.folder_layout import find_images
from .datasets.manifest import ImageRecord
from .decision.threshold import TRAINED_NOTE, n_trained_on, n_tuned_on
from .evaluation.measures import (
    ScoredMap,
    merge_patch_scores,
    score_outlined,
    score_patches,
    score_rows,
    tuned_scores,
)
from .export.anndata import (
    ImageMetadata,
    check_patch_level,
    check_statistics_match,
    read_atom_statistics,
    write_h5ad,
)
from .export.qupath import (
    GeoJSONOptions,
    ProjectImage,
    geojson_features,
    save_geojson,
    save_project,
)
from .images.file_types import is_zarr
from .images.memory_image import estimated_bytes
from .images.pixel_size import MppLike, PixelSizeOption
from .images.source import open_image
from .models import Model, Prediction, RegionPrediction
from .models.predictions import region_rings, region_rows
from .patches.rendering import save_overlay
from .utils.files import atomic_write, content_digest, file_key
from .utils.missing_chunks import missing_chunks_allowed
from .utils.parallel import Executor, Threads
from .utils.progress import Callback, Progress, cumulative_shares, no_callback
from .utils.results_folder import Content, ResultsFolder
from .utils.text_io import Row, failure_reason, printable, write_table

__all__ = [
    "SCORES",
    "ImageTask",
    "RunResult",
    "list_input_images",
    "output_key",
    "predict_and_export",
    "predict_images",
    "printable_path",
    "record_from_json",
    "record_to_json",
    "with_absolute_paths",
]

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


SCORES = "scores.json"
_FORM = 10  # goes up when an image's files are written otherwise

_AREAS = GeoJSONOptions()


@dataclass(frozen=True)
class RunResult:
    """What came of a run; the tables may hold more, of earlier runs.

    rows, regions : of the images of this run, in their order
    failures : (path, reason) of those that have no answer
    scores : of all rows of the table whose truth is known; None where it is of none
    """

    rows: list[Row]
    regions: list[Row]
    failures: list[tuple[Path, str]]
    n_skipped: int
    n_earlier: int = 0
    scores: dict[str, Any] | None = None


def list_input_images(paths: list[Path]) -> tuple[list[Path], list[Path]]:
    """The files named, and all images under the folders named, in order, each once.

    Beside them what lies in the folders and may have been meant: pictures of other formats, masks.
    """
    found: dict[Path, None] = {}
    left_out: list[Path] = []
    for path in paths:
        is_one = is_zarr(path) or not os.path.isdir(path)
        images, others = ([path], []) if is_one else find_images(path)
        found.update(dict.fromkeys(images))
        left_out += others
    return list(found), left_out


def predict_images(
    model: Model,
    model_digest: str,
    images: Sequence[ImageRecord],
    folder: Path,
    *,
    mpp: MppLike = None,
    qupath: GeoJSONOptions = _AREAS,
    callback: Callback = no_callback,
    executor: Executor | None = None,
    anndata: bool = False,
    facts: Path | None = None,
) -> RunResult:
    """Answer for every image and write the files above. The callback hears of each image.

    `mpp`: what is said of the pixel sizes of all of them; a record's own is a table's.
    `qupath`: an image whose outlines were written otherwise is done again; a project has all images
    that the folder holds answers for.
    `anndata`: also write an .h5ad file of each; an image that has one keeps it up to date unasked.
    `facts`: the table of `histodict atoms --csv`, which goes into these files.
    `executor` takes an image at a time, and what works there writes into `folder`; None: one image
    after another, with threads for the parts of each.
    """
    if anndata:
        check_patch_level(model)
        check_statistics_match(model, facts)
    settings = {"model": model_digest, "version": version("histodict"), "form": _FORM}
    run = ResultsFolder(folder, settings, model.table)
    given = PixelSizeOption.of(mpp)
    keys = [output_key(record.path) for record in images]
    restricted = "given" if any(record.region_of_interest for record in images) else None
    options = {"--mpp": given.default, "--override-mpp": given.override, "--within": restricted}
    run.begin(keys, options)
    tasks, stamps = [], []
    for record, key in zip(images, keys, strict=True):
        before = run.finished.get(key, {})
        tabled = anndata or "anndata" in before.get("stamp", {})
        told = facts.absolute() if facts else None
        task = ImageTask(
            with_absolute_paths(record), given, key, model_digest, qupath, tabled, told
        )
        task, stamp = _stamped(task, before)
        tasks.append(task)
        stamps.append(stamp)
    finished = [run.load_finished(key, stamp) for key, stamp in zip(keys, stamps, strict=True)]
    missing = [task for task, found in zip(tasks, finished, strict=True) if not found]
    answer = partial(
        predict_and_export, model.with_jobs(1) if executor else model, folder.absolute()
    )
    watch = no_callback if executor else callback  # of what is done elsewhere only the end is heard
    results = (executor or Threads(1)).map(partial(answer, watch), missing, lost=str)
    done, failures = [], []
    # Those that are finished take no time.
    share = cumulative_shares(
        [0 if f else estimated_bytes(r.path) for r, f in zip(images, finished, strict=True)]
    )
    callback(Progress("answer", 0, len(images), work=share[0]))
    for n, (record, key, stamp) in enumerate(zip(images, keys, stamps, strict=True)):
        content = finished[n] or next(results)
        if isinstance(content, str):
            stays = "; its earlier answer stays in the table" if key in run.finished else ""
            failures.append((record.path, content + stays))
        else:
            before = run.finished.get(key, {})
            is_same = before.get("stamp", {}).get("file") == stamp["file"]
            content, wrong = _with_true_label(model, content, record, before if is_same else {})
            failures += [(record.path, wrong)] if wrong else []
            done.append(run.store(key, content, stamp))
        callback(Progress("answer", n + 1, len(images), work=share[n + 1]))
    earlier = run.previous_results({content["row"]["key"] for content in done})
    scores = _write_tables(model, folder, [*done, *earlier])
    if qupath.with_project and (done or earlier):
        images_there = [_in_project(content) for content in [*done, *earlier]]
        save_project(folder / "qupath", model.classes_, images_there)
    rows, regions = _rows(done)
    return RunResult(rows, regions, failures, len(images) - len(missing), len(earlier), scores)


def _stamped(task: ImageTask, before: Content) -> tuple[ImageTask, Content]:
    """Return the task with earlier results and its fingerprint, or with the reason of a failure."""
    try:
        task = task.with_previous_metadata(before)
        return task, task.fingerprint()
    except Exception as error:
        reason = task.record.error or failure_reason(error)
        return replace(task, record=replace(task.record, error=reason)), {}


def _rows(contents: list[Content]) -> tuple[list[Row], list[Row]]:
    """Of images, and of the regions in them."""
    rows = [content["row"] for content in contents]
    return rows, [row for content in contents for row in content["regions"]]


def _write_tables(model: Model, folder: Path, contents: list[Content]) -> dict[str, Any] | None:
    """From all that the folder holds; how good that is, where it is known what it should be."""
    rows, regions = _rows(contents)
    if not rows:  # of images that all failed there is nothing to tell
        return None
    write_table(folder / model.table, rows, model.columns)
    if model.finds_regions:
        write_table(folder / "regions", regions, RegionPrediction.REGION_COLUMNS)
    scores = score_rows(model.classes_, rows)
    judged = [row for row in rows if row.get("truth") in model.classes_]
    n_tuned = n_tuned_on(model.training_info_, (Path(row["path"]) for row in judged))
    if scores is not None and n_tuned:
        scores["tuned"] = tuned_scores(model, judged, n_tuned)
    if scores is not None and model.finds_regions:
        scores["patches"] = score_patches(_mapped(folder, contents))
    if not model.finds_regions:
        scores = merge_patch_scores(scores, score_outlined(_mapped(folder, contents)))
    if scores is not None:
        labelled = (Path(content["row"]["path"]) for content in contents if content["known"])
        n_trained = n_trained_on(model.training_info_, labelled)
        if n_trained:
            scores["trained"] = {"n_images": n_trained, "note": TRAINED_NOTE}
    if scores is None:
        (folder / SCORES).unlink(missing_ok=True)
    else:
        with atomic_write(folder / SCORES) as partial_file:
            partial_file.write_text(json.dumps(scores, indent=1), encoding="utf-8")
    return scores


def _mapped(folder: Path, contents: list[Content]) -> Iterator[ScoredMap]:
    """Images whose truth is known: what is known, the map, and how many patches make a region."""
    for content in contents:
        maps = [name for name in content["files"] if name.startswith("maps/")]
        if content["known"] and maps:
            yield (
                record_from_json(content),
                folder / maps[0],
                content["row"].get("min_patches", 1),
            )


def _in_project(content: Content) -> ProjectImage:
    """An image by the place that its links lead to, which is right from any folder."""
    row = content["row"]
    score = {} if row.get("score") is None else {"histodict score": f"{row['score']:.5g}"}
    path = Path(content["stamp"]["file"][0])
    return ProjectImage(path, row["key"], {"histodict label": row["label"]} | score)


def _with_true_label(
    model: Model, content: Content, record: ImageRecord, before: Content
) -> tuple[Content, str]:
    """With the path that was asked for, and what is known of the image; and what of that fails.

    before : of an earlier run on the same file; what it knew stays, if this one was told nothing
    """
    known, earlier, wrong = before.get("known"), before.get("row", {}), ""
    told = {name: earlier[name] for name in ("truth", "patient") if name in earlier}
    row = content["row"] | told | {"path": printable_path(record.path)}
    if record.patient:
        row["patient"] = record.patient
    try:
        if record.label or record.is_mapped:
            truth = model.true_label(record)
            row |= {"truth": truth} if truth else {}
            known = record_to_json(with_absolute_paths(record))
    except Exception as error:  # an error of the mask does not affect the prediction
        wrong = f"is not scored: {failure_reason(error)}"
    regions = [region | {"path": row["path"]} for region in content["regions"]]
    return content | {"row": row, "regions": regions, "known": known}, wrong
