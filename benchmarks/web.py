"""How fast tiles of a large slide come, and how much memory the server takes meanwhile.

    python -m benchmarks.web [--side 30000] [--slide FILE] [--screens 60] [--images N] [--browser]

A slide is generated unless one is given. A reader then walks over it as the viewer does: screens of
tiles at changing zoom, six requests at a time, each screen next to the last or somewhere else; then
the same walk once more. Told are the latencies of a tile on the first walk (read from the slide)
and on the second (from the server's memory as far as that goes), and the server's memory. Then how
long a tile takes that is in memory, of an image in a table of --images. With --browser, Chromium
pans over the slide by itself, and the time between its frames is told.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from histodict.demo.scanner import draw_stain
from histodict.demo.tissue import draw_image

from .machine import machine_facts

SCREEN = 1366, 700
N_CONNECTIONS = 6
_BLOCK = 1024  # side of a drawing; the slide is a mosaic of them
_N_DRAWINGS = 6
_TILE = 256
_FACTORS = (1, 4, 16, 64)


# --- the slide ----------------------------------------------------------------------------------


def write_slide(path: Path, side: int, seed: int = 0) -> None:
    """A pyramid of JPEG tiles, side × side pixels at 0.25 µm, a mosaic of drawn tissue.

    A BigTIFF by hand: equal tiles are stored once, so that the file is small however large the
    slide. Reading costs the same: every tile is decoded.
    """
    rng = np.random.default_rng(seed)
    stain = draw_stain(rng)
    kinds = ["healthy", "inflamed"] * (_N_DRAWINGS // 2)
    drawings = [draw_image(kind, stain, rng, (_BLOCK, _BLOCK)) for kind in kinds]
    n_blocks = math.ceil(side / _BLOCK)
    mosaic = rng.integers(0, len(drawings), (n_blocks, n_blocks))
    with path.open("wb") as file:
        file.write(struct.pack("<2sHHHQ", b"II", 43, 8, 0, 0))
        link = 8  # where the place of the next level's directory is to be written
        for factor in _FACTORS:
            stored: dict[bytes, int] = {}
            offsets, lengths = [], []
            for tile in _tiles(drawings, mosaic, factor, side // factor):
                if tile not in stored:
                    stored[tile] = file.tell()
                    file.write(tile)
                offsets.append(stored[tile])
                lengths.append(len(tile))
            link = _write_directory(file, link, side // factor, factor, offsets, lengths)


def _write_directory(
    file: BinaryIO, link: int, length: int, factor: int, offsets: list[int], lengths: list[int]
) -> int:
    """A level's directory at the end of the file, linked from `link`; where the next link goes."""
    places = []
    for values in (offsets, lengths):
        one = len(values) == 1  # a single value stands in the tag itself
        places.append(values[0] if one else file.tell())
        file.write(b"" if one else struct.pack(f"<{len(values)}Q", *values))
    short, long_, rational, long8 = 3, 4, 5, 16
    per_cm = struct.pack("<II", 40_000 // factor, 1)
    tags = [
        (254, long_, 1, struct.pack("<I", int(factor > 1))),
        (256, long_, 1, struct.pack("<I", length)),
        (257, long_, 1, struct.pack("<I", length)),
        (258, short, 3, struct.pack("<3H", 8, 8, 8)),
        (259, short, 1, struct.pack("<H", 7)),  # JPEG
        (262, short, 1, struct.pack("<H", 6)),  # YCbCr
        (277, short, 1, struct.pack("<H", 3)),
        (282, rational, 1, per_cm),
        (283, rational, 1, per_cm),
        (284, short, 1, struct.pack("<H", 1)),
        (296, short, 1, struct.pack("<H", 3)),
        (322, long_, 1, struct.pack("<I", _TILE)),
        (323, long_, 1, struct.pack("<I", _TILE)),
        (324, long8, len(offsets), struct.pack("<Q", places[0])),
        (325, long8, len(lengths), struct.pack("<Q", places[1])),
        (530, short, 2, struct.pack("<HH", 2, 2)),
    ]
    start = file.tell()
    file.write(struct.pack("<Q", len(tags)))
    for tag, kind, count, value in tags:
        file.write(struct.pack("<HHQ", tag, kind, count) + value.ljust(8, b"\0"))
    next_link = file.tell()
    file.write(struct.pack("<Q", 0))
    file.seek(link)
    file.write(struct.pack("<Q", start))
    file.seek(0, 2)
    return next_link


def _tiles(
    drawings: list[NDArray[np.uint8]], mosaic: NDArray[np.int64], factor: int, length: int
) -> Iterator[bytes]:
    """The encoded tiles of a level, row by row; equal ones are encoded once."""
    small = [np.asarray(Image.fromarray(d).reduce(factor)) for d in drawings]
    block = _BLOCK // factor
    encoded: dict[tuple[object, ...], bytes] = {}
    for top in range(0, length, _TILE):
        for left in range(0, length, _TILE):
            rows, columns = (
                range(a // block, min((a + _TILE - 1) // block + 1, len(mosaic)))
                for a in (top, left)
            )
            which = tuple(int(mosaic[r, c]) for r in rows for c in columns)
            key = (which, len(rows), top % block, left % block)
            if key not in encoded:
                grid = [[small[mosaic[r, c]] for c in columns] for r in rows]
                area = np.concatenate([np.concatenate(row, axis=1) for row in grid])
                tile = np.full((_TILE, _TILE, 3), 255, np.uint8)
                part = area[top % block :, left % block :][:_TILE, :_TILE]
                tile[: part.shape[0], : part.shape[1]] = part
                encoded[key] = _jpeg(tile)
            yield encoded[key]


def _jpeg(tile: NDArray[np.uint8]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(tile).save(buffer, format="JPEG", quality=85, subsampling="4:2:0")
    return buffer.getvalue()


# --- the server ---------------------------------------------------------------------------------


@contextmanager
def running_server(folder: Path, workspace: Path) -> Iterator[tuple[str, int]]:
    """Its address and process number."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    source = (
        "from pathlib import Path; from histodict.web.server import serve; "
        f"serve([Path({str(folder)!r})], workspace=Path({str(workspace)!r}), "
        f"port={port}, browser=False)"
    )
    process = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(300):
            try:
                urllib.request.urlopen(address).close()
                break
            except OSError:
                time.sleep(0.1)
        yield address, process.pid
    finally:
        process.terminate()
        process.wait()


def memory_mb(pid: int, name: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) / 1024
    raise ValueError(f"the system does not tell {name}")


def open_slide(address: str, inside: str) -> str:
    """The address of the slide's image on the server."""
    body = json.dumps({"place": 0, "inside": inside}).encode()
    headers = {"Content-Type": "application/json", "X-Histodict": "1"}
    request = urllib.request.Request(f"{address}/api/data", body, headers)
    data = json.load(urllib.request.urlopen(request))["id"]
    images = json.load(urllib.request.urlopen(f"{address}/api/data/{data}"))["images"]
    return f"{address}/api/data/{data}/images/{images[0]['id']}"


# --- the walk -----------------------------------------------------------------------------------


def walk(info: dict[str, int], n_screens: int, seed: int = 0) -> Iterator[list[str]]:
    """The tiles of each screen: now and then elsewhere or at another zoom, else a step aside."""
    rng = np.random.default_rng(seed)
    level, x, y = 0, 0.5, 0.5
    for screen in range(n_screens):
        if screen % 6 == 0:
            level = int(rng.integers(0, info["levels"]))
            x, y = rng.random(2)
        scale = 2 ** (info["levels"] - 1 - level)
        x, y = (
            float(np.clip(at + rng.normal(0, 0.5) * s * scale / info["width"], 0, 1))
            for at, s in zip((x, y), SCREEN, strict=True)
        )
        yield _visible(info, level, scale, x * info["width"], y * info["height"])


def _visible(info: dict[str, int], level: int, scale: int, x: float, y: float) -> list[str]:
    size = info["tile"] * scale
    ranges = []
    for at, screen, side in ((x, SCREEN[0], info["width"]), (y, SCREEN[1], info["height"])):
        first = max(0, int((at - screen * scale / 2) // size))
        last = min((side - 1) // size, int((at + screen * scale / 2) // size))
        ranges.append(range(first, last + 1))
    return [f"{level}/{c}/{r}" for c in ranges[0] for r in ranges[1]]


def latencies(image: str, screens: list[list[str]]) -> NDArray[np.float64]:
    """Milliseconds of every tile, six at a time, screen after screen."""

    def fetch(tile: str) -> float:
        started = time.perf_counter()
        with urllib.request.urlopen(f"{image}/tiles/{tile}.jpg") as answer:
            answer.read()
        return 1000 * (time.perf_counter() - started)

    with ThreadPoolExecutor(N_CONNECTIONS) as pool:
        return np.array([ms for screen in screens for ms in pool.map(fetch, screen)])


def main() -> None:
    parser = argparse.ArgumentParser(description="Latency of tiles, and the server's memory.")
    parser.add_argument("--side", type=int, default=30_000, help="pixels of the generated slide")
    parser.add_argument("--slide", type=Path, help="a slide to use instead")
    parser.add_argument("--screens", type=int, default=60, help="screens to look at")
    parser.add_argument("--images", type=int, default=5000, help="rows of the large table")
    parser.add_argument("--browser", action="store_true", help="pan in Chromium, too")
    given = parser.parse_args()
    for name, value in machine_facts().items():
        print(f"{name:16s} {value}")
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        (data / "slide").mkdir(parents=True)
        if given.slide:
            (data / "slide" / given.slide.name).hardlink_to(given.slide.resolve())
        else:
            started = time.perf_counter()
            write_slide(data / "slide" / "slide.tif", given.side)
            seconds = time.perf_counter() - started
            print(f"slide            {given.side} x {given.side}, written in {seconds:.0f} s")
        write_table(data / "many", given.images)
        with running_server(data, Path(folder) / "workspace") as (address, pid):
            measure(address, pid, given.screens)
            measure_in_table(address, given.images)
            if given.browser:
                pan_in_browser(address)


def measure(address: str, pid: int, n_screens: int) -> None:
    image = open_slide(address, "slide")
    before = memory_mb(pid, "VmRSS")
    info = json.load(urllib.request.urlopen(image))
    screens = list(walk(info, n_screens))
    for name in ("first walk", "second walk"):
        ms = latencies(image, screens)
        p50, p95 = np.percentile(ms, [50, 95])
        told = f"median {p50:.0f} ms, p95 {p95:.0f} ms, most {ms.max():.0f} ms"
        print(f"{name:16s} {len(ms)} tiles: {told}")
    print(f"memory           {before:.0f} MB before, {memory_mb(pid, 'VmHWM'):.0f} MB at most")


def write_table(folder: Path, n_images: int) -> None:
    """A table of so many images, which are all one file under different names."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    Image.fromarray(draw_image("healthy", draw_stain(rng), rng, (512, 512))).save(folder / "0.jpg")
    rows = ["path,label,patient", "0.jpg,a,p0"]
    for number in range(1, n_images):
        (folder / f"{number}.jpg").hardlink_to(folder / "0.jpg")
        rows.append(f"{number}.jpg,{'ab'[number % 2]},p{number // 4}")
    (folder / "manifest.csv").write_text("\n".join(rows))
    os.utime(folder / "manifest.csv", (0, 0))  # what has just changed is read at every request


def measure_in_table(address: str, n_images: int) -> None:
    image = open_slide(address, "many")
    ms = latencies(image, [["0/0/0"]] * 21)[1:]
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


def pan_in_browser(address: str) -> None:
    from playwright.sync_api import sync_playwright

    image = open_slide(address, "slide")
    data, _, name = image.removeprefix(f"{address}/api/data/").partition("/images/")
    with sync_playwright() as playwright:
        flags = ["--headless", "--no-sandbox", "--disable-gpu"]
        chromium = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        page = browser.new_page(viewport={"width": SCREEN[0], "height": SCREEN[1] + 68})
        page.goto(f"{address}/#/look/-/{data}/{name}")
        page.wait_for_function("document.querySelector('#viewer')?.dataset.scale")
        ms = np.array(page.evaluate(_PAN))
        browser.close()
    p50, p95 = np.percentile(ms, [50, 95])
    print(f"panning          {len(ms)} frames: median {p50:.0f} ms, p95 {p95:.0f} ms")


if __name__ == "__main__":
    main()
