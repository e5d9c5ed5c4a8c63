"""Print the oldest versions that pyproject.toml allows as pip requirements: python -m tests.lowest

`make lowest` installs them and runs the tests.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def lowest(requirements: list[str]) -> list[str]:
    """Turn `name>=1.2; marker` into `name==1.2; marker`; packages without a bound are unchanged."""
    return [line.replace(">=", "==", 1) for line in requirements]


if __name__ == "__main__":
    print(*lowest(tomllib.loads(PROJECT.read_text("utf-8"))["project"]["dependencies"]), sep="\n")
