"""Thousands of images in a real browser: few are in the page at a time, and all can be reached."""

from __future__ import annotations

import json
import os

import pytest

pytest.importorskip("starlette", reason='the web app is not installed: pip install ".[web]"')
pytest.importorskip("uvicorn", reason='the web app is not installed: pip install ".[web]"')
pytest.importorskip("playwright", reason="Playwright is not installed")
pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")

from axe_playwright_python.sync_playwright import Axe

from tests.web.browser import ForkedServer, find_chromium, sign_in, wait_until
from tests.web.test_browser import LAPTOP, keep_picture

if find_chromium() is None:
    pytest.skip("there is no Chromium on this machine", allow_module_level=True)

N_IMAGES = 1800
MOST_ELEMENTS = 2000


@pytest.fixture(scope="module")
def server(tissue, tmp_path_factory):
    """A class of a few images per patient, one of many, and one without patients."""
    base = tmp_path_factory.mktemp("many")
    image = min((tissue / "tissue" / "healthy").iterdir())
    for number in range(N_IMAGES):
        label = ("few/p{0}/{1}", "much/p9999/{1}", "none/{1}")[number % 3]
        path = base / "folder" / f"{label.format(number // 9, number)}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        os.link(image, path)
    for path in (base / "folder", *(base / "folder").rglob("*/")):
        os.utime(path, (0, 0))  # the index of a folder that has just changed is not cached
    server = ForkedServer(base / "workspace", [base / "folder"]).start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def data(server):
    id_ = json.loads(server.post("/api/data", {"folder_index": 0, "relative_path": ""}))["id"]
    return json.loads(server.get(f"/api/data/{id_}"))


@pytest.fixture(scope="module")
def page(browser, server):
    page = browser.new_page(viewport=LAPTOP)
    page.set_default_timeout(60_000)
    sign_in(page, server)
    yield page


def n_elements(page) -> int:
    return page.evaluate("document.querySelectorAll('*').length")


def test_data_page_loads_visible_images_and_reaches_the_last(page, server, data):
    page.goto(f"{server.address}/#/data/{data['id']}")
    page.locator(".thumbs img").first.wait_for()
    assert page.locator(".counts tr.total td").nth(1).inner_text() == str(N_IMAGES)
    assert n_elements(page) < MOST_ELEMENTS
    last = max(i["name"] for i in data["images"] if i["label"] == "none").removeprefix("none/")
    for _ in range(40):  # content that comes into view may change the length of the page
        page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
        page.wait_for_timeout(50)
        if page.locator("figcaption span", has_text=last).count():
            break
    page.locator("figcaption span", has_text=last).wait_for()
    assert n_elements(page) < MOST_ELEMENTS
    page.evaluate("scrollTo(0, 0)")
    page.locator("h3", has_text="p0").first.wait_for()
    assert n_elements(page) < MOST_ELEMENTS
    keep_picture(page, "data-many")


def test_viewer_shows_neighbours_and_finds_any_image(page, server, data):
    middle = data["images"][len(data["images"]) // 2]
    requested = []
    page.on("request", lambda request: requested.append(request.url))
    page.goto(f"{server.address}/#/look/-/{data['id']}/{middle['id']}")
    chosen = page.locator(".strip a[aria-current]")
    chosen.wait_for()

    def is_in_strip() -> bool:
        box, strip = chosen.bounding_box(), page.locator(".strip").bounding_box()
        return bool(box) and strip["y"] <= box["y"] <= strip["y"] + strip["height"]

    wait_until(is_in_strip, 60)
    wait_until(lambda: page.wait_for_timeout(20) or any("thumbnail" in url for url in requested))
    kinds = [kind for url in requested for kind in ("tiles", "thumbnail") if kind in url]
    assert kinds[0] == "tiles"  # the viewed tiles are requested before the rest
    assert n_elements(page) < MOST_ELEMENTS
    other = data["images"][-1]
    page.locator("#find-image").fill(other["name"].upper())
    (link,) = page.locator(".strip a").all()
    assert other["id"] in link.get_attribute("href")
    page.locator("#find-image").fill("no such image")
    page.get_by_text("No image name contains this text").wait_for()
    page.locator("#find-image").fill("")
    chosen.wait_for()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_pages_of_many_images_are_accessible(page, server, data, width, scheme):
    page.set_viewport_size({"width": width, "height": 800})
    page.emulate_media(color_scheme=scheme)
    image = data["images"][100]["id"]
    for place, sign in (
        (f"data/{data['id']}", ".thumbs img"),
        (f"look/-/{data['id']}/{image}", "#viewer"),
    ):
        page.goto(f"{server.address}/#/{place}")
        page.locator(sign).first.wait_for()
        page.wait_for_timeout(200)
        keep_picture(page, f"many-{place.split('/')[0]}-{width}-{scheme}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, place
        found = Axe().run(page)
        assert found.violations_count == 0, f"{place}: {found.generate_report()}"
