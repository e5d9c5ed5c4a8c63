"""How kernels are compiled: numba's options, what is kept on disk, and checks of bounds.

With HISTODICT_CHECK_BOUNDS=1 in the environment every access to an array, the lanes' own included,
compares its place with the array's size and raises IndexError: for tests and fuzzing, many times
slower. It is compiled in, or not at all.

numba compiles a function once more for a number that it reads in the source: what begins as such a
number and is handed on is written `np.int64(0)` in the kernels. Slices that are assigned bring the
text of an error along, which takes as long to compile as a kernel: loops do not.
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
_IN_ORDER = frozenset({"contract", "nsz"})  # fused multiply-add, but sums are not reordered


def jit(fastmath: Any = _IN_ORDER) -> Any:
    """Decorates a kernel: compiled when it is first called, and kept on disk from then on."""

    def decorate(function: Any) -> Any:
        kernel = njit(
            nogil=True,
            error_model="numpy",
            fastmath=fastmath if isinstance(fastmath, bool) else set(fastmath),
            boundscheck=CHECK_BOUNDS,
        )(function)
        try:
            kernel._cache = _KernelCache(function)
        except RuntimeError:  # no folder at all can be written to
            _warn_cache_unwritable(str(Path(__file__).parent), "no folder for it can be written to")
        return kernel

    return decorate


class _KernelCache(FunctionCache):
    """numba's cache of a function, without which the work goes on.

    A full disk is no reason to stop, and an error raised here would be taken for one of the image
    that happened to be coded first.
    """

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        stamp = self._impl.locator.get_source_stamp()
        self._cache_file = _CacheFile(self._cache_path, self._impl.filename_base, stamp)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # not to be read, or damaged: compiled anew, and written over
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except OSError as error:
            _warn_cache_unwritable(self._cache_path, error.strerror or str(error))

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        """Also by what numba does not see: the lanes' source, and what is asked of the compiler."""
        return (*super()._index_key(sig, codegen), _lanes_digest(), CHECK_BOUNDS, str(config.OPT))


class _CacheFile(IndexDataCacheFile):
    """Files that say when they are damaged, and code before the index that names it: a process
    killed in between leaves no index that names code of an earlier source."""

    def save(self, key: Any, data: Any) -> None:
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
        except Exception:  # whatever a damaged pickle may raise; it is written anew
            return {}


@cache
def _lanes_digest() -> str:
    return hashlib.sha256((Path(__file__).with_name("cpu") / "simd.py").read_bytes()).hexdigest()


@cache
def _warn_cache_unwritable(folder: str, reason: str) -> None:
    warnings.warn(
        f"{folder}: compiled kernels could not be kept there ({reason}); the work goes on, but "
        "every start compiles them again. Make room, or name another folder in the environment "
        "variable NUMBA_CACHE_DIR",
        RuntimeWarning,
        stacklevel=2,
    )
