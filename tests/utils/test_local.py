from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from histodict.kernels import encode_omp
from histodict.utils.parallel import (
    available_cores,
    effective_n_jobs,
    map_blocks,
    single_blas_thread,
)


@pytest.mark.parametrize("n_jobs", [1, 2, 5])
def test_results_are_in_the_order_of_the_blocks(n_jobs):
    def work(block: int) -> int:
        time.sleep(0.002 * (7 - block % 7))
        return block * block

    assert list(map_blocks(work, range(40), n_jobs)) == [i * i for i in range(40)]


def test_threads_run_at_the_same_time():
    meeting = threading.Barrier(2, timeout=10)
    assert list(map_blocks(lambda block: meeting.wait() >= 0, range(2), 2)) == [True, True]


def test_single_block_starts_no_thread():
    assert list(map_blocks(lambda _: threading.get_ident(), [0], 4)) == [threading.get_ident()]
    assert list(map_blocks(lambda block: block, [], 4)) == []


def test_blocks_are_read_only_as_needed():
    read: list[int] = []

    def blocks():
        for block in range(100):
            read.append(block)
            yield block

    results = map_blocks(lambda block: block, blocks(), 2)
    next(results)
    assert len(read) <= 6
    results.close()


def test_error_in_a_block_is_raised():
    def work(block: int) -> float:
        return 1 / (block - 5)

    with pytest.raises(ZeroDivisionError):
        list(map_blocks(work, range(50), 2))


BLAS_PROBE = """
import numpy, scipy.linalg
from threadpoolctl import threadpool_info
from histodict.utils.parallel import map_blocks

def blas_threads(block=0):
    return {lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"}

before = blas_threads()
assert list(map_blocks(blas_threads, range(4), 2)) == [{1}] * 4
assert blas_threads() == before
import sklearn.svm  # may bring another library
assert list(map_blocks(blas_threads, range(4), 2)) == [{1}] * 4
"""


def test_blas_is_limited_to_one_thread_inside_only():
    """Runs in its own process, because other tests may leave threads running."""
    threads = {"OPENBLAS_NUM_THREADS": "2"}
    subprocess.run([sys.executable, "-c", BLAS_PROBE], env=os.environ | threads, check=True)


def test_count_jobs():
    assert effective_n_jobs(None) == effective_n_jobs(-1) == available_cores()
    assert effective_n_jobs(3) == 3
    assert effective_n_jobs(-100) == 1
    for wrong in (0, "2", 2.5, True):
        with pytest.raises(ValueError, match="n_jobs"):
            effective_n_jobs(wrong)


def test_overlapping_calls_share_the_blas_limit():
    """The first to finish must not lift the limit for the other, nor the last one keep it."""

    def blas_threads() -> set[int]:
        return {lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"}

    with threadpool_limits(2, user_api="blas"):
        before = blas_threads()
        first, second = single_blas_thread(), single_blas_thread()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert blas_threads() == {1}
        second.__exit__(None, None, None)
        assert blas_threads() == before


def test_any_thread_may_limit_blas():
    """threadpoolctl 3.8 restores limits only in the thread that set them."""

    def blas_threads() -> set[int]:
        return {lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"}

    def inside(_: int) -> set[int]:
        with single_blas_thread():
            return blas_threads()

    with threadpool_limits(2, user_api="blas"):
        before = blas_threads()
        with single_blas_thread():
            pass
        with ThreadPoolExecutor(1) as pool:
            assert list(pool.map(inside, range(2))) == [{1}, {1}]
        assert blas_threads() == before


def test_bits_do_not_depend_on_the_number_of_blas_threads():
    rng = np.random.default_rng(0)
    Y = (6 + rng.standard_normal((3000, 1200))).astype(np.float32)
    D = Y[::6] / np.linalg.norm(Y[::6], axis=1, keepdims=True)
    codes = []
    for n_threads in (1, 2):
        with threadpool_limits(n_threads, user_api="blas"):
            codes.append(encode_omp(D, Y, 8))
    one, two = codes
    np.testing.assert_array_equal(one.indices, two.indices)
    np.testing.assert_array_equal(one.data, two.data)


def test_blas_libraries_that_are_loaded_in_the_context_are_limited(monkeypatch):
    counts = []

    def find_libraries(n_modules):
        counts.append(n_modules)
        restored = SimpleNamespace(restore_original_limits=lambda: None)
        return SimpleNamespace(limit=lambda limits: restored)

    monkeypatch.setattr("histodict.utils.parallel._find_blas_libraries", find_libraries)
    with single_blas_thread():
        monkeypatch.setitem(sys.modules, "module_with_blas", ModuleType("module_with_blas"))
        with single_blas_thread():
            assert counts[1:] == [counts[0] + 1]
