"""The kernels with bounds checking: finite results that satisfy the invariants, or error messages.

A case is a row; an attempt runs 64 of them. Its data are the settings of the problem, as JSON.
"""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator

from ..kernel_cases import KERNELS
from ..kernel_problems import NAMES, ROWS, Settings, draw_settings
from ..target import Case, InvariantError, Target


class KernelsTarget(Target):
    name = "kernels"
    per_attempt = ROWS
    smoke_attempts = 80  # of 64 rows each

    def setup(self, folder: Path) -> None:
        """Compile all kernels with bounds checking."""
        os.environ["HISTODICT_CHECK_BOUNDS"] = "1"
        os.environ["NUMBA_OPT"] = "1"  # halves the compile time
        from histodict.kernels import compilation as compiling

        if not compiling.CHECK_BOUNDS:
            raise RuntimeError("the kernels were imported before bounds could be checked")
        for kernel in KERNELS:
            for single in (False, True):
                self.attempt(json.dumps({"single": single}).encode(), kernel)

    def case(self, rng: Generator) -> Case:
        kernel = str(rng.choice(list(KERNELS)))
        edits = draw_settings(rng, KERNELS[kernel].wrong)
        return Case(_kind(kernel, Settings(**dict(edits))), kernel, edits)

    def build(self, case: Case) -> bytes:
        return json.dumps(dict(case.edits)).encode()

    def attempt(self, data: bytes, base: str) -> str:
        specified = json.loads(data)
        settings = Settings(**{name: specified[name] for name in NAMES if name in specified})
        kernel = KERNELS[base]
        with np.errstate(all="ignore"):
            problem = kernel.make(settings)
        try:
            with warnings.catch_warnings(record=True) as message:
                warnings.simplefilter("always")
                response = kernel.solve(problem, settings)
        except (ValueError, TypeError) as error:
            return _refused(error, settings)
        if settings.is_wrong:
            raise InvariantError("invalid input gave a result")
        with np.errstate(all="ignore"):
            kernel.check(problem, settings, response, _messages(message))
        return "warned" if message else "answered"


def _refused(error: Exception, settings: Settings) -> str:
    if settings.is_tame:
        raise InvariantError(f"valid input was refused: {error}") from error
    if not str(error):
        raise InvariantError("refused without a message") from error
    return "refused"


def _messages(warned: Any) -> list[str]:
    return [f"{warning.category.__name__}: {warning.message}" for warning in warned]


def _kind(kernel: str, settings: Settings) -> str:
    size = "wrong" if settings.is_wrong else "tame" if settings.is_tame else "extreme"
    return f"{kernel}, {'float32' if settings.single else 'float64'}, {size}"


TARGET = KernelsTarget()
