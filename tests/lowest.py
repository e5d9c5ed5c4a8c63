"""The oldest versions that pyproject.toml allows, as pip requirements: python -m tests.lowest

`make lowest` installs them and runs the tests: a lower bound is a promise.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def lowest(requirements: list[str]) -> list[str]:
    """`name>=1.2; marker` becomes `name==1.2; marker`; what has no bound stays free."""
    return [line.replace(">=", "==", 1) for line in requirements]


if __name__ == "__main__":
    print(*lowest(tomllib.loads(PROJECT.read_text("utf-8"))["project"]["dependencies"]), sep="\n")
