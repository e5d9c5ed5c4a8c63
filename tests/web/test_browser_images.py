"""Checks and settings of a data set before training, in a real browser; nothing is trained."""

from __future__ import annotations

import shutil

import pytest

pytest.importorskip("starlette", reason='the web app is not installed: pip install ".[web]"')
pytest.importorskip("uvicorn", reason='the web app is not installed: pip install ".[web]"')
pytest.importorskip("playwright", reason="Playwright is not installed")

from tests.web.browser import ForkedServer, find_chromium
from tests.web.test_browser import LAPTOP, keep_picture
from tests.web.test_messages import lay_out

if find_chromium() is None:
    pytest.skip("there is no Chromium on this machine", allow_module_level=True)

BLUE, ORANGE = "#0072b2", "#d55e00"


@pytest.fixture(scope="module")
def folder(tissue, tmp_path_factory):
    """A set with an unreadable image and one of another format."""
    folder = lay_out(tissue, tmp_path_factory.mktemp("seen") / "folder" / "colon")
    broken = min(folder.glob("normal/*/*.jpg"))
    broken.write_bytes(broken.read_bytes()[:500])
    shutil.copy(min(folder.glob("normal/*/*.jpg")), broken.with_name("scan.webp"))
    return folder


@pytest.fixture(scope="module")
def page(browser, folder):
    """The data page of the set."""
    server = ForkedServer(folder.parents[1] / "workspace", [folder.parent]).start()
    page = browser.new_page(viewport=LAPTOP)
    page.set_default_timeout(60_000)
    page.goto(server.link)
    page.get_by_role("button", name="▸ colon").click()
    page.get_by_role("button", name="↑ up").wait_for()  # the folder above is shown until then
    page.get_by_role("button", name="Open this folder").click()
    page.locator("#sizes").wait_for()
    yield page
    server.stop()


def colours(page):
    """Return the colours of the class squares in the table of counts."""
    rows = page.locator(".counts tr:not(.total)").filter(has=page.locator("rect")).all()
    return {r.inner_text().split()[0]: r.locator("rect").get_attribute("fill") for r in rows}


def test_guessed_positive_class_is_stated_and_has_the_warm_colour(page):
    assert page.locator("#positive").input_value() == "adenocarcinoma"
    page.get_by_text("Guessed from its name").wait_for()
    assert colours(page) == {"normal": BLUE, "adenocarcinoma": ORANGE}
    page.locator("#positive").select_option("normal")
    page.get_by_text("Chosen by you.").wait_for()
    assert colours(page) == {"adenocarcinoma": BLUE, "normal": ORANGE}


def test_page_requests_the_positive_class_if_names_are_uninformative(page, folder):
    (folder / "normal").rename(folder / "tumour")
    page.reload()
    page.get_by_text("It cannot be guessed from the names").wait_for()
    assert page.locator("#positive").input_value() == ""
    page.locator("#positive").select_option("tumour")  # even if it is the one selected
    page.get_by_text("Chosen by you.").wait_for()
    (folder / "tumour").rename(folder / "normal")
    page.reload()
    page.locator("#positive").select_option("normal")
    page.get_by_text("Chosen by you.").wait_for()


def test_problems_of_images_are_listed(page):
    bad = page.locator("#bad-images")
    bad.wait_for()
    assert "1 image cannot be read" in bad.inner_text() and "damaged" in bad.inner_text()
    page.get_by_text("skipped files that are not images: scan.webp").wait_for()
    page.get_by_text("The pixel size of 7 of 7 images is unknown").wait_for()
    keep_picture(page, "data-warnings")


def test_training_requires_consent_to_skip_unreadable_images(page):
    page.get_by_role("link", name="Train on these images").click()
    page.locator("#bad-images").wait_for()
    page.get_by_role("button", name="Start training").click()
    page.locator("#notice").get_by_text("1 of 8 images cannot be read").wait_for()
    page.locator("#mpp").fill("0,5")
    page.locator("#mpp").press("Tab")
    page.get_by_text("0.5 µm per pixel, set by you").wait_for()
    page.locator("#skip-bad").check()
    keep_picture(page, "train-images")
    page.get_by_label("Test patients").select_option("0")
    with page.expect_request(lambda request: request.url.endswith("/api/jobs")) as requested:
        page.get_by_role("button", name="Start training").click()
    assert requested.value.post_data_json["skip_bad"] is True
    page.get_by_role("button", name="Cancel").click()
    page.locator("#job-state.cancelled").wait_for()
