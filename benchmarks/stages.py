"""Run a command in this process and time its stages.

    python -m benchmarks.stages FILE.json predict MODEL SLIDE --output FOLDER

Only a few calls per chunk of patches are timed, at negligible cost. A nested call counts for the
inner stage only. Times are CPU seconds of all threads. Processes that open slides count as reading,
and their memory is added.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from .training import _peak_mib


class Stopwatch:
    """CPU seconds by stage, without the stages called from it."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._own = threading.local()  # per thread: seconds spent in the inner calls so far

    def timed(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def wrapper(*arguments: Any, **options: Any) -> Any:
            outer = getattr(self._own, "inner", 0.0)
            self._own.inner = 0.0
            start = time.thread_time()
            try:
                return function(*arguments, **options)
            finally:
                whole = time.thread_time() - start
                with self._lock:
                    self.seconds[stage] += whole - self._own.inner
                self._own.inner = outer + whole

        return wrapper


def watch_stages(stopwatch: Stopwatch) -> None:
    """Time the stages of the pipeline."""
    from histodict import batch as image
    from histodict.images.source import SlideReader
    from histodict.methods.patch_classifier import ResidualClassifier
    from histodict.patches.grid import PatchGrid
    from histodict.patches.vectors import PATCH_FEATURES
    from histodict.preprocessing.stain import LookupTransform, Reinhard
    from histodict.preprocessing.tissue import TissueThreshold

    for stage, module, name in (
        ("reading", SlideReader, "read"),
        ("cutting", PatchGrid, "read"),
        ("tissue", TissueThreshold, "mask"),
        ("stain", Reinhard, "__call__"),
        ("stain", LookupTransform, "__call__"),
        ("coding", ResidualClassifier, "encode"),
        ("overlay", image, "save_overlay"),
        ("GeoJSON", image, "save_geojson"),
    ):
        setattr(module, name, stopwatch.timed(stage, getattr(module, name)))
    for vectors in PATCH_FEATURES.values():
        vectors.make_vectors = stopwatch.timed("vectors", vectors.make_vectors)


def _of_children() -> tuple[float, float]:
    """Return CPU seconds of the processes that opened slides, and the peak MiB of running ones."""
    from histodict.images import slide_reader as slide_process

    peak_mib = sum(_peak_mib(process.pid) for process in slide_process._RUNNING_PROCESSES)
    slide_process.end_all_processes()
    spent = os.times()
    return spent.children_user + spent.children_system, peak_mib


def main() -> None:
    output, *command = sys.argv[1:]
    start = time.perf_counter()
    from histodict.cli import app

    stopwatch = Stopwatch()
    watch_stages(stopwatch)
    ready = time.perf_counter()
    try:
        app(command)
    except SystemExit as end:
        if end.code:
            raise
    seconds = time.perf_counter() - start
    children_s, children_mib = _of_children()
    stopwatch.seconds["reading"] += children_s
    result = {
        "start_s": ready - start,
        "seconds": seconds,
        "cpu_s": time.process_time() + children_s,
        "stages": dict(stopwatch.seconds),
        "peak_mib": _peak_mib() + children_mib,
    }
    Path(output).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
