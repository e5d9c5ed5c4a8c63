"""Tests of the available memory: the minimum over the machine, control groups and limits."""

from __future__ import annotations

import subprocess
import sys

import pytest

from histodict.utils import cache as memory
from histodict.utils import files as outputs

GIB = 2**30


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with 8 GiB available; returns a function that writes further files of /proc."""

    def write(path, text):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    monkeypatch.setattr(memory, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(memory, "_CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(memory, "_free_process_memory", lambda: iter(()))
    write("proc/meminfo", f"MemTotal: 9 kB\nMemFree: 1 kB\nMemAvailable: {8 * 2**20} kB\n")
    return write


def test_memory_of_the_machine(machine):
    assert memory.available_bytes() == 8 * GIB


def test_limits_of_parent_control_groups_apply(machine):
    machine("proc/self/cgroup", "0::/job/step\n")
    machine("cgroup/job/step/memory.max", "max\n")
    machine("cgroup/job/step/memory.current", f"{GIB}\n")
    assert memory.available_bytes() == 8 * GIB
    machine("cgroup/job/memory.max", f"{3 * GIB}\n")
    machine("cgroup/job/memory.current", f"{2 * GIB}\n")
    assert memory.available_bytes() == GIB
    machine("cgroup/job/memory.stat", f"anon 5\ninactive_file {GIB // 2}\n")
    assert memory.available_bytes() == 1.5 * GIB


def test_limits_of_cgroup_v1_apply(machine):
    machine("proc/self/cgroup", "5:cpu:/\n4:memory,hugetlb:/docker/1\n")
    machine("cgroup/memory/docker/1/memory.limit_in_bytes", f"{2 * GIB}\n")
    machine("cgroup/memory/docker/1/memory.usage_in_bytes", f"{GIB}\n")
    assert memory.available_bytes() == GIB


def test_usage_above_the_limit_leaves_zero(machine):
    machine("proc/self/cgroup", "0::/\n")
    machine("cgroup/memory.max", "5\n")
    machine("cgroup/memory.current", "7\n")
    assert memory.available_bytes() == 0


def test_ulimit_applies():
    pytest.importorskip("resource")
    code = "from histodict.utils.cache import available_bytes; print(available_bytes())"
    limited = f"import resource\nresource.setrlimit(resource.RLIMIT_AS, ({GIB}, {GIB}))\n{code}"
    run = subprocess.run([sys.executable, "-c", limited], capture_output=True, check=True)
    assert 0 < int(run.stdout) < GIB


@pytest.mark.parametrize(
    ("n_bytes", "expected"), [(1_640_000_000, "1.6 GB"), (310_000_000, "310 MB"), (5_000, "0 MB")]
)
def test_format_bytes(n_bytes, expected):
    assert outputs.format_bytes(n_bytes) == expected
