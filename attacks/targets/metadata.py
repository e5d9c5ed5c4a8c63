"""Metadata of feature files and of OME-Zarr images, with values of any type and size.

An attempt runs damaged files and a good one as a batch, as `predict` does; an edit is [number of
the file, change]. Each file must get a prediction with a map of all its patches, or an error of one
line that names it, and the prediction of the good file must not change. Unexpected errors and
overflow warnings are failures.
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy.random import Generator
from PIL import Image

from histodict import TissueClassifier
from histodict.batch import predict_images
from histodict.datasets.manifest import ImageRecord, Manifest, read_manifest
from histodict.datasets.survey import check_readable
from histodict.images.source import ImageError, open_image
from histodict.models.recipe import PRESETS, Recipe
from histodict.patches.patch_map import PatchMap
from histodict.precomputed.feature_file import common_metadata
from histodict.synthetic.dataset import write_synthetic_dataset

from ..metadata_bases import BASES, N_PATCHES, metadata_edit, write_base
from ..target import Case, InvariantError, Target
from .images import peak_kib, read_regions

_MOST_KIB = 2**20
_MAX_MESSAGE_LENGTH = 2000


class Metadata(Target):
    name = "metadata"
    per_attempt = 5
    smoke_attempts = 20

    def setup(self, folder: Path) -> None:
        folder = Path(tempfile.mkdtemp(dir=folder))
        warnings.simplefilter("ignore")
        self._folder, self._out = folder / "bad", folder / "out"
        self._folder.mkdir()
        self._models = {True: _of_images(folder), False: _of_features(folder)}
        tissue = next((folder / "set").rglob("*.png"))
        good = {True: folder / "good.png", False: write_base(folder / "good.h5", [], "trident.h5")}
        with Image.open(tissue) as picture:
            picture.crop((0, 0, 48, 40)).save(good[True])
        self._good = {kind: ImageRecord(path, "", "") for kind, path in good.items()}
        self._expected = {kind: self._run(kind, [self._good[kind]])[0][0] for kind in good}
        for base in BASES:
            if self.attempt(b"[]", base) != "0 of 1 refused":
                raise ValueError(f"{base} is not answered although nothing of it is damaged")
        warnings.simplefilter("error", RuntimeWarning)
        self._peak_kib = peak_kib()

    def case(self, rng: Generator) -> Case:
        base = str(rng.choice(sorted(BASES)))
        edits = [
            [number, metadata_edit(rng, base)]
            for number in range(self.per_attempt)
            for _ in range(int(rng.integers(1, 4)))
        ]
        return Case(base, base, tuple(edits))

    def build(self, case: Case) -> bytes:
        return json.dumps(case.edits).encode()

    # --- invariants -----------------------------------------------------------------------------

    def attempt(self, data: bytes, base: str) -> str:
        edits = json.loads(data)
        is_image = base.endswith(".ome.zarr")
        records = []
        for number in sorted({number for number, _ in edits} or {0}):
            own = [edit for at, edit in edits if at == number]
            path = write_base(self._folder / f"{number}-{base}", own, base)
            records.append(ImageRecord(path, "", ""))
        try:
            n_refused = self._batch(records, is_image)
            self._training(records, is_image)
        finally:
            if hasattr(self, "_peak_kib") and peak_kib() - self._peak_kib > _MOST_KIB:
                raise InvariantError("more than a gigabyte of memory was taken")
        return f"{n_refused} of {len(records)} refused"

    def _batch(self, records: list[ImageRecord], is_image: bool) -> int:
        """Predict the files and a valid one, like `predict`; return the number refused."""
        rows, failures = self._run(is_image, [*records, self._good[is_image]])
        if _scores(rows[-1:]) != _scores([self._expected[is_image]]):
            raise InvariantError(f"the prediction of the valid file changed: {rows}")
        if len(rows) + len(failures) != len(records) + 1:
            raise InvariantError(
                f"{len(records) + 1} files, {len(rows)} rows, {len(failures)} failures"
            )
        for path, reason in failures:
            _check_reason(reason, path)
        for row in rows[:-1]:
            self._check_prediction(row, is_image)
        return len(failures)

    def _check_prediction(self, row: dict[str, Any], is_image: bool) -> None:
        if not all(score is None or math.isfinite(score) for score in _scores([row])):
            raise InvariantError(f"a prediction is not a number: {row}")
        patch_map = PatchMap.load(self._out / "maps" / f"{row['key']}.npz")
        if not is_image and patch_map.n_patches != N_PATCHES:
            raise InvariantError(f"{patch_map.n_patches} of {N_PATCHES} patches have a score")
        if is_image:
            with open_image(Path(row["path"])) as source:
                read_regions(source)

    def _training(self, records: list[ImageRecord], is_image: bool) -> None:
        """Check the files like `train`."""
        for record, reason in check_readable(records, 1).unusable:
            _check_reason(reason, record.path)
        for record in records:
            try:
                common_metadata([record.path, self._good[is_image].path])
            except ImageError as error:
                _check_reason(str(error), record.path)

    def _run(self, is_image: bool, records: list[ImageRecord]) -> tuple[list[Any], list[Any]]:
        shutil.rmtree(self._out, ignore_errors=True)
        result = predict_images(self._models[is_image], "digest", records, self._out, mpp=0.5)
        return result.rows, result.failures


def _check_reason(reason: str, path: Path) -> None:
    if str(path.name) not in reason:
        raise InvariantError(
            f"a refusal that does not name the file: {reason[:_MAX_MESSAGE_LENGTH]}"
        )
    if "\n" in reason or len(reason) > _MAX_MESSAGE_LENGTH:
        raise InvariantError(f"an error of more than a line: {reason[:_MAX_MESSAGE_LENGTH]}")
    if "unexpected " in reason and "[at " in reason:
        raise InvariantError(f"an unexpected error: {reason}")


def _scores(rows: list[dict[str, Any]]) -> list[float | None]:
    return [value for row in rows for name, value in row.items() if name.startswith("score")]


def _of_features(folder: Path) -> TissueClassifier:
    (folder / "slides").mkdir()
    records = []
    for seed in range(4):
        path = write_base(folder / "slides" / f"{seed}.h5", [], "trident.h5", seed)
        records.append(ImageRecord(path, "ab"[seed % 2], str(seed)))
    recipe = replace(
        PRESETS["precomputed"], method="nearest-mean", method_parameters={}, n_components=0
    )
    return TissueClassifier(recipe, n_jobs=1).fit(Manifest(tuple(records)))


def _of_images(folder: Path) -> TissueClassifier:
    manifest = read_manifest(write_synthetic_dataset(folder / "set", 2, 1, size=(96, 64), seed=3))
    recipe = Recipe("nearest-mean", {}, patch_px=12, downsample=1.5, patches_per_class=60)
    return TissueClassifier(recipe, n_jobs=1).fit(manifest)


TARGET = Metadata()
