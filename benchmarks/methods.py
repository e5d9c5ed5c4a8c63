"""Training time of every method, at the size of the paper and at one tenth of it.

    python -m benchmarks.methods [--tenth] [--methods dfdl,fddl,…]

Patches are those of `benchmarks.kernels` (HISTODICT_DATA/ucsb-breast, 20 × 20 RGB, unit norm).
Parameters are those of the preset `paper`: 500 atoms and 10,000 patches per class; one tenth is 50
atoms and 1,000 patches per class. Each method runs in its own process, for its peak memory. Times
include the initial dictionaries and exclude the compilation of kernels.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

PUBLISHED_HOURS = {"dfdl": "0.5", "lcksvd": "3", "nayak": "8", "fddl": "> 40"}
METHODS = ("dfdl", "odl", "lcksvd", "nayak", "fddl", "src", "shirc")


def measure(method: str, tenth: bool) -> dict[str, float]:
    """Return seconds of training and of 2,000 predictions, and the peak memory of this process."""
    from histodict.methods.registry import get_method

    from .patches import draw_patches

    entry = get_method(method)
    parameters = dict(entry.paper_parameters)
    n = 1_000 if tenth else 10_000
    if tenth and parameters.get("n_atoms"):
        parameters["n_atoms"] //= 10
    synthetic = draw_patches(n, seed=0)
    X, y = synthetic.Y, synthetic.labels
    small = entry.make_estimator(parameters | ({"n_atoms": 5} if "n_atoms" in parameters else {}))
    small.fit(X[:: len(X) // 200], y[:: len(X) // 200])  # compiles the kernels
    small.predict(X[:10])
    estimator = entry.make_estimator(parameters, random_state=0)
    started = time.perf_counter()
    cpu = time.process_time()
    estimator.fit(X, y)
    fitted, cpu_fitted = time.perf_counter(), time.process_time()
    estimator.predict(X[:2000])
    return {
        "fit": fitted - started,
        "fit_cpu": cpu_fitted - cpu,
        "predict_2000": time.perf_counter() - fitted,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tenth", action="store_true", help="one tenth of the paper's size")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one, arguments.tenth)))
        return
    print("| method | training (s) | CPU (s) | 2,000 patches (s) | peak (MiB) | published (h) |")
    print("|---|---|---|---|---|---|", flush=True)
    for method in arguments.methods.split(","):
        command = [sys.executable, "-m", "benchmarks.methods", "--one", method]
        command += ["--tenth"] if arguments.tenth else []
        run = subprocess.run(
            command, capture_output=True, text=True, cwd=Path(__file__).parents[1], check=True
        )
        found = json.loads(run.stdout.splitlines()[-1])
        values = [found[k] for k in ("fit", "fit_cpu", "predict_2000", "peak_mib")]
        cells = " | ".join(f"{v:.1f}" if np.isfinite(v) else "" for v in values)
        print(f"| {method} | {cells} | {PUBLISHED_HOURS.get(method, '')} |", flush=True)


if __name__ == "__main__":
    main()
