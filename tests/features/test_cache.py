from __future__ import annotations

import os
from functools import partial

import numpy as np
import pytest
from PIL import Image

from histodict.features import FEATURES
from histodict.features.cache import image_features


def load(path, brighter=0):
    return np.asarray(Image.open(path).convert("RGB")) + np.uint8(brighter)


@pytest.fixture
def images(tmp_path, rng):
    paths = [tmp_path / f"{i}.png" for i in range(4)]
    for path in paths:
        Image.fromarray(rng.integers(0, 200, (12, 10, 3)).astype(np.uint8)).save(path)
    return paths


class Loader:
    """Counts what it loads."""

    def __init__(self, brighter=0):
        self.loaded = []
        self.brighter = brighter

    def __call__(self, path):
        self.loaded.append(path)
        return load(path, self.brighter)


def features(images, loader, folder, *, pixels_key="as they are", name="luminance", **more):
    return image_features(
        images, name, loader, pixels_key=pixels_key, cache_folder=folder, n_jobs=1, **more
    )


def test_gives_the_features_of_every_image_and_computes_them_once(images, tmp_path):
    loader = Loader()
    first = features(images, loader, tmp_path / "cache")
    np.testing.assert_array_equal(first, [FEATURES["luminance"](load(path)) for path in images])
    assert loader.loaded == images
    again = features(images[::-1], loader, tmp_path / "cache")
    np.testing.assert_array_equal(again, first[::-1])
    assert loader.loaded == images


def test_other_pixels_features_or_versions_are_computed_anew(images, tmp_path):
    folder = tmp_path / "cache"
    first = features(images, Loader(), folder)
    brighter = Loader(brighter=20)
    assert (features(images, brighter, folder, pixels_key="brighter") != first).any()
    assert brighter.loaded == images
    planes = Loader()
    assert features(images, planes, folder, name="planes").shape != first.shape
    assert planes.loaded == images
    newer = Loader()
    object.__setattr__(FEATURES["luminance"], "version", 2)
    try:
        features(images, newer, folder)
    finally:
        object.__setattr__(FEATURES["luminance"], "version", 1)
    assert newer.loaded == images


def test_a_changed_image_is_computed_anew(images, tmp_path):
    first = features(images, Loader(), tmp_path / "cache")
    Image.fromarray(np.full((12, 10, 3), [1, 200, 3], np.uint8)).save(images[1])
    os.utime(images[1], ns=(0, 12345))
    loader = Loader()
    second = features(images, loader, tmp_path / "cache")
    assert loader.loaded == [images[1]]
    assert (second != first).any(axis=1).tolist() == [False, True, False, False]


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
    "text": lambda file: file.write_text("no array"),
    "wrong length": wrong_length,
    "wrong type": wrong_type,
    "not finite": not_finite,
    "objects": with_objects,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damaged_files_are_made_anew(images, tmp_path, damage):
    folder = tmp_path / "cache"
    first = features(images, Loader(), folder)
    damage(sorted(folder.iterdir())[0])
    loader = Loader()
    np.testing.assert_array_equal(features(images, loader, folder), first)
    assert len(loader.loaded) == 1
    features(images, loader, folder)
    assert len(loader.loaded) == 1


def test_a_stopped_run_leaves_whole_files_only(images, tmp_path):
    folder = tmp_path / "cache"

    def stop(progress):
        if progress.done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        features(images, Loader(), folder, callback=stop)
    assert sorted(file.suffix for file in folder.iterdir()) == [".npy", ".npy"]
    loader = Loader()
    features(images, loader, folder)
    assert loader.loaded == images[2:]


def test_processes_give_the_same_numbers_in_order(images, tmp_path):
    loader = partial(load, brighter=5)
    seen = []
    several = image_features(
        images,
        "planes",
        loader,
        pixels_key="",
        cache_folder=tmp_path / "cache",
        n_jobs=2,
        callback=seen.append,
    )
    one = image_features(images, "planes", loader, pixels_key="", n_jobs=1)
    np.testing.assert_array_equal(several, one)
    assert [(p.stage, p.done, p.total) for p in seen] == [("features", i, 4) for i in (1, 2, 3, 4)]
    untouched = Loader()
    features(images, untouched, tmp_path / "cache", name="planes", pixels_key="")
    assert untouched.loaded == []


def test_images_that_were_there_count_as_done(images, tmp_path):
    features(images[:3], Loader(), tmp_path / "cache")
    seen = []
    features(images, Loader(), tmp_path / "cache", callback=seen.append)
    assert [p.done for p in seen] == [3, 4]


@pytest.mark.filterwarnings("error")
def test_an_error_in_the_callback_ends_several_processes_too(images, tmp_path):
    def stop(progress):
        raise RuntimeError("enough")

    folder = tmp_path / "cache"
    many = images * 10
    with pytest.raises(RuntimeError, match="enough"):
        image_features(
            many, "planes", load, pixels_key="", cache_folder=folder, n_jobs=2, callback=stop
        )
    again = image_features(many, "planes", load, pixels_key="", cache_folder=folder, n_jobs=2)
    assert again.shape == (40, 3 * 1024)


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_an_error_says_which_image_and_keeps_those_before(images, tmp_path, n_jobs):
    images[2].write_bytes(b"no image")
    folder = tmp_path / "cache"
    with pytest.raises(OSError, match=images[2].name):
        image_features(images, "luminance", load, pixels_key="", cache_folder=folder, n_jobs=n_jobs)
    assert len(list(folder.glob("*.npy"))) >= 2


def test_no_images_give_no_rows():
    assert image_features([], "luminance", load, pixels_key="").shape == (0, 1024)


def test_unknown_features_are_refused(images):
    with pytest.raises(ValueError, match="wndcharm"):
        image_features(images, "sift", load, pixels_key="")
