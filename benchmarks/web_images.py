"""Performance of the page with many images: opening, first picture, tiles, memory.

    python -m benchmarks.web_images [--images 20 5000 50000] [--tables] [--browser] [--training]
                                    [--requests 10000] [--outlines]

Sets of two classes with four images per patient, in folders or (--tables) in a table; all images
are links to one small file. Prints for each size: the time to list the set at first and again; the
latency of tiles, six at a time, that are computed (each of another image) and that are cached; and
CPU time of the server per tile, which other load hardly affects. With --browser: the time in
Chromium until the first thumbnail on the data page and the first picture in the viewer, and the
number of page elements. With --training, tiles are also requested during a training. Finally,
--requests are sent to the largest set, and the memory of the server is printed after each tenth.
With --outlines only: the time to outline a map of 16 megapixels, for several distances between
patches, with regions and noise.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from attacks.page import Address, Client, memory_mb, running_server
from histodict.patches.grid import PatchGrid
from histodict.patches.patch_map import PatchMap
from histodict.synthetic.dataset import write_synthetic_dataset
from histodict.synthetic.tissue_generator import make_tissue_image, random_stain
from histodict.web.maps import region_outlines
from tests.web.browser import open_browser

from .machine import describe_machine

_N_CONNECTIONS = 6
_N_TILES = 300
_MOST_LINKS = 20_000  # hard links of one file; file systems have a limit
Sets = dict[str, tuple[str, list[str]]]  # by number of images: id of the set, and of the images
_SCREEN = {"width": 1366, "height": 768}


def write_set(folder: Path, n_images: int, in_table: bool) -> None:
    """Write four images per patient, with patients of alternating classes."""
    rng, rows = np.random.default_rng(0), ["path,label,patient"]
    pixels = make_tissue_image("healthy", random_stain(rng), rng, (512, 512))
    for number in range(n_images):
        patient, label = number // 4, "ab"[number // 4 % 2]
        path = folder / (f"{number}.jpg" if in_table else f"{label}/p{patient}/{number}.jpg")
        path.parent.mkdir(parents=True, exist_ok=True)
        if number % _MOST_LINKS == 0:
            first = path
            Image.fromarray(pixels).save(first)
        else:
            path.hardlink_to(first)
        rows.append(f"{path.name},{label},p{patient}")
    if in_table:
        (folder / "manifest.csv").write_text("\n".join(rows))


def percentiles(ms: NDArray[np.float64]) -> str:
    p50, p95 = np.percentile(ms, [50, 95])
    return f"p50 {p50:6.1f} ms, p95 {p95:6.1f} ms, most {ms.max():6.1f} ms"


def latencies(address: Address, paths: list[str]) -> NDArray[np.float64]:
    """Return milliseconds of each response, six at a time."""
    clients = [Client(address) for _ in range(_N_CONNECTIONS)]

    def fetch(path: str) -> float:
        client = clients.pop()
        started = time.perf_counter()
        status, text = client.request("GET", path)
        spent = 1000 * (time.perf_counter() - started)
        clients.append(client)
        if status != 200:
            raise RuntimeError(f"{path}: {status} {text[:200]!r}")
        return spent

    with ThreadPoolExecutor(_N_CONNECTIONS) as pool:
        return np.array(list(pool.map(fetch, paths)))


def timed(text: str, client: Client, path: str, body: object = None) -> dict[str, object]:
    started = time.perf_counter()
    found: dict[str, object] = client.get(path) if body is None else client.post(path, body)
    print(f"  {text:30s} {time.perf_counter() - started:6.2f} s", flush=True)
    return found


def tiles_of(data: str, images: list[str]) -> list[str]:
    """Return one tile of each of some images from the whole set."""
    places = np.random.default_rng(1).integers(0, len(images), _N_TILES)
    return [f"/api/data/{data}/images/{images[place]}/tiles/0/0/0.jpg" for place in places]


def measure_set(address: Address, pid: int, name: str) -> tuple[str, list[str]]:
    client = Client(address)
    data = str(
        timed("listed first", client, "/api/data", {"folder_index": 0, "relative_path": name})["id"]
    )
    found = timed("told", client, f"/api/data/{data}")
    timed("told again", client, f"/api/data/{data}")
    timed("front page", client, "/api/session")
    images = [image["id"] for image in found["images"]]  # type: ignore[attr-defined]
    measure_tiles(address, pid, data, images, "alone")
    return data, images


def cpu_ms(pid: int) -> float:
    """Return the CPU milliseconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return 1000 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure_tiles(address: Address, pid: int, data: str, images: list[str], when: str) -> None:
    for text, paths in (
        ("tiles of many images", tiles_of(data, images)),
        ("tile in memory", tiles_of(data, images)[:1] * _N_TILES),
    ):
        before = cpu_ms(pid)
        ms = latencies(address, paths)
        spent = (cpu_ms(pid) - before) / len(ms)
        print(f"  {f'{text}, {when}':32s} {percentiles(ms)}, {spent:.1f} ms of CPU", flush=True)


def measure_in_browser(address: Address, data: str, image: str) -> None:
    """Time the pages in a browser without a cache."""
    base = f"http://127.0.0.1:{address.port}/"
    ways = {
        "data page, first thumbnail": (f"#/data/{data}", "thumbnail"),
        "viewer, first picture": (f"#/look/-/{data}/{image}", "tiles"),
    }
    with open_browser() as browser:
        for text, (way, part) in ways.items():
            page = browser.new_page(viewport=_SCREEN)
            page.set_default_timeout(120_000)
            page.goto(f"{base}?token={address.token}")
            page.wait_for_url(base)
            page.goto("about:blank")
            page.goto(base + way)
            came = page.evaluate(_ARRIVED, part)
            n_elements = page.evaluate("document.querySelectorAll('*').length")
            print(f"  {text:30s} {came / 1000:6.2f} s, {n_elements} elements", flush=True)
            page.close()


# Milliseconds from the request of the page to its first picture of this kind.
_ARRIVED = """async (part) => {
  for (;;) {
    const found = performance.getEntriesByType("resource")
      .filter((entry) => entry.name.includes(part) && entry.responseEnd > 0);
    if (found.length) return Math.min(...found.map((entry) => entry.responseEnd));
    await new Promise((done) => setTimeout(done, 20));
  }
}"""


@contextmanager
def training_under_way(address: Address) -> Iterator[None]:
    """Train a model on the set `tissue` during the block; raise an error if it ends before."""
    client = Client(address)
    data = client.post("/api/data", {"folder_index": 0, "relative_path": "tissue"})["id"]
    wish = {"data": data, "preset": "default", "settings": {"n_iter": "300"}}
    job = client.post("/api/jobs", wish)["id"]
    while client.get(f"/api/jobs/{job}")["state"] == "waiting":
        time.sleep(0.2)
    time.sleep(8)  # it reads images at first
    yield
    state = client.get(f"/api/jobs/{job}")["state"]
    client.post(f"/api/jobs/{job}/cancel")
    if state != "running":
        raise RuntimeError(f"the training is {state}: it went on for part of the time alone")


def measure_while_training(address: Address, pid: int, sets: Sets) -> None:
    with training_under_way(address):
        for name, (data, images) in sets.items():
            print(f"{name} images, while a model is trained")
            measure_tiles(address, pid, data, images, "training")


def measure_memory(address: Address, pid: int, data: str, images: list[str], n: int) -> None:
    rng, kinds = np.random.default_rng(2), ("tiles/0/0/0.jpg", "thumbnail.jpg", "")
    megabytes = []
    for _ in range(10):
        places = rng.integers(0, len(images), n // 10)
        paths = [
            f"/api/data/{data}/images/{images[place]}/{kinds[place % 3]}".rstrip("/")
            for place in places
        ]
        latencies(address, paths)
        megabytes.append(memory_mb(pid))
    reported = ", ".join(f"{mb:.0f}" for mb in megabytes)
    print(f"memory over {n} requests of {len(images)} images, in tenths: {reported} MB")


def measure_outlines(side: int = 4000) -> None:
    rng = np.random.default_rng(0)
    for step in (20, 10, 5, 4):
        n = side // step
        noise = rng.random((n, n))
        for text, values in (("regions", ndimage.gaussian_filter(noise, 2)), ("noise", noise)):
            predicted_classes = (values > np.median(values)).astype(np.int16)
            grid, margins = PatchGrid(n, n, 20, step, 1.0), np.zeros((n, n, 2), np.float32)
            annotated = PatchMap(grid, predicted_classes, margins, ("a", "b"), Path("x.jpg"))
            started = time.process_time()
            rings = region_outlines(annotated, 1, 4)
            seconds = time.process_time() - started
            print(
                f"  a patch every {step:2d} pixels, {text:7s} {seconds:.2f} s, {len(rings)} rings"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description="Opening, tiles and memory with many images.")
    parser.add_argument("--images", type=int, nargs="+", default=[20, 5000, 50_000], help="sizes")
    parser.add_argument("--tables", action="store_true", help="use tables instead of folders")
    parser.add_argument("--browser", action="store_true", help="also open the pages in Chromium")
    parser.add_argument("--training", action="store_true", help="also during a training")
    parser.add_argument("--requests", type=int, default=10_000, help="requests of the memory test")
    parser.add_argument("--outlines", action="store_true", help="only time outlines")
    specified = parser.parse_args()
    for name, value in describe_machine().items():
        print(f"{name:16s} {value}")
    if specified.outlines:
        return measure_outlines()
    with tempfile.TemporaryDirectory() as folder:
        base, sets = Path(folder) / "data", Sets()
        for n_images in specified.images:
            write_set(base / str(n_images), n_images, specified.tables)
        write_synthetic_dataset(base / "tissue", 5, 2)
        time.sleep(3)  # recently changed files are read at every request
        with running_server(base, Path(folder) / "workspace") as (address, server):
            pid = server.process.pid
            for n_images in specified.images:
                print(f"{n_images} images")
                data, images = sets[str(n_images)] = measure_set(address, pid, str(n_images))
                if specified.browser:
                    measure_in_browser(address, data, images[len(images) // 2])
            if specified.training:
                measure_while_training(address, pid, sets)
            if specified.requests:
                measure_memory(address, pid, data, images, specified.requests)


if __name__ == "__main__":
    main()
