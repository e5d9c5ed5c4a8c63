"""Compilation of kernels with Numba: options, on-disk cache and bounds checks.

With HISTODICT_CHECK_BOUNDS=1 in the environment every array access, including SIMD loads and
stores, checks its index against the size of the array and raises IndexError. It is meant for tests
and fuzzing, and many times slower. The check is selected at compile time.

Numba compiles a function again for an argument that is an integer literal. Kernels therefore write
`np.int64(0)` for an initial value that is passed on. An assignment to a slice includes the
formatting of an error message, which takes as long to compile as a kernel; a loop does not.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from functools import cache
from pathlib import Path
from typing import Any

from numba import config, njit
from numba.core.caching import FunctionCache, IndexDataCacheFile

CHECK_BOUNDS = os.environ.get("HISTODICT_CHECK_BOUNDS") == "1"
_DEFAULT_FASTMATH = frozenset(
    {"contract", "nsz"}
)  # allow fused multiply-add, but no reordered sums


def jit(fastmath: Any = _DEFAULT_FASTMATH) -> Any:
    """Return a decorator that compiles a kernel on its first call and caches it on disk.

    `fastmath` is the option of Numba. By default, multiplications and additions may be fused, but
    sums are not reordered.
    """

    def decorate(function: Any) -> Any:
        kernel = njit(
            nogil=True,
            error_model="numpy",
            fastmath=fastmath if isinstance(fastmath, bool) else set(fastmath),
            boundscheck=CHECK_BOUNDS,
        )(function)
        try:
            kernel._cache = _KernelCache(function)
        except RuntimeError:  # no cache folder is writable
            _warn_cache_unwritable(str(Path(__file__).parent), "no writable cache folder")
        return kernel

    return decorate


class _KernelCache(FunctionCache):
    """On-disk cache of compiled code; a failure to write it causes a warning, not an error.

    Computations can continue without the cache, for example on a full disk.
    """

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        source_stamp = self._impl.locator.get_source_stamp()
        self._cache_file = _CacheFile(self._cache_path, self._impl.filename_base, source_stamp)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load compiled code, or return None if it is missing or damaged."""
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # unreadable or damaged: compile again and overwrite
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Save compiled code, with a warning instead of an error if that fails."""
        try:
            super().save_overload(sig, data)
        except OSError as error:
            _warn_cache_unwritable(self._cache_path, error.strerror or str(error))

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        """Return Numba's cache key, extended by a digest of simd.py and the compiler options."""
        return (*super()._index_key(sig, codegen), _simd_digest(), CHECK_BOUNDS, str(config.OPT))


class _CacheFile(IndexDataCacheFile):
    """Files of compiled code with checksums, written before the index of these files.

    If the process is killed between the two writes, no index refers to code of an earlier source.
    """

    def save(self, key: Any, data: Any) -> None:
        """Save compiled code in a file named after the digest of `key`, then update the index."""
        digest = hashlib.sha256(repr((self._source_stamp, key)).encode()).hexdigest()
        name = self._index_name.removesuffix("nbi") + f"{digest[:16]}.nbc"
        self._save_data(name, data)
        self._save_index({**self._load_index(), key: name})

    def _save_data(self, name: str, data: Any) -> None:
        code = self._dump(data)
        with self._open_for_write(self._data_path(name)) as file:
            file.write(code + hashlib.sha256(code).digest())

    def _load_data(self, name: str) -> Any:
        content = Path(self._data_path(name)).read_bytes()
        if hashlib.sha256(content[:-32]).digest() != content[-32:]:
            raise ValueError(f"{name}: damaged")
        return super()._load_data(name)

    def _load_index(self) -> Any:
        try:
            return super()._load_index()
        except Exception:  # a damaged pickle may raise anything; the index is rewritten
            return {}


@cache
def _simd_digest() -> str:
    return hashlib.sha256((Path(__file__).with_name("cpu") / "simd.py").read_bytes()).hexdigest()


@cache
def _warn_cache_unwritable(folder: str, reason: str) -> None:
    warnings.warn(
        f"{folder}: compiled kernels cannot be cached ({reason}) and are compiled at every "
        "start; free some space, or set the environment variable NUMBA_CACHE_DIR to another "
        "folder",
        RuntimeWarning,
        stacklevel=2,
    )
