"""HTML pages in one style, each in one file: no scripts, nothing fetched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from ..execution.files import written_whole


def write_page(path: Path, template: str, content: dict[str, Any]) -> None:
    """Fill a template of this folder; text is escaped."""
    environment = Environment(
        loader=PackageLoader("histodict", "reports"),
        autoescape=True,
        undefined=StrictUndefined,
    )
    page = environment.get_template(template).render(**content)
    with written_whole(path) as partial:
        partial.write_text(page, encoding="utf-8")
