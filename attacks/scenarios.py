"""Every command on tiny tissue images, so that one takes seconds, for `attacks.chaos`."""

from __future__ import annotations

import json
import re
import signal
import socket
import time
import urllib.request
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from histodict.synthetic.dataset import write_synthetic_dataset

from .processes import COMMAND, Running

_SMALL = {
    "n_atoms": "6",
    "n_iter": "2",
    "patches_per_class": "120",
    "patch_px": "12",
    "downsample": "1",
}
_SET = tuple(part for name, value in _SMALL.items() for part in ("--set", f"{name}={value}"))
_DEMO = f"""
from functools import partial
from histodict.synthetic import demo
demo.DEMO_RECIPE = demo.DEMO_RECIPE.parse_settings({_SMALL})
demo.REGION_RECIPE = demo.REGION_RECIPE.parse_settings({_SMALL})
assert demo._DATASET_OPTIONS["n_patients"] > demo._N_TEST_PATIENTS > 2  # not renamed
demo._DATASET_OPTIONS["n_patients"], demo._N_TEST_PATIENTS = 4, 2
demo.cached_synthetic_dataset = partial(demo.cached_synthetic_dataset, size=(160, 120))
from histodict.cli import app
app()
"""
_TISSUE, _MODEL, _REGIONS = "tissue/manifest.csv", "model.histodict", "regions.histodict"
_TRAIN = ("train", _TISSUE, "-o", "OUT/m.histodict", "--cache", "OUT/c", "--preset", "fast")
_TIMES = ("report.html", "timing.csv", "timing.parquet", "runs/*.json")
_EVALUATE = ("evaluate", _TISSUE, "-o", "OUT", "--methods", "dfdl", "--folds", "2", *_SET)


@dataclass(frozen=True)
class Scenario:
    """A command that reads from the folder `inputs` and writes to OUT.

    status : exit status of the undisturbed command
    has_workers : whether it starts worker processes
    timed : patterns of files that contain durations or times
    """

    name: str
    arguments: tuple[str, ...]
    program: tuple[str, ...] = COMMAND
    has_workers: bool = False
    status: int = 0
    timed: tuple[str, ...] = ()

    def start(self, inputs: Path, out: Path, environment: Mapping[str, str] = {}) -> Running:
        arguments = [argument.replace("OUT", str(out)) for argument in self.arguments]
        text = out.with_name(f"{out.name}-said.txt")
        return Running(arguments, text, inputs, self.program, environment)

    def attend(self, running: Running, until: float) -> None:
        """Act as a user until the command has ended or for `until` seconds after its start."""
        while not running.has_ended and running.seconds < until:
            time.sleep(0.01)

    def victims(self, running: Running) -> list[int]:
        """Return the processes of which one may be killed."""
        return running.workers()

    def close(self) -> None:
        """End the processes started beside the command."""


class Scheduled(Scenario):
    """A command that uses a running cluster; the scheduler of the cluster is killed."""

    def start(self, inputs: Path, out: Path, environment: Mapping[str, str] = {}) -> Running:
        address = f"tcp://127.0.0.1:{self.port}"
        place = ("--host", "127.0.0.1", "--port", str(self.port))
        for name, options in (("scheduler", place), ("worker", (address, "--nthreads", "1"))):
            program = ("-m", f"distributed.cli.dask_{name}")
            text = out.with_name(f"{out.name}-{name}.txt")
            self.beside.append(Running((*options, "--no-dashboard"), text, out, program))
        own = Scenario(self.name, (*self.arguments, "--cluster", address))
        patience = {"DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "5s"}
        return own.start(inputs, out, {**environment, **patience})

    def victims(self, running: Running) -> list[int]:
        return [self.beside[0].process.pid]

    def close(self) -> None:
        while self.beside:
            self.beside.pop().remove()

    @cached_property
    def beside(self) -> list[Running]:
        return []

    @cached_property
    def port(self) -> int:
        return free_port()


class Serving(Scenario):
    """`serve`, with a user who opens the images, trains a model and then closes the server."""

    @cached_property
    def port(self) -> int:
        return free_port()

    def start(self, inputs: Path, out: Path, environment: Mapping[str, str] = {}) -> Running:
        own = Serving(self.name, (*self.arguments, "--port", str(self.port)))
        return Scenario.start(own, inputs, out, environment)

    def attend(self, running: Running, until: float) -> None:
        while not running.has_ended and running.seconds < until:
            with suppress(OSError):  # the server does not listen yet, or has ended
                if self._step(running):
                    running.send(signal.SIGTERM)
                    running.end(10)
            time.sleep(0.05)

    def _step(self, running: Running) -> bool:
        """Send the next request; return whether all are done."""
        link = re.search(r"token=(\S+)", running.output())
        if link is None:
            return False
        query = partial(self._request, link[1])
        jobs = query("/api/jobs")["jobs"]
        if not jobs:
            data = query("/api/data", {"folder_index": 0, "relative_path": "tissue"})["id"]
            training_request = {
                "data": data,
                "preset": "quick",
                "settings": _SMALL,
                "test_folds": 2,
            }
            query("/api/jobs", training_request)
        elif jobs[0]["state"] in ("failed", "interrupted"):
            query(f"/api/jobs/{jobs[0]['id']}/resume", {})
        return bool(jobs) and jobs[0]["state"] == "done"

    def _request(self, token: str, path: str, body: dict[str, Any] | None = None) -> Any:
        own = {
            "x-histodict": "1",
            "content-type": "application/json",
            "cookie": f"histodict-{self.port}={token}",
        }
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, own)
        with urllib.request.urlopen(request, timeout=10) as response:
            return json.load(response)


_STOPPED = 128 + signal.SIGTERM
SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("train", (*_TRAIN, *_SET)),
        Scenario("train, ensemble", (*_TRAIN[:-1], "pixels", *_SET), timed=("c/runs/*.json",)),
        Scenario("predict", ("predict", _MODEL, "tissue/healthy", "-o", "OUT")),
        Scenario("predict, regions", ("predict", _REGIONS, "tissue/inflamed", "-o", "OUT")),
        Scenario(
            "adapt",
            ("adapt", _MODEL, "tissue", "--force", "-o", "OUT/m.histodict"),
            timed=("m.histodict",),
        ),
        Scenario("atoms", ("atoms", _MODEL, _TISSUE, "-o", "OUT/atoms.html", "--cache", "OUT/c")),
        Scenario("evaluate", (*_EVALUATE, "--jobs", "1"), timed=_TIMES),
        Scenario("evaluate --jobs", (*_EVALUATE, "--jobs", "2"), has_workers=True, timed=_TIMES),
        Scenario(
            "evaluate --cluster",
            (*_EVALUATE, "--cluster", "local:2"),
            has_workers=True,
            timed=_TIMES,
        ),
        Scheduled("evaluate --cluster tcp", _EVALUATE, has_workers=True, timed=_TIMES),
        Scenario(
            "textures --jobs", (*_TRAIN, "--method", "lbp-colour", "--jobs", "2"), has_workers=True
        ),
        Scenario(
            "reproduce",
            ("reproduce", "bases", "--quick", "-o", "OUT", "--methods", "dfdl"),
            timed=("index.html", "synthetic/bases.json"),
        ),
        Scenario("demo", ("demo", "-o", "OUT"), ("-c", _DEMO), timed=("index.html",)),
        Serving(
            "serve",
            ("serve", ".", "--workspace", "OUT", "--no-browser"),
            has_workers=True,
            status=_STOPPED,
            timed=("*/JOB/job.json", "*/JOB/state.json"),
        ),
    )
}


def write_inputs(folder: Path, names: Iterable[str] = SCENARIOS) -> Path:
    """Write synthetic images and those models that the scenarios of these names read."""
    write_synthetic_dataset(folder / "tissue", 5, 2, size=(160, 120))
    read = {argument for name in names for argument in SCENARIOS[name].arguments}
    fast = ("--preset", "fast")
    for name, more in ((_MODEL, fast), (_REGIONS, ("--regions", "inflamed"))):
        if name in read:
            made = Scenario(name, ("train", _TISSUE, "-o", name, *more, *_SET))
            made.start(folder, folder.with_name(name)).end(300)  # the first one compiles
            assert (folder / name).is_file()
    return folder


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port
