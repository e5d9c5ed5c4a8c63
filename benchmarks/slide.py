"""Time of a whole slide with `histodict predict`: patches per second, peak memory and stages.

    python -m benchmarks.slide [--side 30000] [--preset fast] [--set backend=cuda]
        [--folder FOLDER] [--jobs N] [--output FILE.json]

The slide is synthetic (see `big_slide`), and the model is trained on a synthetic set. With
--folder, slide and model are stored there and used again.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from histodict.synthetic.dataset import write_synthetic_dataset
from histodict.utils.parallel import available_cores
from histodict.utils.text_io import read_checked_json

from . import report
from .big_slide import CELL, tissue_cells, write_slide
from .machine import describe_machine

MOST_MIB = 1500
_ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Plain)
    parser.add_argument("--side", type=int, default=30_000, help="side of the slide in pixels")
    parser.add_argument("--preset", default="fast", help="preset of the model")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="as for `train`"
    )
    parser.add_argument("--folder", type=Path, help="folder for slide and model")
    parser.add_argument("--jobs", type=int, default=available_cores(), help="threads")
    parser.add_argument("--output", type=Path, help="JSON file for the figures")
    options = parser.parse_args()
    machine = describe_machine()
    report.print_machine(machine)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        slide = _slide(folder, options.side)
        model = _model(folder, options.preset, options.set)
        figures = _measure(model, slide, Path(temporary), options.jobs)
    _print(slide.name, options.side, figures)
    if options.output:
        options.output.write_text(json.dumps({"machine": machine, "slide": figures}, indent=1))
    if figures["peak_mib"] > MOST_MIB:
        sys.exit(f"peak memory is above {MOST_MIB} MiB")


def _slide(folder: Path, side: int) -> Path:
    path = folder / f"slide-{side}.tif"
    if not path.exists():
        print(f"generating {path.name} …", flush=True)
        write_slide(path, side)
    return path


def _model(folder: Path, preset: str, settings: list[str]) -> Path:
    path = folder / f"{'-'.join((preset, *settings))}.histodict"
    if not path.exists():
        print("training …", flush=True)
        tissue = folder / "tissue"
        if not tissue.exists():
            write_synthetic_dataset(tissue, n_patients=6, images_per_patient=4)
        chosen = ["--preset", preset, *(word for pair in settings for word in ("--set", pair))]
        _run("-m", "histodict.cli", "train", str(tissue), *chosen, "--output", str(path))
    return path


def _measure(model: Path, slide: Path, folder: Path, jobs: int) -> dict[str, Any]:
    measured, results = folder / "figures.json", folder / "results"
    command = ["predict", str(model), str(slide), "--output", str(results), "--jobs", str(jobs)]
    _run("-m", "benchmarks.stages", str(measured), *command)
    figures: dict[str, Any] = json.loads(measured.read_text(encoding="utf-8"))
    (done,) = (results / "done").glob("*.json")
    row = read_checked_json(done)["row"]
    sizes = {path.suffix: path.stat().st_size / 2**20 for path in results.glob("*/*")}
    return figures | {
        "jobs": jobs,
        "n_patches": row["n_patches"],
        "file_mib": slide.stat().st_size / 2**20,
        "result_mib": {suffix: sizes[suffix] for suffix in (".geojson", ".npz", ".png")},
    }


def _run(*command: str) -> None:
    subprocess.run([sys.executable, *command], check=True, cwd=_ROOT)


def _print(name: str, side: int, figures: dict[str, Any]) -> None:
    share = float(tissue_cells(side).mean())
    n_cells = math.ceil(side / CELL)
    print(
        f"\n{name}: {side} x {side} px, {figures['file_mib']:.0f} MiB; {share:.0%} of "
        f"{n_cells} x {n_cells} cells are tissue\n"
        f"  {figures['seconds']:.1f} s, of which {figures['start_s']:.1f} s to start;"
        f" {figures['cpu_s']:.1f} s of CPU, {figures['jobs']} threads:"
        f" {figures['cpu_s'] / figures['seconds'] / figures['jobs']:.0%} busy\n"
        f"  {figures['n_patches']} patches on tissue:"
        f" {figures['n_patches'] / figures['seconds']:.0f} per second\n"
        f"  peak memory {figures['peak_mib']:.0f} MiB"
    )
    print("  results:", ", ".join(f"{k} {v:.1f} MiB" for k, v in figures["result_mib"].items()))
    stages = figures["stages"]
    stages["other"] = figures["cpu_s"] - sum(stages.values())
    print(f"\n  {'stage':10} {'s of CPU':>8} {'share':>6}")
    for stage, seconds in sorted(stages.items(), key=lambda item: -item[1]):
        print(f"  {stage:10} {seconds:8.1f} {seconds / figures['cpu_s']:6.0%}")


class _Plain(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """Help with the description as written, and with the default of each option."""


if __name__ == "__main__":
    main()
