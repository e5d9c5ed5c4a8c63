"""Tests of the checker of the documentation site, and of link conversion."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

import histodict

DOCS = Path(__file__).parents[1] / "docs"
if not (DOCS / "conf.py").is_file():
    pytest.skip("the site's source is not here", allow_module_level=True)


def load(name):
    spec = spec_from_file_location(f"site_{name}", DOCS / f"{name}.py")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


check_site, conf = load("check_site"), load("conf")


@pytest.fixture
def site(tmp_path):
    """A small site without errors."""
    (tmp_path / "api").mkdir()
    for name in histodict.__all__:
        if not name.startswith("_"):
            (tmp_path / "api" / f"histodict.{name}.html").write_text("<p>")
    (tmp_path / "index.html").write_text(
        '<h1 id="top">A</h1><a href="#top">a</a> <a href="api/histodict.DFDL.html">b</a>'
        '<a href="https://example.org">elsewhere, if somebody follows it</a><img src="a.png">'
    )
    (tmp_path / "a.png").write_bytes(b"")
    return tmp_path


def test_correct_site_has_no_errors(site):
    assert list(check_site.site_errors(site)) == []


@pytest.mark.parametrize(
    ("html", "message"),
    [
        ('<a href="gone.html">', "no such file"),
        ('<a href="#gone">', "no such anchor"),
        ('<a href="index.html#gone">', "no such anchor"),
        ('<img src="gone.png">', "no such file"),
        ('<script src="https://cdn.example.org/a.js"></script>', "loads https"),
        ('<link rel="stylesheet" href="//cdn.example.org/a.css">', "loads //cdn"),
    ],
)
def test_error_is_reported_with_its_page(site, html, message):
    (site / "faulty.html").write_text(html)
    (error,) = check_site.site_errors(site)
    assert error.startswith("faulty.html: ")
    assert message in error


def test_external_resource_of_a_stylesheet_is_reported(site):
    (site / "a.css").write_text("@import 'https://fonts.example.org/a'; b { c: url(a.png) }")
    assert list(check_site.site_errors(site)) == ["a.css: loads https://fonts.example.org/a"]


def test_api_pages_match_the_public_names(site):
    (site / "api" / "histodict.DFDL.html").rename(site / "api" / "histodict.secret.html")
    (site / "index.html").write_text("")
    assert list(check_site.site_errors(site)) == [
        "api: DFDL has no page",
        "api: secret has a page, but is not public",
    ]


def test_links_are_converted_to_copies_of_outside_files():
    text = "[a](../benchmarks/README.md#gpu) [b](web.md) [c](https://x.y/z.md) [d](#here)"
    assert conf.rewrite_links(text, DOCS, DOCS / "x.md") == (
        "[a](project/benchmarks.md#gpu) [b](web.md) [c](https://x.y/z.md) [d](#here)"
    )
    readme = "[a](docs/web.md) [b](SECURITY.md)"
    assert conf.rewrite_links(readme, DOCS.parent, DOCS / "project" / "x.md") == (
        "[a](../web.md) [b](security-policy.md)"
    )


def test_descriptions_are_not_taken_for_types():
    lines = ["Does.", "", "Parameters", "----------", "a, b : how many : or", "    more", "c : x"]
    conf.format_definitions(None, "", "", None, None, lines)
    assert lines[4:] == ["a, b", "    how many : or", "    more", "c", "    x"]
