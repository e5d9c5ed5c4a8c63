"""Prediction of many images with a results folder.

A run skips images that cannot be read and images whose results are up to date, so that a later run
completes the folder.

    DIR/predictions.csv, .parquet    one row per image (detections.csv for regions)
    DIR/regions.csv, .parquet        one row per region found
    DIR/overlays/KEY.png             image with its patch map, outlines of regions and legend
    DIR/maps/KEY.npz                 patch map, for `PatchMap.load`
    DIR/geojson/KEY.geojson          areas of each class, regions, or patches, for QuPath
    DIR/qupath/                      QuPath project of all images, if requested
    DIR/anndata/KEY.h5ad             patches with their codes, for scanpy and squidpy, if requested
    DIR/scores.json                  scores of the predictions of labelled images
    DIR/failures.csv                 failed images of the last command, with the reasons
    DIR/done/KEY.json                rows of one image and digests of its files; complete results
                                     are not computed again

The tables contain rows of earlier runs with the same model and settings. KEY is the name of the
image file with a suffix that distinguishes files of the same name.
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
from .decision.threshold import TRAINED_IMAGES_NOTE, count_training_images, count_tuning_images
from .evaluation.measures import (
    ScoredMap,
    merge_patch_scores,
    score_before_tuning,
    score_overlap,
    score_patches,
    score_predictions,
)
from .export.anndata import (
    ImageMetadata,
    check_patch_level,
    check_statistics_file,
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
from .utils.parallel import Executor, ThreadExecutor
from .utils.progress import Callback, Progress, cumulative_shares, no_callback
from .utils.results_folder import Content, ResultsFolder
from .utils.text_io import Row, failure_reason, printable, write_table

_MAX_NAME_BYTES = 200  # of the file name within KEY, because of the limit of file systems


def output_key(image: Path) -> str:
    """Return KEY, the stem of an image's result files: its name and a hash of its path."""
    suffix = hashlib.sha256(os.fsencode(os.path.realpath(image))).hexdigest()[:8]
    stem = os.fsencode(image.stem).decode("utf-8", "replace")
    name = stem.encode()[:_MAX_NAME_BYTES].decode("utf-8", "ignore")
    try:
        os.fsencode(name)
    except UnicodeEncodeError:  # a locale other than UTF-8 lacks some characters
        name = name.encode("ascii", "replace").decode("ascii").replace("?", "_")
    return f"{name}-{suffix}"


def printable_path(path: Path) -> str:
    """Return a path as text for a table; bytes that are not UTF-8 are escaped."""
    return printable(str(path))


@dataclass(frozen=True)
class ImageTask:
    """Image to predict, with the options that determine its result files.

    Attributes
    ----------
    record : record of the image
    pixel_size_option : pixel size given by the user
    key : stem of the names of its result files, from `output_key`
    model_digest : digest of the model file
    qupath : options of the GeoJSON file
    writes_anndata : whether an AnnData file is written
    atom_statistics : table of atom statistics for the AnnData file; None if not added
    """

    record: ImageRecord
    pixel_size_option: PixelSizeOption
    key: str
    model_digest: str
    qupath: GeoJSONOptions
    writes_anndata: bool
    atom_statistics: Path | None = None

    def with_previous_metadata(self, previous: Content) -> ImageTask:
        """Return a copy whose missing metadata are taken from a result of an earlier run.

        The task is unchanged if no AnnData file is written, or if the image file has changed.
        """
        record = self.record
        if not self.writes_anndata or previous.get("fingerprint", {}).get(
            "file"
        ) != _file_key_if_exists(record.path):
            return self
        earlier = previous["fingerprint"].get("atom_statistics")
        statistics = self.atom_statistics or (
            Path(earlier[0]) if earlier and Path(earlier[0]).exists() else None
        )
        record = replace(record, patient=record.patient or previous["row"].get("patient", ""))
        if previous.get("ground_truth") and not (record.label or record.has_regions):
            stored = record_from_result(previous)
            record = replace(
                record, label=stored.label, mask=stored.mask, annotations=stored.annotations
            )
        return replace(self, record=record, atom_statistics=statistics)

    def fingerprint(self) -> Content:
        """Return all properties that determine the result files of the image.

        These are the image, its metadata, its region of interest and the output options.
        """
        record = self.record
        content: Content = {
            "size": list(astuple(self.image_pixel_size)),
            "outlines": self.qupath.fingerprint,
            "file": _file_key_if_exists(record.path),
        }
        if missing_chunks_allowed():
            content["missing_chunks"] = "allowed"
        if self.writes_anndata:
            mask = _file_key_if_exists(record.mask) if record.mask else []
            annotations = record.annotations.fingerprint() if record.annotations else []
            content["anndata"] = [record.patient, record.label, mask, annotations]
            content |= (
                {"atom_statistics": file_key(self.atom_statistics)} if self.atom_statistics else {}
            )
        if record.image is not None:
            content["image"] = file_key(record.image)
        if record.region_of_interest is not None:
            content["within"] = (
                record.region_of_interest.fingerprint()
                if record.region_of_interest.path.is_file()
                else []
            )
        return content

    def option_columns(self) -> Row:
        """Return the table columns "within" (annotation file) and "missing_chunks", where set."""
        within = self.record.region_of_interest
        row: Row = {"within": within.path.name} if within else {}
        if missing_chunks_allowed():
            with open_image(self.record.path) as source:
                row["missing_chunks"] = getattr(source, "missing_chunks", 0)
        return row

    @property
    def image_pixel_size(self) -> PixelSizeOption:
        """Pixel size option, with the pixel size of this image if the table has one."""
        return self.pixel_size_option.with_table_mpp(self.record.mpp)


def _file_key_if_exists(path: Path) -> list[Any]:
    return file_key(path) if os.path.exists(path) else []


def with_absolute_paths(record: ImageRecord) -> ImageRecord:
    """Return the record with absolute paths, for use on another machine."""
    mask, image = (file.absolute() if file else None for file in (record.mask, record.image))
    outlines = record.annotations, record.region_of_interest
    annotations, within = (
        outline_file and replace(outline_file, path=outline_file.path.absolute(), image=image)
        for outline_file in outlines
    )
    return replace(
        record,
        path=record.path.absolute(),
        mask=mask,
        image=image,
        annotations=annotations,
        region_of_interest=within,
    )


def ground_truth_to_json(record: ImageRecord) -> Content:
    """Return the label, mask and annotations of a record as JSON values, for later scoring."""
    content: Content = {
        "path": str(record.path),
        "label": record.label,
        "mpp": record.mpp,
        "mask": str(record.mask) if record.mask else None,
        "annotations": None,
    }
    annotations = record.annotations
    if annotations is not None:
        image = str(annotations.image) if annotations.image else None
        content["annotations"] = [
            str(annotations.path),
            list(annotations.names),
            annotations.coordinates,
            image,
        ]
    return content


def record_from_result(content: Content) -> ImageRecord:
    """Return the record that is stored in a result; the inverse of `ground_truth_to_json`."""
    row, ground_truth = content["row"], content["ground_truth"]
    mask = Path(ground_truth["mask"]) if ground_truth["mask"] else None
    path, annotations = Path(ground_truth["path"]), ground_truth["annotations"]
    record = ImageRecord(
        path, ground_truth["label"], row["patient"], mpp=ground_truth["mpp"], mask=mask
    )
    if not annotations:
        return record
    file, names, coordinates, image_path = annotations
    image = Path(image_path) if image_path else None
    return replace(record, annotations=AnnotationFile(Path(file), tuple(names), coordinates, image))


def predict_and_export(
    model: Model, folder: Path, callback: Callback, task: ImageTask
) -> Content | str:
    """Predict an image and write its result files; errors are returned as text.

    Parameters
    ----------
    model : fitted model
    folder : results folder
    callback : receives the progress
    task : image and options

    Returns
    -------
    dict or str
        Table row of the image ("row"), rows of its regions ("regions") and digests of its files by
        relative path ("files"); after a failure, the error message.
    """
    if task.record.error:
        return task.record.error
    try:
        files: list[Path] = []
        predict = partial(_predict, task, callback)
        if task.writes_anndata:
            files.append(Path("anndata", f"{task.key}.h5ad"))
            statistics = read_atom_statistics(task.atom_statistics) if task.atom_statistics else []
            about = ImageMetadata(task.key, task.record, task.model_digest, statistics)
            prediction = write_h5ad(folder / files[0], model, predict, about)
        else:
            prediction = predict(model)
        files += _write_maps(model, folder, task, prediction)
        return {
            "row": prediction.row() | task.option_columns() | {"key": task.key},
            "regions": region_rows(prediction),
            "files": {file.as_posix(): content_digest(folder / file) for file in files},
        }
    except Exception as error:
        return failure_reason(error)


def _predict(task: ImageTask, callback: Callback, model: Model) -> Prediction:
    """Predict an image; if it is a feature file of a known image, place the map on that image."""
    image, region = task.record.image, task.record.region_of_interest
    prediction: Prediction = model.predict_one(
        task.record.path, mpp=task.image_pixel_size, callback=callback, region_of_interest=region
    )
    if region is not None and not prediction.n_patches:
        raise ValueError(f"{region.path}: no patch with tissue lies inside these annotations")
    if image is not None and prediction.patch_map is not None:
        prediction = replace(prediction, patch_map=prediction.patch_map.align_if_possible(image))
        # Regions move with the map.
        if model.finds_regions and isinstance(prediction, RegionPrediction):
            prediction = model.apply_threshold(prediction)
    return prediction


def _write_maps(model: Model, folder: Path, task: ImageTask, prediction: Prediction) -> list[Path]:
    """Write overlay, GeoJSON and patch map; return their paths relative to `folder`.

    Predictions without a patch map have no such files.
    """
    patch_map = prediction.patch_map
    if patch_map is None:
        return []
    overlay = Path("overlays", f"{task.key}.png")
    geojson = Path("geojson", f"{task.key}{task.qupath.suffix}")
    npz = Path("maps", f"{task.key}.npz")
    with ThreadPoolExecutor(2) as pool:  # each takes long for a slide
        rings = region_rings(prediction)
        jobs = [
            pool.submit(save_overlay, folder / overlay, patch_map, prediction.summary(), rings),
            pool.submit(patch_map.save, folder / npz),
        ]
        qupath = task.qupath
        features = geojson_features(
            prediction, outline_regions=model.finds_regions, outline_patches=qupath.outline_patches
        )
        save_geojson(folder / geojson, features)
        for job in jobs:
            job.result()
    return [overlay, geojson, npz]


SCORES_FILE = "scores.json"
_OUTPUT_VERSION = 12  # version of the output files; increases when their format changes

_DEFAULT_QUPATH = GeoJSONOptions()


@dataclass(frozen=True)
class RunResult:
    """Result of `predict_images`; the written tables may also contain rows of earlier runs.

    Attributes
    ----------
    rows, regions : table rows of the images of this run, and of the regions in these images
    failures : (path, reason) of images that could not be predicted or whose mask is unreadable
    n_skipped : number of images whose results were up to date
    n_from_earlier_runs : number of images in the tables that are not part of this run
    n_stale : number of failed images with a prediction of an earlier run in the tables
    scores : scores of the predictions of all labelled images in the tables; None without labels
    """

    rows: list[Row]
    regions: list[Row]
    failures: list[tuple[Path, str]]
    n_skipped: int
    n_from_earlier_runs: int = 0
    scores: dict[str, Any] | None = None
    n_stale: int = 0


def list_input_images(paths: list[Path]) -> tuple[list[Path], list[Path]]:
    """List the given files and all images in the given folders, without duplicates.

    Returns
    -------
    images : images in the given order
    others : other files of the folders, such as masks and unsupported formats
    """
    found: dict[Path, None] = {}
    left_out: list[Path] = []
    for path in paths:
        is_image = is_zarr(path) or not os.path.isdir(path)
        images, others = ([path], []) if is_image else find_images(path)
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
    qupath: GeoJSONOptions = _DEFAULT_QUPATH,
    callback: Callback = no_callback,
    executor: Executor | None = None,
    anndata: bool = False,
    atom_statistics: Path | None = None,
) -> RunResult:
    """Predict images and write the files that the module docstring lists.

    Parameters
    ----------
    model : trained model
    model_digest : digest of the model file
    images : images to predict
    folder : results folder
    mpp : pixel size (µm) of images for which neither file nor record gives one, or
        `PixelSizeOption`
    qupath : options of the output for QuPath; images whose files have other options are predicted
        again, and a project contains all images of the folder
    callback : receives the progress after each image
    executor : distributes images to workers, which write into `folder`; None predicts one image
        after another, each with several threads
    anndata : whether to write .h5ad files; existing ones are kept up to date in any case
    atom_statistics : table from `histodict atoms --csv`, added to the .h5ad files
    """
    if anndata:
        check_patch_level(model)
        check_statistics_file(model, atom_statistics)
    size_option = PixelSizeOption.from_mpp(mpp)
    keys = [output_key(record.path) for record in images]
    run = _open_results(model, model_digest, folder, keys, images, size_option)
    statistics = atom_statistics.absolute() if atom_statistics else None
    tasks, fingerprints = [], []
    for record, key in zip(images, keys, strict=True):
        previous = run.finished.get(key, {})
        writes_anndata = anndata or "anndata" in previous.get("fingerprint", {})
        task = ImageTask(
            with_absolute_paths(record),
            size_option,
            key,
            model_digest,
            qupath,
            writes_anndata,
            statistics,
        )
        task, fingerprint = _with_fingerprint(task, previous)
        tasks.append(task)
        fingerprints.append(fingerprint)
    finished = [
        run.load_finished(key, fingerprint)
        for key, fingerprint in zip(keys, fingerprints, strict=True)
    ]
    missing = [task for task, found in zip(tasks, finished, strict=True) if not found]
    worker_model = model.with_jobs(1) if executor else model
    progress = no_callback if executor else callback  # workers report only the end
    predict = partial(predict_and_export, worker_model, folder.absolute(), progress)
    results = (executor or ThreadExecutor(1)).map(predict, missing, on_worker_death=str)
    done, failures = [], []
    # Finished images take no time.
    fractions = cumulative_shares(
        [0 if f else estimated_bytes(r.path) for r, f in zip(images, finished, strict=True)]
    )
    callback(Progress("predict", 0, len(images), work=fractions[0]))
    for n, (record, key, fingerprint) in enumerate(zip(images, keys, fingerprints, strict=True)):
        content, failure = _make_stored_result(
            model, record, finished[n] or next(results), run.finished.get(key, {}), fingerprint
        )
        if failure:
            failures.append((record.path, failure))
        if content is not None:
            done.append(run.store(key, content, fingerprint))
        callback(Progress("predict", n + 1, len(images), work=fractions[n + 1]))
    earlier = run.previous_results({content["row"]["key"] for content in done})
    scores = _write_tables(model, folder, [*done, *earlier])
    if qupath.with_project and (done or earlier):
        project_images = [_make_project_image(content) for content in [*done, *earlier]]
        save_project(folder / "qupath", model.class_names_, project_images)
    n_stale = len({content["row"]["key"] for content in earlier} & set(keys))
    n_skipped, n_others = len(images) - len(missing), len(earlier) - n_stale
    return RunResult(*_table_rows(done), failures, n_skipped, n_others, scores, n_stale)


def _open_results(
    model: Model,
    model_digest: str,
    folder: Path,
    keys: Sequence[str],
    images: Sequence[ImageRecord],
    size_option: PixelSizeOption,
) -> ResultsFolder:
    """Open a results folder; raise ValueError if its results were made with other options."""
    settings = {
        "model": model_digest,
        "version": version("histodict"),
        "output version": _OUTPUT_VERSION,
    }
    run = ResultsFolder(folder, settings, model.table_name)
    options = {
        "--mpp": size_option.default,
        "--override-mpp": size_option.override,
        "--within": "set" if any(record.region_of_interest for record in images) else None,
    }
    run.begin(keys, options)
    return run


def _make_stored_result(
    model: Model,
    record: ImageRecord,
    result: Content | str,
    previous: Content,
    fingerprint: Content,
) -> tuple[Content | None, str]:
    """Return the result to store, with the true label, and an error message.

    The result is None if the prediction failed; the message is empty without errors. `result` is
    from `predict_and_export`; `previous` is from an earlier run, empty if there is none.
    """
    if isinstance(result, str):
        return None, result + ("; its earlier prediction stays in the table" if previous else "")
    is_same = previous.get("fingerprint", {}).get("file") == fingerprint["file"]
    return _with_true_label(model, result, record, previous if is_same else {})


def _with_fingerprint(task: ImageTask, previous: Content) -> tuple[ImageTask, Content]:
    """Return the task with metadata of the previous result, and its fingerprint.

    If a file cannot be read, the fingerprint is empty and the returned record contains the error.
    """
    try:
        task = task.with_previous_metadata(previous)
        return task, task.fingerprint()
    except Exception as error:
        reason = task.record.error or failure_reason(error)
        return replace(task, record=replace(task.record, error=reason)), {}


def _table_rows(contents: list[Content]) -> tuple[list[Row], list[Row]]:
    """Return the table rows of images, and the table rows of their regions, from their results."""
    rows = [content["row"] for content in contents]
    return rows, [row for content in contents for row in content["regions"]]


def _write_tables(model: Model, folder: Path, contents: list[Content]) -> dict[str, Any] | None:
    """Write the tables and scores of all results; return the scores, or None without labels."""
    rows, regions = _table_rows(contents)
    if not rows:  # all images failed
        return None
    write_table(folder / model.table_name, rows, model.columns)
    if model.finds_regions:
        write_table(folder / "regions", regions, RegionPrediction.REGION_COLUMNS)
    scores = score_predictions(model.class_names_, rows)
    labelled = [row for row in rows if row.get("truth") in model.class_names_]
    n_tuned = count_tuning_images(model.training_info_, (Path(row["path"]) for row in labelled))
    if scores is not None and n_tuned:
        scores["tuned"] = score_before_tuning(model, labelled, n_tuned)
    if scores is not None and model.finds_regions:
        scores["patches"] = score_patches(_find_scored_maps(folder, contents))
    if not model.finds_regions:
        scores = merge_patch_scores(scores, score_overlap(_find_scored_maps(folder, contents)))
    if scores is not None:
        paths = (Path(content["row"]["path"]) for content in contents if content["ground_truth"])
        n_trained = count_training_images(model.training_info_, paths)
        if n_trained:
            scores["trained"] = {"n_images": n_trained, "note": TRAINED_IMAGES_NOTE}
    if scores is None:
        (folder / SCORES_FILE).unlink(missing_ok=True)
    else:
        with atomic_write(folder / SCORES_FILE) as partial_file:
            partial_file.write_text(json.dumps(scores, indent=1), encoding="utf-8")
    return scores


def _find_scored_maps(folder: Path, contents: list[Content]) -> Iterator[ScoredMap]:
    """Yield (record, map file, minimum region size in patches) for labelled images with a map."""
    for content in contents:
        maps = [name for name in content["files"] if name.startswith("maps/")]
        if content["ground_truth"] and maps:
            min_patches = content["row"].get("min_patches", 1)
            yield record_from_result(content), folder / maps[0], min_patches


def _make_project_image(content: Content) -> ProjectImage:
    """Return the entry of an image in the QuPath project."""
    row = content["row"]
    score = {} if row.get("score") is None else {"histodict score": f"{row['score']:.5g}"}
    path = Path(content["fingerprint"]["file"][0])
    return ProjectImage(
        path,
        row["key"],
        {"histodict label": row["label"], "histodict top label": row["top_label"]} | score,
    )


def _with_true_label(
    model: Model, content: Content, record: ImageRecord, previous: Content
) -> tuple[Content, str]:
    """Return the result with path, patient and true label of the record, and an error message.

    The message says why the true label is unknown; it is empty without errors.

    Parameters
    ----------
    model : fitted model
    content : result of `predict_and_export`
    record : record of the image
    previous : earlier result or {}; its patient and label are kept if the record has none
    """
    ground_truth, earlier, scoring_error = previous.get("ground_truth"), previous.get("row", {}), ""
    user_columns = {name: earlier[name] for name in ("truth", "patient") if name in earlier}
    row = content["row"] | user_columns | {"path": printable_path(record.path)}
    if record.patient:
        row["patient"] = record.patient
    try:
        if record.label or record.has_regions:
            truth = model.true_label(record)
            row |= {"truth": truth} if truth else {}
            ground_truth = ground_truth_to_json(with_absolute_paths(record))
    except Exception as error:  # an error of the mask does not affect the prediction
        scoring_error = f"not used for scores: {failure_reason(error)}"
    regions = [region | {"path": row["path"]} for region in content["regions"]]
    return content | {"row": row, "regions": regions, "ground_truth": ground_truth}, scoring_error
