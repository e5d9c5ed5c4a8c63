"""Check the built site: python docs/check_site.py build/site

Every link must lead to an existing page and anchor, no page may load anything from another host,
and the API pages must be those of the public names.
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
FETCHED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
# Values of `rel` that are for search engines and load nothing.
_NOT_FETCHED = {"canonical", "search"}


class Page(HTMLParser):
    """Anchors, links and loaded resources of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.places: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.places |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag in FETCHED and FETCHED[tag] in values and values.get("rel") not in _NOT_FETCHED:
            self.fetched.append(values[FETCHED[tag]])


@cache
def page(path: Path) -> Page:
    return Page(path)


def is_elsewhere(link: str) -> bool:
    return link.startswith("//") or urlsplit(link).scheme in ("http", "https", "ftp")


def has_place(path: Path, name: str) -> bool:
    return not name or name in page(path).places


def dead_links(path: Path) -> Iterator[str]:
    for link in (*page(path).links, *page(path).fetched):
        parts = urlsplit(link)
        if parts.scheme or link.startswith("//"):
            continue
        there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        if not there.is_file():
            yield f"leads to {link}, which is not there"
        elif there.suffix == ".html" and not has_place(there, unquote(parts.fragment)):
            yield f"leads to {link}: there is no such place on that page"


def requests_elsewhere(path: Path) -> Iterator[str]:
    for link in page(path).fetched:
        if is_elsewhere(link):
            yield f"fetches {link}"


def styles_elsewhere(path: Path) -> Iterator[str]:
    text = path.read_text("utf-8")
    for link in re.findall(r"(?:url\(|@import\s*)[\"']?((?:https?:)?//[^\"')\s]+)", text):
        yield f"fetches {link}"


def names_without_page(site: Path) -> Iterator[str]:
    public = {name for name in histodict.__all__ if not name.startswith("_")}
    shown = {path.stem.rpartition(".")[2] for path in (site / "api").glob("*.html")}
    yield from (f"api: {name} has no page" for name in sorted(public - shown))
    yield from (f"api: {name} has a page, but is not public" for name in sorted(shown - public))


def pages(site: Path) -> list[Path]:
    """Return all pages, without the files of the theme."""
    return [path for path in sorted(site.rglob("*.html")) if "_static" not in path.parts]


def complaints(site: Path) -> Iterator[str]:
    for path in pages(site):
        name = path.relative_to(site)
        yield from (f"{name}: {words}" for words in (*dead_links(path), *requests_elsewhere(path)))
    for path in sorted(site.rglob("*.css")):
        yield from (f"{path.relative_to(site)}: {words}" for words in styles_elsewhere(path))
    yield from names_without_page(site)


def main() -> None:
    site = Path(sys.argv[1]).resolve()
    found = list(complaints(site))
    print(*found, sep="\n", end="\n" if found else "")
    print(f"{len(pages(site))} pages, {len(found)} complaints")
    sys.exit(1 if found or not pages(site) else 0)


if __name__ == "__main__":
    main()
