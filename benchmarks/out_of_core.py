"""Training on more patches than fit in memory: generated, stored on disk as bytes, read in blocks.

    python -m benchmarks.out_of_core                       # 2 million patches, 2.4 GB
    python -m benchmarks.out_of_core --cluster local:2     # the same on worker processes
    python -m benchmarks.out_of_core --patches 200000 --size 8 --atoms 16   # a small test

Prints seconds and the peak memory of every process; the exit status is 1 if one of them needs more
than --most-mib. Wall time is only meaningful on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from histodict.methods.dfdl import DFDL
from histodict.patches.vectors import StoredPatches
from histodict.utils.dask_executor import open_cluster

_PATTERNS = 64  # per class; a patch is a mixture of three


def main() -> int:
    options = _read_options()
    with TemporaryDirectory(dir=options.folder) as folder:
        stored = write_patches(Path(folder), options.patches, options.size)
        figures = train(stored, options)
    print(json.dumps(figures, indent=1))
    return int(max(figures["peak_mib"]) > options.most_mib)


def write_patches(folder: Path, n_patches: int, size: int, seed: int = 0) -> StoredPatches:
    """Generate two alternating classes with separate patterns, a few thousand patches at a time."""
    rng = np.random.default_rng(seed)
    patterns = rng.standard_normal((2, _PATTERNS, size, size, 3)).astype(np.float32)
    header = {"descr": "|u1", "fortran_order": False, "shape": (n_patches, size, size, 3)}
    labels = (np.arange(n_patches) % 2).astype(np.uint8)
    # Written as a stream, because pages of a memory map count as memory of this process.
    with (folder / "patches.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, n_patches, 4096):
            own = labels[start : start + 4096]
            values = np.full((len(own), size, size, 3), 128, np.float32)
            for weight in (40, 25, 15):
                values += weight * patterns[own, rng.integers(_PATTERNS, size=len(own))]
            values += rng.integers(-8, 8, values.shape, dtype=np.int8)
            file.write(values.clip(0, 255).astype(np.uint8).tobytes())
    np.save(folder / "labels.npy", labels)
    return StoredPatches(folder / "patches.npy", folder / "labels.npy")


def train(stored: StoredPatches, options: argparse.Namespace) -> dict[str, Any]:
    model = DFDL(options.atoms, n_iter=options.iterations, tol=0.0, random_state=0)
    few = np.random.default_rng(0).standard_normal((64, 8), dtype=np.float32)
    DFDL(4, n_iter=1).fit(few, np.arange(64) % 2)  # loads libraries that are imported at first use
    before = peak_mib()
    with open_cluster(options.cluster) if options.cluster else nullcontext() as executor:
        wall, cpu = time.perf_counter(), time.process_time()
        model.fit_blocks(stored, executor=executor)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        workers = list(executor.client.run(peak_mib).values()) if executor else []
    n_features = model.n_features_in_
    return {
        "patches": options.patches,
        "bytes_on_disk_mib": options.patches * n_features / 2**20,
        "as_vectors_mib": options.patches * n_features * 4 / 2**20,
        "atoms": options.atoms,
        "iterations": model.n_iter_,
        "n_nonzero": model.n_nonzero_.tolist(),
        "seconds": round(wall, 1),
        "cpu_seconds_here": round(cpu, 1),
        "peak_before_mib": round(before),
        "peak_mib": [round(peak) for peak in (peak_mib(), *workers)],
        "objective": [float(values[-1]) for values in model.objective_],
    }


def peak_mib() -> float:
    """Return the peak memory of this process, including shared pages of files."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) / 1024


def _read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--patches", type=int, default=2_000_000)
    parser.add_argument("--size", type=int, default=20, help="side of a patch in pixels")
    parser.add_argument("--atoms", type=int, default=500)
    parser.add_argument("--iterations", type=int, default=2)
    parser.add_argument("--cluster", help="as for `histodict train`")
    parser.add_argument("--folder", help="folder for the patches; default: a temporary one")
    parser.add_argument("--most-mib", type=float, default=2000, help="limit per process")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
