"""Screenshots of docs/tutorial-page.md from the running page.

    python -m benchmarks.page_tutorial [--pictures docs/pictures]

Synthetic tissue of eight patients, a small training, one prediction and one correction. Prints the
clicks and seconds of each step, as benchmarks/annotation.py does.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from pathlib import Path
from typing import Any

from histodict.synthetic.dataset import write_synthetic_dataset
from tests.web.browser import Server, open_browser, sign_in

from .annotation import SCREEN, Way
from .machine import describe_machine

_SLOW = 600_000
_COLOURS = 250
# Smaller than the defaults, so that training takes a minute on a laptop.
_SMALL = {"patches_per_class": "1500", "n_atoms": "60", "n_iter": "10", "patch_px": "16"}


def open_data(way: Way, page: Any) -> None:
    page.get_by_role("button", name="▸ tissue").click()
    page.get_by_role("button", name="↑ up").wait_for()
    way.clicks += 1
    way.click("text=Open this folder")
    page.get_by_role("link", name="Train on these images").wait_for()
    page.get_by_text("Checked: no warnings.").wait_for(timeout=_SLOW)
    way.step("page-1-data", "the images, by class and patient")


def train(way: Way, page: Any) -> None:
    way.click("text=Train on these images")
    page.get_by_role("button", name="Start training").wait_for()
    for name, value in _SMALL.items():
        page.locator(f"input[name={name}]").fill(value)
    way.click("text=Start training")
    page.locator("#objective polyline").first.wait_for(timeout=_SLOW)
    page.locator("#see-model").wait_for(timeout=_SLOW)
    page.evaluate("scrollTo(0, 0)")
    way.step("page-2-train", "training")


def read_report(way: Way, page: Any) -> None:
    way.click("#see-model")
    page.locator("#operating").wait_for(timeout=_SLOW)
    way.step("page-3-model", "accuracy")
    way.click(".atoms button")
    page.locator("#atom-users img").first.wait_for()
    page.locator("#atom-users").scroll_into_view_if_needed()
    way.step("page-4-atoms", "the atoms")


def open_map(way: Way, page: Any) -> None:
    page.keyboard.press("Home")
    way.click("text=Show images")
    page.get_by_text("Prediction: ").first.wait_for(timeout=_SLOW)
    page.locator('a[title*="inflamed"]').first.click()
    page.locator("#map-class").wait_for(timeout=_SLOW)
    page.wait_for_timeout(1500)
    way.step("page-5-map", "the map of an image")
    explain_inflamed_patch(page)
    page.locator("#why").scroll_into_view_if_needed()
    way.step("page-6-why", "explanation of a patch")


def explain_inflamed_patch(page: Any) -> None:
    """Explain a patch near the centre that is predicted as inflamed, with two or three atoms."""
    box = page.locator("#viewer").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    for row, column in itertools.product(range(5), range(8)):
        page.locator("#why").evaluate("place => place.replaceChildren()")
        page.mouse.click(x + 26 * column, y + 26 * row)
        page.locator("#why-words").wait_for(timeout=_SLOW)
        page.locator("#why-similar img").first.wait_for(timeout=_SLOW)
        is_inflamed = "inflamed" in page.locator("#why h2").inner_text()
        if is_inflamed and page.locator("#why-atoms figure").count() in (2, 3):  # one row
            return
    raise SystemExit("no patch near the centre is predicted as inflamed, with two or three atoms")


def correct(way: Way, page: Any) -> None:
    page.locator("#viewer").scroll_into_view_if_needed()
    learn = page.get_by_role("button", name="Use this patient for training")
    if learn.count():
        learn.click()
        way.clicks += 1
    way.click("#mark")
    box = page.locator("#viewer").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.35, box["y"] + box["height"] * 0.35)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.6, steps=4)
    page.mouse.up()
    page.get_by_text("region: ").first.wait_for(timeout=_SLOW)
    way.strokes += 1
    way.step("page-7-correct", "a correction")
    way.click("#retrain")
    page.locator("#see-model").wait_for(timeout=_SLOW)
    way.click("text=Show changes")
    page.locator("#changes").wait_for(timeout=_SLOW)
    page.locator("#changes").scroll_into_view_if_needed()
    way.step("page-8-changes", "what changed")


def main() -> None:
    parser = argparse.ArgumentParser(description="Screenshots for the tutorial of the page.")
    parser.add_argument("--pictures", type=Path, default=Path("docs/pictures"))
    folder_of_pictures = parser.parse_args().pictures
    folder_of_pictures.mkdir(parents=True, exist_ok=True)
    for name, value in describe_machine().items():
        print(f"{name:16s} {value}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_synthetic_dataset(folder / "data" / "tissue", 8, 4, size=(480, 360))
        server = Server(folder / "workspace", [folder / "data"]).start()
        try:
            with open_browser() as browser:
                page = browser.new_page(viewport=SCREEN)
                page.set_default_timeout(60_000)
                sign_in(page, server)
                way = Way(page, folder_of_pictures, _COLOURS)
                for step in (open_data, train, read_report, open_map, correct):
                    step(way, page)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
