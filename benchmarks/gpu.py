"""Benchmark the GPU backend: kernels and another library, a complete training, prediction.

    python -m benchmarks.gpu [--size full|small] [--repeats N] [--output FILE.json]

Everything runs in one process on one device, and compared cases alternate. A time is that of the
caller: the device is idle at its start and at its end. Real tissue is used if HISTODICT_DATA is
set.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array

from histodict.dictionaries.online import learn_online
from histodict.kernels import row_blocks
from histodict.kernels.cuda import backend as cuda
from histodict.kernels.cuda import device as gpu_device
from histodict.methods.dfdl import DFDL
from histodict.utils.progress import Progress

from .patches import draw_patches
from .problem import PENALTY, SIZES, Problem, Size
from .quality import lasso_quality, omp_quality

Case = Callable[[], Any]
Times = dict[str, list[float]]
_TOLERANCE = 1e-4
_COPIES = 5  # copies of the samples, for the throughput of classification


def measure(cases: dict[str, Case], repeats: int) -> Times:
    """Return milliseconds of each case; cases alternate after two calls to compile and warm up."""
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
    """Print a table: median, range, and the ratio of medians to the base case."""
    print(f"\n{title}\n{'':44}{'ms':>9}  {'range':>17}  x first")
    own = statistics.median(times[base])
    for name, values in times.items():
        median = statistics.median(values)
        span = f"{min(values):.2f} to {max(values):.2f}"
        print(f"{name:44}{median:9.2f}  {span:>17}  {median / own:.2f}")


def describe_device() -> dict[str, str]:
    properties = torch.cuda.get_device_properties(cuda.find_device())
    return {
        "device": properties.name,
        "torch": f"{torch.__version__}, CUDA {torch.version.cuda}",
        "python": platform.python_version(),
        "host": f"{platform.machine()}, {torch.get_num_threads()} cores",
    }


def build(size: Size) -> tuple[Problem, str]:
    """Return the problem of `problem.build_problem`, with dictionaries trained on the device."""
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
    """Return orthogonal-matching-pursuit-gpu, complete and in batches; empty if not installed."""
    try:
        from orthogonal_matching_pursuit_gpu import run_omp
    except ImportError as error:
        print(f"orthogonal-matching-pursuit-gpu is not measured: {error}")
        return {}
    D = torch.from_numpy(np.ascontiguousarray(problem.D.T)).to(Y.device)
    pursue = partial(
        run_omp, n_nonzero_coefs=problem.n_nonzero, normalize=False, fit_intercept=False, alg="v0"
    )
    return {
        "omp-gpu, all rows at once": lambda: pursue(D, Y),
        "omp-gpu, batches of 5000": lambda: torch.cat([pursue(D, y) for y in Y.split(5000)]),
    }


def measure_omp(problem: Problem, Y: torch.Tensor, repeats: int) -> dict[str, Any]:
    D, L = problem.D, problem.n_nonzero
    coder, classical = (cuda.OMPCoder(D, L, 0.0, rule) for rule in (True, False))
    atoms = cuda.to_device(D)
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
    atoms = cuda.to_device(D)
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
    """Time the steps of a DFDL iteration of one class, with all data on the device."""
    D = cuda.to_device(problem.D)
    labels = cuda.labels_to_device(problem.labels)
    coder = cuda.OMPCoder(D, problem.n_nonzero, 0.0, True)
    weights = np.array([1.0, -0.001]) / len(problem.Y)
    sums = cuda.encode_and_accumulate(
        coder, Y, labels, 0, weights, 64, with_own_class=True
    ).to_double_precision()
    S, errors = coder.code_dense(Y)
    placed = torch.from_numpy(weights).to(Y.device)
    cases: dict[str, Case] = {
        "coding": lambda: coder.code_dense(Y),
        "sums": lambda: gpu_device.compute_statistics(Y, S, errors, labels, 0, placed, 64, True),
        "tangent": lambda: sums.linearize_at(D, 0.1),
        "one sweep over the atoms": lambda: cuda.update_atoms(D, sums.E, sums.F, 1, 0.0),
        "ten sweeps over the atoms": lambda: cuda.update_atoms(D, sums.E, sums.F, 10, 0.0),
        "idle atoms": lambda: cuda.replace_unused_atoms(
            D, sums.usage_counts, sums.worst_reconstructed()
        ),
    }
    times = measure(cases, repeats)
    show("Steps of a DFDL iteration, one class", times, "coding")
    return {"ms": times}


# Stages of a training: module, name of the function, and title.
_STAGES = (
    (cuda.OMPCoder, "code_dense", "coding"),
    (cuda.LassoCoder, "code_dense", "coding, initial"),
    (gpu_device, "compute_statistics", "sums"),
    (cuda, "update_atoms", "atoms"),
    (cuda, "replace_unused_atoms", "idle atoms"),
    (gpu_device, "_copy_staged", "copies to the device"),
)


@contextmanager
def stages() -> Iterator[dict[str, float]]:
    """Yield the seconds of each stage; synchronising with the device makes all stages slower."""
    seconds = dict.fromkeys((name for *_, name in _STAGES), 0.0)

    def timed(function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            torch.cuda.synchronize()
            start = time.perf_counter()
            result = function(*arguments, **named)
            torch.cuda.synchronize()
            seconds[name] += time.perf_counter() - start
            return result

        return call

    with ExitStack() as stack:
        for module, attribute, name in _STAGES:
            function = getattr(module, attribute)
            stack.callback(setattr, module, attribute, function)
            setattr(module, attribute, timed(function, name))
        yield seconds


def train(problem: Problem, n_iter: int, n_jobs: int | None = None) -> tuple[DFDL, float, float]:
    """Return the model, and the seconds of the training and of its initialisation."""
    model = DFDL(
        len(problem.D),
        n_nonzero=problem.n_nonzero,
        n_iter=n_iter,
        tol=0.0,
        random_state=0,
        n_jobs=n_jobs,
        backend="cuda",
    )
    ends: dict[str, float] = {}

    def watch(progress: Progress) -> None:
        ends[progress.stage] = time.perf_counter()

    start = time.perf_counter()
    model.fit(problem.Y, problem.labels, callback=watch)
    end = time.perf_counter()
    return model, end - start, ends["initialise"] - start


def measure_training(problem: Problem, n_iter: int) -> tuple[DFDL, dict[str, Any]]:
    """Time complete trainings with samples in host memory, then one more by stage."""
    train(problem, 2)  # compiles the kernels
    torch.cuda.reset_peak_memory_stats()
    runs = [train(problem, n_iter) for _ in range(3)]
    peak = torch.cuda.max_memory_allocated() / 2**20
    model, _, first = min(runs, key=lambda run: run[1])
    every = ", ".join(f"{run[1]:.2f}" for run in runs)
    print(f"\nDFDL, {n_iter} iterations: {every} s; of the fastest, initialisation {first:.2f} s")
    print("objective " + ", ".join(f"{values[-1]:.6g}" for values in model.objective_))
    print(f"Peak device memory: {peak:.0f} MiB")
    with stages() as parts:
        _, whole, _ = train(problem, n_iter, n_jobs=1)
    parts["host, and the rest"] = whole - sum(parts.values())
    print(f"By stages, one at a time, {whole:.2f} s: ", end="")
    print(", ".join(f"{name} {value:.2f}" for name, value in parts.items()))
    return model, {
        "seconds": [run[1] for run in runs],
        "initialise_s": [run[2] for run in runs],
        "objective": [float(values[-1]) for values in model.objective_],
        "peak_device_mib": peak,
        "stages": parts,
    }


def measure_classification(model: DFDL, problem: Problem, repeats: int) -> dict[str, Any]:
    """Time the step from samples on the host to residuals on the host, with checks; then its parts.

    The parts are measured on the samples once, block by block; the complete step on several copies.
    """
    D, atom_classes = model.labelled_atoms()
    coder = cuda.LassoCoder(D, problem.penalty, _TOLERANCE)
    atoms = cuda.to_device(D)
    blocks = [problem.Y[rows] for rows in row_blocks(len(problem.Y), cuda.BLOCK_ROWS)]
    placed = [cuda.to_device(block) for block in blocks]
    codes = [coder.solve_dense(Y)[0] for Y in placed]
    parts = measure(
        {
            "samples to the device": lambda: [cuda.to_device(block) for block in blocks],
            "a look for NaN there": lambda: [cuda.is_finite(Y) for Y in placed],
            "l1 codes": lambda: [coder.solve_dense(Y) for Y in placed],
            "class residuals, to the host": lambda: [
                gpu_device.class_residual_norms(atoms, Y, S, atom_classes, 2).cpu()
                for Y, S in zip(placed, codes, strict=True)
            ],
        },
        repeats,
    )
    show("Classification, by parts", parts, "l1 codes")
    Y = np.concatenate([problem.Y] * _COPIES)
    torch.cuda.reset_peak_memory_stats()
    whole = measure(
        {
            "residuals alone": lambda: model.class_residuals(Y),
            "residuals and codes": lambda: model.encode(Y),
        },
        5,
    )
    peak = torch.cuda.max_memory_allocated() / 2**20
    print(f"\nClassification from host memory, {len(Y)} patches; at most {peak:.0f} MiB in use")
    rates = {name: 1e3 * len(Y) / statistics.median(times) for name, times in whole.items()}
    for name, rate in rates.items():
        print(f"{name}: {rate:,.0f} patches per second")
    return {"patches_per_second": rates, "parts_ms": parts, "peak_device_mib": peak}


def run(size: Size, repeats: int) -> dict[str, Any]:
    device = describe_device()
    print("\n".join(f"{name}: {value}" for name, value in device.items()))
    problem, source = build(size)
    print(f"{source}; {problem.Y.shape[0]} samples, {problem.Y.shape[1]} features")
    Y = cuda.to_device(problem.Y)
    omp = measure_omp(problem, Y, repeats)
    lasso = measure_lasso(problem, Y, repeats)
    steps = measure_steps(problem, Y, repeats)
    model, training = measure_training(problem, size.n_iter)
    return {
        "machine": device,
        "data": source,
        "size": asdict(size),
        "omp": omp,
        "lasso": lasso,
        "steps": steps,
        "training": training,
        "classification": measure_classification(model, problem, repeats),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.gpu", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--size", choices=SIZES, default="full", help="small: for a test run")
    parser.add_argument("--repeats", type=int, default=15, help="timed calls per case")
    parser.add_argument("--output", type=Path, help="write the figures to this JSON file")
    arguments = parser.parse_args()
    result = run(SIZES[arguments.size], max(1, arguments.repeats))
    if arguments.output:
        arguments.output.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
