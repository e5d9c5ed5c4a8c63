"""Configuration of the documentation site, which `make docs` builds.

Pages can also be read in the repository, where links lead from file to file. Files outside this
folder that are pages of the site are copied to `project/` at each build, and links to them are
rewritten.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import matplotlib as mpl

mpl.use("agg")

DOCS = Path(__file__).parent
ROOT = DOCS.parent
PROJECT = DOCS / "project"

# Files outside this folder that are pages of the site, and the names of their copies.
OUTSIDE = {
    "benchmarks/README.md": "benchmarks.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "GOVERNANCE.md": "governance.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
    "SECURITY.md": "security-policy.md",
}

project = "histodict"
author = "The histodict developers"
copyright = "The histodict developers, BSD-3-Clause"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
templates_path = ["templates"]
exclude_patterns = [
    "figures",
    "screenshots",
    "**/*.ipynb",
    "**/sg_execution_times.rst",
    "sg_execution_times.rst",
]
default_role = "code"
suppress_warnings = ["config.cache"]

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "deflist"]

autosummary_generate = True
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True

sphinx_gallery_conf = {
    "examples_dirs": "../examples/gallery",
    "gallery_dirs": "gallery",
    "filename_pattern": r"/plot_",
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "download_all_examples": True,
    "remove_config_comments": True,
    "show_memory": False,
    "min_reported_time": 1e9,
    "reset_modules": ("matplotlib",),
    "matplotlib_animations": False,
}

html_theme = "pydata_sphinx_theme"
html_title = "histodict"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "logo": {"text": "histodict"},
    "navbar_end": ["theme-switcher"],
    "secondary_sidebar_items": ["page-toc"],
    "show_prev_next": False,
    "footer_start": ["copyright"],
    "footer_end": [],
    "search_as_you_type": True,
}
html_sidebars = {"index": []}

_LINK = re.compile(r"(?<=\]\()(?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?(?=\))")


def turned(text: str, folder: Path, page: Path) -> str:
    """Rewrite the links of a page written in `folder` for its location on the site."""

    def turn(link: re.Match[str]) -> str:
        target = (folder / link[1]).resolve()
        own = OUTSIDE.get(target.relative_to(ROOT).as_posix()) if ROOT in target.parents else None
        there = (
            PROJECT / own if own else DOCS / "index.md" if target == ROOT / "README.md" else target
        )
        return os.path.relpath(there, page.parent) + (link[2] or "")

    return _LINK.sub(turn, text)


def gather(app: object, config: object) -> None:
    """Copy the pages from outside this folder, if they have changed."""
    PROJECT.mkdir(exist_ok=True)
    pages = {name: (ROOT / path).read_text("utf-8") for path, name in OUTSIDE.items()}
    folders = {name: (ROOT / path).parent for path, name in OUTSIDE.items()}
    for name, text in pages.items():
        there = PROJECT / name
        made = turned(text, folders[name], there)
        if not there.is_file() or there.read_text("utf-8") != made:
            there.write_text(made, "utf-8")


def turn_links(app: object, docname: str, source: list[str]) -> None:
    page = DOCS / f"{docname}.md"
    if page.is_file() and page.parent != PROJECT:
        source[0] = turned(source[0], page.parent, page)


_SECTION = re.compile(r"(Parameters|Attributes)\b.*")


def meanings_below(
    app: object, what: str, name: str, of: object, options: object, lines: list[str]
) -> None:
    """Turn `name : description` into a definition; napoleon takes the description for a type."""
    made: list[str] = []
    inside = False
    for place, line in enumerate(lines):
        underlined = place + 1 < len(lines) and lines[place + 1].startswith("---")
        if underlined:
            inside = bool(_SECTION.fullmatch(line))
            line = _SECTION.sub(r"\1", line)  # such as "Attributes, beside those of every …"
        listed = re.fullmatch(r"(\*{0,2}\w+(?:, \*{0,2}\w+)*) : (.+)", line) if inside else None
        made += [listed[1], f"    {listed[2]}"] if listed else [line]
    lines[:] = made


def as_plain_text(
    app: object, what: str, name: str, of: object, options: object, lines: list[str]
) -> None:
    """Escape names that end in an underscore, which are not links."""
    for place, line in enumerate(lines):
        if not line.lstrip().startswith(".. "):
            without_links = re.sub(r":ref:`([^<`]*?)\s*<[^>]*>`", r"\1", line)
            lines[place] = re.sub(r"(?<![`\w])(\w+)_(?![\w`])", r"\1\\_", without_links)


def setup(app: object) -> None:
    app.connect("autodoc-process-docstring", meanings_below, priority=100)  # type: ignore[attr-defined]
    # After napoleon, whose output contains links.
    app.connect("autodoc-process-docstring", as_plain_text, priority=900)  # type: ignore[attr-defined]
    app.connect("config-inited", gather)  # type: ignore[attr-defined]
    app.connect("source-read", turn_links)  # type: ignore[attr-defined]
