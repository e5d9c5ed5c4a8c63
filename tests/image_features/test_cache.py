from __future__ import annotations

import os
import time
from functools import partial

import numpy as np
import pytest
from PIL import Image

from histodict.image_features import FEATURES, extract_image_features
from histodict.utils.cache import ArrayCache


def load(path, brighter=0):
    return np.asarray(Image.open(path).convert("RGB")) + np.uint8(brighter)


@pytest.fixture
def images(tmp_path, rng):
    paths = [tmp_path / f"{i}.png" for i in range(4)]
    for path in paths:
        Image.fromarray(rng.integers(0, 200, (12, 10, 3)).astype(np.uint8)).save(path)
    return paths


class Loader:
    """Records the paths that it loads."""

    def __init__(self, brighter=0):
        self.loaded = []
        self.brighter = brighter

    def __call__(self, path):
        self.loaded.append(path)
        return load(path, self.brighter)


@pytest.fixture
def cache(tmp_path):
    return ArrayCache(tmp_path / "cache")


def files_of(cache):
    return sorted(file for file in cache.folder.rglob("*") if file.is_file())


def features(images, loader, cache, *, pixels_key="as they are", name="luminance", **more):
    return extract_image_features(
        images, name, loader, pixels_key=pixels_key, cache=cache, n_jobs=1, **more
    )


def test_features_of_every_image_are_computed_once(images, cache):
    loader = Loader()
    first = features(images, loader, cache)
    np.testing.assert_array_equal(first, [FEATURES["luminance"](load(path)) for path in images])
    assert loader.loaded == images
    again = features(images[::-1], loader, cache)
    np.testing.assert_array_equal(again, first[::-1])
    assert loader.loaded == images


def test_changed_pixels_features_or_versions_are_computed_again(images, cache):
    first = features(images, Loader(), cache)
    brighter = Loader(brighter=20)
    assert (features(images, brighter, cache, pixels_key="brighter") != first).any()
    assert brighter.loaded == images
    planes = Loader()
    assert features(images, planes, cache, name="planes").shape != first.shape
    assert planes.loaded == images
    newer = Loader()
    object.__setattr__(FEATURES["luminance"], "version", 2)
    try:
        features(images, newer, cache)
    finally:
        object.__setattr__(FEATURES["luminance"], "version", 1)
    assert newer.loaded == images


def test_changed_image_is_computed_again(images, cache):
    first = features(images, Loader(), cache)
    Image.fromarray(np.full((12, 10, 3), [1, 200, 3], np.uint8)).save(images[1])
    os.utime(images[1], ns=(0, 12345))
    loader = Loader()
    second = features(images, loader, cache)
    assert loader.loaded == [images[1]]
    assert (second != first).any(axis=1).tolist() == [False, True, False, False]


def test_changed_image_of_same_size_and_time_is_computed_again(images, cache):
    path = images[0].with_suffix(".bmp")  # the same file size for any pixels
    for colour in (10, 200):
        time.sleep(0.05)  # the resolution of file times may be that low
        Image.fromarray(np.full((12, 10, 3), colour, np.uint8)).save(path)
        os.utime(path, ns=(0, 12345))
        (vector,) = features([path], Loader(), cache)
        np.testing.assert_array_equal(vector, FEATURES["luminance"](load(path)))


def flip_a_bit(file):
    content = bytearray(file.read_bytes())
    content[-40] ^= 1  # in the last number, which stays a valid number
    file.write_bytes(content)


def wrong_length(file):
    np.save(file, np.zeros(3))


def wrong_type(file):
    np.save(file, np.load(file).astype(np.float32))


def not_finite(file):
    np.save(file, np.load(file) * np.nan)


def with_objects(file):
    np.save(file, np.array([{}]), allow_pickle=True)


DAMAGE = {
    "empty": lambda file: file.write_bytes(b""),
    "cut short": lambda file: file.write_bytes(file.read_bytes()[:-9]),
    "a flipped bit": lambda file: flip_a_bit(file),
    "text": lambda file: file.write_text("no array"),
    "wrong length": wrong_length,
    "wrong type": wrong_type,
    "not finite": not_finite,
    "objects": with_objects,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damaged_cache_files_are_replaced(images, cache, damage):
    first = features(images, Loader(), cache)
    damaged = files_of(cache)[0]
    damage(damaged)
    loader = Loader()
    with pytest.warns(UserWarning, match=rf"{damaged}: the cached file is damaged"):
        np.testing.assert_array_equal(features(images, loader, cache), first)
    assert len(loader.loaded) == 1
    features(images, loader, cache)
    assert len(loader.loaded) == 1


def test_interrupted_run_leaves_only_complete_files(images, cache):
    def stop(progress):
        if progress.done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        features(images, Loader(), cache, callback=stop)
    assert [file.suffix for file in files_of(cache)] == [".npy", ".npy"]
    loader = Loader()
    features(images, loader, cache)
    assert loader.loaded == images[2:]


def test_processes_give_the_same_values_in_order(images, cache):
    loader = partial(load, brighter=5)
    reported = []
    several = extract_image_features(
        images, "planes", loader, pixels_key="", cache=cache, n_jobs=2, callback=reported.append
    )
    one = extract_image_features(images, "planes", loader, pixels_key="", n_jobs=1)
    np.testing.assert_array_equal(several, one)
    assert [(p.stage, p.done, p.total) for p in reported] == [("features", i, 4) for i in range(5)]
    untouched = Loader()
    features(images, untouched, cache, name="planes", pixels_key="")
    assert untouched.loaded == []


def test_cached_images_count_as_done(images, cache):
    features(images[:3], Loader(), cache)
    reported = []
    features(images, Loader(), cache, callback=reported.append)
    assert [p.done for p in reported] == [3, 4]


@pytest.mark.filterwarnings("error")
def test_error_in_the_callback_ends_all_processes(images, cache):
    def stop(progress):
        raise RuntimeError("enough")

    many = images * 10
    with pytest.raises(RuntimeError, match="enough"):
        extract_image_features(
            many, "planes", load, pixels_key="", cache=cache, n_jobs=2, callback=stop
        )
    again = extract_image_features(many, "planes", load, pixels_key="", cache=cache, n_jobs=2)
    assert again.shape == (40, 3 * 1024)


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_error_names_the_image_and_keeps_earlier_results(images, cache, n_jobs):
    images[2].write_bytes(b"no image")
    with pytest.raises(OSError, match=images[2].name):
        extract_image_features(images, "luminance", load, pixels_key="", cache=cache, n_jobs=n_jobs)
    assert len(files_of(cache)) >= 2


def test_no_images_give_no_rows():
    assert extract_image_features([], "luminance", load, pixels_key="").shape == (0, 1024)


def test_unknown_features_are_refused(images):
    with pytest.raises(ValueError, match="wndcharm"):
        extract_image_features(images, "sift", load, pixels_key="")
