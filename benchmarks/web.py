"""Latency of tiles of a large slide, and memory of the server.

    python -m benchmarks.web [--side 30000] [--slide FILE] [--screens 60] [--images N] [--browser]
                            [--training]

The slide is generated unless --slide is set. A client requests screens of tiles like the viewer: at
changing zoom, six requests at a time, each screen adjacent to the last or elsewhere; then the same
screens again. Prints the latency of a tile at first (read from the slide) and again (mostly from
the cache), the memory of the server, and the latency of a cached tile of an image in a table of
--images. With --browser, Chromium pans over the slide, and the time between frames is printed. With
--training, the screens are also requested during a training. For many clients use `python -m
attacks.load`, for thousands of images `python -m benchmarks.web_images`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from attacks.page import Address, Client, memory_mb, running_server
from attacks.visitors import SCREEN, screens
from histodict.synthetic.dataset import write_synthetic_dataset
from histodict.synthetic.tissue_generator import make_tissue_image, random_stain

from .big_slide import write_slide
from .machine import describe_machine
from .web_images import training_under_way

N_CONNECTIONS = 6


def open_image(address: Address, inside: str) -> str:
    """Return the server path of the first image in a folder or table."""
    client = Client(address)
    data = client.post("/api/data", {"folder_index": 0, "relative_path": inside})["id"]
    return f"/api/data/{data}/images/{client.get(f'/api/data/{data}')['images'][0]['id']}"


def latencies(address: Address, image: str, walk: list[list[str]]) -> NDArray[np.float64]:
    """Return milliseconds of every tile, six at a time, screen by screen."""
    clients = [Client(address) for _ in range(N_CONNECTIONS)]

    def fetch(tile: str) -> float:
        client = clients.pop()
        started = time.perf_counter()
        status, _ = client.request("GET", f"{image}/tiles/{tile}.jpg")
        spent = 1000 * (time.perf_counter() - started)
        clients.append(client)
        if status != 200:
            raise RuntimeError(f"tile {tile}: status {status}")
        return spent

    with ThreadPoolExecutor(N_CONNECTIONS) as pool:
        return np.array([ms for screen in walk for ms in pool.map(fetch, screen)])


def main() -> None:
    parser = argparse.ArgumentParser(description="Latency of tiles, and memory of the server.")
    parser.add_argument("--side", type=int, default=30_000, help="side of the slide in pixels")
    parser.add_argument("--slide", type=Path, help="slide to use instead")
    parser.add_argument("--screens", type=int, default=60, help="number of screens")
    parser.add_argument("--images", type=int, default=5000, help="rows of the large table")
    parser.add_argument("--training", action="store_true", help="also during a training")
    parser.add_argument("--browser", action="store_true", help="also pan in Chromium")
    specified = parser.parse_args()
    for name, value in describe_machine().items():
        print(f"{name:16s} {value}")
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        (data / "slide").mkdir(parents=True)
        if specified.slide:
            (data / "slide" / specified.slide.name).hardlink_to(specified.slide.resolve())
        else:
            started = time.perf_counter()
            write_slide(data / "slide" / "slide.tif", specified.side)
            seconds = time.perf_counter() - started
            print(
                f"slide            {specified.side} x {specified.side}, written in {seconds:.0f} s"
            )
        write_table(data / "many", specified.images)
        write_synthetic_dataset(data / "tissue", 5, 2)
        with running_server(data, Path(folder) / "workspace") as (address, server):
            measure(address, server.process.pid, specified.screens)
            measure_in_table(address, specified.images)
            if specified.training:
                with training_under_way(address):
                    measure(address, server.process.pid, specified.screens, seed=1)
            if specified.browser:
                pan_in_browser(address)


def measure(address: Address, pid: int, n_screens: int, seed: int = 0) -> None:
    image = open_image(address, "slide")
    before = memory_mb(pid)
    walk = list(screens(Client(address).get(image), np.random.default_rng(seed), n_screens))
    for name in ("first walk", "second walk"):
        ms = latencies(address, image, walk)
        p50, p95 = np.percentile(ms, [50, 95])
        reported = f"median {p50:.0f} ms, p95 {p95:.0f} ms, most {ms.max():.0f} ms"
        print(f"{name:16s} {len(ms)} tiles: {reported}")
    print(f"memory           {before:.0f} MB before, {memory_mb(pid, 'VmHWM'):.0f} MB at most")


def write_table(folder: Path, n_images: int) -> None:
    """Write a table of images that are links to one file."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    Image.fromarray(make_tissue_image("healthy", random_stain(rng), rng, (512, 512))).save(
        folder / "0.jpg"
    )
    rows = ["path,label,patient", "0.jpg,a,p0"]
    for number in range(1, n_images):
        (folder / f"{number}.jpg").hardlink_to(folder / "0.jpg")
        rows.append(f"{number}.jpg,{'ab'[number % 2]},p{number // 4}")
    (folder / "manifest.csv").write_text("\n".join(rows))
    os.utime(folder / "manifest.csv", (0, 0))  # recently changed files are read at every request


def measure_in_table(address: Address, n_images: int) -> None:
    image = open_image(address, "many")
    ms = latencies(address, image, [["0/0/0"]] * 21)[1:]
    print(f"in a table       of {n_images} images a tile takes {np.median(ms):.1f} ms")


# The viewer of the page, moved 12 pixels per frame for five seconds at half its finest zoom.
_PAN = """async () => {
  const canvas = document.getElementById("viewer");
  const press = (key) => canvas.dispatchEvent(new KeyboardEvent("keydown", {key}));
  while (Number(canvas.dataset.scale) < 0.5) {
    press("+");
    await new Promise(requestAnimationFrame);
  }
  const frames = [];
  const keys = ["ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp"];
  let last = performance.now();
  for (let i = 0; performance.now() - frames.start < 5000 || !frames.start; i += 1) {
    frames.start ??= last;
    press(keys[Math.floor(i / 40) % 4]);
    await new Promise(requestAnimationFrame);
    frames.push(performance.now() - last);
    last = performance.now();
  }
  return frames;
}"""


def pan_in_browser(address: Address) -> None:
    from playwright.sync_api import sync_playwright

    data, _, name = open_image(address, "slide").removeprefix("/api/data/").partition("/images/")
    base = f"http://127.0.0.1:{address.port}/"
    with sync_playwright() as playwright:
        flags = ["--headless", "--no-sandbox", "--disable-gpu"]
        chromium = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        page = browser.new_page(viewport={"width": SCREEN[0], "height": SCREEN[1] + 68})
        page.goto(f"{base}?token={address.token}")
        page.wait_for_url(base)
        page.goto(f"{base}#/look/-/{data}/{name}")
        page.wait_for_selector("#viewer[data-scale]")
        ms = np.array(page.evaluate(_PAN))
        browser.close()
    p50, p95 = np.percentile(ms, [50, 95])
    print(f"panning          {len(ms)} frames: median {p50:.0f} ms, p95 {p95:.0f} ms")


if __name__ == "__main__":
    main()
