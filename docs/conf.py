"""Configuration of the documentation site, which `make docs` builds.

The pages can also be read in the repository, so their links are paths of files. Pages outside this
folder, such as CONTRIBUTING.md, are copied to `project/` at each build, and links to them are
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

# Pages outside this folder, and the names of their copies in `project/`.
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


def rewrite_links(text: str, folder: Path, page: Path) -> str:
    """Return the text of a page in `folder` with its links rewritten for `page` on the site."""

    def rewrite(link: re.Match[str]) -> str:
        target = (folder / link[1]).resolve()
        copy = OUTSIDE.get(target.relative_to(ROOT).as_posix()) if ROOT in target.parents else None
        if copy:
            target = PROJECT / copy
        elif target == ROOT / "README.md":
            target = DOCS / "index.md"
        return os.path.relpath(target, page.parent) + (link[2] or "")

    return _LINK.sub(rewrite, text)


def copy_outside_pages(app: object, config: object) -> None:
    """Copy the pages outside this folder to `project/`, if they have changed."""
    PROJECT.mkdir(exist_ok=True)
    pages = {name: (ROOT / path).read_text("utf-8") for path, name in OUTSIDE.items()}
    folders = {name: (ROOT / path).parent for path, name in OUTSIDE.items()}
    for name, text in pages.items():
        copy = PROJECT / name
        rewritten = rewrite_links(text, folders[name], copy)
        if not copy.is_file() or copy.read_text("utf-8") != rewritten:
            copy.write_text(rewritten, "utf-8")


def rewrite_page_links(app: object, docname: str, source: list[str]) -> None:
    """Rewrite the links of a page of this folder."""
    page = DOCS / f"{docname}.md"
    if page.is_file() and page.parent != PROJECT:
        source[0] = rewrite_links(source[0], page.parent, page)


_SECTION = re.compile(r"(Parameters|Attributes)\b.*")


def format_definitions(
    app: object, what: str, name: str, of: object, options: object, lines: list[str]
) -> None:
    """Convert `name : description` to a definition; napoleon reads the description as a type."""
    converted: list[str] = []
    in_section = False
    for index, line in enumerate(lines):
        is_title = index + 1 < len(lines) and lines[index + 1].startswith("---")
        if is_title:
            in_section = bool(_SECTION.fullmatch(line))
            line = _SECTION.sub(r"\1", line)  # such as "Attributes of all models"
        entry = re.fullmatch(r"(\*{0,2}\w+(?:, \*{0,2}\w+)*) : (.+)", line) if in_section else None
        converted += [entry[1], f"    {entry[2]}"] if entry else [line]
    lines[:] = converted


def escape_names(
    app: object, what: str, name: str, of: object, options: object, lines: list[str]
) -> None:
    """Escape names that end in an underscore, and remove references of inherited docstrings."""
    for index, line in enumerate(lines):
        if not line.lstrip().startswith(".. "):
            without_links = re.sub(r":ref:`([^<`]*?)\s*<[^>]*>`", r"\1", line)
            lines[index] = re.sub(r"(?<![`\w])(\w+)_(?![\w`])", r"\1\\_", without_links)


def setup(app: object) -> None:
    app.connect("autodoc-process-docstring", format_definitions, priority=100)  # type: ignore[attr-defined]
    # Runs after napoleon, whose output contains links.
    app.connect("autodoc-process-docstring", escape_names, priority=900)  # type: ignore[attr-defined]
    app.connect("config-inited", copy_outside_pages)  # type: ignore[attr-defined]
    app.connect("source-read", rewrite_page_links)  # type: ignore[attr-defined]
