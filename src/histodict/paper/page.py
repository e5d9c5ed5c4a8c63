"""The page of the paper's experiments: figures, captions, and the files beside them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..reports.pages import write_page

_LEAD = (
    "Made with histodict. Published figures are hollow and come from Vu, Mousavi, Monga, Rao, Rao, "
    "IEEE Transactions on Medical Imaging, 2016; ours were measured on other images."
)


def write_paper_page(path: Path, entries: Sequence[dict[str, Any]]) -> None:
    """`entries`: what an experiment's .json holds; the first of its files is its figure."""
    shown = [entry | {"anchor": _anchor(entry), "picture": entry["files"][0]} for entry in entries]
    content = {"title": "The paper's experiments", "lead": _LEAD, "entries": shown}
    write_page(path, "paper/page.html.j2", content)


def _anchor(entry: dict[str, Any]) -> str:
    return "-".join(filter(None, (entry["dataset"], entry["experiment"])))
