"""Training and prediction on many slides of precomputed features: duration, memory, reading time.

    python -m benchmarks.feature_files --slides 200
    python -m benchmarks.feature_files --slides 1000 --presets precomputed

Generates feature files in the layout of TRIDENT (10,000 vectors of 1,024 half-precision values,
20 MB per slide) in a temporary folder and runs each command in its own process. Files beyond the
first 80 slides are copies with some new vectors, as accuracy is not measured. Memory is the peak of
the process (VmHWM) including the interpreter and libraries.
"""

from __future__ import annotations

import argparse
import csv
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

# Proportions of the kinds of tissue in each class.
SHARES = np.array([[0.4, 0.3, 0.25, 0.05], [0.3, 0.25, 0.2, 0.25]])
N_GENERATED = 80  # slides; a multiple of 4, so that copies have the class of their original
N_ANEW = 64  # new vectors of a copy


def draw_slides(folder: Path, n_slides: int, n_rows: int, length: int) -> Path:
    """Write feature files and a table of labels, with two slides per patient."""
    import h5py

    rng = np.random.default_rng(0)
    kinds = rng.standard_normal((SHARES.shape[1], length))
    side = int(np.ceil(np.sqrt(1.5 * n_rows)))
    cells = np.stack(np.meshgrid(*[np.arange(side)] * 2, indexing="ij"), axis=-1).reshape(-1, 2)
    (folder / "features").mkdir()
    with (folder / "slides.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(("slide", "label", "patient"))
        for n in range(n_slides):
            label = (n // 2) % 2
            table.writerow((f"slide{n:04d}", ("healthy", "tumour")[label], f"patient{n // 2:04d}"))
            path = folder / "features" / f"slide{n:04d}.h5"
            if n >= N_GENERATED:
                shutil.copyfile(folder / "features" / f"slide{n % N_GENERATED:04d}.h5", path)
                with h5py.File(path, "r+") as slide:
                    slide["features"][:N_ANEW] = 2 * rng.standard_normal((N_ANEW, length))
                continue
            own = rng.choice(len(kinds), n_rows, p=SHARES[label])
            noise = rng.standard_normal((n_rows, length), np.float32)
            vectors = (kinds[own] + 2 * noise).astype(np.float16)
            at = np.sort(rng.choice(len(cells), n_rows, replace=False))
            with h5py.File(path, "w") as slide:
                slide.create_dataset("features", data=vectors, chunks=(1, length))
                slide["features"].attrs["encoder"] = "drawn"
                coords = slide.create_dataset("coords", data=cells[at] * 512, chunks=(1, 2))
                coords.attrs.update(
                    patch_size=256, patch_size_level0=512, overlap=0, target_magnification=20
                )
    return folder / "slides.csv"


def read_all(folder: Path) -> int:
    """Read every vector once, file by file, as a lower limit of the time; return the bytes."""
    import h5py

    n_bytes = 0
    for path in sorted(folder.iterdir()):
        with h5py.File(path, "r") as file:
            n_bytes += file["features"][:].nbytes
    return n_bytes


def run(arguments: list[str]) -> tuple[float, float, float]:
    """Return wall seconds, CPU seconds and peak memory in MiB of one command.

    CPU seconds include those of finished child processes.
    """
    started = time.perf_counter()
    command = [sys.executable, "-c", PROBE, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        text = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments)} ended with {process.returncode}")
    taken = time.perf_counter() - started
    return taken, used.ru_utime + used.ru_stime, int(text.splitlines()[-1]) / 1024


PROBE = """
import re, sys
from pathlib import Path
from histodict.cli import app
try:
    app(sys.argv[1:])
except SystemExit as end:
    if end.code:
        raise
print(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--slides", type=int, default=200)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--folder", type=Path, help="parent of the temporary folder")
    parser.add_argument(
        "--presets", nargs="+", default=["precomputed", "features"], help="predict uses the last"
    )
    specified = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=specified.folder) as name:
        folder = Path(name)
        table = draw_slides(folder, specified.slides, specified.rows, specified.length)
        features, model = folder / "features", folder / "model.histodict"
        read_all(features)  # so that all commands read cached files
        started, at = time.perf_counter(), time.process_time()
        n_bytes = read_all(features)
        seconds, busy = time.perf_counter() - started, time.process_time() - at
        print(f"{specified.slides} slides, {n_bytes / 1e9:.2f} GB; cores: {cores()}")
        print(f"{'reading the files':24s} {seconds:8.1f} s {busy:8.1f} s of CPU", flush=True)
        common = [str(table), "--features", str(features)]
        trainings = [["train", *common, "--preset", p, "-o", str(model)] for p in specified.presets]
        names = [f"train --preset {preset}" for preset in specified.presets]
        predictions = ["predict", str(model), *common, "-o", str(folder / "results")]
        for text, command in zip([*names, "predict"], [*trainings, predictions], strict=True):
            taken, busy, mib = run(command)
            times = f"{taken:8.1f} s {busy:8.1f} s of CPU"
            print(f"{text:24s} {times} {mib:8.0f} MiB", flush=True)


def cores() -> str:
    """Return the number of cores and the load; on a busy machine, only CPU seconds count."""
    return f"{os.cpu_count()}, load {os.getloadavg()[0]:.1f}"


if __name__ == "__main__":
    main()
