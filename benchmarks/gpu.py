"""The GPU backend: its kernels against a peer, a whole training, and classification.

    python -m benchmarks.gpu [--size full|small] [--repeats N] [--output FILE.json]

Everything runs in one process on one device, those that are compared in turns. A time is what the
caller waits: the device is idle at its start and at its end. Real tissue needs HISTODICT_DATA.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from sklearn.utils import check_array

from histodict.dictionaries.online import learn_online
from histodict.execution.progress import Progress
from histodict.kernels import cuda
from histodict.methods.dfdl import DFDL

from .patches import draw_patches
from .problem import PENALTY, SIZES, Problem, Size
from .quality import lasso_quality, omp_quality

Case = Callable[[], Any]
Times = dict[str, list[float]]
_TOLERANCE = 1e-4
_COPIES = 5  # of the samples, for the throughput of classification


def measure(cases: dict[str, Case], repeats: int) -> Times:
    """Milliseconds of every case, in turns; each is called twice before, to compile and warm up."""
    times: Times = {name: [] for name in cases}
    for case in cases.values():
        case()
        case()
    for repeat in range(repeats):
        names = list(cases) if repeat % 2 == 0 else list(reversed(cases))
        for name in names:
            torch.cuda.synchronize()
            start = time.perf_counter()
            cases[name]()
            torch.cuda.synchronize()
            times[name].append(1e3 * (time.perf_counter() - start))
    return times


def show(title: str, times: Times, base: str) -> None:
    """A table: median, range, and the ratio of medians to the base case."""
    print(f"\n{title}\n{'':44}{'ms':>9}  {'range':>17}  x first")
    own = statistics.median(times[base])
    for name, values in times.items():
        median = statistics.median(values)
        span = f"{min(values):.2f} to {max(values):.2f}"
        print(f"{name:44}{median:9.2f}  {span:>17}  {median / own:.2f}")


def device_facts() -> dict[str, str]:
    properties = torch.cuda.get_device_properties(cuda.find_device())
    return {
        "device": properties.name,
        "torch": f"{torch.__version__}, CUDA {torch.version.cuda}",
        "python": platform.python_version(),
        "host": f"{platform.machine()}, {torch.get_num_threads()} cores",
    }


def build(size: Size) -> tuple[Problem, str]:
    """As `problem.build_problem`, with dictionaries learnt on the device."""
    patches = draw_patches(size.n_samples // 2, 0)
    dictionaries = [
        learn_online(
            patches.Y[patches.labels == i],
            size.n_atoms,
            PENALTY,
            np.random.default_rng(i),
            n_epochs=3,
            backend="cuda",
        ).atoms
        for i in (0, 1)
    ]
    problem = Problem(patches.Y, patches.labels, np.stack(dictionaries), size.n_nonzero)
    return problem, patches.source


def peer_cases(problem: Problem, Y: torch.Tensor) -> dict[str, Case]:
    """orthogonal-matching-pursuit-gpu, whole and in batches; nothing if it is not installed."""
    try:
        from orthogonal_matching_pursuit_gpu import run_omp
    except ImportError as error:
        print(f"orthogonal-matching-pursuit-gpu is not measured: {error}")
        return {}
    D = torch.from_numpy(np.ascontiguousarray(problem.D.T)).to(Y.device)
    pursue = partial(
        run_omp,
        n_nonzero_coefs=problem.n_nonzero,
        normalize=False,
        fit_intercept=False,
        alg="v0",
    )
    return {
        "omp-gpu, all rows at once": lambda: pursue(D, Y),
        "omp-gpu, batches of 5000": lambda: torch.cat([pursue(D, y) for y in Y.split(5000)]),
    }


def measure_omp(problem: Problem, Y: torch.Tensor, repeats: int) -> dict[str, Any]:
    D, L = problem.D, problem.n_nonzero
    coder, classical = (cuda.OMPCoder(D, L, 0.0, rule) for rule in (True, False))
    atoms = cuda.place(D)
    peers = peer_cases(problem, Y)
    cases = {
        "histodict, codes stay on the device": lambda: coder.code_on_device(Y),
        "histodict, correlation rule, the same": lambda: classical.code_on_device(Y),
        **peers,
        "histodict, codes as CSR on the host": lambda: coder.code(Y),
        "histodict, samples from the host too": lambda: coder.code(problem.Y),
        "the product Y·Dᵀ": lambda: Y @ atoms.T,
    }
    times = measure(cases, repeats)
    codes = {
        "order-recursive": coder.code(Y)[0],
        "correlation": classical.code(Y)[0],
        **{name: csr_array(case().cpu().numpy()) for name, case in list(peers.items())[:1]},
    }
    quality = {name: asdict(omp_quality(problem, S)) for name, S in codes.items()}
    show(f"Greedy pursuit, k = {len(D)}, L = {L}", times, "histodict, codes stay on the device")
    for name, values in quality.items():
        line = f"mean squared residual {values['loss']:.6f}, {values['nonzeros']:.1f} non-zeros"
        print(f"  {name}: {line}")
    return {"ms": times, "quality": quality}


def measure_lasso(problem: Problem, Y: torch.Tensor, repeats: int) -> dict[str, Any]:
    D = problem.all_atoms
    coder = cuda.LassoCoder(D, problem.penalty, _TOLERANCE)
    atoms = cuda.place(D)
    cases = {
        "histodict, codes stay on the device": lambda: coder.code_on_device(Y),
        "histodict, codes as CSR on the host": lambda: coder.code(Y),
        "histodict, samples from the host too": lambda: coder.code(problem.Y),
        "the product Y·Dᵀ": lambda: Y @ atoms.T,
    }
    times = measure(cases, repeats)
    quality = asdict(lasso_quality(problem, coder.code(Y)[0]))
    title = f"Exact l1 codes, {len(D)} atoms, penalty {problem.penalty}"
    show(title, times, "histodict, codes stay on the device")
    print(f"  largest relative duality gap {quality['largest_gap']:.1e}, ", end="")
    print(f"{quality['nonzeros']:.1f} non-zeros")
    return {"ms": times, "quality": quality}


def measure_steps(problem: Problem, Y: torch.Tensor, repeats: int) -> dict[str, Any]:
    """The other steps of a DFDL iteration of one class, and of classification."""
    D, both = problem.D, problem.all_atoms
    S, _ = cuda.OMPCoder(D, problem.n_nonzero, 0.0, True).code(Y)
    weights = np.full(len(problem.Y), 1 / len(problem.Y))
    E, F = cuda.statistics(Y, S, weights)
    codes, _ = cuda.LassoCoder(both, problem.penalty, _TOLERANCE).code(Y)
    classes = np.repeat([0, 1], len(D))
    times = measure(
        {
            "E and F": lambda: cuda.statistics(Y, S, weights),
            "one sweep over the atoms": lambda: cuda.update_atoms(D, E, F, 1, 0.0),
            "ten sweeps over the atoms": lambda: cuda.update_atoms(D, E, F, 10, 0.0),
            "class residuals": lambda: cuda.class_residuals(both, Y, codes, classes, 2),
            "samples from the host": lambda: cuda.place(problem.Y),
            "check of the samples, on the host": lambda: check_array(problem.Y, dtype=np.float32),
        },
        repeats,
    )
    show("Other steps, arrays of the host in and out", times, "E and F")
    return {"ms": times}


def measure_training(problem: Problem, n_iter: int) -> tuple[DFDL, dict[str, Any]]:
    """A whole training, the samples in the host's memory; everything is compiled already."""
    model = DFDL(
        len(problem.D),
        n_nonzero=problem.n_nonzero,
        n_iter=n_iter,
        tol=0.0,
        random_state=0,
        backend="cuda",
    )
    ends: dict[str, float] = {}

    def watch(progress: Progress) -> None:
        ends[progress.stage] = time.perf_counter()

    start = time.perf_counter()
    model.fit(problem.Y, problem.labels, callback=watch)
    end = time.perf_counter()
    first = ends["initialise"] - start
    print(f"\nDFDL, {n_iter} iterations: {end - start:.2f} s, of it initialisation {first:.2f} s")
    peak = torch.cuda.max_memory_allocated() / 2**20
    print(f"Most device memory in use: {peak:.0f} MiB")
    return model, {
        "seconds": end - start,
        "initialise_s": first,
        "objective": [float(values[-1]) for values in model.objective_],
        "peak_device_mib": peak,
    }


def measure_classification(
    model: DFDL, problem: Problem, parts: dict[str, list[float]]
) -> dict[str, float]:
    """Samples of the host to residuals on the host, checks included; `parts`: what it consists of.

    The parts were measured on the samples once, here there are several copies of them.
    """
    Y = np.concatenate([problem.Y] * _COPIES)
    model.class_residuals(Y)
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        model.class_residuals(Y)
        seconds.append(time.perf_counter() - start)
    rate = len(Y) / statistics.median(seconds)
    each = 1e3 * statistics.median(seconds) / _COPIES
    medians = {name: statistics.median(times) for name, times in parts.items()}
    print(f"\nClassification from host memory: {rate:,.0f} patches per second")
    print(f"{each:.1f} ms for {len(problem.Y)}. By themselves: ", end="")
    print(", ".join(f"{name} {median:.1f}" for name, median in medians.items()))
    print(f"It is bound most by: {max(medians, key=lambda name: medians[name])}")
    return {"patches_per_second": rate, "ms": each, **medians}


def run(size: Size, repeats: int) -> dict[str, Any]:
    facts = device_facts()
    print("\n".join(f"{name}: {value}" for name, value in facts.items()))
    problem, source = build(size)
    print(f"{source}; {problem.Y.shape[0]} samples, {problem.Y.shape[1]} features")
    Y = cuda.place(problem.Y)
    omp = measure_omp(problem, Y, repeats)
    lasso = measure_lasso(problem, Y, repeats)
    steps = measure_steps(problem, Y, repeats)
    model, training = measure_training(problem, size.n_iter)
    parts = {
        "check of the samples": steps["ms"]["check of the samples, on the host"],
        "copy to the device": steps["ms"]["samples from the host"],
        "l1 codes": lasso["ms"]["histodict, codes as CSR on the host"],
        "class residuals": steps["ms"]["class residuals"],
    }
    return {
        "machine": facts,
        "data": source,
        "size": asdict(size),
        "omp": omp,
        "lasso": lasso,
        "steps": steps,
        "training": training,
        "classification": measure_classification(model, problem, parts),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.gpu", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--size", choices=SIZES, default="full", help="small is for trying out")
    parser.add_argument("--repeats", type=int, default=15, help="timed calls of each case")
    parser.add_argument("--output", type=Path, help="write the figures to this JSON file")
    arguments = parser.parse_args()
    result = run(SIZES[arguments.size], max(1, arguments.repeats))
    if arguments.output:
        arguments.output.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
