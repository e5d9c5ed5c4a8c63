from pathlib import Path
from typing import Any


def write_page(folder: Path, facts: list[dict[str, Any]]) -> None:
    raise NotImplementedError
