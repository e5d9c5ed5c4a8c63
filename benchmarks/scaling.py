"""Speed-up with more machines: costs of the steps, runs with 1, 2, … workers, and a simulation.

    python -m benchmarks.scaling                      # the paper's size
    python -m benchmarks.scaling --workers 1,2,4 --samples 20000 --atoms 500

Measures the blocks of a training iteration one by one (CPU seconds, bytes of the sums, seconds to
send and add them), runs the same iteration on worker processes, and simulates it with the measured
times for these and larger numbers of workers. The simulation uses CPU seconds and the number of
cores, as wall time is only meaningful on an idle machine.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from distributed.protocol import deserialize, serialize
from numpy.typing import NDArray

from histodict.methods.class_dictionaries import group_blocks, open_arrays
from histodict.methods.dfdl import DFDL, ClassCoder, _sample_weights, reduce_statistics
from histodict.models.prepared_image import open_prepared_image
from histodict.models.recipe import preset
from histodict.patches.vectors import PATCH_FEATURES
from histodict.utils.dask_executor import open_cluster
from histodict.utils.parallel import ThreadExecutor, available_cores, single_blas_thread

from .machine import describe_machine

_N_NONZERO = 30
_NOT_TAKEN = 8  # finished units per worker that wait to be received, as in `utils.dask_executor`


@dataclass(frozen=True)
class Costs:
    """Costs of a unit: CPU seconds of a worker, bytes of its sums, CPU seconds to receive them.

    overhead : CPU seconds of a worker besides the coding
    """

    work: list[float]
    n_bytes: int
    take: float
    overhead: float = 0.0


def main() -> None:
    options = _read_options()
    Y, labels, coding = _problem(options.samples, options.atoms, options.features)
    costs = measure(Y, labels, coding)
    report: dict[str, Any] = {
        "machine": describe_machine(),
        "size": {name: str(value) for name, value in vars(options).items()},
        "unit_cpu_s": float(np.median(costs.work)),
        "unit_mib": costs.n_bytes / 2**20,
        "serialise_and_add_cpu_s": costs.take,
        "dictionaries_mib": sum(D.nbytes for D, _ in coding.dictionaries.values()) / 2**20,
    }
    expected = reduce_statistics(
        ThreadExecutor(1).map(coding, group_blocks(open_arrays(Y, labels), len(Y))())
    )
    report["runs"] = [_run(n, Y, labels, coding, costs, expected) for n in options.workers]
    # Costs of a unit in the process that adds the sums, including Dask.
    last = report["runs"][-1]
    take = last["cpu_s_here"] / len(costs.work)
    overhead = (last["cpu_s_workers"] - last["cpu_s_coding_alone"]) / len(costs.work)
    costs = replace(costs, take=take, overhead=max(0.0, overhead))
    report |= {"take_cpu_s": costs.take, "overhead_cpu_s": costs.overhead}
    if options.image:
        report["image"] = measure_image(options.image, options.model_atoms)
    many = [1, 2, 4, 8, 16, 32, 64, 100, 128, 256, 512, 1024]
    report["simulated"] = [
        {
            "workers": n,
            **{
                f"{size}_patches_s": round(simulate_training(costs, size, n), 2)
                for size in (20_000, 2_000_000, 20_000_000)
            },
        }
        for n in many
    ]
    print(json.dumps(report, indent=1))


def _problem(
    n_samples: int, n_atoms: int, n_features: int
) -> tuple[NDArray[np.float32], NDArray[np.int64], ClassCoder]:
    """Return smooth random samples and dictionaries cut from them, as costly to code as tissue."""
    rng = np.random.default_rng(0)
    Y = rng.standard_normal((n_samples, n_features)).cumsum(axis=1, dtype=np.float32)
    Y /= np.linalg.norm(Y, axis=1, keepdims=True)
    labels = rng.integers(0, 2, n_samples)
    running = {i: (Y[i * n_atoms : (i + 1) * n_atoms].copy(), _N_NONZERO) for i in (0, 1)}
    weights = _sample_weights(np.bincount(labels, minlength=2), 0.001)
    return Y, labels, ClassCoder("cpu", running, weights)


def measure(Y: NDArray[np.float32], labels: NDArray[np.int64], coding: ClassCoder) -> Costs:
    units = list(group_blocks(open_arrays(Y, labels), len(Y))())
    work = []
    with single_blas_thread():
        coding(units[0])  # compiles, and computes the Gram matrices
        parts = []
        for unit in units:
            start = time.thread_time()
            parts.append(coding(unit))
            work.append(time.thread_time() - start)
    start = time.thread_time()
    header, frames = serialize(parts[0])
    n_bytes = sum(memoryview(frame).nbytes for frame in frames)
    deserialize(header, [bytearray(frame) for frame in frames])
    send = time.thread_time() - start
    start = time.thread_time()
    reduce_statistics(parts)
    return Costs(work, n_bytes, send + (time.thread_time() - start) / len(parts))


def measure_image(path: Path, n_atoms: int) -> dict[str, Any]:
    """Return CPU seconds of reading, features and coding for some chunks of an image or slide."""
    recipe = preset("fast")
    rng = np.random.default_rng(0)
    method = DFDL(n_atoms, n_iter=1, n_jobs=1, random_state=0)
    seconds = dict.fromkeys(("read", "vectors", "code"), 0.0)
    n_patches = n_tissue = 0
    with open_prepared_image(path, None, recipe) as prepared, single_blas_thread():
        X = prepared.sample_features(6000, rng)
        method.fit(X, rng.integers(0, 2, len(X)))  # codes of true classes cost the same
        grid = prepared.grid()
        chunks = list(grid.chunks())
        for place in rng.permutation(len(chunks))[:12]:
            times = [time.thread_time()]
            patches = grid.read(prepared, *chunks[place])
            times.append(time.thread_time())
            tissue = prepared.is_tissue(patches)
            vectors = PATCH_FEATURES[recipe.features](prepared.normalize(patches[tissue]))
            times.append(time.thread_time())
            if len(vectors):
                method.encode(vectors)
            times.append(time.thread_time())
            for name, value in zip(seconds, np.diff(times), strict=True):
                seconds[name] += float(value)
            n_patches += len(patches)
            n_tissue += len(vectors)
    return {
        "file": path.name,
        "grid": [grid.n_rows, grid.n_columns],
        "patches": n_patches,
        "tissue": n_tissue,
        "read_us_per_patch": 1e6 * seconds["read"] / n_patches,
        "vectors_us_per_tissue_patch": 1e6 * seconds["vectors"] / max(1, n_tissue),
        "code_us_per_tissue_patch": 1e6 * seconds["code"] / max(1, n_tissue),
        "map_bytes_per_patch": 2 + 2 * 2,
    }


def simulate_training(costs: Costs, n_patches: int, n_workers: int) -> float:
    """Return seconds per iteration; with very many patches, a unit has several blocks."""
    per_unit = min(32, -(-n_patches // (256 * 1024)))
    n_units = -(-n_patches // (per_unit * 1024))
    times = np.random.default_rng(0).choice(costs.work, (n_units, per_unit)).sum(axis=1)
    times += costs.overhead
    wide = 2 if per_unit > 1 else 1  # sums of several blocks are sent in double precision
    transfer = wide * costs.n_bytes / 1.25e9  # ten gigabits per second
    return simulate(times.tolist(), wide * costs.take + transfer, n_workers)


def simulate(
    work: Sequence[float], take: float, n_workers: int, n_cores: float = float("inf")
) -> float:
    """Return seconds until all units are coded and received in order, `take` seconds for each.

    A unit starts when a worker is free and not too many finished units wait to be received. With
    fewer cores than processes, all processes slow down by the same factor.
    """
    slower = max(1.0, (n_workers + 1) / n_cores)
    free = [0.0] * n_workers
    finished: list[float] = []
    taken: list[float] = []
    for place, seconds in enumerate(work):
        start = heapq.heappop(free)
        oldest = place - _NOT_TAKEN * n_workers
        if oldest >= 0:
            start = max(start, taken[oldest])
        finished.append(start + seconds * slower)
        heapq.heappush(free, finished[-1])
        before = taken[-1] if taken else 0.0
        taken.append(max(before, finished[-1]) + take * slower)
    return taken[-1]


def _run(
    n_workers: int,
    Y: NDArray[np.float32],
    labels: NDArray[np.int64],
    coding: ClassCoder,
    costs: Costs,
    expected: dict[int, Any],
) -> dict[str, Any]:
    """Time the second iteration: workers have the samples, and functions are compiled."""
    fresh = ClassCoder(coding.backend, coding.dictionaries, coding.weights)
    with open_cluster(f"local:{n_workers}") as cluster:
        units = cluster.broadcast(group_blocks(open_arrays(Y, labels), len(Y)))
        reduce_statistics(cluster.map(fresh, units()))
        before = sum(cluster.client.run(time.process_time).values())
        wall, cpu, load = time.perf_counter(), time.process_time(), os.getloadavg()[0]
        found = reduce_statistics(cluster.map(fresh, units()))
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        workers = sum(cluster.client.run(time.process_time).values()) - before
    same = all(
        np.array_equal(found[i].E, expected[i].E) and np.array_equal(found[i].F, expected[i].F)
        for i in expected
    )
    return {
        "workers": n_workers,
        "seconds": round(wall, 2),
        "load": round(load, 1),
        "simulated_s": round(simulate(costs.work, costs.take, n_workers, available_cores()), 2),
        "cpu_s_workers": round(workers, 2),
        "cpu_s_here": round(cpu, 2),
        "cpu_s_coding_alone": round(sum(costs.work), 2),
        "same_bits": same,
    }


def _read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--workers", type=lambda text: [int(n) for n in text.split(",")], default=[1, 2]
    )
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--atoms", type=int, default=500)
    parser.add_argument("--features", type=int, default=1200)
    parser.add_argument("--image", type=Path, help="slide for reading and coding")
    parser.add_argument("--model-atoms", type=int, default=200)
    return parser.parse_args()


if __name__ == "__main__":
    main()
