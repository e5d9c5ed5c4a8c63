"""The folder of arrays: what it holds comes back, and it does not grow without end."""

from __future__ import annotations

import os

import numpy as np
import pytest

from histodict.utils import cache as array_cache
from histodict.utils.cache import ArrayCache

KIB = np.zeros(1024 - 128 - 32, np.uint8)  # with the file's head and digest one KiB


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(array_cache, "_written", {})
    monkeypatch.setenv("HISTODICT_CACHE_GIB", str(10 / 2**20))  # ten arrays
    return ArrayCache(tmp_path)


def put(cache, n, start=0):
    """Arrays, each a second younger than the one before."""
    for i in range(start, start + n):
        cache.write([i], KIB)
        path = cache._file([i])
        if path.exists():
            os.utime(path, (i, i))


def held(cache, n):
    return [i for i in range(n) if cache._file([i]).exists()]


def test_it_keeps_all_that_fits(cache):
    put(cache, 10)
    assert held(cache, 10) == list(range(10))


def test_of_more_the_oldest_go(cache):
    put(cache, 11)
    assert held(cache, 11) == list(range(2, 11))  # nine tenths of the limit
    size = sum(path.stat().st_size for path in cache.folder.glob("*/*.npy"))
    assert size <= 10 * 1024


def test_what_was_read_stays(cache):
    put(cache, 10)
    np.testing.assert_array_equal(cache.read([0]), KIB)
    put(cache, 1, start=10)
    assert held(cache, 11) == [0, *range(3, 11)]


def test_a_limit_that_was_made_smaller_holds_for_what_is_there(cache, monkeypatch):
    put(cache, 10)
    monkeypatch.setattr(array_cache, "_written", {})  # another process
    monkeypatch.setenv("HISTODICT_CACHE_GIB", str(4 / 2**20))
    put(cache, 1, start=10)
    assert held(cache, 11) == [8, 9, 10]


def test_other_files_of_the_folder_are_left_alone(cache):
    own = cache.folder / "ab" / "mine.npy"
    own.parent.mkdir()
    np.save(own, np.zeros(100_000))
    put(cache, 12)
    assert own.exists()
    assert len(held(cache, 12)) == 10


def test_the_folder_is_not_looked_at_for_every_array(cache, monkeypatch):
    monkeypatch.setenv("HISTODICT_CACHE_GIB", "1")
    summaries = []
    monkeypatch.setattr(array_cache, "_evict", lambda *given: summaries.append(given))
    put(cache, 20)
    assert len(summaries) == 1


@pytest.mark.parametrize("words", ["much", "-1", "nan"])
def test_a_limit_that_is_no_number_is_refused(cache, monkeypatch, words):
    monkeypatch.setenv("HISTODICT_CACHE_GIB", words)
    with pytest.raises(ValueError, match="HISTODICT_CACHE_GIB must be a number of GiB"):
        cache.write([0], KIB)
