"""Tests of the image cache: repeated images are decoded once, and changed ones again."""

from __future__ import annotations

import gc
import os
import signal
import time
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from histodict import TissueClassifier
from histodict.evaluation import runs as tasks
from histodict.images import memory_image
from histodict.images import memory_image as in_memory
from histodict.images.file_types import ImageError, InsufficientMemoryError
from histodict.images.memory_image import enable_worker_image_cache, image_cache_enabled
from histodict.images.source import open_image
from histodict.models.recipe import preset
from histodict.synthetic.dataset import write_synthetic_dataset
from histodict.utils import parallel as processes
from histodict.utils.parallel import ExecutionOptions

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
    """The names of the decoded files, in order."""
    names, own = [], memory_image.decode

    def decode(path):
        names.append(path.name)
        return own(path)

    monkeypatch.setattr(memory_image, "decode", decode)
    # Treat new files as settled at once.
    monkeypatch.setattr(in_memory, "_MIN_AGE_S", -1.0)
    monkeypatch.setattr(memory_image, "_CACHE", memory_image._ImageCache())
    return names


def _colour(path):
    with open_image(path) as source:
        return tuple(source.read(3, 2, 1, 1)[0, 0].tolist())


def test_images_are_cached_only_inside_the_context(files, decoded):
    for _ in range(2):
        assert [_colour(path) for path in files] == list(COLOURS)
    assert decoded == [path.name for path in files] * 2
    decoded.clear()
    with image_cache_enabled():
        for _ in range(3):
            with image_cache_enabled():  # nested, like a training within an evaluation
                assert [_colour(path) for path in files] == list(COLOURS)
    assert decoded == [path.name for path in files]
    assert _colour(files[0]) == COLOURS[0]
    assert len(decoded) == 4


def test_memory_is_released(files, decoded):
    with image_cache_enabled():
        _colour(files[0])
        (image,) = memory_image._CACHE._images.values()
        stored = weakref.ref(image)
        del image
        gc.collect()
        assert stored() is not None
    gc.collect()
    assert stored() is None


def test_worker_process_keeps_the_cache_within_a_run(files, decoded):
    for _ in range(2):
        enable_worker_image_cache("one", 2)
        with image_cache_enabled():
            _colour(files[0])
    assert len(decoded) == 1
    enable_worker_image_cache("two", 2)
    assert not memory_image._CACHE._images
    _colour(files[0])
    assert len(decoded) == 2 and len(memory_image._CACHE._images) == 1


def test_processes_of_a_run_share_the_budget(decoded, monkeypatch):
    monkeypatch.setattr(memory_image, "available_bytes", lambda: 8 * 2**30)
    assert [memory_image._memory_budget(n) for n in (1, 2, 4)] == [
        384 * 2**20,
        384 * 2**20,
        256 * 2**20,
    ]
    monkeypatch.setattr(memory_image, "available_bytes", lambda: None)
    assert memory_image._memory_budget(4) == 96 * 2**20


def test_failed_worker_pool_releases_the_cache(files, decoded, monkeypatch):
    monkeypatch.setattr(processes, "can_share_locks", lambda: False)
    with pytest.warns(RuntimeWarning, match="cannot share locks"):
        assert list(tasks._run_parallel(_colour, files, ExecutionOptions(n_jobs=2))) == list(
            COLOURS
        )
    assert memory_image._CACHE.n_users == 0


def test_cache_is_emptied_for_an_image_that_would_not_fit(files, decoded, monkeypatch):
    own = memory_image.decode

    def decode(path):
        if path == files[2] and memory_image._CACHE._images:
            raise InsufficientMemoryError("no room")
        return own(path)

    monkeypatch.setattr(memory_image, "decode", decode)
    with image_cache_enabled():
        assert [_colour(path) for path in files] == list(COLOURS)
        assert not memory_image._CACHE._images
        assert [_colour(path) for path in files] == list(COLOURS)

    def never(path):
        raise InsufficientMemoryError("no room")

    monkeypatch.setattr(memory_image, "decode", never)
    with image_cache_enabled(), pytest.raises(ImageError, match="no room"):
        _colour(files[0])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_forked_process_does_not_wait_for_a_missing_thread(files, decoded):
    with image_cache_enabled(), memory_image._CACHE._lock, ThreadPoolExecutor(1) as another:
        child = another.submit(_forked, files[0]).result()
    assert child == 0


def _forked(path):
    with warnings.catch_warnings():
        # warnings about forking with threads, which this test does on purpose
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        _colour(path)
        os._exit(0)
    for _ in range(200):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def test_changed_file_is_decoded_again(files, decoded):
    with image_cache_enabled():
        assert _colour(files[0]) == COLOURS[0]
        time.sleep(0.02)  # more than the resolution of file times
        Image.new("RGB", (40, 30), COLOURS[1]).save(files[0])
        assert _colour(files[0]) == COLOURS[1]
        os.replace(files[2], files[0])  # whatever its modification time
        assert _colour(files[0]) == COLOURS[2]


def test_recently_written_file_is_not_cached(files, decoded, monkeypatch):
    monkeypatch.setattr(in_memory, "_MIN_AGE_S", 2.5)
    fresh = files[0].with_name("fresh.png")
    Image.new("RGB", (40, 30), COLOURS[0]).save(fresh)
    with image_cache_enabled():
        _colour(fresh)
        _colour(fresh)
    assert len(decoded) == 2


def test_cyclic_access_hits_the_images_that_fitted(files, decoded, monkeypatch):
    monkeypatch.setattr(memory_image, "_MAX_CACHE_BYTES", 2 * 40 * 30 * 4)
    with image_cache_enabled():
        for _ in range(4):
            for path in files:
                _colour(path)
    assert decoded == ["0.png", "1.png", "2.png", "2.png", "2.png", "2.png"]
    decoded.clear()
    monkeypatch.setattr(memory_image, "available_bytes", lambda: 8 * 40 * 30 * 4)
    with image_cache_enabled():
        for path in (*files, *files):
            _colour(path)
    assert decoded == ["0.png", "1.png", "2.png", "1.png", "2.png"]


def test_training_decodes_every_image_once_with_the_same_result(tmp_path, decoded, monkeypatch):
    tissue = write_synthetic_dataset(tmp_path / "tissue", 2, 2, (200, 160))
    recipe = preset("fast").with_applicable_settings(
        {"n_atoms": 8, "n_iter": 2, "patches_per_class": 60}
    )
    stored = TissueClassifier(recipe).fit(tissue / "manifest.csv")
    assert sorted(decoded) == sorted(path.name for path in tissue.glob("[hi]*/*.jpg"))
    monkeypatch.setattr(memory_image, "_MAX_CACHE_BYTES", 0)
    decoded.clear()
    plain = TissueClassifier(recipe).fit(tissue / "manifest.csv")
    assert len(decoded) > 4
    for name in plain.model_.classifier_.fitted_arrays:
        ours, theirs = (getattr(model.model_.classifier_, name) for model in (stored, plain))
        assert np.array_equal(ours, theirs), name
