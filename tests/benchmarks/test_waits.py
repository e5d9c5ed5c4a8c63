"""Tests of the benchmark of user waiting times: measurement, and detection of regressions."""

from __future__ import annotations

import itertools
import json

import pytest

waits = pytest.importorskip("benchmarks.waits", reason="the benchmarks are not here")
Line, Wait, Turns, QUICK = waits.Line, waits.Wait, waits.Turns, waits.QUICK

RECORDED = {"a": 2.0, "b": 3.0}


def line(name, ratio):
    return Line(Wait(name, "limit", lambda: None), ours=ratio, limit=1.0)


def test_best_of_alternating_runs_counts():
    """Other work on the machine slows down some runs, ours and the limit alike."""
    now, noise = 0.0, itertools.cycle([0.0, 3.0, 1.0, 0.0, 2.0])

    def work(seconds):
        nonlocal now
        now += seconds + next(noise)

    turns = Turns(lambda: work(2.0), lambda: work(1.0), clock=lambda: now)
    assert turns.best_within(50.0) == (2.0, 1.0)


def test_slow_cases_are_repeated_a_few_times():
    now, calls = 0.0, []

    def work():
        nonlocal now
        calls.append(1)
        now += 100.0

    Turns(work, work, clock=lambda: now).best_within(1.0)
    assert len(calls) == 2 * (1 + 3)


def test_regression_of_a_fifth_is_tolerated():
    lines = [line("a", 2.39), line("b", 3.7), line("new", 9.0)]
    lines.append(Line(line("b", 0).wait, missing="not installed"))
    assert [bad.wait.name for bad in waits.worse(lines, RECORDED)] == ["b"]


def test_half_fails_and_a_fifth_is_reported(capsys):
    assert waits.exit_status([line("a", 2.9)], RECORDED) == 0
    assert capsys.readouterr().out == "Warning: a: 2.90 times its limit; 2.00 is recorded\n"
    assert waits.exit_status([line("a", 2.5), line("b", 4.6)], RECORDED) == 1
    output = capsys.readouterr().out.splitlines()
    assert [text.split(":")[0] for text in output] == ["Warning", "Error"]
    assert waits.exit_status([], RECORDED) == 0


def test_regressions_are_measured_again():
    requested = []

    def again(ratios):
        def measure(found):
            requested.append([wait.name for wait in found])
            return [line(wait.name, ratios[len(requested) - 1]) for wait in found]

        return measure

    start = [line("a", 4.0), line("b", 3.0)]
    assert waits.check(start, RECORDED, again([2.0, 2.0])) == [] and requested == [["a"]]
    requested.clear()
    (bad,) = waits.check(start, RECORDED, again([4.0, 3.5]))
    assert (bad.wait.name, bad.ratio, requested) == ("a", 3.5, [["a"], ["a"]])


def test_unknown_machine_has_no_recorded_values(tmp_path, monkeypatch):
    monkeypatch.setattr(waits, "_RECORDED", tmp_path)
    assert waits.read_recorded("toaster") is None
    missing = Line(line("b", 0).wait, missing="no torch")
    waits._record("toaster", [[line("a", ratio), missing] for ratio in (9.0, 2.0, 1.5)])
    assert waits.read_recorded("toaster") == {"a": 2.0}


def test_recorded_cases_are_the_measured_ones(tmp_path):
    names = {wait.name for wait in waits.waits(QUICK, tmp_path)}
    files = list(waits._RECORDED.glob("*.json"))
    assert files
    for path in files:
        ratios = json.loads(path.read_text())["ratios"]
        assert set(ratios) == names and min(ratios.values()) > 1


def test_missing_library_is_reported(capsys):
    def prepare():
        raise ImportError("no", name="torch")

    lines = waits.measure([Wait("network", "limit", prepare)], 1.0)
    waits.print_lines(lines, {"network": 2.0})
    assert "torch is not installed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("machine", "cpu", "kind"),
    [
        ("aarch64", "neoverse-n1", "arm64-neoverse-n1"),
        ("arm64", "apple-m1", "arm64-apple-m1"),
        ("x86_64", "cascadelake", "x86-64-cascadelake"),
        ("AMD64", "", "x86-64-unknown"),
        ("riscv64", "", "riscv64-unknown"),
    ],
)
def test_kinds_of_machines(machine, cpu, kind, monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("llvmlite.binding.get_host_cpu_name", lambda: cpu)
    assert waits.machine_kind() == kind
