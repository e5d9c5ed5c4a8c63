"""Tasks and lower limits of `waits`, as functions that run on one thread."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from histodict.utils.parallel import single_blas_thread

from .peers import histodict_cases
from .problem import Size, build_problem
from .turns import Case

_MATRIX = 1024  # side of the matrices whose product is the limit of the encoder


@dataclass(frozen=True)
class WaitsSize:
    """Problem of the kernels, side of the slide, area for the encoder, and seconds per task."""

    problem: Size
    slide_px: int
    area_px: int
    seconds: float


QUICK = WaitsSize(Size(1_000, 500, 30, 1), slide_px=4_000, area_px=512, seconds=1.0)
FULL = WaitsSize(Size(20_000, 500, 30, 1), slide_px=12_000, area_px=1152, seconds=10.0)


@dataclass(frozen=True)
class Wait:
    """`prepare` returns the task and its limit; it raises ImportError if a library is missing."""

    name: str
    limit: str
    prepare: Callable[[], tuple[Case, Case]]


def waits(size: WaitsSize, folder: Path) -> list[Wait]:
    """Return the tasks in the order of a typical session; `folder` is for their input."""
    kernels = cache(partial(_kernels, size.problem))
    product = "bare product Y·Dᵀ"

    def kernel(ours: str, limit: str) -> Callable[[], tuple[Case, Case]]:
        return lambda: (kernels()[ours], kernels()[limit])

    slide, encoder = cache(partial(_slide, size, folder)), cache(partial(_encoder, size.area_px))

    return [
        Wait("start: histodict --help", "bare python", _start),
        Wait("pursuit", product, kernel("omp", "omp product")),
        Wait("l1 codes", product, kernel("lasso", "lasso product")),
        Wait("training: an iteration of a class", product, kernel("dfdl", "omp product")),
        Wait("a whole slide", "bare decoding of its tiles", slide),
        Wait("encoder", "a product of as many operations", encoder),
    ]


def _kernels(size: Size) -> dict[str, Case]:
    problem, _ = build_problem(size)

    def alone(case: Case) -> Any:
        with single_blas_thread():
            return case()

    return {name: partial(alone, case) for name, case in histodict_cases(problem, 1).items()}


def _start() -> tuple[Case, Case]:
    stored = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}

    def run(*arguments: str) -> None:
        command = [sys.executable, *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=stored)

    return partial(run, "-m", "histodict.cli", "--help"), partial(run, "-c", "pass")


def _slide(size: WaitsSize, folder: Path) -> tuple[Case, Case]:
    """Prediction of a slide from the open file to the map, with a briefly trained model."""
    import simplejpeg
    import tifffile

    from histodict import TissueClassifier
    from histodict.images import slide_reader as slide_process
    from histodict.synthetic.dataset import write_synthetic_dataset

    from .big_slide import write_slide

    path = write_slide(folder / "slide.tif", size.slide_px)
    write_synthetic_dataset(folder / "tissue", n_patients=3, images_per_patient=2)
    model = TissueClassifier("fast", n_iter=1, patches_per_class=1000, n_jobs=1, random_state=0)
    model.fit(folder / "tissue")

    def predict() -> None:
        model.predict_one(path)
        slide_process.end_all_processes()  # CPU time is known after the process has ended

    with tifffile.TiffFile(path) as tiff:
        page = tiff.pages[0]
        pieces = list(zip(page.dataoffsets, page.databytecounts, strict=True))

    def decode() -> None:
        with path.open("rb") as file:
            for offset, n_bytes in pieces:
                file.seek(offset)
                simplejpeg.decode_jpeg(file.read(n_bytes))

    return predict, decode


def _encoder(area_px: int) -> tuple[Case, Case]:
    import torch

    from histodict.encoders import load_encoder

    from .encoder import flop

    name = "efficientnet-lite0"
    torch.set_num_threads(1)
    encoder, matrix = load_encoder(name), torch.rand(_MATRIX, _MATRIX)
    pixels = np.random.default_rng(0).integers(0, 256, (area_px, area_px, 3), dtype=np.uint8)
    n_products, rest = divmod(flop(name, area_px), 2 * _MATRIX**3)
    part = matrix[: round(rest / (2 * _MATRIX**2))]

    def products() -> None:
        for _ in range(n_products):
            matrix @ matrix
        part @ matrix

    return lambda: encoder.feature_map(pixels), products
