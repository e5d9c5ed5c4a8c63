"""Run the console blocks of pages again and write their output into the pages.

    python docs/record_console.py README.md docs/getting-started.md     needs PyTorch; ten minutes

The commands of each page run in a temporary folder. If a page shows some lines of an output and
then `…`, the new output is shortened to the same number of lines. The output of a command without
output on the page is not added.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

_BLOCK = re.compile(r"(?<=^```console\n).*?(?=^```$)", re.DOTALL | re.MULTILINE)
_MORE = "…"


def run(command: str, folder: Path) -> list[str]:
    """Return the lines that a command prints on a terminal of 100 columns."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    completed = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=os.environ | {"COLUMNS": "100", "NO_COLOR": "1", "PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    return [line.rstrip() for line in completed.stdout.strip("\n").splitlines()]


def record(block: str, folder: Path) -> str:
    """Return a block with the new output of its commands."""
    text = ""
    for step in re.split(r"^(?=\$ )", block, flags=re.MULTILINE)[1:]:
        prompt, *shown = step.rstrip("\n").splitlines()
        printed = run(prompt.removeprefix("$ "), folder)
        if _MORE in shown:
            printed[shown.index(_MORE) :] = [_MORE]
        text += "".join(f"{line}\n" for line in [prompt, *(printed if shown else [])])
    return text


def main() -> None:
    for page in map(Path, sys.argv[1:]):
        with tempfile.TemporaryDirectory() as folder:
            text = _BLOCK.sub(lambda block: record(block[0], Path(folder)), page.read_text("utf-8"))
        page.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
