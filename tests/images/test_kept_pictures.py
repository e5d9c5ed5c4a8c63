"""Images that come again are decoded once, and never shown as they were before."""

from __future__ import annotations

import gc
import os
import time
import weakref

import numpy as np
import pytest
from PIL import Image

from histodict import TissueClassifier
from histodict.demo.sets import write_synthetic_set
from histodict.images import in_memory, kept_pictures
from histodict.images.kept_pictures import keep_pictures, pictures_kept
from histodict.images.readers import open_image
from histodict.presets import preset

COLOURS = ((200, 40, 90), (30, 160, 70), (60, 60, 220))


@pytest.fixture
def files(tmp_path):
    """Three images of one colour each."""
    made = []
    for place, colour in enumerate(COLOURS):
        made.append(tmp_path / f"{place}.png")
        Image.new("RGB", (40, 30), colour).save(made[-1])
    return made


@pytest.fixture
def decoded(monkeypatch):
    """The names of the files that were decoded, in order."""
    names, own = [], kept_pictures.decode

    def decode(path):
        names.append(path.name)
        return own(path)

    monkeypatch.setattr(kept_pictures, "decode", decode)
    # Files count as settled at once.
    monkeypatch.setattr(in_memory, "_SETTLED_S", -1.0)
    monkeypatch.setattr(kept_pictures, "_KEPT", kept_pictures._Kept())
    return names


def _colour(path):
    with open_image(path) as source:
        return tuple(source.read(3, 2, 1, 1)[0, 0].tolist())


def test_they_are_kept_only_while_somebody_says_that_they_come_again(files, decoded):
    for _ in range(2):
        assert [_colour(path) for path in files] == list(COLOURS)
    assert decoded == [path.name for path in files] * 2
    decoded.clear()
    with pictures_kept():
        for _ in range(3):
            with pictures_kept():  # as of a training within an evaluation
                assert [_colour(path) for path in files] == list(COLOURS)
    assert decoded == [path.name for path in files]
    assert _colour(files[0]) == COLOURS[0]
    assert len(decoded) == 4


def test_the_memory_is_given_back(files, decoded):
    with pictures_kept():
        _colour(files[0])
        (picture,) = kept_pictures._KEPT._pictures.values()
        held = weakref.ref(picture)
        del picture
        gc.collect()
        assert held() is not None
    gc.collect()
    assert held() is None


def test_a_process_of_a_pool_keeps_them_from_trial_to_trial(files, decoded):
    for _ in range(2):
        keep_pictures()
        with pictures_kept():
            _colour(files[0])
    assert len(decoded) == 1


def test_a_file_that_was_changed_is_decoded_again(files, decoded):
    with pictures_kept():
        assert _colour(files[0]) == COLOURS[0]
        time.sleep(0.02)  # a step of the disk's clock
        Image.new("RGB", (40, 30), COLOURS[1]).save(files[0])
        assert _colour(files[0]) == COLOURS[1]
        os.replace(files[2], files[0])  # whatever its date
        assert _colour(files[0]) == COLOURS[2]


def test_a_file_that_was_written_just_now_is_not_kept(files, decoded, monkeypatch):
    monkeypatch.setattr(in_memory, "_SETTLED_S", 2.5)
    fresh = files[0].with_name("fresh.png")
    Image.new("RGB", (40, 30), COLOURS[0]).save(fresh)
    with pictures_kept():
        _colour(fresh)
        _colour(fresh)
    assert len(decoded) == 2


def test_who_goes_round_finds_those_that_fitted(files, decoded, monkeypatch):
    monkeypatch.setattr(kept_pictures, "_MOST_BYTES", 2 * 40 * 30 * 4)
    with pictures_kept():
        for _ in range(4):
            for path in files:
                _colour(path)
    assert decoded == ["0.png", "1.png", "2.png", "2.png", "2.png", "2.png"]
    decoded.clear()
    monkeypatch.setattr(kept_pictures, "available_bytes", lambda: 8 * 40 * 30 * 4)
    with pictures_kept():
        for path in (*files, *files):
            _colour(path)
    assert decoded == ["0.png", "1.png", "2.png", "1.png", "2.png"]


def test_a_training_decodes_every_image_once_and_learns_the_same(tmp_path, decoded, monkeypatch):
    tissue = write_synthetic_set(tmp_path / "tissue", 2, 2, (200, 160))
    recipe = preset("fast").with_known({"n_atoms": 8, "n_iter": 2, "patches_per_class": 60})
    kept = TissueClassifier(recipe).fit(tissue / "manifest.csv")
    assert sorted(decoded) == sorted(path.name for path in tissue.glob("[hi]*/*.jpg"))
    monkeypatch.setattr(kept_pictures, "_MOST_BYTES", 0)
    decoded.clear()
    plain = TissueClassifier(recipe).fit(tissue / "manifest.csv")
    assert len(decoded) > 4
    for name in plain.model_.method_.fitted_arrays:
        ours, theirs = (getattr(model.model_.method_, name) for model in (kept, plain))
        assert np.array_equal(ours, theirs), name
