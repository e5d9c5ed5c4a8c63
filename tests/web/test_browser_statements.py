"""Statements of the page about a model in a real browser: the positive class, training images,
comparison of two models, and overlap of regions. Pages are accessible: no violation known to
axe-core and no horizontal overflow on a laptop or a phone, in light and dark mode, with long names.

Three small trainings are shared; the steps build on each other and run in this order.
"""

from __future__ import annotations

import csv
import json
import re
import shutil
import time
from urllib.error import HTTPError

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("starlette", reason='the web app is not installed: pip install ".[web]"')
pytest.importorskip("uvicorn", reason='the web app is not installed: pip install ".[web]"')
pytest.importorskip("playwright", reason="Playwright is not installed")
pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")

from axe_playwright_python.sync_playwright import Axe

from histodict.datasets.manifest import read_manifest
from histodict.synthetic.dataset import write_synthetic_dataset
from tests.web.app import TINY
from tests.web.browser import ForkedServer, find_chromium, sign_in
from tests.web.test_browser import LAPTOP, SLOW, keep_picture

if find_chromium() is None:
    pytest.skip("there is no Chromium on this machine", allow_module_level=True)

# Names that do not reveal the positive class.
ALPHA = "alpha-tissue-of-the-ascending-colon-moderately-differentiated-G2"
NAMES = {"inflamed": ALPHA, "healthy": "beta"}
SCREENS = {"laptop": (1280, 800), "telephone": (390, 800)}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("honest")
    annotated = write_synthetic_dataset(folder / "tissue", 6, 1, size=(240, 180))
    for record in read_manifest(annotated / "manifest.csv").records:
        patient = f"{record.patient}-of-the-university-hospital-of-a-town-with-a-long-name"
        name = f"{record.path.stem}-scanned-again-because-it-was-out-of-focus-2026-11-18.jpg"
        path = folder / "named" / NAMES[record.label] / patient / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(record.path, path)
    path.with_name("broken.jpg").write_bytes(path.read_bytes()[:500])
    keep_those_with_a_region(annotated / "regions" / "manifest.csv")
    server = ForkedServer(tmp_path_factory.mktemp("workspace"), [folder]).start()
    yield server
    server.stop()


def keep_those_with_a_region(table):
    rows = list(csv.DictReader(table.read_text().splitlines()))
    stored = [r for r in rows if np.asarray(Image.open(table.parent / r["mask"])).any()]
    assert len(stored) > 1
    lines = [",".join(rows[0]), *(",".join(row.values()) for row in stored)]
    table.write_text("\n".join(lines))


@pytest.fixture(scope="module")
def page(browser, server):
    page = browser.new_page(viewport=LAPTOP)
    page.set_default_timeout(60_000)
    sign_in(page, server)
    yield page


def request(server, path, body=None):
    return json.loads(server.get(path) if body is None else server.post(path, body))


def open_data(server, inside):
    return request(server, "/api/data", {"folder_index": 0, "relative_path": inside})["id"]


def wait_for_model(server, job):
    while (found := request(server, f"/api/jobs/{job}"))["state"] in ("waiting", "running"):
        time.sleep(0.2)
    assert found["state"] == "done", found["error"]
    return request(server, f"/api/jobs/{job}/model")


def train(server, data, **requested):
    body = {"data": data, "preset": "quick", "settings": TINY, "test_folds": 2, "skip_bad": True}
    body |= requested
    return wait_for_model(server, request(server, "/api/jobs", body)["id"])


@pytest.fixture(scope="module")
def named(server):
    return open_data(server, "named")


@pytest.fixture(scope="module")
def model(server, page, named):
    """Trained with the alphabetically first class as positive."""
    request(server, f"/api/data/{named}/about", {"positive": ALPHA})
    return train(server, named)


def visit(page, server, *parts):
    page.goto(f"{server.address}/#/{'/'.join(parts)}")


def test_training_requires_a_positive_class(page, server, named):
    visit(page, server, "train", named)
    page.get_by_role("button", name="Start training").click()
    page.locator("#notice").get_by_text("choose the positive class").wait_for()
    assert page.evaluate("document.activeElement.id") == "positive"
    assert request(server, "/api/jobs")["jobs"] == []


def test_axes_slider_and_outlines_name_the_positive_class(page, server, model, named):
    visit(page, server, "model", model["id"])
    page.locator("#operating").wait_for()
    text = page.locator("#roc").text_content()
    assert f"false negatives of {ALPHA[:20]}" in text and f"false positives of {ALPHA[:20]}" in text
    ends = page.locator(".ends span").all_inner_texts()
    assert sorted(ends) == [
        f"fewer false negatives of {ALPHA}",
        f"fewer false positives of {ALPHA}",
    ]
    assert ALPHA in page.locator("#operating").get_attribute("aria-label")
    page.locator("#operating").focus()
    page.keyboard.press("Home" if "negatives" in ends[0] else "End")
    assert "sensitivity 100 %" in page.locator("#sensitivity").inner_text()
    assert page.locator(f"[data-cell='{ALPHA}/beta']").inner_text() == "0"
    page.get_by_role("button", name="Reset to the threshold of the model").click()
    visit(page, server, "look", model["id"], named, model["results"]["images"][0]["image"])
    page.get_by_label("Outlined class").wait_for()
    place = page.get_by_label("Outlined class").input_value()
    assert model["classes"][int(place)] == ALPHA


def test_marking_a_test_image_warns_that_it_leaves_the_test_set(page, server, model, named):
    image = model["results"]["images"][0]
    visit(page, server, "look", model["id"], named, image["image"])
    note = page.locator("#patient-note")
    note.wait_for()
    assert f"{image['patient']} is in the test set" in note.inner_text()
    assert page.locator("#mark").is_disabled()
    keep_picture(page, "look-kept")
    page.get_by_role("button", name="Use this patient for training").click()
    page.get_by_role("button", name="Undo").wait_for()
    page.locator("#mark").click()
    box = page.locator("#viewer").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + box["height"] * 0.3)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + box["height"] * 0.7, steps=4)
    page.mouse.up()
    page.get_by_role("button", name="Retrain with 1 correction").wait_for()


def test_changed_label_is_not_counted_as_progress(page, server, model, named):
    """Whatever the model predicted: both models are compared with the current label."""
    moved = model["results"]["images"][0]["patient"]
    rows = [row for row in model["results"]["images"] if row["patient"] != moved]
    changed = rows[0]
    (now,) = {ALPHA, "beta"} - {changed["label"]}
    visit(page, server, "look", model["id"], named, changed["image"])
    page.locator("#flip").select_option(now)
    page.get_by_role("button", name="Retrain with 2 corrections").click()
    page.get_by_role("link", name="Show changes").click(timeout=SLOW)
    page.locator("#changes").wait_for()
    labels = {row["image"]: row["label"] for row in rows} | {changed["image"]: now}
    right = sum(row["answer"] == labels[row["image"]] for row in rows)
    assert f"Correct before: {right} of {len(rows)}." in page.locator("#before-now").inner_text()
    text = page.locator("#relabelled").inner_text()
    assert f"{changed['label']} before, now {now}" in text and "1 label" in text
    same = [row for row in rows if row is not changed]
    right = sum(row["answer"] == row["label"] for row in same)
    text = page.locator("#unchanged").inner_text()
    assert f"On the {len(same)} image" in text and f"correct before {right}" in text
    keep_picture(page, "model-relabelled")
    lines = page.locator("#changes li").all_inner_texts()
    assert any(f"region labelled {ALPHA}" in line and "not used" not in line for line in lines)
    assert any(f"now {now}: new true label of a test image" in line for line in lines)


def test_link_to_a_missing_image_shows_no_other_one(page, server, model, named):
    for parts in (("look", model["id"], named, "0" * 12), ("look", "-", named, "nonsense")):
        visit(page, server, *parts)
        page.locator("#missing-image").get_by_text(
            "The address belongs to no image of named"
        ).wait_for()
        assert page.locator("#viewer").count() == 0
    page.get_by_role("link", name="Show the images of named").click()
    page.locator("#viewer").wait_for()


def test_model_is_not_retrained_with_other_images(page, server, model):
    other = open_data(server, "tissue")
    image = request(server, f"/api/data/{other}")["images"][0]
    body = {"image": image["id"], "label": "inflamed", "box": [0, 0, 60, 60]}
    request(server, f"/api/data/{other}/correct", body)
    visit(page, server, "look", model["id"], other, image["id"])
    page.locator("#train-own").wait_for()
    assert page.locator("#retrain").count() == 0
    with pytest.raises(HTTPError) as refused:
        request(server, "/api/jobs", {"data": other, "parent": model["id"]})
    assert "other images (named)" in json.loads(refused.value.read())["error"]


def test_regions_are_measured_by_overlap_and_the_truth_is_shown(page, server):
    data = open_data(server, "tissue/regions")
    model = train(server, data, preset="regions", regions="inflamed")
    rows = model["results"]["images"]
    visit(page, server, "model", model["id"])
    page.locator("#overlap").get_by_text("Dice").first.wait_for()
    m = model["results"]["operating_point"]["value"]
    hits, misses, alarms = np.sum([row["overlap"][m - 1] for row in rows], axis=0)
    dice, iou = 2 * hits / (2 * hits + misses + alarms), hits / (hits + misses + alarms)
    text = page.locator("#overlap").inner_text()
    assert f"Dice {dice:.2f}" in text and f"IoU {iou:.2f}" in text
    assert "No test image has the class not inflamed" in page.locator("#untested").inner_text()
    assert page.locator("#balanced").count() == 0
    keep_picture(page, "model-regions")
    report = server.get(f"/api/jobs/{model['id']}/report.html").decode()
    assert f"{dice:.2f}" in report and "no test image of class not inflamed" in report
    visit(page, server, "look", model["id"], data, rows[0]["image"])
    page.locator("#viewer[data-truth]:not([data-truth='0'])").wait_for()
    page.locator("#outlines").wait_for()
    keep_picture(page, "look-truth")
    page.locator("#truth").uncheck()
    page.locator("#viewer[data-truth='0']").wait_for()


# --- accessibility ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def places(server, named):
    """Addresses of the corrected model's pages, and a selector that shows when they are loaded."""
    job = next(job["id"] for job in request(server, "/api/jobs")["jobs"] if job["parent"])
    regions = next(job for job in request(server, "/api/jobs")["jobs"] if job["regions"])
    row = request(server, f"/api/jobs/{job}/model")["results"]["images"][0]
    return {
        "data": (f"data/{named}", "#bad-images"),
        "train": (f"train/{named}/{job}", "#see-model"),
        "model": (f"model/{job}", "#changes"),
        "regions": (f"model/{regions['id']}", "#overlap table"),
        "look": (f"look/{job}/{named}/{row['image']}", "#map-class"),
    }


@pytest.mark.parametrize(("screen", "scheme"), [("laptop", "light"), ("telephone", "dark")])
def test_every_page_is_accessible(page, server, places, screen, scheme):
    width, height = SCREENS[screen]
    page.set_viewport_size({"width": width, "height": height})
    page.emulate_media(color_scheme=scheme)
    for name, (place, sign) in places.items():
        visit(page, server, *place.split("/"))
        page.locator(sign).first.wait_for(timeout=SLOW)
        if name == "data":
            page.locator("summary", has_text="Choose data").click()
        keep_picture(page, f"everyone-{name}-{screen}-{scheme}")
        if name == "look":
            explain(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        found = Axe().run(page)
        assert found.violations_count == 0, f"{name}: {found.generate_report()}"
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (int(re.findall(r"\d+", paper)[0]) < 64) is (scheme == "dark")


def explain(page):
    """Explain the patch in the centre; the image fills the available width and is large enough."""
    box = page.locator("#viewer").bounding_box()
    assert box["width"] > 0.5 * page.viewport_size["width"] and box["height"] > 300
    page.locator("#viewer").click()
    page.locator("#why-words").wait_for(timeout=SLOW)
