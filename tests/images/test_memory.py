"""Tests of memory: plain images are held once in their file mode, and refused if memory is
short."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from histodict.datasets.annotated import RegionMask
from histodict.images import raster as decoding
from histodict.images.source import ImageError, open_image
from tests.images.files import save_plain, save_png_header, scene

SIDE = 4000
PEAK = """
import os, sys
from pathlib import Path
from histodict.datasets.annotated import RegionMask
from histodict.images.source import open_image

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))

def look(path):
    with open_image(path) as source:
        source.thumbnail(1024)
        source.read(10, 10, 1024, 1024)
        if path.endswith("mask.png"):
            RegionMask.read(Path(path), source.size).coverage(source.size[0] / 2, 0.0, 20)

small, *large = sys.argv[1:]
for path in large:
    if not os.fork():  # with a peak of its own
        look(small.replace("*", Path(path).name))
        before = peak()
        look(path)
        print(peak() - before, flush=True)
        os._exit(0)
    os.wait()
"""
# For each mode: how to save it, and the maximal bytes per pixel: 1, 2 or 4 of Pillow, for a mask
# its region and sums, plus a constant.
KINDS = {
    "turned.jpg": ("RGB", {"exif": {274: 6}}, 7),
    "colour.png": ("RGBA", {"compress_level": 1}, 7),
    "grey.png": ("I;16", {"compress_level": 1}, 5),
    "mask.png": ("L", {"compress_level": 1}, 9),
}


def save(path, side, mode, options):
    image = Image.fromarray(np.broadcast_to(np.arange(side) % 200, (side, side)).astype(np.uint8))
    options = dict(options)
    if "exif" in options:
        options["exif"] = Image.Exif()
        options["exif"][274] = 6
    (image if mode == "L" else image.convert(mode)).save(path, **options)
    return path


@pytest.fixture(scope="module")
def peaks(tmp_path_factory):
    """Return the peak memory of reading a large image, in bytes per pixel, for each kind."""
    folder = tmp_path_factory.mktemp("images")
    for side in (300, SIDE):
        (folder / str(side)).mkdir()
        for name, (mode, options, _) in KINDS.items():
            save(folder / str(side) / name, side, mode, options)
    command = [sys.executable, "-c", PEAK, folder / "300" / "*"]
    run = subprocess.run(
        [*command, *(folder / str(SIDE) / name for name in KINDS)],
        capture_output=True,
        text=True,
        check=True,
    )
    found = [int(line) / SIDE**2 for line in run.stdout.split()]
    return dict(zip(KINDS, found, strict=True))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is in /proc")
@pytest.mark.parametrize("name", KINDS)
def test_image_is_in_memory_once(peaks, name):
    assert peaks[name] < KINDS[name][2]


def test_image_larger_than_free_memory_is_refused(tmp_path, monkeypatch):
    path = save_plain(tmp_path / "a.png", scene())
    monkeypatch.setattr(decoding, "available_bytes", lambda: 1_000_000)
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("it was decoded"))
    with open_image(path) as source:
        assert source.size == (600, 440)
        with pytest.raises(
            ImageError,
            match=r"a\.png: reading 600 x 440 pixels needs 1 MB .* 1 MB are free; .*pyramidal",
        ):
            source.read(0, 0, 5, 5)
    with pytest.raises(ImageError, match=r"a\.png: reading 600 x 440 pixels needs 2 MB"):
        RegionMask.read(path, (600, 440))


def test_images_are_read_if_free_memory_is_unknown(tmp_path, monkeypatch):
    monkeypatch.setattr(decoding, "available_bytes", lambda: None)
    with open_image(save_plain(tmp_path / "a.png", scene())) as source:
        assert source.read(0, 0, 5, 5).shape == (5, 5, 3)


def test_progressive_jpeg_needs_more_memory(tmp_path, monkeypatch):
    """Its decoder holds all coefficients: 2 bytes each, for half as many colour values as
    pixels."""
    requested = []
    monkeypatch.setattr(decoding, "check_memory", lambda path, size, n: requested.append(n))
    for progressive in (False, True):
        path = tmp_path / f"{progressive}.jpg"
        Image.fromarray(scene()).save(path, progressive=progressive, subsampling="4:2:0")
        open_image(path).read(0, 0, 5, 5)
    assert requested == [600 * 440 * 4, 600 * 440 * (4 + 3)]


def test_more_pixels_than_fit_the_file_are_refused(tmp_path):
    path = save_png_header(tmp_path / "a.png", 20_000, 20_000)
    with pytest.raises(ImageError, match=r"a\.png: .*20000 x 20000 .*more than \d+ bytes"):
        open_image(path).read(0, 0, 5, 5)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_regions_of_a_rotated_image(tmp_path, rng, orientation):
    pixels = rng.integers(0, 256, (30, 50, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[274] = orientation
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
    with open_image(tmp_path / "a.png") as source:
        full = source.read(0, 0, *source.size)
        np.testing.assert_array_equal(source.read(3, 5, 20, 11), full[5:16, 3:23])
