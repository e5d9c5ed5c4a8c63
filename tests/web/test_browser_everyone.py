"""The page for every eye and every screen: no violation that axe-core knows of, nothing that
reaches beyond the screen, on a laptop and a telephone, by day and by night, with long names.
"""

from __future__ import annotations

import json
import re
import shutil
import time

import pytest

pytest.importorskip(
    "starlette", reason="the web app is not installed: pip install 'histodict[web]'"
)
pytest.importorskip("uvicorn", reason="the web app is not installed: pip install 'histodict[web]'")
pytest.importorskip("playwright", reason="Playwright is not installed")
pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")

from axe_playwright_python.sync_playwright import Axe

from histodict.images.manifest import read_manifest
from tests.web.app import TINY
from tests.web.browser import Server, find_chromium, open_browser, sign_in
from tests.web.test_browser import keep_picture

if find_chromium() is None:
    pytest.skip("there is no Chromium on this machine", allow_module_level=True)

LONG = "adenocarcinoma-of-the-ascending-colon-moderately-differentiated-G2"
NAMES = {"inflamed": LONG, "healthy": "normal"}
SCREENS = {"laptop": (1280, 800), "telephone": (390, 800)}


@pytest.fixture(scope="module")
def server(tissue, tmp_path_factory):
    base = tmp_path_factory.mktemp("everyone")
    for record in read_manifest(tissue / "tissue" / "manifest.csv").records:
        patient = f"{record.patient}-of-the-university-hospital-of-a-town-with-a-long-name"
        name = f"{record.path.stem}-scanned-again-because-it-was-out-of-focus-2026-11-18.jpg"
        path = base / "folder" / "colon" / NAMES[record.label] / patient / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(record.path, path)
    broken = min((base / "folder").glob("*/normal/*/*.jpg"))
    broken.write_bytes(broken.read_bytes()[:500])
    server = Server(base / "workspace", [base / "folder"]).start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def places(server):
    """By page where it is, once there is a model that was corrected."""

    def ask(path, body=None):
        return json.loads(server.get(path) if body is None else server.post(path, body))

    def train(**wish):
        body = {"data": data, "preset": "quick", "settings": TINY, "test_folds": 2} | wish
        job = ask("/api/jobs", body | {"skip_bad": True})["id"]
        while (found := ask(f"/api/jobs/{job}"))["state"] in ("waiting", "running"):
            time.sleep(0.2)
        assert found["state"] == "done", found["error"]
        return job

    data = ask("/api/data", {"place": 0, "inside": "colon"})["id"]
    first = train()
    row = ask(f"/api/jobs/{first}/model")["results"]["images"][0]
    (other,) = {*NAMES.values()} - {row["label"]}
    ask(f"/api/data/{data}/correct", {"image": row["image"], "label": other, "box": None})
    job = train(parent=first)
    return {
        "data": f"data/{data}",
        "train": f"train/{data}/{job}",
        "model": f"model/{job}",
        "look": f"look/{job}/{data}/{row['image']}",
    }


READY = {"data": "#sizes", "train": "#see-model", "model": "#changes", "look": "#map-class"}


@pytest.fixture(scope="module")
def browser():
    with open_browser() as browser:
        yield browser


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("screen", SCREENS)
def test_every_page_is_for_everyone(browser, server, places, screen, scheme):
    width, height = SCREENS[screen]
    size = {"width": width, "height": height}
    page = browser.new_page(viewport=size, color_scheme=scheme, has_touch=screen == "telephone")
    page.set_default_timeout(20_000)
    sign_in(page, server)
    for name, place in places.items():
        page.goto(f"{server.address}/#/{place}")
        page.locator(READY[name]).wait_for()
        if name == "data":
            page.locator("#bad-images").wait_for()
            page.locator("summary", has_text="Choose data").click()
        if name == "look":
            explain(page)
        keep_picture(page, f"everyone-{name}-{screen}-{scheme}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        found = Axe().run(page)
        assert found.violations_count == 0, f"{name}: {found.generate_report()}"
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (int(re.findall(r"\d+", paper)[0]) < 64) is (scheme == "dark")
    page.close()


def explain(page):
    """Of the patch in the middle; the image has the width that there is, and is large enough."""
    box = page.locator("#viewer").bounding_box()
    assert box["width"] > 0.5 * page.viewport_size["width"] and box["height"] > 300
    page.locator("#viewer").click()
    page.locator("#why-words").wait_for()
