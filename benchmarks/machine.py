"""Description of the machine and the library versions of a measurement."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from histodict.utils.parallel import available_cores

_LIBRARIES = ("histodict", "numpy", "numba", "scipy", "scikit-learn")


def describe_machine() -> dict[str, str]:
    description = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": f"{_cpu_model()} ({platform.machine()})",
        "cores": str(available_cores()),
        "system": platform.platform(),
        "python": platform.python_version(),
        "commit": _commit(),
    }
    description.update((name, version(name)) for name in _LIBRARIES)
    description["blas"] = _blas()
    if hasattr(os, "getloadavg"):
        # Above about 0.2, other processes use the cores.
        description["load at start"] = f"{os.getloadavg()[0]:.2f}"
    return description


def machine_kind() -> str:
    """Return the design of the processor, which determines the ratios to lower limits."""
    import llvmlite.binding

    machine = platform.machine().lower()
    named = {"aarch64": "arm64", "amd64": "x86-64", "x86_64": "x86-64"}.get(machine, machine)
    return f"{named or 'unknown'}-{llvmlite.binding.get_host_cpu_name() or 'unknown'}"


def _cpu_model() -> str:
    for line in _output("lscpu").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "Model name":
            return value.strip()
    return platform.processor() or "unknown"


def _commit() -> str:
    commit = _output("git", "rev-parse", "--short", "HEAD").strip()
    changed = _output("git", "status", "--porcelain", "src").strip()
    return (commit or "unknown") + (" with changes in src" if changed else "")


def _blas() -> str:
    import numpy as np  # noqa: F401  (threadpoolctl sees loaded libraries only)
    from threadpoolctl import threadpool_info

    found = {
        f"{info['internal_api']} {info['version']} ({info.get('architecture', '?')})"
        for info in threadpool_info()
        if info["user_api"] == "blas"
    }
    return ", ".join(sorted(found))


def _output(*command: str) -> str:
    folder = Path(__file__).resolve().parent
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    except OSError:
        return ""
    return done.stdout
