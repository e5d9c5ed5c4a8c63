"""A session in a real browser: open, train, view, explain, correct, retrain.

The steps build on each other and run in this order. Set HISTODICT_SCREENSHOTS to a folder to store
a screenshot of every page. Those of docs/screenshots, which the documentation shows, are made this
way (the others are not stored); `compare` is
`models-compare-1280-light` of test_browser_models.py.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from urllib.parse import urlsplit

import pytest

pytest.importorskip("starlette", reason='the web app is not installed: pip install ".[web]"')
pytest.importorskip("uvicorn", reason='the web app is not installed: pip install ".[web]"')
pytest.importorskip("playwright", reason="Playwright is not installed")

from histodict.synthetic.dataset import write_synthetic_dataset
from histodict.web.workspace import read_json
from tests.web.browser import ForkedServer, find_chromium, wait_until

if find_chromium() is None:
    pytest.skip("there is no Chromium on this machine", allow_module_level=True)

LAPTOP = {"width": 1366, "height": 768}
SLOW = 300_000  # milliseconds; a busy machine trains slowly


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_synthetic_dataset(folder / "tissue", 4, 4, size=(240, 180))
    server = ForkedServer(tmp_path_factory.mktemp("workspace"), [folder]).start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def visit(browser, server):
    """The page, and every address requested by it."""
    page = browser.new_page(viewport=LAPTOP, accept_downloads=True)
    page.set_default_timeout(60_000)
    requests, errors = [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on(
        "response", lambda response: errors.append(response.url) if response.status >= 400 else None
    )
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(server.link)
    yield page, requests, errors


@pytest.fixture
def page(visit):
    return visit[0]


def keep_picture(page, name: str) -> None:
    folder = os.environ.get("HISTODICT_SCREENSHOTS")
    if folder:
        page.wait_for_load_state("networkidle")
        page.screenshot(path=Path(folder) / f"{name}.png")


def counts(page) -> dict[str, int]:
    cells = page.locator("#confusion td[data-cell]")
    return {cell.get_attribute("data-cell"): int(cell.inner_text()) for cell in cells.all()}


def test_folder_is_opened_and_shown_by_class_and_patient(page):
    page.get_by_role("button", name="▸ tissue").click()
    page.get_by_role("button", name="↑ up").wait_for()  # the folder above is shown until then
    keep_picture(page, "data-choose")
    page.get_by_role("button", name="Open this folder").click()
    page.get_by_role("link", name="Train on these images").wait_for()
    assert page.locator(".class-group").count() == 2
    assert page.locator(".patient").count() == 8
    assert page.locator(".counts tr.total").inner_text().split() == ["total", "16", "4"]
    page.get_by_text("Checked: no warnings.").wait_for()
    assert page.locator("#sizes td").all_inner_texts() == ["0.5 µm per pixel, from the table", "16"]
    assert page.locator("#positive").input_value() == "inflamed"
    images = page.locator(".thumbs img")
    assert images.first.evaluate("image => image.decode().then(() => image.naturalWidth)") > 100
    keep_picture(page, "data")


def test_file_opened_by_serve_leads_to_the_page(server, page):
    """No token is on a command line; and a strict cookie is not sent from a file."""
    stranger = page.context.browser.new_page()
    stranger.goto((server.workspace / "users" / "local" / "open.html").as_uri())
    stranger.get_by_role("link", name="Data").wait_for(timeout=SLOW)
    assert stranger.url.startswith(f"{server.address}/") and "token" not in stranger.url
    stranger.close()


def test_training_shows_its_progress_and_gives_a_model(page):
    page.get_by_role("link", name="Train on these images").click()
    page.get_by_role("button", name="Start training").wait_for()
    for name, value in {
        "patches_per_class": "300",
        "n_atoms": "50",
        "n_iter": "3",
        "patch_px": "16",
    }.items():
        page.locator(f"input[name={name}]").fill(value)
    page.get_by_label("Test patients").select_option("2")
    page.get_by_role("button", name="Start training").click()
    page.locator(".stages progress").first.wait_for(timeout=SLOW)
    page.locator("#objective polyline").first.wait_for(timeout=SLOW)
    keep_picture(page, "train")
    page.locator("#see-model").wait_for(timeout=SLOW)
    assert page.locator("#job-state").inner_text() == "done"
    assert page.locator("#objective polyline").count() == 2
    page.locator("#see-model").click()


def test_threshold_changes_the_counts(page):
    page.locator("#operating").wait_for()
    own = counts(page)
    assert sum(own.values()) == 8
    keep_picture(page, "model")
    page.locator("#operating").focus()
    page.keyboard.press("End")
    assert counts(page)["healthy/inflamed"] == counts(page)["inflamed/inflamed"] == 0
    box = page.locator("#roc").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.2, box["y"] + box["height"] * 0.2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.95, box["y"] + box["height"] * 0.85, steps=5)
    page.mouse.up()
    assert counts(page)["healthy/healthy"] == 0
    assert counts(page)["inflamed/inflamed"] == 4
    page.get_by_role("button", name="Reset to the threshold of the model").click()
    assert counts(page) == own


def test_moved_threshold_applies_to_viewed_images(page):
    """An image that the table counts as a false negative is shown as one: label, summary and
    map."""
    page.locator("#operating").focus()
    page.keyboard.press("End")
    assert "sensitivity 0 %" in page.locator("#sensitivity").inner_text()
    tuned = page.locator("#tuned")
    assert "Tuned on these images; not an estimate for unseen patients" in tuned.inner_text()
    assert "Accuracy on unseen patients" not in page.locator("#main").inner_text()
    page.locator(".image-link", has_text="inflamed, predicted healthy").first.click()
    page.locator("#moved").wait_for(timeout=SLOW)
    assert page.locator("#answer b").first.inner_text() == "healthy"
    assert page.locator("#map-legend").inner_text().split() == ["healthy", "inflamed"]
    keep_picture(page, "look-moved")
    page.get_by_role("button", name="Reset to the threshold of the model").click()
    page.locator("#moved").wait_for(state="detached")
    page.keyboard.press("Alt+3")
    page.locator("#operating").wait_for()


def test_atoms_and_their_top_patches(page):
    atoms = page.locator(".atoms img")
    assert atoms.count() == 80
    atoms.first.scroll_into_view_if_needed()
    assert atoms.first.evaluate("image => image.decode().then(() => image.naturalWidth)") >= 80
    page.locator(".atoms button").first.click()
    page.locator("#atom-users img").first.wait_for()
    keep_picture(page, "model-atoms")
    assert "research" in page.locator(".card-table").inner_text()


def test_model_and_report_are_downloaded(page, tmp_path):
    with page.expect_download() as waiting:
        page.locator("#download-report").click()
    waiting.value.save_as(tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Model card" in text and 'src="http' not in text and "<script" not in text
    with page.expect_download() as waiting:
        page.locator("#download-model").click()
    waiting.value.save_as(tmp_path / "model.histodict")
    from histodict.models import load_model

    assert load_model(tmp_path / "model.histodict").class_names_ == ["healthy", "inflamed"]


def wait_for_scale(viewer, is_reached):
    """Read an attribute of the page, whose policy forbids evaluating text as a script."""
    wait_until(lambda: is_reached(float(viewer.get_attribute("data-scale"))))


def test_image_is_zoomed_and_a_patch_explained(page):
    page.get_by_role("link", name="Show images").click()
    page.get_by_text("Prediction:").wait_for(timeout=SLOW)
    viewer = page.locator("#viewer")
    before = float(viewer.get_attribute("data-scale"))
    box = viewer.bounding_box()
    middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(*middle)
    page.mouse.wheel(0, -300)
    wait_for_scale(viewer, lambda scale: scale > 1.3 * before)
    viewer.focus()
    page.keyboard.press("0")
    wait_for_scale(viewer, lambda scale: abs(scale - before) < 0.01)
    assert "µm" in page.locator(".scale-bar").inner_text()
    page.mouse.click(*middle)
    page.locator("#why-words").wait_for(timeout=SLOW)
    assert "reconstruct this patch best" in page.locator("#why-words").inner_text()
    residuals = [float(text) for text in page.locator("#residuals td:last-child").all_inner_texts()]
    assert len(residuals) == 2 and residuals[0] != residuals[1]
    assert page.locator("#why-atoms figure").count() >= 1
    assert page.locator("#why-similar img").count() >= 1
    keep_picture(page, "look")


def test_map_can_be_switched_and_outlined(page):
    def canvas_content() -> str:
        return page.locator("#viewer").evaluate("canvas => canvas.toDataURL()")

    seen = [canvas_content()]

    def wait_for_new_content():
        wait_until(lambda: canvas_content() not in seen)
        seen.append(canvas_content())

    page.locator("#map-class").select_option("1")
    wait_for_new_content()
    page.locator("#opacity").fill("0")
    wait_for_new_content()
    page.locator("#outlines").check()
    wait_for_new_content()
    keep_picture(page, "look-outlines")
    page.locator("#opacity").fill("0.5")  # the page stores it


def test_keyboard_is_sufficient(page):
    page.locator("#viewer").focus()
    page.keyboard.press("+")
    page.keyboard.press("ArrowLeft")
    page.locator("#why").evaluate("place => place.replaceChildren()")
    page.keyboard.press("Enter")
    page.locator("#why h2").wait_for()
    page.keyboard.press("Alt+1")
    page.get_by_role("link", name="Train on these images").wait_for()
    page.keyboard.press("Alt+4")
    page.locator("#viewer").wait_for()


def test_corrections_are_trained_on_and_the_change_is_shown(page):
    page.locator("#flip").select_option("inflamed")
    page.get_by_text("label: inflamed").wait_for()
    page.locator("#mark").click()
    box = page.locator("#viewer").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + box["height"] * 0.3)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + box["height"] * 0.7, steps=4)
    page.mouse.up()
    page.get_by_text("region: inflamed").wait_for()
    keep_picture(page, "look-correct")
    page.get_by_role("button", name="Retrain with 2 corrections").click()
    page.locator("#see-model").wait_for(timeout=SLOW)
    page.get_by_role("link", name="Show changes").click()
    page.locator("#changes").wait_for()
    text = page.locator("#changes").inner_text()
    assert "now inflamed" in text and "region labelled inflamed" in text
    assert "Correct before" in text
    keep_picture(page, "model-changes")


def test_crash_of_the_worker_is_reported_and_nothing_is_lost(page, server):
    page.get_by_role("link", name="Train", exact=False).first.click()
    page.get_by_role("button", name="Start training").wait_for()
    page.locator("summary", has_text="All settings").click()
    for name, value in {"n_iter": "5000", "tol": "0", "n_atoms": "40"}.items():
        page.locator(f"input[name={name}]").fill(value)
    page.get_by_role("button", name="Start training").click()
    page.locator("#objective").wait_for(timeout=SLOW)
    (lock,) = (
        path
        for path in server.workspace.glob("users/local/jobs/*/worker.lock")
        if read_json(path.parent / "state.json")["state"] == "running"
    )
    os.kill(int(lock.read_text()), signal.SIGKILL)
    page.locator("#job-error").wait_for()
    assert "ended unexpectedly" in page.locator("#job-error").inner_text()
    assert page.locator(".jobs .state.done").count() == 2
    keep_picture(page, "train-crash")
    page.get_by_role("button", name="Resume").click()
    page.get_by_role("button", name="Cancel").click(timeout=SLOW)
    page.locator("#job-state.cancelled").wait_for()


def test_nothing_was_requested_elsewhere_and_nothing_failed(visit, server):
    _, requests, errors = visit
    own = urlsplit(server.address).netloc
    requested = {urlsplit(url).netloc for url in requests if not url.startswith(("data:", "blob:"))}
    assert len(requests) > 50
    assert requested == {own}
    assert errors == []
