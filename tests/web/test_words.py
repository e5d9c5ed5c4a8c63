"""Messages as the page gives them: none names what only the command line or Python has."""

import numpy as np
import pytest
from PIL import Image

from histodict.execution.missing_chunks import check_missing_chunks
from histodict.images.manifest import Record, read_manifest
from histodict.images.pixel_size import PixelSize, common_size, size_warnings
from histodict.pipeline import TissueClassifier
from histodict.pipeline.opening import open_view
from histodict.recipes import Recipe
from histodict.web.words import for_the_page


@pytest.fixture
def image(tmp_path):
    Image.fromarray(np.zeros((40, 40, 3), np.uint8)).save(tmp_path / "a.png")
    return tmp_path / "a.png"


def message(work, *given):
    with pytest.raises(ValueError) as caught:
        work(*given)
    return str(caught.value)


def look(path, mpp, recipe, trained=None):
    with open_view(path, mpp, recipe, trained):
        pass


def table(folder, header):
    (folder / "t.csv").write_text(f"{header}\na.png,x,y")
    return read_manifest(folder / "t.csv")


def messages(image):
    known, other = (Record(image, "", "", mpp=mpp) for mpp in (0.25, 0.5))
    yield message(common_size, [known, Record(image, "", "")], None), "on the data page"
    yield message(common_size, [known, other], None), "setting mpp to 0.5 in the training settings"
    yield size_warnings([PixelSize(0.5, "assumed")], 0.5, None)[0], "on the data page"
    yield size_warnings([PixelSize(0.5, "file")], None, None)[0], "on the data page before"
    yield message(look, image, None, Recipe(mpp=0.5)), "on the data page"
    yield check_missing_chunks("a.zarr", 3, 5), "Copy it again"
    yield message(look, image, 1.0, Recipe(), 0.5), "give the true size in a column mpp"
    yield message(table, image.parent, "path,note,other"), "Rename them"
    yield message(table, image.parent, "path,class,diagnosis"), "rename some of them"
    (image.parent / "t.csv").write_text("path,mask\na.png,a.png")
    masked = read_manifest(image.parent / "t.csv")
    yield message(TissueClassifier().fit, masked), "ask where in the image it is"


def test_messages_name_what_the_page_has(image):
    for raw, words in messages(image):
        said = for_the_page(raw)
        assert words in said, said
        assert "--" not in said and "Python" not in said, said
