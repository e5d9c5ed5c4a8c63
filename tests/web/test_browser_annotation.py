"""Annotation in a real browser, from an unlabelled slide to a tested model: two classes, strokes, a
live map, a training, a report. The steps build on each other and run in this order."""

from __future__ import annotations

import json
import os
import signal

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("starlette", reason='the web app is not installed: pip install ".[web]"')
pytest.importorskip("uvicorn", reason='the web app is not installed: pip install ".[web]"')
pytest.importorskip("playwright", reason="Playwright is not installed")
pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")

from axe_playwright_python.sync_playwright import Axe

from tests.web.browser import ForkedServer, find_chromium, sign_in, wait_until
from tests.web.test_browser import LAPTOP, SLOW, keep_picture
from tests.web.unlabelled_slides import (
    WITHOUT_ENCODER,
    Hand,
    add_class,
    deep_inside,
    n_shapes,
    wait_for_shapes,
    write_unlabelled_slides,
)

if find_chromium() is None:
    pytest.skip("there is no Chromium on this machine", allow_module_level=True)

SIZE = (320, 240)
ODD = 'Stroma, <b>loose</b> & "edge"'  # a name is text, whatever it contains
LIVE_MS = 4000  # limit on a busy machine; benchmarks/README.md has the measured values


@pytest.fixture(scope="module")
def masks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bare") / "slides"
    return folder, write_unlabelled_slides(folder, SIZE)


@pytest.fixture(scope="module")
def server(masks, tmp_path_factory):
    server = ForkedServer(tmp_path_factory.mktemp("workspace"), [masks[0]], before=WITHOUT_ENCODER)
    yield server.start()
    server.stop()


@pytest.fixture(scope="module")
def page(browser, server):
    page = browser.new_page(viewport=LAPTOP, accept_downloads=True)
    page.set_default_timeout(60_000)
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    sign_in(page, server)
    yield page
    assert errors == []


@pytest.fixture(scope="module")
def size(masks):
    with Image.open(masks[0] / "slide-1.jpg") as image:
        return image.size


@pytest.fixture
def hand(page, size):
    return Hand(page, size)


def places(masks, name):
    """Return positions to paint on a slide: in the focus, and far from it."""
    focus = np.asarray(Image.open(masks[1][name])).astype(bool)
    focus = focus if focus.ndim == 2 else focus[..., 0]
    (x, y), (u, v) = deep_inside(focus), deep_inside(~focus)
    return [(x - 8, y), (x + 8, y)], [(u - 12, v), (u + 12, v)]


def strike(page, work):
    """Return milliseconds from the end of a stroke until the map shows it."""
    page.locator("#viewer").evaluate("viewer => { delete viewer.dataset.live; }")
    work()
    page.locator("#viewer[data-live]").wait_for()
    return int(page.locator("#viewer").get_attribute("data-live"))


def test_unlabelled_folder_leads_to_annotation_which_needs_a_class(page, hand):
    page.get_by_role("button", name="Open this folder").click()
    page.get_by_text("annotate tissue of each class on a few of them").wait_for()
    page.get_by_text(
        "Note: There are not two or more folders with images, one per class"
    ).wait_for()
    page.locator("#draw-on").click()
    page.get_by_text("Add at least two classes").wait_for()
    page.locator("#tool-brush").click()
    page.locator("#notice").get_by_text("Add a class before").wait_for()
    assert page.locator("#viewer").get_attribute("data-tool") == "look"
    visible = [page.locator(f"#export-{name}").is_visible() for name in ("png", "geojson", "csv")]
    assert visible == [True, False, False]  # there is no map yet


def test_classes_are_created_and_duplicate_names_refused(page):
    add_class(page, "Inflamed")
    page.locator("#class-name").fill("inflamed ")
    page.keyboard.press("Enter")
    page.locator("#notice").get_by_text("already").wait_for()
    page.locator("#class-name").fill(ODD)
    page.keyboard.press("Enter")
    page.locator(".classes li").nth(1).wait_for()
    assert page.locator(".classes li").nth(1).get_attribute("data-class") == ODD
    assert page.locator("#mode").inner_text() == f"Brush: {ODD}"
    assert page.locator("#mode b").count() == 0
    keep_picture(page, "draw-classes")


def test_map_follows_a_stroke(page, hand, masks):
    ill, well = places(masks, "slide-1.jpg")
    page.locator(".classes input[type=radio]").nth(0).click()
    assert page.locator("#mode").inner_text() == "Brush: Inflamed"
    hand.drag(*ill)
    wait_for_shapes(page, 1)
    page.get_by_text("appears when two classes are annotated").wait_for()
    page.locator(".classes input[type=radio]").nth(1).click()
    assert strike(page, lambda: hand.drag(*well)) < LIVE_MS
    text = page.locator("#quick-words").inner_text()
    assert "not the trained model" in text and "its accuracy is unknown" in text
    keep_picture(page, "draw-live")
    before = page.locator("#viewer").screenshot()
    more = [(x, y + 30) for x, y in well]
    assert strike(page, lambda: hand.drag(*more)) < LIVE_MS
    assert page.locator("#viewer").screenshot() != before
    wait_for_shapes(page, 3)


def test_undo_redo_eraser_polygon_and_rectangle(page, hand, masks):
    _, ((x, y), _) = places(masks, "slide-1.jpg")
    page.locator("#undo").click()
    wait_for_shapes(page, 2)
    page.keyboard.press("Control+y")
    wait_for_shapes(page, 3)
    page.locator("#tool-rectangle").click()
    assert page.locator("#tool-rectangle").get_attribute("aria-pressed") == "true"
    hand.drag((x - 10, y - 60), (x + 40, y - 30))
    wait_for_shapes(page, 4)
    page.locator("#tool-polygon").click()
    hand.click((x - 40, y - 20), (x - 20, y - 20), (x - 30, y), (x - 40, y - 20))
    wait_for_shapes(page, 5)
    page.locator("#tool-eraser").click()
    before = page.locator("#shapes tr").nth(4).inner_text()
    hand.drag((x + 15, y - 70), (x + 15, y - 20))
    wait_until(lambda: page.locator("#shapes tr").nth(4).inner_text() != before)
    rows = [row.inner_text().split("\t") for row in page.locator("#shapes tr").all()[1:]]
    assert {row[1] for row in rows} == {"brush", "polygon", "rectangle"}
    assert all(row[3] == "slide-1.jpg" and row[2].endswith(("px", "µm²")) for row in rows)
    for _ in range(3):
        page.keyboard.press("Control+z")
    wait_for_shapes(page, 3)


# A simplified spiral of 30,000 points; its maximal deviation, and the box of a shape made of it.
_THINNED = """async () => {
  const { thinned } = await import("/static/tools.js");
  const { boxOf } = await import("/static/pages/draw.js");
  const path = Array.from({ length: 150000 }, (_, i) => {
    const turn = i / 1000;
    return [(100 + turn) * Math.cos(turn), (100 + turn) * Math.sin(turn)];
  });
  const short = thinned(path.slice(0, 30000), 0.5, 2000);
  const off = ([x, y], [x0, y0], [x1, y1]) => {
    const [dx, dy] = [x1 - x0, y1 - y0];
    const share = Math.min(1, Math.max(0, ((x - x0) * dx + (y - y0) * dy) / (dx * dx + dy * dy)));
    return Math.hypot(x - x0 - share * dx, y - y0 - share * dy);
  };
  const places = short.map((point) => path.indexOf(point));
  let most = 0;
  for (let k = 1; k < short.length; k++) {
    for (let i = places[k - 1]; i < places[k]; i += 7) {
      most = Math.max(most, off(path[i], short[k - 1], short[k]));
    }
  }
  const straight = thinned([[0, 0], [1, 0], [2, 0.01], [9, 0]], 0.5, 10);
  const few = thinned(path, 0.001, 50).length;
  return { n: short.length, first: places[0], last: places.at(-1), most, few, straight,
    box: boxOf({ polygons: [[path]] }) };
}"""


def test_long_stroke_is_simplified_and_shape_has_a_box(page):
    found = page.evaluate(_THINNED)
    assert found["first"] == 0 and found["last"] == 29_999 and 30 < found["n"] < 300
    assert found["most"] <= 0.5 and found["few"] <= 50
    assert found["straight"] == [[0, 0], [9, 0]]
    assert np.allclose(found["box"], [-248, -245, 245, 246], atol=6)


def test_annotation_with_the_keyboard_alone(page):
    page.locator("#viewer").focus()
    keys = page.keyboard
    for key in ("1", "b", "Space", "ArrowRight", "Shift+ArrowDown", "Space"):
        keys.press(key)
    wait_for_shapes(page, 4)
    assert page.locator("#mode").inner_text() == "Brush: Inflamed"
    for key in ("r", "Space", "ArrowUp", "ArrowLeft", "Space"):
        keys.press(key)
    wait_for_shapes(page, 5)
    for key in ("p", "Space", "ArrowUp", "Space", "ArrowLeft", "Space", "Enter"):
        keys.press(key)
    wait_for_shapes(page, 6)
    for key in ("p", "Space", "Escape", "Escape"):
        keys.press(key)
    assert page.locator("#viewer").get_attribute("data-tool") == "look"
    for _ in range(3):
        keys.press("Control+z")
    wait_for_shapes(page, 3)
    keys.press("0")


def test_shapes_are_listed_located_and_deleted(page):
    page.locator("#shapes").get_by_role("button", name="Delete").last.click()
    wait_for_shapes(page, 2)
    scale = page.locator("#viewer").get_attribute("data-scale")
    page.locator("#shapes").get_by_role("button", name="Go to").first.click()
    page.locator(f'#viewer:not([data-scale="{scale}"])').wait_for()
    page.keyboard.press("Control+z")
    wait_for_shapes(page, 3)
    page.locator("#viewer").press("0")


def test_class_of_a_shape_is_changed(page):
    page.locator(".classes input[type=radio]").nth(1).click()
    page.locator("#shapes").get_by_role("button", name="Change Inflamed, brush").click()
    page.locator("#shapes td", has_text="Inflamed").wait_for(state="detached")
    page.locator("#undo").click()
    page.locator("#shapes td", has_text="Inflamed").wait_for()


def test_strokes_survive_a_killed_server_and_a_reload(page, server):
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait()
    server.start()
    page.reload()
    wait_for_shapes(page, 3)
    assert page.locator(".classes li").count() == 2
    page.locator("#undo[aria-disabled=false]").wait_for()


def test_annotation_files_are_exported_imported_and_refused(page, tmp_path):
    page.locator("summary", has_text="Files").click()
    with page.expect_download() as saved:
        page.locator("#export").click()
    assert saved.value.suggested_filename == "slide-1.geojson"
    content = json.loads(saved.value.path().read_text())
    assert {f["properties"]["classification"]["name"] for f in content["features"]} == {
        "Inflamed",
        ODD,
    }
    for name, text in {"empty.geojson": "", "list.json": "[1]", "none.json": "[]"}.items():
        (tmp_path / name).write_text(text)
        page.locator("#import").set_input_files(tmp_path / name)
        page.locator("#notice").get_by_text(name).wait_for()
    assert n_shapes(page) == 3
    tie = [[20, 20], [60, 60], [60, 20], [20, 60], [20, 20]]
    crossed = {"type": "Feature", "geometry": {"type": "Polygon", "coordinates": [tie]}}
    crossed["properties"] = {"classification": {"name": "Inflamed"}}
    (tmp_path / "tie.geojson").write_text(json.dumps(crossed))
    page.locator("#import").set_input_files(tmp_path / "tie.geojson")
    page.get_by_text("self-intersecting").wait_for()
    wait_for_shapes(page, 4)
    page.locator("#undo").click()
    wait_for_shapes(page, 3)


def test_training_on_one_patient_states_that_nothing_was_tested(page):
    page.locator("#train-drawn").click()
    page.locator("#tested-on").get_by_text("No test patient").wait_for()
    page.locator("#positive").select_option("Inflamed")
    page.get_by_text("Chosen by you.").wait_for()
    small(page)
    page.get_by_role("button", name="Start training").click()
    page.locator("#see-model").wait_for(timeout=SLOW)
    page.locator("#see-model").click()
    page.get_by_text("accuracy of this model is unknown").wait_for()


def small(page):
    for name, value in {"patches_per_class": "200", "n_atoms": "16", "n_iter": "2"}.items():
        page.locator(f"input[name={name}]").fill(value)


def test_trained_map_is_distinguished_and_a_patch_is_relabelled(page, hand):
    page.get_by_role("link", name="Show images").click()
    wait_for_shapes(page, 3)
    page.locator("#map-class").wait_for(timeout=SLOW)
    page.locator("#map-shown").wait_for()
    viewer = page.locator("#viewer")  # a link from a model shows its map, without an active brush
    assert viewer.get_attribute("data-map") == "trained"
    assert viewer.get_attribute("data-tool") == "look"
    page.locator("#viewer").press("Enter")
    page.locator("#patch-is").wait_for()
    strike(page, lambda: page.get_by_role("button", name="Label this patch Inflamed").click())
    wait_for_shapes(page, 4)
    assert "patch" in page.locator("#shapes").inner_text()
    assert page.locator("#viewer").get_attribute("data-map") == "quick"  # it follows the strokes
    page.keyboard.press("Control+z")


def test_second_patient_is_tested_and_reported(page, hand, masks):
    page.get_by_role("link", name="slide-2.jpg").click()
    wait_for_shapes(page, 0)
    ill, well = places(masks, "slide-2.jpg")
    page.locator(".classes input[type=radio]").nth(0).click()
    hand.drag(*ill)
    wait_for_shapes(page, 1)
    page.locator(".classes input[type=radio]").nth(1).click()
    hand.drag(*well)
    wait_for_shapes(page, 2)
    page.locator("#train-drawn").click()
    page.locator("#test-patients").get_by_label("slide-2.jpg").check()
    page.locator("#tested-on").get_by_text("The test uses the annotations of 1 patient").wait_for()
    page.get_by_text("Each image without a patient counts as its own").wait_for()
    small(page)
    page.get_by_role("button", name="Start training").click()
    page.locator("#see-model").wait_for(timeout=SLOW)
    page.locator("#see-model").click()
    page.locator("#confusion").wait_for()
    assert "The test uses annotated tissue only" in page.locator("#parts").inner_text()
    assert page.locator(".patients-table td").all_inner_texts()[:2] == ["slide-2.jpg", "2"]
    assert (
        "Few patients (1 with images of 'Inflamed', 1 with"
        in page.locator("#few-patients").inner_text()
    )
    with page.expect_download() as saved:
        page.locator("#download-report").click()
    assert "slide-2.jpg" in saved.value.path().read_text()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_annotation_page_is_accessible(page, server, width, scheme):
    page.set_viewport_size({"width": width, "height": 800})
    page.emulate_media(color_scheme=scheme)
    data = json.loads(server.get("/api/session"))["data"][0]["id"]
    for place, sign in ((f"look/-/{data}", "#shapes"), (f"train/{data}", "#test-patients")):
        page.goto(f"{server.address}/#/{place}")
        page.locator(sign).wait_for()
        for summary in page.locator("#draw summary").all():
            if summary.evaluate("summary => !summary.parentElement.open"):
                summary.click()
        keep_picture(page, f"draw-{sign[1:]}-{width}-{scheme}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, place
        found = Axe().run(page)
        assert found.violations_count == 0, f"{place}: {found.generate_report()}"
