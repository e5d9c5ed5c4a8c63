"""Tests of the precedence of pixel sizes, and of refused and assumed ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from histodict.datasets.record import ImageRecord
from histodict.datasets.survey import common_pixel_size
from histodict.images.pixel_size import PixelSize, PixelSizeOption, size_warnings

from .files import save_tiff_of_size

LIMITS = [0, -1, float("nan")]


@pytest.fixture
def files(tmp_path):
    """A file with a pixel size of 0.25 µm, and one without."""
    abstaining = tmp_path / "silent.png"
    Image.new("RGB", (8, 8)).save(abstaining)
    return save_tiff_of_size(tmp_path / "told.tif", 0.25), abstaining


@pytest.mark.parametrize(
    ("option", "for_known", "for_unknown"),
    [
        (PixelSizeOption(), (0.25, "file"), (None, "unknown")),
        (PixelSizeOption(default=0.5), (0.25, "file"), (0.5, "command")),
        (PixelSizeOption(default=0.5, table=1.0), (1.0, "table"), (1.0, "table")),
        (PixelSizeOption(table=1.0, override=2.0), (2.0, "command"), (2.0, "command")),
    ],
)
def test_precedence_of_pixel_sizes(files, option, for_known, for_unknown):
    for path, (mpp, origin) in zip(files, (for_known, for_unknown), strict=True):
        found = option.resolve(path)
        assert (found.mpp, found.origin) == (mpp and pytest.approx(mpp), origin)
        # The reader does not get the size that the file contains.
        assert found.user_mpp == (None if origin in ("file", "unknown") else mpp)


def test_single_number_is_a_default(files):
    assert (
        PixelSizeOption.from_mpp(0.5) == PixelSizeOption(default=0.5)
        and PixelSizeOption.from_mpp(None) == PixelSizeOption()
    )
    assert PixelSizeOption.from_mpp(PixelSizeOption(override=1.0)) == PixelSizeOption(override=1.0)


@pytest.mark.parametrize("value", LIMITS)
@pytest.mark.parametrize("name", ["default", "table", "override"])
def test_invalid_sizes_are_refused(name, value):
    with pytest.raises(ValueError, match="mpp must be"):
        PixelSizeOption(**{name: value})


def test_rewritten_file_is_read_again(tmp_path):
    path = save_tiff_of_size(tmp_path / "a.tif", 0.25)
    assert PixelSizeOption().resolve(path).mpp == pytest.approx(0.25)
    save_tiff_of_size(path, 0.5)
    assert PixelSizeOption().resolve(path).mpp == pytest.approx(0.5)


def records(files, *sizes):
    return [ImageRecord(path, "x", "p", mpp=mpp) for path, mpp in zip(files, sizes, strict=True)]


def test_training_images_have_one_size_or_none(files):
    assert common_pixel_size(records(files, 0.5, 0.5), None) == 0.5
    assert common_pixel_size(records(files, None, 0.25), None) == pytest.approx(0.25)
    assert common_pixel_size([ImageRecord(files[1], "x", "p")], None) is None
    with pytest.raises(ValueError, match=r"from 0\.25 to 0\.5 µm.*the setting mpp=0\.5"):
        common_pixel_size(records(files, None, 0.5), None)
    assert common_pixel_size(records(files, None, 0.5), 1.0) is None  # all are reduced to 1 µm


def test_partly_known_sizes_are_refused(files):
    with pytest.raises(ValueError, match=r"of 1 image is not known, .*mpp=….*silent\.png"):
        common_pixel_size(records(files, None, None), None)
    with pytest.raises(ValueError, match=r"images to 1 µm.*silent\.png"):
        common_pixel_size([ImageRecord(files[1], "x", "p")], 1.0)


def test_assumed_sizes_are_warned_of_in_one_line():
    known, unknown = PixelSize(0.5, "file"), PixelSize(None, "unknown")
    assumed = unknown.with_assumed_mpp(0.25)
    assert assumed == PixelSize(0.25, "assumed") and known.with_assumed_mpp(0.25) is known
    assert unknown.with_assumed_mpp(None) is unknown
    (text,) = size_warnings([known, assumed, assumed], 0.25, None)
    assert "2 of 3 images" in text and "0.25 µm" in text and "mpp=…" in text
    (text,) = size_warnings([known, PixelSize(1.0, "table"), unknown], None, None)
    assert "that of 2 images (0.5 to 1 µm)" in text
    assert size_warnings([known], 0.5, None) == size_warnings([unknown], None, None) == []
    assert size_warnings([known], None, 1.0) == []  # reduced to it: no fit is needed


def test_documentation_describes_the_precedence():
    text = (Path(__file__).parents[2] / "docs" / "pixel-size.md").read_text("utf-8")
    for word in ("file", "table", "command", "assumed", "unknown", "--mpp", "--override-mpp"):
        assert f"`{word}`" in text
