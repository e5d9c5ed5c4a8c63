"""Tests of the chaos runner: a few kills, and detection of planted defects."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace

import pytest

from attacks import chaos, disturbances, scenarios
from attacks.same_files import content, differences
from histodict.synthetic import demo

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@pytest.fixture
def small_inputs(monkeypatch, small_models):
    """Use a model of the tests as the input of `predict`, instead of training one."""

    def write_inputs(folder, names):
        shutil.copytree(small_models.tissue, folder / "tissue")
        shutil.copy(small_models.path("dfdl"), folder / "model.histodict")
        return folder

    monkeypatch.setattr(chaos, "write_inputs", write_inputs)


def test_killed_command_resumes(monkeypatch, small_inputs):
    # With other tests a process may wait long for a core; `make chaos` runs alone and checks this.
    monkeypatch.setattr(disturbances, "_LEAVE_SECONDS", 60.0)
    bench = chaos.chaos(["predict"], kills=1, seed=2)
    assert bench.failures == []
    assert sum(count.total() for count in bench.counts.values()) == 1


def test_program_of_the_demonstration_starts(monkeypatch, capsys):
    """It replaces names of the package, which the type checker does not see."""
    for name in ("DEMO_RECIPE", "REGION_RECIPE", "_N_TEST_PATIENTS", "cached_synthetic_dataset"):
        monkeypatch.setattr(demo, name, getattr(demo, name))  # restored after the test
    monkeypatch.setattr(demo, "_DATASET_OPTIONS", dict(demo._DATASET_OPTIONS))
    option, program = scenarios.SCENARIOS["demo"].program
    monkeypatch.setattr(sys, "argv", [option, "demo", "--help"])
    with pytest.raises(SystemExit) as end:
        exec(program, {"__name__": "__main__"})
    assert end.value.code == 0
    assert "demo" in capsys.readouterr().out


SLEEPER = """
import os, subprocess, sys, time
out = sys.argv[1]
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
open(out + "/result.txt", "a").write("x")
time.sleep(0.5)
"""


def test_leftover_processes_and_different_files_are_reported(tmp_path, monkeypatch):
    bad = scenarios.Scenario("bad", ("OUT",), ("-c", SLEEPER))
    monkeypatch.setitem(scenarios.SCENARIOS, "bad", bad)
    monkeypatch.setattr(disturbances, "_LEAVE_SECONDS", 0.3)
    monkeypatch.setattr(chaos, "write_inputs", lambda folder, names: folder.mkdir() or folder)
    bench = chaos.Chaos(tmp_path, ["bad"], 0)
    bench.run_disturbed(0, "bad", "SIGKILL")
    assert len(bench.failures) == 1 and "left behind" in bench.failures[0]
    quiet = replace(bad, program=("-c", SLEEPER.replace("subprocess.Popen", "list")))
    monkeypatch.setitem(scenarios.SCENARIOS, "bad", quiet)
    bench.run_disturbed(1, "bad", "two writers")
    assert len(bench.failures) == 2 and "unequal: result.txt" in bench.failures[1]


def test_only_timed_files_may_differ(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    for folder, seconds, label in ((one, 1.5, "a"), (two, 2.25, "a")):
        folder.mkdir()
        (folder / "timing.csv").write_text(f"{label},{seconds}\n")
        (folder / f".{seconds}.partial.csv").write_text("left")
    assert differences(one, two) == ["timing.csv"]
    assert differences(one, two, ["timing.csv"]) == []
    (two / "timing.csv").write_text("b,1.5\n")
    (two / "more.csv").touch()
    assert differences(one, two, ["timing.csv"]) == ["more.csv", "timing.csv"]


def test_models_that_differ_in_a_date_are_equal(tmp_path):
    files = [tmp_path / f"{name}.histodict" for name in "abc"]
    for file, date, array in zip(files, (19, 20, 20), (b"1", b"1", b"2"), strict=True):
        header = json.dumps({"histodict": json.dumps({"date": f"2026-11-{date}"})}).encode()
        file.write_bytes(len(header).to_bytes(8, "little") + header + array)
    one, later, other = (content(file, timed=True) for file in files)
    assert one == later != other and content(files[0]) != content(files[1])
