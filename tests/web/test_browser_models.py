"""Several models in a real browser: selected in the viewer with a warning if one is incompatible,
imported from a file, compared on an image; and exports."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace

import pytest

pytest.importorskip("starlette", reason='the web app is not installed: pip install ".[web]"')
pytest.importorskip("uvicorn", reason='the web app is not installed: pip install ".[web]"')
pytest.importorskip("playwright", reason="Playwright is not installed")
pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")

from axe_playwright_python.sync_playwright import Axe
from PIL import Image

from histodict.models import TissueClassifier, save_model
from tests.web.browser import ForkedServer, find_chromium, sign_in, wait_until
from tests.web.test_browser import LAPTOP, SLOW, keep_picture

if find_chromium() is None:
    pytest.skip("there is no Chromium on this machine", allow_module_level=True)


@pytest.fixture(scope="module")
def server(tissue, model, recipe, manifest, tmp_path_factory):
    """Two models of the same images, one of other classes, and the images."""
    base = tmp_path_factory.mktemp("models")
    data = base / "data"
    shutil.copytree(tissue / "tissue", data / "tissue")
    save_model(model, data / "first.histodict")
    second = TissueClassifier(replace(recipe, patch_px=16), random_state=5).fit(manifest)
    save_model(second, data / "second.histodict")
    names = {"healthy": "quiet", "inflamed": "busy"}
    records = tuple(replace(r, label=names[r.label]) for r in manifest.records)
    other = TissueClassifier(recipe).fit(replace(manifest, records=records, positive="busy"))
    save_model(other, data / "other.histodict")
    server = ForkedServer(base / "workspace", [data]).start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def page(browser, server):
    page = browser.new_page(viewport=LAPTOP, accept_downloads=True)
    page.set_default_timeout(60_000)
    page.errors = []
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    sign_in(page, server)
    yield page


def request(server, path, body=None):
    return json.loads(server.get(path) if body is None else server.post(path, body))


@pytest.fixture(scope="module")
def data(server):
    id_ = request(server, "/api/data", {"folder_index": 0, "relative_path": "tissue"})["id"]
    return request(server, f"/api/data/{id_}")


@pytest.fixture(scope="module")
def models(server):
    names = "first", "second", "other"
    return [
        request(server, "/api/models", {"folder_index": 0, "relative_path": f"{n}.histodict"})["id"]
        for n in names
    ]


def test_model_is_imported_from_its_file(page, server, data):
    page.goto(f"{server.address}/#/data/{data['id']}")
    page.locator("summary", has_text="Choose data").click()
    page.get_by_role("button", name="◆ first.histodict").click()
    page.get_by_text("This model comes from the file first.histodict").wait_for()
    assert "healthy / inflamed" in page.locator("h1").inner_text()
    assert page.locator(".atoms img").count() > 10
    keep_picture(page, "model-opened")
    page.get_by_role("link", name="Show images").click()
    page.get_by_text("Prediction:").wait_for(timeout=SLOW)
    assert "comes from a file (first.histodict)" in page.locator("#misfits").inner_text()


def test_uncertain_prediction_is_displayed_with_the_best_guess(page, server, data, models):
    """In the viewer, and in the list of the test images of a model."""

    def respond_uncertain(route):
        found = route.fetch()
        route.fulfill(response=found, json=found.json() | {"is_uncertain": True})

    pattern = re.compile(rf"/api/jobs/{models[0]}/look/[^/]+/[^/]+\?$")
    page.route(pattern, respond_uncertain)
    page.goto(f"{server.address}/#/look/{models[0]}/{data['id']}")
    page.reload()
    text = page.locator("#answer").get_by_text("Prediction:")
    text.get_by_text("uncertain (best guess: ").wait_for(timeout=SLOW)
    assert re.search(r"uncertain \(best guess:\s*(healthy|inflamed)\s*\)", text.inner_text())
    page.unroute(pattern)
    link = """async (is_uncertain) => (await import("/static/pages/accuracy.js")).imageLink(
        { id: "m", data: "d" },
        { name: "a.png", label: "x", answer: "y", is_uncertain }).textContent"""
    assert page.evaluate(link, True) == "a.png: x, predicted uncertain (best guess: y)"
    assert page.evaluate(link, False) == "a.png: x, predicted y"


def test_model_is_selected_in_the_viewer(page, server, data, models):
    page.reload()
    page.locator("#model-choice").wait_for()
    options = page.locator("#model-choice option").all_inner_texts()
    assert options[0] == "none" and len(options) == 4
    page.locator("#model-choice").select_option(models[2])
    page.get_by_text("the classes of the model are quiet / busy").wait_for()
    page.locator("#map-class").wait_for(timeout=SLOW)
    assert page.locator("#map-legend").inner_text().split() == ["quiet", "busy"]
    keep_picture(page, "look-misfit")
    page.locator("#viewer[data-scale]").wait_for(timeout=SLOW)
    page.locator("#viewer").click()
    page.locator("#why-words").wait_for(timeout=SLOW)
    assert page.locator("#why-similar").count() == 0  # its training patches are not available
    page.locator("#model-choice").select_option("-")
    page.get_by_text("No model selected").wait_for()
    assert page.locator("#misfits .warning").count() == 0


def visit_comparison(page, server, data, *models):
    image = data["images"][-1]["id"]
    page.goto(f"{server.address}/#/look/{models[1]}/{data['id']}/{image}")
    page.locator("#compare-models").click()
    page.goto(f"{server.address}/#/compare/{'/'.join(models)}/{data['id']}/{image}")


def positions(page):
    return [page.locator(f"#viewer-{n}").get_attribute("data-at") for n in (1, 2)]


def test_two_maps_are_side_by_side_and_move_together(page, server, data, models):
    visit_comparison(page, server, data, *models[:2])
    for n in (1, 2):
        page.locator(f"#viewer-{n}[data-ready]").wait_for(timeout=SLOW)
    assert "centred of 12 pixels, and centred of 16" in page.locator("#compared").inner_text()
    before = positions(page)
    page.locator("#viewer-2").focus()
    page.keyboard.press("+")
    page.keyboard.press("ArrowRight")
    wait_until(lambda: (now := positions(page))[0] == now[1] != before[1])
    keep_picture(page, "compare-side")


def test_difference_counts_what_it_shows(page, server, data, models):
    page.locator("#compare-as").select_option("difference")
    page.locator("#viewer-difference[data-ready]").wait_for()
    cells = [int(t) for t in page.locator("#difference-table td").all_inner_texts()]
    assert (
        f"{cells[1] + cells[2]} of {sum(cells)} patches" in page.locator("#n-changed").inner_text()
    )
    keep_picture(page, "compare-difference")
    page.locator("#compare-after").select_option(models[0])  # with itself
    page.get_by_text("The predictions of 0 of").wait_for(timeout=SLOW)
    page.locator("#compare-after").select_option(models[2])
    page.get_by_text("The models have different classes:").wait_for(timeout=SLOW)
    page.get_by_text("No difference map").wait_for()
    page.locator("#compare-as").select_option("side")
    page.locator("#viewer-2[data-ready]").wait_for()


def test_displayed_results_are_exported(page, server, data, models, tmp_path):
    image = data["images"][-1]
    page.goto(f"{server.address}/#/look/{models[0]}/{data['id']}/{image['id']}")
    page.locator("#export-csv").wait_for(timeout=SLOW)
    page.locator("#map-class").select_option("1")
    for kind in ("csv", "geojson", "png"):
        with page.expect_download() as waiting:
            page.locator(f"#export-{kind}").click()
        waiting.value.save_as(tmp_path / f"shown.{kind}")
        assert waiting.value.suggested_filename.endswith(f".{kind}")
    lines = (tmp_path / "shown.csv").read_text().splitlines()
    assert len(lines) > 2 and all(",inflamed," in line for line in lines[1:])
    visible = json.loads((tmp_path / "shown.geojson").read_text())["features"]
    assert {one["properties"]["classification"]["name"] for one in visible} == {"inflamed"}
    with Image.open(tmp_path / "shown.png") as image_url:
        box = page.locator("#viewer").bounding_box()
        assert image_url.size == (round(box["width"]), round(box["height"]))
        assert len(set(image_url.convert("RGB").resize((40, 40)).get_flattened_data())) > 100
    assert page.errors == []


def test_images_to_label_next_are_suggested(page, server, data, models):
    page.goto(f"{server.address}/#/look/{models[0]}/{data['id']}/{data['images'][0]['id']}")
    page.locator("#export-csv").wait_for(timeout=SLOW)
    page.locator("#suggest-images").click()
    page.locator(".suggestions li").first.wait_for(timeout=SLOW)
    assert 1 < page.locator(".suggestions li").count() <= 6
    assert "more uncertain than" in page.locator("#suggested").inner_text()
    page.locator("#suggest-fields").click()
    page.locator(".suggested-field").first.wait_for()
    keep_picture(page, "look-suggest")
    page.locator(".suggestions a").first.click()
    page.locator("#export-csv").wait_for(timeout=SLOW)
    assert page.errors == []


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_model_comparison_is_accessible(page, server, data, models, width, scheme):
    page.set_viewport_size({"width": width, "height": 800})
    page.emulate_media(color_scheme=scheme)
    image = data["images"][0]["id"]
    here = f"{data['id']}/{image}"
    for place, sign in {
        f"compare/{models[0]}/{models[1]}/{here}": "#viewer-2[data-ready]",
        f"look/{models[2]}/{here}": "#export-csv:visible",
        f"model/{models[0]}": "#from-file",
    }.items():
        page.goto(f"{server.address}/#/{place}")
        page.locator(sign).wait_for(timeout=SLOW)
        keep_picture(page, f"models-{place.split('/')[0]}-{width}-{scheme}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, place
        found = Axe().run(page)
        assert found.violations_count == 0, f"{place}: {found.generate_report()}"


def test_imported_model_is_removed_from_the_list(page, server, models):
    page.set_viewport_size(LAPTOP)
    page.goto(f"{server.address}/#/model/{models[2]}")
    page.locator("#remove-model").click()
    page.locator("summary", has_text="Choose data").wait_for()
    assert len(request(server, "/api/session")["opened"]) == 2
