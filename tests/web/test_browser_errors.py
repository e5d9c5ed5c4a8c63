"""Error handling in a real browser: links outside the folder, missing folders, double clicks; and
preservation of input, scroll position and focus."""

from __future__ import annotations

import json
import shutil

import pytest

pytest.importorskip("starlette", reason='the web app is not installed: pip install ".[web]"')
pytest.importorskip("uvicorn", reason='the web app is not installed: pip install ".[web]"')
pytest.importorskip("playwright", reason="Playwright is not installed")

from tests.web.browser import ForkedServer, find_chromium, sign_in
from tests.web.test_browser import LAPTOP, SLOW, keep_picture
from tests.web.test_messages import lay_out

if find_chromium() is None:
    pytest.skip("there is no Chromium on this machine", allow_module_level=True)

LONG = {"n_atoms": "40", "n_iter": "5000", "tol": "0", "patches_per_class": "300", "patch_px": "12"}


@pytest.fixture(scope="module")
def folder(tissue, tmp_path_factory):
    """A set with a link outside the folder and an unreadable image; and one that will be
    removed."""
    base = tmp_path_factory.mktemp("sturdy")
    colon = lay_out(tissue, base / "folder" / "colon")
    lay_out(tissue, base / "folder" / "short-lived")
    first, second, *_ = sorted(colon.glob("normal/*/*.jpg"))
    (base / "secret.jpg").write_bytes(first.read_bytes())
    second.with_name("link.jpg").symlink_to(base / "secret.jpg")
    first.write_bytes(first.read_bytes()[:500])
    return base / "folder"


@pytest.fixture(scope="module")
def server(folder):
    server = ForkedServer(folder.parent / "workspace", [folder]).start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def page(browser, server):
    page = browser.new_page(viewport=LAPTOP)
    page.set_default_timeout(60_000)
    page.on("dialog", lambda dialog: dialog.accept("A better name"))
    sign_in(page, server)
    yield page


def request(server, path, body=None):
    return json.loads(server.get(path) if body is None else server.post(path, body))


@pytest.fixture(scope="module")
def data(server):
    return request(server, "/api/data", {"folder_index": 0, "relative_path": "colon"})["id"]


def visit(page, server, *parts):
    page.goto(f"{server.address}/#/{'/'.join(parts)}")


def test_link_outside_the_folder_is_skipped_with_a_warning(page, server, data):
    visit(page, server, "data", data)
    page.get_by_text("skipped, as they lie outside the data folders").wait_for()
    page.get_by_text("link.jpg").first.wait_for()
    page.get_by_role("link", name="Train on these images").wait_for()
    assert page.locator(".thumbs img").count() == 8


def test_missing_folder_does_not_hide_others(page, server, folder, data):
    lost = request(server, "/api/data", {"folder_index": 0, "relative_path": "short-lived"})["id"]
    visit(page, server, "data", lost)
    page.get_by_role("link", name="Train on these images").wait_for()
    shutil.rmtree(folder / "short-lived")
    for way in ("data", "train", "look/-"):
        visit(page, server, way, lost)
        page.reload()
        page.locator("#nav a").first.click()
        page.locator("summary", has_text="Choose data").wait_for()
    visit(page, server, "data", lost)
    page.locator("#lost").wait_for()
    keep_picture(page, "data-lost")
    page.get_by_role("button", name="▸ colon").click()
    page.get_by_role("button", name="↑ up").wait_for()
    page.get_by_role("button", name="Open this folder").click()
    page.get_by_role("link", name="Train on these images").wait_for()


def test_images_are_excluded_individually(page, server, data):
    visit(page, server, "data", data)
    page.locator("#bad-images").get_by_role("button").click()
    page.locator("#bad-images").wait_for(state="detached")
    visit(page, server, "look", "-", data)
    page.locator("#viewer").wait_for()
    page.goto(f"{server.address}/#/data/{data}")
    choices = page.locator(".thumbs select")
    assert choices.first.evaluate("box => box.selectedOptions[0].text") == "exclude"
    with page.expect_response(lambda response: response.url.endswith("/correct")):
        choices.nth(1).select_option(label="exclude")
    out = [c["name"] for c in request(server, f"/api/data/{data}")["corrections"]]
    assert len(out) == 2
    with page.expect_response(lambda response: response.url.endswith("/correct")):
        choices.nth(1).select_option("normal")
    assert len(request(server, f"/api/data/{data}")["corrections"]) == 1


def test_labelled_images_explain_how_to_annotate(page, server, data):
    image = request(server, f"/api/data/{data}")["images"][-1]["id"]
    visit(page, server, "look", "-", data, image)
    page.locator("#no-brush summary").click()
    page.get_by_text("of whole images").wait_for()
    page.locator("#no-brush").get_by_role("button", name="Annotate without labels").click()
    page.locator("#class-name").wait_for()
    assert page.url.endswith(image) and data not in page.url  # the same image, of another set
    page.get_by_text("annotate two classes to get a quick prediction").wait_for()
    assert page.locator("#corrections").inner_text() == ""
    page.locator("#nav a").first.click()
    page.get_by_text("existing labels are ignored").wait_for()
    # the address is as requested
    assert page.locator(".warning", has_text="labels are ignored").count() == 0
    visit(page, server, "data", data)
    page.get_by_role("button", name="Annotate without labels").wait_for()


def test_input_and_position_are_restored_after_back(page, server, data):
    visit(page, server, "train", data)
    page.locator("input[name=n_atoms]").fill("77")
    page.get_by_label("Test patients").select_option("2")
    page.get_by_role("link", name="1 Data").click()
    page.get_by_role("link", name="Train on these images").wait_for()
    page.locator(".thumbs a").last.wait_for(state="attached")  # or the page is too short to scroll
    page.mouse.wheel(0, 400)
    page.wait_for_function("() => scrollY > 50")
    page.locator(".thumbs a").last.scroll_into_view_if_needed()  # as a click would do
    page.wait_for_timeout(400)
    depth = page.evaluate("scrollY")
    assert depth > 50
    page.locator(".thumbs a").last.click()
    page.locator("#viewer[data-scale]").wait_for()
    page.locator("#viewer").focus()
    before = page.locator("#viewer").get_attribute("data-scale")
    page.keyboard.press("+")
    page.locator(f"#viewer:not([data-scale='{before}'])").wait_for()
    scroll_depth = page.locator("#viewer").get_attribute("data-scale")
    page.go_back()
    page.locator(".thumbs").first.wait_for()
    page.wait_for_function("depth => Math.abs(scrollY - depth) < 2", arg=depth)
    page.go_forward()
    page.locator(f"#viewer[data-scale='{scroll_depth}']").wait_for()
    page.go_back()
    page.locator(".thumbs").first.wait_for()
    page.go_back()
    page.locator("input[name=n_atoms]").wait_for()
    assert page.locator("input[name=n_atoms]").input_value() == "77"
    assert page.get_by_label("Test patients").input_value() == "2"


def test_second_click_starts_no_second_training(page, server, data):
    visit(page, server, "train", data)
    page.locator("summary", has_text="All settings").click()
    for name, value in LONG.items():
        page.locator(f"input[name={name}]").fill(value)
    start = page.get_by_role("button", name="Start training")
    start.dblclick(delay=80)
    page.get_by_role("button", name="Cancel").wait_for()
    page.get_by_role("button", name="Start training").click()  # slower than a double click
    page.wait_for_timeout(500)
    assert len(request(server, "/api/jobs")["jobs"]) == 1


def test_progress_keeps_the_focus_and_limits_announcements(page):
    page.locator("#objective").wait_for(timeout=SLOW)
    page.locator("[role=status]").get_by_text("running").wait_for()
    page.get_by_role("button", name="Cancel").focus()
    page.locator("[role=status]").evaluate(
        "place => new MutationObserver(() => { place.dataset.said = '1'; })"
        ".observe(place, {childList: true, characterData: true, subtree: true})"
    )
    for _ in range(2):
        before = page.locator("#objective").get_attribute("aria-label")
        page.locator(f"#objective:not([aria-label='{before}'])").wait_for(timeout=SLOW)
    assert page.evaluate("document.activeElement.textContent") == "Cancel"
    assert page.locator("[role=status]").get_attribute("data-said") is None
    assert page.locator("[aria-live] .stages").count() == 0
    page.keyboard.press("Enter")
    page.locator("#job-state.cancelled").wait_for()
    assert page.locator("[role=status]").get_attribute("data-said") == "1"


def test_training_is_renamed_and_deleted(page, server):
    page.locator("#rename").click()
    page.locator(".jobs").get_by_text("A better name").wait_for()
    (job,) = request(server, "/api/jobs")["jobs"]
    assert job["name"] == "A better name"
    keep_picture(page, "train-renamed")
    page.locator("#delete").click()
    page.get_by_text("Progress is shown here").wait_for()
    assert request(server, "/api/jobs")["jobs"] == []
    assert not list(server.workspace.glob("users/local/jobs/*/job.json"))
