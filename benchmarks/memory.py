"""Peak memory of `histodict predict` on images other than slides, by format and size.

    python -m benchmarks.memory [--sides 5000 10000 20000] [--folder FOLDER] [--output FILE.json]

Images consist of repeated synthetic tissue, and the model has the preset `fast`. Each command runs
in its own process. The memory for an image of 500 × 500 pixels is subtracted before bytes per pixel
are computed.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from histodict.synthetic.tissue_generator import make_tissue_image, random_stain

from . import report
from .machine import describe_machine
from .slide import _model, _run

_CELL = 500
# By suffix: options of Pillow.
KINDS: dict[str, dict[str, Any]] = {
    "baseline.jpg": {"quality": 80},
    "progressive.jpg": {"quality": 80, "progressive": True},
    "colour.png": {"compress_level": 1},
    "strips.tif": {"compression": "tiff_lzw"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sides", type=int, nargs="+", default=[5000, 10_000])
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--folder", type=Path, help="folder for the images and the model")
    parser.add_argument("--output", type=Path, help="JSON file for the figures")
    options = parser.parse_args()
    machine = describe_machine()
    report.print_machine(machine)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        rows = _measure(folder, Path(temporary), options.sides, options.kinds)
    if options.output:
        options.output.write_text(json.dumps({"machine": machine, "memory": rows}, indent=1))


def _measure(folder: Path, scratch: Path, sides: list[int], kinds: list[str]) -> list[Any]:
    model = _model(folder, "fast", [])
    base = _peak_mib(model, _image(folder, "colour.png", _CELL), scratch)
    print(f"\n{base:.0f} MiB for {_CELL} x {_CELL} pixels\n{'image':28} {'MiB':>7} bytes/pixel")
    rows = []
    for kind in kinds:
        for side in sides:
            image = _image(folder, kind, side)
            peak = _peak_mib(model, image, scratch)
            per_pixel = (peak - base) * 2**20 / side**2
            rows.append({"image": image.name, "peak_mib": peak, "bytes_per_pixel": per_pixel})
            print(f"{image.name:28} {peak:7.0f} {per_pixel:11.1f}", flush=True)
    return rows


def _image(folder: Path, kind: str, side: int) -> Path:
    path = folder / f"{side}-{kind}"
    if not path.exists():
        rng = np.random.default_rng(0)
        cell = make_tissue_image("healthy", random_stain(rng), rng, (_CELL, _CELL))
        n_cells = -(-side // _CELL)
        pixels = np.tile(cell, (n_cells, n_cells, 1))[:side, :side]
        partial = path.with_name(f".partial.{path.name}")
        Image.fromarray(pixels).save(partial, **KINDS[kind])
        partial.rename(path)
    return path


def _peak_mib(model: Path, image: Path, scratch: Path) -> float:
    figures, results = scratch / "figures.json", scratch / image.stem
    command = ["predict", str(model), str(image), "--output", str(results)]
    _run("-m", "benchmarks.stages", str(figures), *command)
    return float(json.loads(figures.read_text(encoding="utf-8"))["peak_mib"])


if __name__ == "__main__":
    main()
