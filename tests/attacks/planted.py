"""A fuzz target with known defects, to test the fuzzer itself."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from numpy.random import Generator

from attacks.target import Case, InvariantError, Target


class Planted(Target):
    """Four numbers below 40: 7 kills the process, 11 hangs, 13 violates an invariant."""

    name = "tests.attacks.planted"
    per_attempt = 3

    def setup(self, folder: Path) -> None:
        assert folder.is_dir()

    def case(self, rng: Generator) -> Case:
        numbers = tuple(int(number) for number in rng.integers(40, size=4))
        return Case("even" if numbers[0] % 2 == 0 else "odd", "numbers.json", numbers)

    def build(self, case: Case) -> bytes:
        return json.dumps(case.edits).encode()

    def attempt(self, data: bytes, base: str) -> str:
        numbers = json.loads(data)
        if 7 in numbers:
            os.abort()
        if 11 in numbers:
            time.sleep(60)
        if 13 in numbers:
            raise InvariantError("thirteen")
        return "refused" if 17 in numbers else "answered"


TARGET = Planted()
