"""The map of a large image in a real browser: computed on request, with progress, cancelled, and
computed after trainings."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("starlette", reason='the web app is not installed: pip install ".[web]"')
pytest.importorskip("uvicorn", reason='the web app is not installed: pip install ".[web]"')
pytest.importorskip("playwright", reason="Playwright is not installed")

from tests.web.app import TINY
from tests.web.browser import ForkedServer, find_chromium, sign_in, wait_until
from tests.web.test_browser import LAPTOP, SLOW, keep_picture
from tests.web.test_messages import lay_out

if find_chromium() is None:
    pytest.skip("there is no Chromium on this machine", allow_module_level=True)


@pytest.fixture(scope="module")
def server(tissue, tmp_path_factory):
    """A set for training, and a large image of repeated tissue."""
    base = tmp_path_factory.mktemp("maps")
    colon = lay_out(tissue, base / "folder" / "colon")
    pixels = np.asarray(Image.open(min(colon.glob("normal/*/*.jpg"))))
    (base / "folder" / "slides").mkdir()
    large = Image.fromarray(np.tile(pixels, (34, 32, 1)))
    large.save(base / "folder" / "slides" / "large.jpg", quality=80)
    server = ForkedServer(base / "workspace", [base / "folder"]).start()
    yield server
    server.stop()


def request(server, path, body=None):
    return json.loads(server.get(path) if body is None else server.post(path, body))


def state_of(server, job):
    return request(server, f"/api/jobs/{job}")["state"]


@pytest.fixture(scope="module")
def viewer_address(server):
    """The address of the large image in the viewer, with a model."""
    data, slides = (
        request(server, "/api/data", {"folder_index": 0, "relative_path": name})["id"]
        for name in ("colon", "slides")
    )
    settings = TINY | {"stride_px": "5"}  # so that a map takes a while
    body = {"data": data, "preset": "quick", "settings": settings, "test_folds": 0}
    job = request(server, "/api/jobs", body)["id"]
    wait_until(lambda: state_of(server, job) == "done")
    (image,) = request(server, f"/api/data/{slides}")["images"]
    return body, f"{job}/{slides}/{image['id']}"


@pytest.fixture(scope="module")
def page(browser, server, viewer_address):
    page = browser.new_page(viewport=LAPTOP)
    page.set_default_timeout(60_000)
    sign_in(page, server)
    page.goto(f"{server.address}/#/look/{viewer_address[1]}")
    yield page


def test_no_map_is_started_without_a_request(page, server):
    page.get_by_text("This image is large (21 megapixels)").wait_for()
    page.wait_for_timeout(500)
    found = request(server, "/api/jobs")
    assert found["maps"] == [] and [job["state"] for job in found["jobs"]] == ["done"]
    keep_picture(page, "look-large")


def test_map_shows_progress_yields_to_a_training_and_is_listed(page, server, viewer_address):
    page.locator("#make-map").click()
    page.locator("#cancel-map").wait_for()
    (job,) = request(server, "/api/jobs")["maps"]
    wait_until(lambda: request(server, "/api/jobs")["maps"][0]["fraction_done"] > 0)
    page.locator("#answer progress:not([value='0'])").wait_for()
    keep_picture(page, "look-map-work")
    training = request(server, "/api/jobs", viewer_address[0] | {"seed": 1})["id"]
    wait_until(lambda: state_of(server, training) == "running")
    assert state_of(server, job["id"]) == "waiting"
    page.get_by_role("link", name="2 Train").click()
    page.locator("#maps").get_by_text("large.jpg").wait_for()
    keep_picture(page, "train-maps")
    wait_until(lambda: state_of(server, training) == "done")
    page.get_by_role("button", name="Cancel the map of large.jpg").click(timeout=SLOW)
    page.locator("#maps .state.cancelled").wait_for()
    assert state_of(server, job["id"]) == "cancelled"


def test_cancelled_map_is_started_again(page, server):
    page.locator("#maps").get_by_role("link", name="large.jpg").click()
    page.get_by_role("button", name="Compute the map again").click()
    page.locator("#cancel-map").click()
    page.get_by_role("button", name="Compute the map again").wait_for()
    assert [job["state"] for job in request(server, "/api/jobs")["maps"]] == ["cancelled"]
