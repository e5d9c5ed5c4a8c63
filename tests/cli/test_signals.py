"""A command that is stopped says so in a line, and none of its processes is left behind."""

from __future__ import annotations

import os
import signal
import sys
import time
from concurrent.futures import BrokenExecutor

import pytest
import typer

from attacks.processes import Running, hear_signals
from histodict.cli.console import handle_signals, report_errors
from histodict.synthetic.dataset import write_synthetic_dataset

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

LONG = ("n_atoms=20", "n_iter=5000", "tol=0", "patches_per_class=400", "patch_px=12")


@pytest.fixture(scope="module")
def tissue(tmp_path_factory):
    return write_synthetic_dataset(tmp_path_factory.mktemp("set") / "tissue", 4, 2, size=(160, 120))


@pytest.fixture
def begin(tissue, tmp_path):
    """Starts a command on the set and waits until it has started so many processes."""
    begun = []
    hear_signals()

    def start(*arguments, processes):
        settings = [part for setting in LONG for part in ("--set", setting)]
        data, output = str(tissue / "manifest.csv"), str(tmp_path / "out")
        command = [arguments[0], data, "-o", output, *settings, *arguments[1:]]
        begun.append(Running(command, tmp_path / "said", tmp_path))
        deadline = time.monotonic() + 60
        while not begun[0].hears_signals() or len(begun[0].others()) < processes:
            assert not begun[0].has_ended, begun[0].said()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(0.5)
        return begun[0]

    yield start
    for command in begun:
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
def test_a_signal_ends_the_command_and_all_it_started(begin, command, processes, number):
    running = begin(*command, processes=processes)
    running.send(number)
    assert running.end(5) == 128 + number
    assert running.left_behind() == []
    if number != signal.SIGKILL:
        assert f"Stopped: by {number.name}" in running.said()
        assert "Traceback" not in running.said()


def test_a_killed_worker_of_jobs_is_said_in_a_line(begin):
    running = begin(*JOBS, processes=2)
    workers = running.workers()
    os.kill(workers[0], signal.SIGKILL)
    assert running.end(20) == 2
    assert running.left_behind() == []
    assert "Traceback" not in running.said() and "run the same command again" in running.said()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), "not enough memory"),
        (BrokenExecutor("a worker"), "ended by the system"),
        (OSError(28, "No space left on device", "a.csv"), "a.csv"),
    ],
)
def test_what_the_machine_lacks_is_said_in_a_line(capsys, error, words):
    with pytest.raises(typer.Exit) as ended, report_errors():
        raise error
    output = capsys.readouterr().err
    assert ended.value.exit_code == 2
    assert words in output and len(output.splitlines()) == 1


def test_a_signal_is_restored_after_the_command():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with handle_signals():
        assert signal.getsignal(signal.SIGTERM) not in before
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_signal_that_is_ignored_stays_so():
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
from histodict.cli.console import report_errors
from histodict.cli.console import handle_signals

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
def test_a_signal_in_an_awkward_place_is_said_as_one(tmp_path, body):
    """An import that it breaks off fails otherwise; what a destructor raises Python cannot pass."""
    running = Running((), tmp_path / "said", tmp_path, ("-c", HEAD + body))
    assert running.end(20) == 128 + signal.SIGINT
    assert running.said().strip().startswith("Stopped: by SIGINT")
    assert len(running.said().strip().splitlines()) == 1
