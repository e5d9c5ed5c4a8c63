"""An interrupted command reports it in one line and leaves no process behind."""

from __future__ import annotations

import os
import signal
import sys
import time
from concurrent.futures import BrokenExecutor
from pathlib import Path

import pytest
import typer

from attacks.processes import Running, enable_sigint
from histodict.cli.console import handle_signals, report_errors
from histodict.synthetic.dataset import write_synthetic_dataset

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

# Far longer than a command needs, so that a busy machine fails no test.
END_S = 60

LONG = ("n_atoms=20", "n_iter=5000", "tol=0", "patches_per_class=400", "patch_px=12")


@pytest.fixture(scope="module")
def tissue(tmp_path_factory):
    return write_synthetic_dataset(tmp_path_factory.mktemp("set") / "tissue", 4, 2, size=(160, 120))


def has_started_work(pid):
    """Return whether a process has loaded the compiler of the kernels, which a task imports."""
    try:
        return "llvmlite" in Path(f"/proc/{pid}/maps").read_text()
    except OSError:  # it has ended
        return False


@pytest.fixture
def start_command(tissue, tmp_path):
    """Return a function that starts a command on the set and waits for its processes."""
    started = []
    enable_sigint()

    def start(*arguments, processes):
        settings = [part for setting in LONG for part in ("--set", setting)]
        data, output = str(tissue / "manifest.csv"), str(tmp_path / "out")
        command = [arguments[0], data, "-o", output, *settings, *arguments[1:]]
        started.append(Running(command, tmp_path / "said", tmp_path))
        deadline = time.monotonic() + 60
        while (
            not started[0].handles_signals()
            or sum(map(has_started_work, started[0].others())) < processes
        ):
            assert not started[0].has_ended, started[0].output()
            assert time.monotonic() < deadline
            time.sleep(0.2)
        return started[0]

    yield start
    for command in started:
        command.remove()


JOBS = ("evaluate", "--methods", "dfdl", "--folds", "4", "--jobs", "2")
CLUSTER = ("evaluate", "--methods", "dfdl", "--folds", "4", "--cluster", "local:2")
TRAIN = ("train", "--preset", "fast")


@pytest.mark.parametrize(
    ("command", "processes", "number"),
    [
        (JOBS, 2, signal.SIGINT),
        (JOBS, 2, signal.SIGKILL),
        (CLUSTER, 2, signal.SIGTERM),
        (TRAIN, 0, signal.SIGHUP),
    ],
)
def test_signal_ends_the_command_and_its_processes(start_command, command, processes, number):
    running = start_command(*command, processes=processes)
    running.send(number)
    assert running.end(END_S) == 128 + number
    assert running.leftover_processes() == []
    if number != signal.SIGKILL:
        assert f"Stopped: by {number.name}" in running.output()
        assert "Traceback" not in running.output()


def test_killed_worker_is_reported_in_one_line(start_command):
    running = start_command(*JOBS, processes=2)
    workers = running.workers()
    os.kill(workers[0], signal.SIGKILL)
    assert running.end(END_S) == 2
    assert running.leftover_processes() == []
    assert (
        "Traceback" not in running.output()
        and "run the same command with fewer --jobs" in running.output()
    )


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError(), "not enough memory"),
        (BrokenExecutor("a worker"), "the system ended a worker process"),
        (OSError(28, "No space left on device", "a.csv"), "a.csv"),
    ],
)
def test_missing_resources_are_reported_in_one_line(capsys, error, message):
    with pytest.raises(typer.Exit) as ended, report_errors():
        raise error
    output = capsys.readouterr().err
    assert ended.value.exit_code == 2
    assert message in output and len(output.splitlines()) == 1


def test_signal_handlers_are_restored():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with handle_signals():
        assert signal.getsignal(signal.SIGTERM) not in before
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_ignored_signal_stays_ignored():
    """`nohup histodict evaluate …` outlives its terminal."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with handle_signals():
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


HEAD = """
import os, signal, time
import typer
from histodict.cli import console
from histodict.cli.console import handle_signals, report_errors

console._GRACE_SECONDS = 0.3

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(1)

app = typer.Typer(add_completion=False)

@app.command()
def main():
    with handle_signals(), report_errors():
"""
BROKEN_OFF = """
        try:
            interrupt()
        except KeyboardInterrupt:
            raise ImportError("no such package") from None
app()
"""
SWALLOWED = """
        class Thing:
            def __del__(self):
                interrupt()
        Thing()
        time.sleep(30)
app()
"""


@pytest.mark.parametrize("body", [BROKEN_OFF, SWALLOWED])
def test_signal_during_imports_and_destructors_is_reported(tmp_path, body):
    """An interrupted import raises another error; exceptions in a destructor are ignored by
    Python."""
    running = Running((), tmp_path / "said", tmp_path, ("-c", HEAD + body))
    assert running.end(END_S) == 128 + signal.SIGINT
    assert running.output().strip().startswith("Stopped: by SIGINT")
    assert len(running.output().strip().splitlines()) == 1
