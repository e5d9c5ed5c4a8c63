"""Check the built site: python docs/check_site.py build/site

Every link must have an existing page and anchor as its target, no page may load resources from
another host, and every public name must have an API page.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import histodict

# Attributes that a browser loads without a click.
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
# Values of `rel` for search engines; browsers do not load these links.
_NOT_LOADED = {"canonical", "search"}


class Page(HTMLParser):
    """Anchors, links and loaded resources of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.resources: list[str] = []
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag in LOADED and LOADED[tag] in values and values.get("rel") not in _NOT_LOADED:
            self.resources.append(values[LOADED[tag]])


@cache
def page(path: Path) -> Page:
    return Page(path)


def is_external(link: str) -> bool:
    return link.startswith("//") or urlsplit(link).scheme in ("http", "https", "ftp")


def has_anchor(path: Path, name: str) -> bool:
    return not name or name in page(path).anchors


def dead_links(path: Path) -> Iterator[str]:
    for link in (*page(path).links, *page(path).resources):
        parts = urlsplit(link)
        if parts.scheme or link.startswith("//"):
            continue
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        if not target.is_file():
            yield f"link to {link}: no such file"
        elif target.suffix == ".html" and not has_anchor(target, unquote(parts.fragment)):
            yield f"link to {link}: no such anchor"


def external_resources(path: Path) -> Iterator[str]:
    for link in page(path).resources:
        if is_external(link):
            yield f"loads {link}"


def external_style_resources(path: Path) -> Iterator[str]:
    text = path.read_text("utf-8")
    for link in re.findall(r"(?:url\(|@import\s*)[\"']?((?:https?:)?//[^\"')\s]+)", text):
        yield f"loads {link}"


def api_page_errors(site: Path) -> Iterator[str]:
    public = {name for name in histodict.__all__ if not name.startswith("_")}
    documented = {path.stem.rpartition(".")[2] for path in (site / "api").glob("*.html")}
    yield from (f"api: {name} has no page" for name in sorted(public - documented))
    yield from (
        f"api: {name} has a page, but is not public" for name in sorted(documented - public)
    )


def pages(site: Path) -> list[Path]:
    """Return all pages, without the files of the theme."""
    return [path for path in sorted(site.rglob("*.html")) if "_static" not in path.parts]


def site_errors(site: Path) -> Iterator[str]:
    """Yield the errors of all pages, each with its page."""
    for path in pages(site):
        name = path.relative_to(site)
        yield from (f"{name}: {text}" for text in (*dead_links(path), *external_resources(path)))
    for path in sorted(site.rglob("*.css")):
        yield from (f"{path.relative_to(site)}: {text}" for text in external_style_resources(path))
    yield from api_page_errors(site)


def main() -> None:
    site = Path(sys.argv[1]).resolve()
    errors = list(site_errors(site))
    print(*errors, sep="\n", end="\n" if errors else "")
    print(f"{len(pages(site))} pages, {len(errors)} errors")
    sys.exit(1 if errors or not pages(site) else 0)


if __name__ == "__main__":
    main()
