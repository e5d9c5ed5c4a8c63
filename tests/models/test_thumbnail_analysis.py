"""Tests of the cached thumbnail analysis, which is repeated if the image changes."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from histodict.images import memory_image as in_memory
from histodict.images.memory_image import MemoryImage, stable_cache_key
from histodict.images.source import open_image
from histodict.models import prepared_image as module
from histodict.models.prepared_image import analyse_thumbnail, open_prepared_image
from histodict.models.recipe import preset
from histodict.preprocessing.stain import NORMALIZERS


@pytest.fixture
def analyses(monkeypatch):
    """Record of analyses, with an empty cache; files count as settled."""
    monkeypatch.setattr(module, "_ANALYSES", module._ResultCache())
    monkeypatch.setattr(in_memory, "_MIN_AGE_S", -1.0)
    prepared_again = []
    made = module.TissueThreshold.from_thumbnail

    class Counted(module.TissueThreshold):
        @classmethod
        def from_thumbnail(cls, thumbnail):
            prepared_again.append(thumbnail.shape)
            return made(thumbnail)

    monkeypatch.setattr(module, "TissueThreshold", Counted)
    return prepared_again


def write(path, rng):
    pixels = rng.integers(90, 200, (64, 64, 3)).astype(np.uint8)
    pixels[..., 1] //= 2
    Image.fromarray(pixels).save(path)
    return path


def analyse(path, stain="reinhard"):
    recipe = preset("fast").with_changes(stain=stain)
    with open_prepared_image(path, None, recipe) as prepared:
        return prepared._tissue, prepared.normalize


def test_thumbnail_is_analysed_once(analyses, tmp_path, rng):
    path = write(tmp_path / "a.bmp", rng)
    first = analyse(path)
    assert analyse(path) == first and len(analyses) == 1
    with open_image(path) as source:
        fresh = analyse_thumbnail(source, "reinhard", [])
    assert (fresh.tissue, fresh.normalize) == first


def test_stain_corrections_are_cached_separately(analyses, tmp_path, rng):
    path = write(tmp_path / "a.bmp", rng)
    found = {stain: analyse(path, stain)[1] for stain in NORMALIZERS}
    assert found == {stain: analyse(path, stain)[1] for stain in NORMALIZERS}
    assert len(analyses) == len(set(map(repr, found.values()))) == len(NORMALIZERS)


def test_replaced_image_is_analysed_again(analyses, tmp_path, rng):
    path = write(tmp_path / "a.bmp", rng)
    first = analyse(path)
    write(path, rng)
    assert analyse(path) != first and len(analyses) == 2


def test_recently_written_file_is_not_cached(analyses, monkeypatch, tmp_path, rng):
    """The file may change again within the resolution of its modification time."""
    monkeypatch.setattr(in_memory, "_MIN_AGE_S", 600.0)
    path = write(tmp_path / "a.bmp", rng)
    assert stable_cache_key(path) == []
    analyse(path)
    analyse(path)
    assert len(analyses) == 2


def test_images_without_a_stable_key_are_not_cached(tmp_path):
    assert stable_cache_key(tmp_path / "none.png") == []
    assert stable_cache_key(MemoryImage.from_array(np.zeros((9, 9, 3), np.uint8), "a")) == []


def test_cache_is_bounded(analyses, monkeypatch, tmp_path, rng):
    monkeypatch.setattr(module, "_MAX_CACHED", 2)
    paths = [write(tmp_path / f"{name}.bmp", rng) for name in "abc"]
    for path in [*paths, paths[2], paths[1], paths[0]]:
        analyse(path)
    assert len(analyses) == 4  # the first was evicted
