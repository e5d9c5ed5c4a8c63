"""A model over many images, into a folder: goes past bad files, and goes on where it was stopped.

    DIR/predictions.csv, .parquet    one row per image (detections.csv for regions)
    DIR/regions.csv, .parquet        one row per region found
    DIR/overlays/KEY.png             the image with its patch map, the regions' outlines, a legend
    DIR/maps/KEY.npz                 the patch map, for `PatchMap.load`
    DIR/geojson/KEY.geojson          areas of a class, the regions, or patches, for QuPath (.gz)
    DIR/qupath/                      a QuPath project of all images, where it was asked for
    DIR/anndata/KEY.h5ad             the patches with their codes, for scanpy and squidpy, if asked
    DIR/scores.json                  how good the answers are, where it is known what they should be
    DIR/done/KEY.json                one image's rows, and the digests of its files; what is there
                                     and whole is not done again

The tables hold all that is there: rows of earlier runs stay, if model and settings were the same.
KEY is the file's name and a few letters that tell equal names apart.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .compare.scoring import Mapped, score_outlined, score_patches, score_rows, with_patches
from .execution.executor import Executor, Threads
from .execution.files import content_digest, file_key, written_whole
from .execution.progress import Callback, Progress, ignore, shares
from .execution.run_folder import Content, RunFolder
from .execution.tables import Row, write_table
from .images.annotations.drawing import Drawing
from .images.folder_images import is_zarr
from .images.in_memory import image_bytes
from .images.layout import images_below
from .images.manifest import Record
from .images.pixel_size import GivenSize, Mpp
from .patches.overlay import save_overlay
from .patches.patch_map import PatchMap
from .pipeline import Answer, Model, RegionAnswer
from .pipeline.answers import outlines, region_rows
from .reports.geojson import ForQuPath, features, save_geojson
from .reports.qupath_project import ProjectImage, save_project
from .spatial.patch_table import About, answer_into, check_has_codes

SCORES = "scores.json"
# Of a file's name that goes into KEY: with it, no name may become longer than file systems allow.
_MOST_BYTES = 200
_FORM = 8  # goes up when an image's files are written otherwise

_AREAS = ForQuPath()


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


def find_images(paths: list[Path]) -> tuple[list[Path], list[Path]]:
    """The files named, and all images under the folders named, in order, each once.

    Beside them what lies in the folders and may have been meant: pictures of other formats, masks.
    """
    found: dict[Path, None] = {}
    left_out: list[Path] = []
    for path in paths:
        is_one = is_zarr(path) or not path.is_dir()
        images, others = ([path], []) if is_one else images_below(path)
        found.update(dict.fromkeys(images))
        left_out += others
    return list(found), left_out


def run_images(
    model: Model,
    model_digest: str,
    images: Sequence[Record],
    folder: Path,
    *,
    mpp: Mpp = None,
    qupath: ForQuPath = _AREAS,
    callback: Callback = ignore,
    executor: Executor | None = None,
    anndata: bool = False,
) -> RunResult:
    """Answer for every image and write the files above. The callback hears of each image.

    `mpp`: what is said of the pixel sizes of all of them; a record's own is a table's.
    `qupath`: an image whose outlines were written otherwise is done again; a project has all images
    that the folder holds answers for.
    `anndata`: also write an .h5ad file of each; an image that has one keeps it up to date unasked.
    `executor` takes an image at a time, and what works there writes into `folder`; None: one image
    after another, with threads for the parts of each.
    """
    if anndata:
        check_has_codes(model)
    settings = {"model": model_digest, "version": version("histodict"), "form": _FORM}
    run = RunFolder(folder, settings, model.table)
    given = GivenSize.of(mpp)
    keys = [image_key(record.path) for record in images]
    restricted = "given" if any(record.within for record in images) else None
    options = {"--mpp": given.fill, "--override-mpp": given.override, "--within": restricted}
    run.begin(keys, options)
    tasks = []
    for record, key in zip(images, keys, strict=True):
        before = run.kept.get(key, {})
        tabled = anndata or "anndata" in before.get("stamp", {})
        task = _Task(_whole(record), given, key, model_digest, qupath, tabled)
        tasks.append(task.knowing(before))
    stamps = [task.stamp() for task in tasks]
    finished = [run.find(key, stamp) for key, stamp in zip(keys, stamps, strict=True)]
    missing = [task for task, found in zip(tasks, finished, strict=True) if not found]
    answer = partial(_answer_one, model.with_jobs(1) if executor else model, folder.absolute())
    watch = ignore if executor else callback  # of what is done elsewhere only the end is heard
    results = (executor or Threads(1)).map(partial(answer, watch), missing, lost=str)
    done, failures = [], []
    # Those that are finished take no time.
    share = shares([0 if f else image_bytes(r.path) for r, f in zip(images, finished, strict=True)])
    callback(Progress("answer", 0, len(images), work=share[0]))
    for n, (record, key, stamp) in enumerate(zip(images, keys, stamps, strict=True)):
        content = finished[n] or next(results)
        if isinstance(content, str):
            stays = "; its earlier answer stays in the table" if key in run.kept else ""
            failures.append((record.path, content + stays))
        else:
            before = run.kept.get(key, {})
            is_same = before.get("stamp", {}).get("file") == stamp["file"]
            content, wrong = _with_truth(model, content, record, before if is_same else {})
            failures += [(record.path, wrong)] if wrong else []
            done.append(run.keep(key, content, stamp))
        callback(Progress("answer", n + 1, len(images), work=share[n + 1]))
    earlier = run.earlier({content["row"]["key"] for content in done})
    scores = _write_tables(model, folder, [*done, *earlier])
    if qupath.with_project and (done or earlier):
        images_there = [_in_project(content) for content in [*done, *earlier]]
        save_project(folder / "qupath", model.classes_, images_there)
    rows, regions = _rows(done)
    return RunResult(rows, regions, failures, len(images) - len(missing), len(earlier), scores)


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
        write_table(folder / "regions", regions, RegionAnswer.REGION_COLUMNS)
    scores = score_rows(model.classes_, rows)
    if scores is not None and model.finds_regions:
        scores["patches"] = score_patches(_mapped(folder, contents))
    if not model.finds_regions:
        scores = with_patches(scores, score_outlined(_mapped(folder, contents)))
    if scores is None:
        (folder / SCORES).unlink(missing_ok=True)
    else:
        with written_whole(folder / SCORES) as partial_file:
            partial_file.write_text(json.dumps(scores, indent=1), encoding="utf-8")
    return scores


def _mapped(folder: Path, contents: list[Content]) -> Iterator[Mapped]:
    """Images whose truth is known: what is known, the map, and how many patches make a region."""
    for content in contents:
        row, known = content["row"], content["known"]
        maps = [name for name in content["files"] if name.startswith("maps/")]
        if known and maps:
            mask = Path(known["mask"]) if known["mask"] else None
            path, drawn = Path(known["path"]), known.get("drawn")
            record = Record(path, known["label"], row["patient"], mpp=known["mpp"], mask=mask)
            if drawn:
                file, names, coordinates = drawn
                drawing = Drawing(Path(file), tuple(names), coordinates)
                record = replace(record, drawn=drawing)
            yield record, folder / maps[0], row.get("least_patches", 1)


def _in_project(content: Content) -> ProjectImage:
    """An image by the place that its links lead to, which is right from any folder."""
    row = content["row"]
    score = {} if row.get("score") is None else {"histodict score": f"{row['score']:.5g}"}
    path = Path(content["stamp"]["file"][0])
    return ProjectImage(path, row["key"], {"histodict label": row["label"]} | score)


def image_key(image: Path) -> str:
    """A file name for what belongs to an image, the same each time."""
    place = hashlib.sha256(os.fsencode(image.resolve())).hexdigest()[:8]
    name = _text(Path(image.stem)).encode()[:_MOST_BYTES].decode("utf-8", "ignore")
    return f"{name}-{place}"


def _text(path: Path) -> str:
    """A path for a table; what is not UTF-8 in it, in names of old systems, is marked."""
    return os.fsencode(path).decode("utf-8", "replace")


@dataclass(frozen=True)
class _Task:
    """An image to be answered.

    key : of its files
    tabled : whether its patches with their codes are written as AnnData, too
    """

    record: Record
    given: GivenSize
    key: str
    model_digest: str
    qupath: ForQuPath
    tabled: bool

    def knowing(self, before: Content) -> _Task:
        """With what an earlier run on the same file knew and this one was not told."""
        record = self.record
        if not self.tabled or before.get("stamp", {}).get("file") != _file_key(record.path):
            return self
        record = replace(record, patient=record.patient or before["row"].get("patient", ""))
        known = before.get("known")
        if known and not (record.label or record.mask):
            mask = Path(known["mask"]) if known["mask"] else None
            record = replace(record, label=known["label"], mask=mask)
        return replace(self, record=record)

    def stamp(self) -> Content:
        """Changes when the image does, what is said of it, where to look in it, or its files."""
        record = self.record
        found: Content = {
            "size": list(astuple(self.size)),
            "outlines": self.qupath.form,
            "file": _file_key(record.path),
        }
        if self.tabled:
            mask = _file_key(record.mask) if record.mask else []
            found["anndata"] = [record.patient, record.label, mask]
        if record.image is not None:
            found["image"] = file_key(record.image)
        if record.within is not None:
            found["within"] = record.within.facts() if record.within.path.is_file() else []
        return found

    def told(self) -> Row:
        """What a row says of where was looked."""
        within = self.record.within
        return {"within": within.path.name} if within else {}

    @property
    def size(self) -> GivenSize:
        return self.given.with_table(self.record.mpp)


def _file_key(path: Path) -> list[Any]:
    return file_key(path) if path.exists() else []


def _whole(record: Record) -> Record:
    """Another machine may work in another folder: paths that are sent are whole."""
    mask, image = (file.absolute() if file else None for file in (record.mask, record.image))
    drawings = record.drawn, record.within
    drawn, within = (each and replace(each, path=each.path.absolute()) for each in drawings)
    return replace(
        record,
        path=record.path.absolute(),
        mask=mask,
        image=image,
        drawn=drawn,
        within=within,
    )


def _with_truth(
    model: Model, content: Content, record: Record, before: Content
) -> tuple[Content, str]:
    """With the path that was asked for, and what is known of the image; and what of that fails.

    before : of an earlier run on the same file; what it knew stays, if this one was told nothing
    """
    known, earlier, wrong = before.get("known"), before.get("row", {}), ""
    told = {name: earlier[name] for name in ("truth", "patient") if name in earlier}
    row = content["row"] | told | {"path": _text(record.path)}
    if record.patient:
        row["patient"] = record.patient
    try:
        if record.label or record.is_mapped:
            truth = model.truth(record)
            row |= {"truth": truth} if truth else {}
            known = _known(_whole(record))
    except (ValueError, OSError) as error:  # of its mask: the answer stays
        wrong = f"is not scored: {error}"
    regions = [region | {"path": row["path"]} for region in content["regions"]]
    return content | {"row": row, "regions": regions, "known": known}, wrong


def _known(record: Record) -> Content:
    """What a later run needs to score the map."""
    known: Content = {
        "path": str(record.path),
        "label": record.label,
        "mpp": record.mpp,
        "mask": str(record.mask) if record.mask else None,
    }
    drawn = record.drawn
    if drawn is not None:
        known["drawn"] = [str(drawn.path), list(drawn.names), drawn.coordinates]
    return known


def _answer_one(model: Model, folder: Path, callback: Callback, task: _Task) -> Content | str:
    """The rows of an image, whose files are then written; or why there are none."""
    if task.record.trouble:
        return task.record.trouble
    try:
        return _answer(model, folder, callback, task)
    except (ValueError, OSError, MemoryError, ImportError) as error:
        return str(error) or type(error).__name__


def _ask(task: _Task, callback: Callback, model: Model) -> Answer:
    """The answer, its map over the image where one lies beside a feature file."""
    image, within = task.record.image, task.record.within
    answer: Answer = model.answer(task.record.path, mpp=task.size, callback=callback, within=within)
    if within is not None and not answer.n_patches:
        raise ValueError(f"no patch with tissue lies inside of the outlines of {within.path}")
    if image is not None and answer.patch_map is not None:
        found = _laid_over(image, answer.patch_map)
        if not model.finds_regions or found.offset == answer.patch_map.offset:
            answer = replace(answer, patch_map=found)
    return answer


def _answer(model: Model, folder: Path, callback: Callback, task: _Task) -> Content:
    key, ask, files = task.key, partial(_ask, task, callback), list[Path]()
    if task.tabled:
        files.append(Path("anndata", f"{key}.h5ad"))
        about = About(key, task.record, task.model_digest)
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


def _laid_over(image: Path, patch_map: PatchMap) -> PatchMap:
    """The map of a feature file over its image; an image that cannot be read takes no answer."""
    try:
        return patch_map.laid_over(image)
    except (ValueError, OSError) as error:
        warnings.warn(f"{error}; the map is drawn without it", stacklevel=2)
        return patch_map
