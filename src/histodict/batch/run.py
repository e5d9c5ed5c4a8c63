"""Images answered by a model, in a folder that a later run goes on in."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..compare.scoring import (
    ScoredMap,
    merge_patch_scores,
    score_outlined,
    score_patches,
    score_rows,
    tuned_scores,
)
from ..decisions.tuning import n_tuned_on
from ..execution.executor import Executor, Threads
from ..execution.failures import failure_reason
from ..execution.files import atomic_write
from ..execution.progress import Callback, Progress, cumulative_shares, no_callback
from ..execution.run_folder import Content, ResultsFolder
from ..execution.tables import Row, write_table
from ..images.folder_images import is_zarr
from ..images.in_memory import estimated_bytes
from ..images.layout import find_images
from ..images.manifest import ImageRecord
from ..images.pixel_size import MppLike, PixelSizeOption
from ..pipeline import Model, RegionPrediction
from ..reports.geojson import GeoJSONOptions
from ..reports.qupath_project import ProjectImage, save_project
from ..spatial.patch_table import check_patch_level, check_statistics_match
from .image import (
    ImageTask,
    output_key,
    predict_and_export,
    printable_path,
    record_from_json,
    record_to_json,
    with_absolute_paths,
)

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
