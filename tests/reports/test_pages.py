"""Tests of the renderer of HTML pages."""

from pathlib import Path

import pytest
from jinja2 import UndefinedError

import histodict
from histodict.reports.html import write_page

PACKAGE = Path(histodict.__file__).parent
PAGES = sorted(
    path.relative_to(PACKAGE).as_posix()
    for path in PACKAGE.rglob("*.html.j2")
    if path.name != "parts.html.j2"  # macros only
)
ENTRY = {
    "anchor": "a",
    "dataset": "",
    "title": "<b>",
    "picture": "a.svg",
    "note": "",
    "table": "",
    "files": [],
    "made": "",
    "version": "",
    "warnings": [],
    "failures": [],
}


def test_text_is_escaped_and_the_page_is_self_contained(tmp_path):
    content = {"title": "A & B", "lead": "", "entries": [ENTRY]}
    write_page(tmp_path / "page.html", "paper/page.html.j2", content)
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<title>A &amp; B</title>" in page and "&lt;b&gt;" in page and "<b>" not in page
    assert ":root {" in page and "<link" not in page and "<script" not in page


@pytest.mark.parametrize("name", PAGES)
def test_missing_value_is_an_error_and_leaves_no_page(tmp_path, name):
    with pytest.raises(UndefinedError):
        write_page(tmp_path / "page.html", name, {})
    assert list(tmp_path.iterdir()) == []
