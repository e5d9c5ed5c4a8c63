"""What a thumbnail tells is remembered, and forgotten as soon as the image is another one."""

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
from histodict.preprocessing.stain import NORMALISERS


@pytest.fixture
def looks(monkeypatch):
    """How often a thumbnail was looked at, with a memory of its own; files count as old."""
    monkeypatch.setattr(module, "_MEMORY", module._Memory())
    monkeypatch.setattr(in_memory, "_SETTLED_S", -1.0)
    seen = []
    made = module.TissueThreshold.from_thumbnail

    class Counted(module.TissueThreshold):
        @classmethod
        def from_thumbnail(cls, thumbnail):
            seen.append(thumbnail.shape)
            return made(thumbnail)

    monkeypatch.setattr(module, "TissueThreshold", Counted)
    return seen


def write(path, rng):
    pixels = rng.integers(90, 200, (64, 64, 3)).astype(np.uint8)
    pixels[..., 1] //= 2
    Image.fromarray(pixels).save(path)
    return path


def look_at(path, stain="reinhard"):
    recipe = preset("fast").with_changes(stain=stain)
    with open_prepared_image(path, None, recipe) as view:
        return view._tissue, view.normalise


def test_one_look_for_all_who_come_later(looks, tmp_path, rng):
    path = write(tmp_path / "a.bmp", rng)
    first = look_at(path)
    assert look_at(path) == first and len(looks) == 1
    with open_image(path) as source:
        fresh = analyse_thumbnail(source, "reinhard", [])
    assert (fresh.tissue, fresh.normalise) == first


def test_every_stain_correction_has_its_own(looks, tmp_path, rng):
    path = write(tmp_path / "a.bmp", rng)
    found = {stain: look_at(path, stain)[1] for stain in NORMALISERS}
    assert found == {stain: look_at(path, stain)[1] for stain in NORMALISERS}
    assert len(looks) == len(set(map(repr, found.values()))) == len(NORMALISERS)


def test_another_image_in_its_place_is_looked_at(looks, tmp_path, rng):
    path = write(tmp_path / "a.bmp", rng)
    first = look_at(path)
    write(path, rng)
    assert look_at(path) != first and len(looks) == 2


def test_of_a_file_written_just_now_nothing_is_remembered(looks, monkeypatch, tmp_path, rng):
    """It may be written again before the disk's clock goes on."""
    monkeypatch.setattr(in_memory, "_SETTLED_S", 600.0)
    path = write(tmp_path / "a.bmp", rng)
    assert stable_cache_key(path) == []
    look_at(path)
    look_at(path)
    assert len(looks) == 2


def test_a_missing_file_is_told_by_who_opens_it(tmp_path):
    assert stable_cache_key(tmp_path / "none.png") == []
    assert stable_cache_key(MemoryImage.of_array(np.zeros((9, 9, 3), np.uint8), "a")) == []


def test_the_memory_has_an_end(looks, monkeypatch, tmp_path, rng):
    monkeypatch.setattr(module, "_MAX_KEPT", 2)
    paths = [write(tmp_path / f"{name}.bmp", rng) for name in "abc"]
    for path in [*paths, paths[2], paths[1], paths[0]]:
        look_at(path)
    assert len(looks) == 4  # the first was forgotten
