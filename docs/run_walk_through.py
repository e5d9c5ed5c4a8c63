"""Runs the commands of docs/walk-through.md again and writes what they print below them.

    HISTODICT_DATA=… python docs/run_walk_through.py       needs PyTorch; a quarter of an hour

They run in a folder of their own, in which the sets of HISTODICT_DATA have their names. Of the
images nothing is kept but words and numbers.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

PAGE = Path(__file__).with_name("walk-through.md")
_BLOCK = re.compile(r"(?<=```shell-session\n).*?(?=```)", re.DOTALL)


def commands(block: str) -> list[str]:
    return [line[2:] for line in block.splitlines() if line.startswith("$ ")]


def run(command: str, folder: Path) -> str:
    """What a person would see of it; a command that fails is shown with its status."""
    here = {
        "COLUMNS": "100",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    ended = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=os.environ | here,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    words = "\n".join(line.rstrip() for line in ended.stdout.strip("\n").splitlines())
    print(f"$ {command}\n{words}", flush=True)
    status = f"(status {ended.returncode})\n" if ended.returncode else ""
    return "".join(f"{line}\n" for line in (f"$ {command}", words) if line) + status


def main() -> None:
    data = Path(os.environ["HISTODICT_DATA"]).resolve()
    text = PAGE.read_text("utf-8")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for found in data.iterdir():
            (folder / found.name).symlink_to(found)
        text = _BLOCK.sub(
            lambda block: "\n".join(run(line, folder) for line in commands(block[0])), text
        )
    PAGE.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
