"""Load test of the web server: `make load`, or

    python -m attacks.load [--seconds 600] [--clients 8] [--side 32000]

First a single visitor measures the response time of each kind of request. Then several visitors
work at the same time: one pans over a slide without a pause, another starts trainings and maps and
cancels maps. The exit status is 1 unless no request fails, the memory of the server is constant
once its caches are full, the 95th percentile of every kind is within three times the idle one or
under 50 ms, and nothing is left when the server ends.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.big_slide import write_slide
from benchmarks.machine import describe_machine
from histodict.synthetic.dataset import write_synthetic_dataset

from .page import Address, Client, memory_mb, n_open_files, process_status, running_server
from .processes import Running
from .visitors import Note, Site, Visitor, begin_and_give_up, visit

_MOST_TIMES = 3.0
_AT_ONCE = 50.0  # milliseconds that count as immediate, whatever the idle time
_LEAST_NOTES = 5  # per kind and phase; percentiles need at least as many
_FLAT = 1.1, 20.0  # factor and MB by which the last third may exceed the second
_EVERY = 2.0


@dataclass(frozen=True)
class Sample:
    """State of the server at one moment; `jobs_mb`: memory of its child processes."""

    mb: float
    threads: int
    files: int
    jobs_mb: float


@dataclass
class Watch:
    """Thread that samples the server every few seconds."""

    server: Running
    samples: list[Sample] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._take_sample, daemon=True)
        self._thread.start()

    def _take_sample(self) -> None:
        pid = self.server.process.pid
        while not self._over.wait(_EVERY):
            below = self.server.others()
            self.samples.append(
                Sample(
                    memory_mb(pid),
                    process_status(pid, "Threads"),
                    n_open_files(pid),
                    sum(memory_mb(other) for other in below),
                )
            )

    def stop(self) -> None:
        self._over.set()
        self._thread.join()


def prepare(address: Address) -> Site:
    """Open both data sets and train a model."""
    client = Client(address)
    data, slides = (
        client.post("/api/data", {"folder_index": 0, "relative_path": name})["id"]
        for name in ("tissue", "slide")
    )
    job = client.post("/api/jobs", {"data": data, "preset": "quick", "test_folds": 4})["id"]
    while (found := client.get(f"/api/jobs/{job}"))["state"] != "done":
        if found["state"] not in ("waiting", "running"):
            raise RuntimeError(f"the training {found['state']}: {found['error']}")
        time.sleep(0.5)
    images, large = (client.get(f"/api/data/{id_}")["images"] for id_ in (data, slides))
    site = Site(data, tuple(image["id"] for image in images), slides, large[0]["id"], job)
    for image in site.images:  # compute the prediction before the measurement
        client.get(f"/api/jobs/{job}/look/{data}/{image}")
    client.close()
    return site


def idle(address: Address, site: Site, seconds: float) -> list[Note]:
    """Run one visitor at a time."""
    notes = visit("person", address, site, 1, time.time() + 0.7 * seconds)
    notes += visit("panner", address, site, 2, time.time() + 0.3 * seconds)
    visitor = Visitor(address, site, 3)
    begin_and_give_up(visitor, 10)
    visitor.close()
    return notes + visitor.notes


def crowd(address: Address, site: Site, seconds: float, n_clients: int) -> list[Note]:
    """Run all visitors at once, each in its own process."""
    names = (["panner", "starter"] + ["person"] * n_clients)[:n_clients]
    end = time.time() + seconds
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(n_clients, mp_context=context) as pool:
        visits = [
            pool.submit(visit, name, address, site, 10 + place, end)
            for place, name in enumerate(names)
        ]
        return [note for done in visits for note in done.result()]


# --- results ------------------------------------------------------------------------------------


def table(before: list[Note], under: list[Note]) -> tuple[list[str], list[str]]:
    """Return lines to print, and violated limits."""
    times: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for place, notes in enumerate((before, under)):
        for note in notes:
            times[note.kind][place].append(note.ms)
    lines = [f"{'ms':18s}{'alone: n':>10s}{'p50':>8s}{'p95':>8s}"]
    lines[0] += f"{'load: n':>10s}{'p50':>8s}{'p95':>8s}{'p99':>8s}{'p95 ratio':>11s}"
    wrong = []
    for kind, (alone, loaded) in sorted(times.items()):
        line = f"{kind:18s}{len(alone):10d}{_at(alone, 50):8.1f}{_at(alone, 95):8.1f}"
        line += f"{len(loaded):10d}{_at(loaded, 50):8.1f}{_at(loaded, 95):8.1f}"
        ratio = _at(loaded, 95) / _at(alone, 95)
        lines.append(line + f"{_at(loaded, 99):8.1f}{ratio:11.2f}")
        is_known = min(len(alone), len(loaded)) >= _LEAST_NOTES
        if is_known and ratio > _MOST_TIMES and _at(loaded, 95) > _AT_ONCE:
            wrong.append(f"p95 of {kind} is {ratio:.1f} times the idle one")
    return lines, wrong


def _at(ms: list[float], percent: float) -> float:
    return float(np.percentile(ms, percent)) if ms else float("nan")


def failures(notes: list[Note]) -> list[str]:
    """Return requests without a response, or with an unexpected status."""
    bad = [note for note in notes if not 200 <= note.status < 400]
    counts = Counter((note.kind, note.status or "no response") for note in bad)
    examples = {(note.kind, note.status or "no response"): note.text for note in bad}
    return [
        f"{kind}: {status} ({n} times; {examples[kind, status]})"
        for (kind, status), n in counts.items()
    ]


def memory(samples: list[Sample]) -> tuple[list[str], list[str]]:
    thirds = np.array_split(np.array([sample.mb for sample in samples]), 3)
    second, last = thirds[1].mean(), thirds[2].mean()
    means = ", ".join(f"{third.mean():.0f}" for third in thirds)
    files, threads = (
        max(getattr(sample, name) for sample in samples) for name in ("files", "threads")
    )
    jobs = max(sample.jobs_mb for sample in samples)
    lines = [
        f"server memory     {means} MB in the three thirds, {thirds[2].max():.0f} MB at most",
        f"its jobs          {jobs:.0f} MB at most",
        f"threads, files    {threads} and {files} at most; "
        f"{samples[-1].threads} and {samples[-1].files} at the end",
    ]
    is_flat = last <= _FLAT[0] * second + _FLAT[1]
    return lines, [] if is_flat else [f"memory grows: {second:.0f} MB, then {last:.0f} MB"]


def measure(folder: Path, seconds: float, n_clients: int) -> list[str]:
    """Print the measurement; return the violated limits."""
    with running_server(folder / "data", folder / "workspace") as (address, server):
        site = prepare(address)
        alone = idle(address, site, max(20.0, min(120.0, seconds / 5)))
        watch = Watch(server)
        loaded = crowd(address, site, seconds, n_clients)
        watch.stop()
    left = server.leftover_processes()
    lines, wrong = table(alone, loaded)
    further, growth = memory(watch.samples)
    print("\n".join([*lines, "", *further]))
    print(f"requests          {len(loaded)}, {len(loaded) / seconds:.0f} a second")
    print(f"left behind       {len(left)} processes")
    wrong += failures(alone + loaded) + growth
    return wrong + ([f"processes were left behind: {left}"] if left else [])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m attacks.load", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="under load")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument(
        "--side", type=int, default=32_000, help="side of the synthetic slide in pixels"
    )
    specified = parser.parse_args()
    for name, value in describe_machine().items():
        print(f"{name:18s}{value}")
    with tempfile.TemporaryDirectory(prefix="load-") as name:
        folder = Path(name)
        (folder / "data" / "slide").mkdir(parents=True)
        write_synthetic_dataset(folder / "data" / "tissue", 5, 2)
        write_slide(folder / "data" / "slide" / "slide.tif", specified.side)
        wrong = measure(folder, specified.seconds, specified.clients)
    for text in wrong:
        print(f"EXCEEDED: {text}")
    print("all limits met" if not wrong else f"{len(wrong)} limits exceeded")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
