"""Tests of compilation: bounds checks on request, and a disk cache whose failure is harmless."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
from numba.core import caching, config

from histodict.kernels import compilation as compiling

PLANTED = """
import numpy as np
from histodict.kernels.compilation import jit
from histodict.kernels.cpu.simd import load, store

@jit()
def copy(a, b, start, to):
    store(b, to, load(a, start))

@jit()
def take(a, place):
    return a[place]

a, b = np.arange(40.0), np.zeros(48)
copy(a, b, 24, 32)
assert (b[32:] == a[24:]).all()
for call in [
    lambda: copy(a, b, 25, 0),
    lambda: copy(a, b, -1, 0),
    lambda: copy(a, b, 0, 33),
    lambda: copy(a[:15], b, 0, 0),
    lambda: take(a, 40),
]:
    try:
        call()
    except IndexError:
        continue
    raise SystemExit("a place outside its array was not noticed")
"""


def test_bounds_checks_detect_invalid_indices(tmp_path):
    file = tmp_path / "planted.py"
    file.write_text(PLANTED)
    environment = os.environ | {"HISTODICT_CHECK_BOUNDS": "1", "NUMBA_OPT": "1"}
    subprocess.run([sys.executable, file], env=environment, check=True, timeout=120)


def twice(x):
    return 2 * x


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Cache folder of the kernels of this test."""
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "cache"))
    compiling._warn_cache_unwritable.cache_clear()
    return tmp_path / "cache"


def cached_files(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def count_cache_hits(kernel):
    return sum(kernel.stats.cache_hits.values())


def test_kernels_are_cached_on_disk(folder):
    assert compiling.jit()(twice)(3.0) == 6.0
    again = compiling.jit()(twice)
    assert again(4.0) == 8.0
    assert count_cache_hits(again) == 1
    assert len(cached_files(folder)) == 2


def test_full_disk_is_warned_of_once(folder, monkeypatch):
    def full(self, path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    monkeypatch.setattr(caching.IndexDataCacheFile, "_open_for_write", full)
    kernel = compiling.jit()(twice)
    with pytest.warns(RuntimeWarning, match=f"{folder}.*No space left.*NUMBA_CACHE_DIR"):
        assert kernel(3.0) == 6.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kernel(np.float32(3)) == 6


def test_missing_writable_folder_is_warned_of(folder, monkeypatch):
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    with pytest.warns(RuntimeWarning, match="NUMBA_CACHE_DIR"):
        kernel = compiling.jit()(twice)
    assert kernel(3.0) == 6.0


@pytest.mark.parametrize("damage", ["cut", "emptied", "changed"])
@pytest.mark.parametrize("suffix", [".nbc", ".nbi"])
def test_damaged_cache_files_are_replaced(folder, damage, suffix):
    compiling.jit()(twice)(3.0)
    (file,) = (path for path in cached_files(folder) if path.suffix == suffix)
    content = file.read_bytes()
    half = len(content) // 2
    changed = content[:half] + bytes([content[half] ^ 1]) + content[half + 1 :]
    file.write_bytes({"cut": content[:half], "emptied": b"", "changed": changed}[damage])
    assert compiling.jit()(twice)(3.0) == 6.0
    fresh = compiling.jit()(twice)
    assert fresh(5.0) == 10.0
    assert count_cache_hits(fresh) == 1


def test_index_is_written_after_the_code(folder, monkeypatch):
    def killed(self, name, data):
        raise KeyboardInterrupt

    monkeypatch.setattr(compiling._CacheFile, "_save_data", killed)
    with pytest.raises(KeyboardInterrupt):
        compiling.jit()(twice)(3.0)
    assert cached_files(folder) == []
