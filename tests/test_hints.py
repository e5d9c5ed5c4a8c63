"""Tests of hints in messages: each surface names only its own options."""

import numpy as np
import pytest
from PIL import Image

from histodict.datasets.manifest import ImageRecord, read_manifest
from histodict.datasets.survey import common_pixel_size
from histodict.images.pixel_size import PixelSize, size_warnings
from histodict.models import TissueClassifier
from histodict.models.prepared_image import open_prepared_image
from histodict.models.recipe import Recipe
from histodict.utils.missing_chunks import check_missing_chunks
from histodict.utils.validation import hints_for


@pytest.fixture
def image(tmp_path):
    Image.fromarray(np.zeros((40, 40, 3), np.uint8)).save(tmp_path / "a.png")
    return tmp_path / "a.png"


def message(work, *options):
    with pytest.raises(ValueError) as caught:
        work(*options)
    return str(caught.value)


def open_with(path, mpp, recipe, trained=None):
    with open_prepared_image(path, mpp, recipe, trained):
        pass


def table(folder, header):
    (folder / "t.csv").write_text(f"{header}\na.png,x,y")
    return read_manifest(folder / "t.csv")


def messages(image):
    """Yield each message with its hint for Python, the command line and the web page."""
    known, other = (ImageRecord(image, "", "", mpp=mpp) for mpp in (0.25, 0.5))
    how = "set it with mpp=…", "set it with --mpp", "on the data page"
    yield message(common_pixel_size, [known, ImageRecord(image, "", "")], None), how
    setting = "the setting mpp=0.5", "--set mpp=0.5", "setting mpp to 0.5 in the training settings"
    yield message(common_pixel_size, [known, other], None), setting
    yield size_warnings([PixelSize(0.5, "assumed")], 0.5, None)[0], how
    before = "Train with mpp=…", "Train with --mpp", "on the data page before"
    yield size_warnings([PixelSize(0.5, "file")], None, None)[0], before
    yield message(open_with, image, None, Recipe(mpp=0.5)), how
    missing = "histodict.allow_missing_chunks", "--allow-missing-chunks", "Copy the data again"
    yield check_missing_chunks("a.zarr", 3, 5), missing
    size = "correct it (mpp=…", "correct it (--mpp, ", "correct it (data page"
    yield message(open_with, image, 1.0, Recipe(), 0.5), size
    Image.new("RGB", (60, 60)).save(image.parent / "sized.tif", dpi=(25400, 25400))  # 1 µm
    size = "PixelSizeOption(override=…)", "--override-mpp", "set the true one in a column mpp"
    yield message(open_with, image.parent / "sized.tif", None, Recipe(), 0.5), size
    names = "columns={'label': …}", "--column label=COLUMN", "Rename a column"
    yield message(table, image.parent, "path,note,other"), names
    several = "columns={'label': …}", "--column label=NAME", "rename the others"
    yield message(table, image.parent, "path,class,diagnosis"), several
    (image.parent / "t.csv").write_text("path,mask\na.png,a.png")
    masked = read_manifest(image.parent / "t.csv")
    kind = "use a RegionDetector", "give --regions NAME", "choose the target 'regions'"
    yield message(TissueClassifier().fit, masked), kind


FOREIGN = {"python": ("--", "page"), "cli": ("Python", "=…"), "web": ("--", "Python", "=…")}


@pytest.mark.parametrize("place, surface", list(enumerate(FOREIGN)))
def test_message_has_the_hint_of_its_surface(image, place, surface):
    with hints_for(surface):
        for output, wordings in messages(image):
            assert wordings[place] in output, output
            assert not any(word in output for word in FOREIGN[surface]), output


def test_previous_surface_is_restored(image):
    with hints_for("cli"):
        with pytest.raises(KeyError), hints_for("web"):
            raise KeyError
        assert "--mpp" in size_warnings([PixelSize(0.5, "assumed")], 0.5, None)[0]
