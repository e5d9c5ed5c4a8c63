"""Tests of the array cache: stored arrays are returned, and the folder is limited in size."""

from __future__ import annotations

import os

import numpy as np
import pytest

from histodict.utils import cache as array_cache
from histodict.utils.cache import ArrayCache

KIB = np.zeros(1024 - 128 - 32, np.uint8)  # one KiB with the header and digest of the file


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(array_cache, "_bytes_since_cleanup", {})
    monkeypatch.setenv("HISTODICT_CACHE_GIB", str(10 / 2**20))  # room for ten arrays
    return ArrayCache(tmp_path)


def put(cache, n, start=0):
    """Write n arrays, each one second newer than the previous one."""
    for i in range(start, start + n):
        cache.write([i], KIB)
        path = cache._make_path([i])
        if path.exists():
            os.utime(path, (i, i))


def cached_numbers(cache, n):
    return [i for i in range(n) if cache._make_path([i]).exists()]


def test_arrays_within_the_limit_are_cached(cache):
    put(cache, 10)
    assert cached_numbers(cache, 10) == list(range(10))


def test_oldest_arrays_are_evicted_beyond_the_limit(cache):
    put(cache, 11)
    # Eviction stops at nine tenths of the limit.
    assert cached_numbers(cache, 11) == list(range(2, 11))
    size = sum(path.stat().st_size for path in cache.folder.glob("*/*.npy"))
    assert size <= 10 * 1024


def test_read_arrays_are_evicted_last(cache):
    put(cache, 10)
    np.testing.assert_array_equal(cache.read([0]), KIB)
    put(cache, 1, start=10)
    assert cached_numbers(cache, 11) == [0, *range(3, 11)]


def test_reduced_limit_evicts_existing_arrays(cache, monkeypatch):
    put(cache, 10)
    monkeypatch.setattr(array_cache, "_bytes_since_cleanup", {})  # simulates another process
    monkeypatch.setenv("HISTODICT_CACHE_GIB", str(4 / 2**20))
    put(cache, 1, start=10)
    assert cached_numbers(cache, 11) == [8, 9, 10]


def test_foreign_files_are_neither_counted_nor_removed(cache):
    own = cache.folder / "ab" / "mine.npy"
    own.parent.mkdir()
    np.save(own, np.zeros(100_000))
    put(cache, 12)
    assert own.exists()
    assert len(cached_numbers(cache, 12)) == 10


def test_folder_size_is_not_measured_for_every_write(cache, monkeypatch):
    monkeypatch.setenv("HISTODICT_CACHE_GIB", "1")
    summaries = []
    monkeypatch.setattr(array_cache, "_evict", lambda *args: summaries.append(args))
    put(cache, 20)
    assert len(summaries) == 1


@pytest.mark.parametrize("value", ["much", "-1", "nan"])
def test_limit_that_is_not_a_number_is_refused(cache, monkeypatch, value):
    monkeypatch.setenv("HISTODICT_CACHE_GIB", value)
    with pytest.raises(ValueError, match="HISTODICT_CACHE_GIB must be a size in GiB"):
        cache.write([0], KIB)
