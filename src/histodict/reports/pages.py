"""HTML pages in one style, each in one file: no scripts, nothing fetched.

A template lies in the folder of what it shows and goes by its place in the package, such as
"demo/page.html.j2". It extends "reports/base.html.j2"; reports/parts.html.j2 has what pages share.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from ..execution.files import atomic_write
from ..patches.patch_map import class_css_colour


@cache
def _environment() -> Environment:
    loader = PackageLoader("histodict", "")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    environment.globals["class_css_colour"] = class_css_colour
    return environment


def write_page(path: Path, template: str, content: dict[str, Any]) -> None:
    """Fill a template; text is escaped."""
    page = _environment().get_template(template).render(**content)
    with atomic_write(path) as partial:
        partial.write_text(page, encoding="utf-8")
