"""Cost of opening slides in a separate process: `histodict predict` with and without it.

    python -m benchmarks.slide_process [--side 30000] [--pairs 3] [--folder FOLDER]

Runs alternate, so that other load on the machine affects both. Prints the ratios of the medians and
of the fastest runs. CPU seconds include the child process.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from histodict.utils.parallel import available_cores

from . import report
from .machine import describe_machine
from .slide import _ROOT, _model, _slide

_PREDICT = """
import os, sys
from histodict.images import slide_process
slide_process.USE_SUBPROCESS = sys.argv[1] == "apart"
from histodict.cli import app
app(["predict", *sys.argv[2:]], standalone_mode=False)
slide_process.end_all_processes()
spent = os.times()
print("CPU", spent.user + spent.system + spent.children_user + spent.children_system)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=30_000, help="side of the slide in pixels")
    parser.add_argument("--pairs", type=int, default=3, help="runs of each kind")
    parser.add_argument("--folder", type=Path, help="folder for slide and model")
    parser.add_argument("--jobs", type=int, default=available_cores(), help="threads")
    options = parser.parse_args()
    report.print_machine(describe_machine())
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        command = [str(_model(folder, "fast", [])), str(_slide(folder, options.side))]
        command += ["--jobs", str(options.jobs)]
        found: dict[str, list[tuple[float, float]]] = {"here": [], "apart": []}
        for pair in range(options.pairs):
            for kind in found if pair % 2 else reversed(found):
                output = Path(temporary) / f"{kind}-{pair}"
                found[kind].append(_seconds(kind, [*command, "--output", str(output)]))
                wall, cpu = found[kind][-1]
                print(f"{kind:6} {wall:7.1f} s, {cpu:7.1f} s of CPU", flush=True)
    for name, at in (("wall time", 0), ("CPU", 1)):
        here, apart = ([run[at] for run in found[kind]] for kind in ("here", "apart"))
        medians = statistics.median(apart) / statistics.median(here)
        print(f"{name}: {medians:.3f} of the medians, {min(apart) / min(here):.3f} of the quickest")


def _seconds(kind: str, command: list[str]) -> tuple[float, float]:
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", _PREDICT, kind, *command],
        check=True,
        cwd=_ROOT,
        capture_output=True,
        text=True,
    )
    return time.perf_counter() - start, float(done.stdout.split("CPU")[1])


if __name__ == "__main__":
    main()
