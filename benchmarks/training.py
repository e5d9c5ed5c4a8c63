"""One complete DFDL training in its own process, for its peak memory."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from histodict.utils.progress import Progress

from .problem import load_problem


def measure_training(problem: Path, n_iter: int, n_nonzero: int | str) -> dict[str, Any]:
    """Return seconds per stage, peak memory in MiB and the result; "error" if it failed."""
    done = subprocess.run(
        [sys.executable, "-m", __name__, str(problem), str(n_iter), str(n_nonzero)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).resolve().parents[1],
    )
    if done.returncode:
        return {"n_nonzero": n_nonzero, "error": done.stderr.strip().rpartition("\n")[2]}
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def train(path: Path, n_iter: int, n_nonzero: int | str) -> dict[str, Any]:
    from histodict.methods.dfdl import DFDL

    problem = load_problem(path)
    model = DFDL(len(problem.D), n_nonzero=n_nonzero, n_iter=n_iter, tol=0.0, random_state=0)
    stage_ends: dict[str, float] = {}

    def watch(progress: Progress) -> None:
        stage_ends[progress.stage] = time.perf_counter()

    before = _peak_mib()
    start = time.perf_counter()
    model.fit(problem.Y, problem.labels, callback=watch)
    end = time.perf_counter()
    return {
        "n_nonzero": n_nonzero,
        "n_nonzero_": model.n_nonzero_.tolist(),
        "n_iter": model.n_iter_,
        "seconds": end - start,
        "initialise_s": stage_ends["initialise"] - start,
        "train_s": end - stage_ends["initialise"],
        "objective": [float(values[-1]) for values in model.objective_],
        "samples_mib": problem.Y.nbytes / 2**20,
        "peak_before_mib": before,
        "peak_mib": _peak_mib(),
    }


def _peak_mib(process: int | str = "self") -> float:
    """Return the peak resident memory of this process, or of another running process.

    On Linux, ru_maxrss includes the process that started this one; VmHWM does not.
    """
    status = Path(f"/proc/{process}/status")
    if status.exists():
        peaks = [line.split()[1] for line in status.read_text().splitlines() if "VmHWM" in line]
        if peaks:
            return int(peaks[0]) / 2**10
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


if __name__ == "__main__":
    requested = sys.argv[3]
    result = train(
        Path(sys.argv[1]), int(sys.argv[2]), requested if requested == "auto" else int(requested)
    )
    print(json.dumps(result))
