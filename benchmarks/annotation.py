"""Annotate unannotated slides in a browser: clicks, duration, and update of the live map.

    python -m benchmarks.annotation [--pictures docs/pictures] [--strokes 20] [--without-encoder]

The slides are synthetic, so their regions are known. First the steps of docs/web.md: prints the
clicks, strokes and seconds of each step and writes a screenshot to the folder of pictures (the
documentation shows only `draw-3-live`; do not store the others). Then a
number of strokes on a slide that fills the screen: the time from the end of a stroke until the map
is updated, and the latency of tiles that another client requests at the same time.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from attacks.page import Address, Client
from tests.web.browser import Server, open_browser, sign_in
from tests.web.unlabelled_slides import (
    WITHOUT_ENCODER,
    Hand,
    add_class,
    deep_inside,
    wait_for_shapes,
    write_unlabelled_slides,
)

from .machine import describe_machine

SCREEN = {"width": 1280, "height": 800}
_SHOWN = (592, 370)
_COLOURS = 80
_SLOW = 300_000
Place = tuple[float, float]


class Way:
    """Actions on the page, with counts and screenshots."""

    def __init__(self, page: Any, folder: Path | None, n_colours: int = _COLOURS) -> None:
        self.page, self.folder, self.n_colours = page, folder, n_colours
        self.clicks = self.strokes = self.typed = 0
        self._began = self._last = time.perf_counter()

    def click(self, selector: str) -> None:
        self.page.locator(selector).first.click()
        self.clicks += 1

    def type(self, name: str) -> None:
        add_class(self.page, name)
        self.typed += 1

    def stroke(self, hand: Hand, *places: Place) -> None:
        hand.drag(*places)
        self.strokes += 1

    def step(self, name: str, text: str) -> None:
        """Print the duration of a step and save a screenshot."""
        now = time.perf_counter()
        did = f"{self.clicks} clicks, {self.strokes} strokes, {self.typed} names"
        print(f"{text:44s} {did}, {now - self._last:.1f} s ({now - self._began:.1f} s in all)")
        if self.folder is not None:
            self.page.mouse.move(0, 0)
            self.page.wait_for_load_state("networkidle")
            path = self.folder / f"{name}.png"
            self.page.screenshot(path=path)
            with Image.open(path) as picture:
                small = picture.convert("RGB").resize(_SHOWN, Image.Resampling.LANCZOS)
            # Without k-means, the orange of the positive class turns pink.
            few = small.quantize(self.n_colours, kmeans=5, dither=Image.Dither.NONE)
            few.save(path, optimize=True)
        self.clicks = self.strokes = self.typed = 0
        self._last = time.perf_counter()


def truth_of(masks: dict[str, Path], name: str) -> NDArray[np.bool_]:
    mask = np.asarray(Image.open(masks[name])).astype(bool)
    return mask if mask.ndim == 2 else mask[..., 0]


def places(focus: NDArray[np.bool_], n: int, away: float) -> Iterator[tuple[Place, Place]]:
    """Yield short strokes in a region, far from its border and from earlier ones."""
    left = focus.copy()
    y, x = np.mgrid[: focus.shape[0], : focus.shape[1]]
    for _ in range(n):
        u, v = deep_inside(left)
        yield (u - 14, v - 4), (u + 14, v + 4)
        left &= np.hypot(x - u, y - v) > away


def walk(page: Any, masks: dict[str, Path], size: tuple[int, int], folder: Path | None) -> None:
    """Perform the steps of docs/web.md."""
    way, hand = Way(page, folder), Hand(page, size)
    focus = truth_of(masks, "slide-1.jpg")
    way.click("text=Open this folder")
    way.click("#draw-on")
    page.locator("#class-name").wait_for()
    page.locator("#viewer[data-scale]").wait_for()
    way.step("draw-1-bare", "a bare slide")
    way.click("#class-name")
    way.type("Inflamed")
    way.type("Other")
    way.step("draw-2-classes", "two classes")
    way.click('.classes li[data-class="Inflamed"] input')
    for place in places(focus, 2, 40):
        way.stroke(hand, *place)
    way.click('.classes li[data-class="Other"] input')
    for place in places(~focus, 3, 120):
        way.stroke(hand, *place)
    wait_for_shapes(page, 5)
    page.locator("#viewer[data-live]").wait_for(timeout=_SLOW)
    settle(page)
    way.step("draw-3-live", "five strokes, and the live map")
    print(f"{'':44s} {page.locator('#quick-words').inner_text()}")
    second(way, hand, page, masks)
    way.click("#train-drawn")
    page.locator("#positive").select_option("Inflamed")
    page.get_by_text("Chosen by you.").wait_for()
    page.locator("#test-patients").get_by_label("slide-2.jpg").check()
    way.clicks += 3
    way.click("text=Start training")
    page.locator("#see-model").wait_for(timeout=_SLOW)
    way.step("draw-4-train", "training, tested on the second slide")
    way.click("#see-model")
    page.locator("#confusion").wait_for()
    way.step("draw-5-report", "the report")
    way.click("text=Show images")
    page.locator("#map-class").wait_for(timeout=_SLOW)
    page.wait_for_timeout(500)
    way.step("draw-6-trained", "the trained map")


def second(way: Way, hand: Hand, page: Any, masks: dict[str, Path]) -> None:
    """Annotate the slide that is used for testing."""
    focus = truth_of(masks, "slide-2.jpg")
    way.click('a[title^="slide-2.jpg"]')
    wait_for_shapes(page, 0)
    for name, region in (("Inflamed", focus), ("Other", ~focus)):
        way.click(f'.classes li[data-class="{name}"] input')
        for place in places(region, 2, 60):
            way.stroke(hand, *place)
    wait_for_shapes(page, 4)
    settle(page)
    way.step("draw-second", "four strokes on a slide to test on")
    if way.folder is not None:
        (way.folder / "draw-second.png").unlink()


def settle(page: Any) -> None:
    """Wait until the quick map covers the screen."""
    page.wait_for_timeout(300)
    for _ in range(600):
        if "more fields" not in page.locator("#quick-words").inner_text():
            return
        page.wait_for_timeout(100)


# --- latency ------------------------------------------------------------------------------------


@contextmanager
def concurrent_tiles(server: Server, image: str) -> Iterator[list[float]]:
    """Yield a list that receives the latencies of cached tiles in milliseconds."""
    token = (server.workspace / "users" / "local" / "token").read_text()
    client, spent, is_over = Client(Address(server.port, token)), [], threading.Event()

    def fetch() -> None:
        while not is_over.wait(0.02):
            started = time.perf_counter()
            client.request("GET", f"{image}/tiles/0/0/0.jpg")
            spent.append(1000 * (time.perf_counter() - started))

    thread = threading.Thread(target=fetch)
    thread.start()
    yield spent
    is_over.set()
    thread.join()


def measure(page: Any, server: Server, size: tuple[int, int], n_strokes: int) -> None:
    hand, viewer = Hand(page, size), page.locator("#viewer")
    page.locator('a[title^="slide-3.jpg"]').first.click()
    wait_for_shapes(page, 0)
    settle(page)
    rng = np.random.default_rng(0)
    data, image = page.url.rsplit("/", 2)[-2:]
    times: list[int] = []
    address = f"/api/data/{data}/images/{image}"
    with concurrent_tiles(server, address) as alone:
        page.wait_for_timeout(3000)
    with concurrent_tiles(server, address) as concurrent:
        for number in range(n_strokes):
            page.locator(".classes input[type=radio]").nth(number % 2).click()
            viewer.evaluate("viewer => { delete viewer.dataset.live; }")
            x, y = 20 + rng.random(2) * (np.array(size) - 60)
            hand.drag((x, y), (x + 30, y + 10))
            page.locator("#viewer[data-live]").wait_for(timeout=_SLOW)
            times.append(int(viewer.get_attribute("data-live")))
    print_latency("stroke to map", times)
    print_latency("tile, idle server", alone)
    print_latency("tile, during strokes", concurrent)


def print_latency(name: str, times: list[Any]) -> None:
    p50, p95 = np.percentile(times, [50, 95])
    most = max(times)
    print(f"{name:20s} median {p50:.0f} ms, p95 {p95:.0f} ms, most {most:.0f} ms ({len(times)})")


def main() -> None:
    parser = argparse.ArgumentParser(description="Annotate unannotated slides in a browser.")
    parser.add_argument("--pictures", type=Path, help="folder for a screenshot of each step")
    parser.add_argument("--strokes", type=int, default=20, help="number of timed strokes")
    parser.add_argument("--without-encoder", action="store_true", help="use pixel features only")
    specified = parser.parse_args()
    for name, value in describe_machine().items():
        print(f"{name:16s} {value}")
    if specified.pictures:
        specified.pictures.mkdir(parents=True, exist_ok=True)
    before = WITHOUT_ENCODER if specified.without_encoder else ""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        masks = write_unlabelled_slides(folder / "slides", (640, 480))
        with Image.open(folder / "slides" / "slide-1.jpg") as image:
            size = image.size
        server = Server(folder / "workspace", [folder / "slides"], before=before).start()
        try:
            with open_browser() as browser:
                page = browser.new_page(viewport=SCREEN)
                page.set_default_timeout(60_000)
                sign_in(page, server)
                walk(page, masks, size, specified.pictures)
                measure(page, server, size, specified.strokes)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
