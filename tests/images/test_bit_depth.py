"""Damaged floating-point TIFF files are refused with one line, like any other image."""

import numpy as np
import pytest
import tifffile

from histodict.images.file_types import ImageError
from histodict.images.raster import read_float_metadata
from histodict.images.source import open_image

WIDTH, HEIGHT = 256, 257


@pytest.mark.parametrize("tag", [WIDTH, HEIGHT])
def test_image_without_pixels_is_refused(tmp_path, tag):
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, np.full((30, 40, 3), 0.5, np.float32), photometric="rgb")
    with tifffile.TiffFile(path, mode="r+b") as tiff:
        tiff.pages[0].tags[tag].overwrite(0)
    with pytest.raises(ImageError, match=r"a\.tif: .*damaged"):
        open_image(path)


def test_out_of_memory_is_not_attributed_to_the_file(tmp_path, monkeypatch):
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, np.zeros((8, 8, 3), np.float32), photometric="rgb")

    def full(*args, **named):
        raise MemoryError("none left")

    monkeypatch.setattr(tifffile, "TiffFile", full)
    with pytest.raises(MemoryError, match="none left"):
        read_float_metadata(path)
