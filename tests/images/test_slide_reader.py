"""Slides are opened in a subprocess; if it dies, an error names the file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from histodict.images import slide_reader as slide_process
from histodict.images.source import ImageError, open_image
from tests.images.files import save_slide, scene, texture

pytestmark = pytest.mark.skipif(
    not slide_process.USE_SUBPROCESS, reason="slides are read in this process"
)

# A slide library whose `read_region` first runs harmful code.
LIBRARY = """
import os, signal, time
from PIL import Image

class OpenSlide:
    dimensions = (600, 440)
    level_dimensions = ((600, 440),)
    level_downsamples = (1.0,)
    properties = {{}}

    def __init__(self, path):
        self.path = path

    @staticmethod
    def detect_format(path):
        return "generic-tiff"

    def read_region(self, corner, level, size):
        {harm}
        return Image.new("RGBA", size, (1, 2, 3, 255))

    def close(self):
        pass
"""


@pytest.fixture
def harmful(slide_library, tmp_path):
    """Return a function that opens a source whose reads run this code first."""

    def opened(harm):
        slide_library(LIBRARY.format(harm=harm))
        (tmp_path / "a.tif").write_bytes(b"x" * 1000)
        return open_image(tmp_path / "a.tif")

    return opened


def pid_of(source):
    return source._open_handle()._host[0].pid


def has_ended_within(pid, within_s=30.0):
    """Return whether a process ends in time; a zombie counts as ended."""
    stop = time.monotonic() + within_s
    while time.monotonic() < stop:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes in /proc")


# --- processes that die -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        ("os.abort()", r"killed by signal 6"),
        ("os.kill(os.getpid(), 9)", r"killed by signal 9, possibly because memory ran out"),
        ("os._exit(3)", r"exited with code 3"),
    ],
)
def test_file_that_kills_the_library_on_reading_is_named(harmful, harm, message):
    source = harmful(harm)
    for _ in range(2):
        with pytest.raises(ImageError, match=rf"a\.tif: part of .*{message}.*copy it again"):
            source.read(0, 0, 10, 10)


def test_file_that_kills_the_library_on_opening_is_named(slide_library, tmp_path):
    slide_library("import os\nclass OpenSlide:\n    def __init__(self, path):\n        os.abort()")
    (tmp_path / "a.svs").write_bytes(b"x")
    with pytest.raises(ImageError, match=r"a\.svs: OpenSlide cannot open .*killed by signal 6"):
        open_image(tmp_path / "a.svs")


def test_file_that_kills_the_library_on_detection_is_named(slide_library, tmp_path):
    slide_library(
        "import os\nclass OpenSlide:\n    @staticmethod\n    def detect_format(path):\n"
        "        os.abort()"
    )
    (tmp_path / "a.tif").write_bytes(b"x")
    with pytest.raises(ImageError, match=r"a\.tif: OpenSlide cannot read .*killed by signal 6"):
        open_image(tmp_path / "a.tif")


def test_killed_process_is_replaced_silently(tmp_path, rng):
    pixels = texture(rng)
    with open_image(save_slide(tmp_path / "a.tif", pixels)) as source:
        first = pid_of(source)
        os.kill(first, signal.SIGKILL)
        np.testing.assert_array_equal(source.read(5, 6, 50, 40), pixels[6:46, 5:55])
        assert pid_of(source) != first


def test_process_killed_during_a_read_is_replaced_silently(harmful, tmp_path):
    once = f"open({str(tmp_path / 'once')!r}, 'x').close()"
    source = harmful(
        f"try:\n            {once}\n            time.sleep(30)\n"
        "        except FileExistsError:\n            pass"
    )
    victim = pid_of(source)
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(source.read, 0, 0, 10, 10)
        while not (tmp_path / "once").exists():
            time.sleep(0.01)
        os.kill(victim, signal.SIGKILL)
        assert (read.result() == (1, 2, 3)).all()


def test_threads_share_the_replacement_process(tmp_path, rng):
    pixels = texture(rng)
    with open_image(save_slide(tmp_path / "a.tif", pixels)) as source:
        os.kill(pid_of(source), signal.SIGKILL)
        with ThreadPoolExecutor(4) as pool:
            columns = list(pool.map(lambda x: source.read(x, 0, 10, 440), range(0, 600, 10)))
    np.testing.assert_array_equal(np.concatenate(columns, axis=1), pixels)


@needs_proc
def test_hanging_process_is_killed(harmful, monkeypatch, tmp_path):
    attempts = tmp_path / "attempts"
    source = harmful(f"open({str(attempts)!r}, 'a').write('x'); time.sleep(60)")
    source.close()
    pid = pid_of(source)
    monkeypatch.setattr(slide_process, "REPLY_TIMEOUT_S", 1)
    with pytest.raises(ImageError, match=r"a\.tif: .*did not respond within 1 s"):
        source.read(0, 0, 10, 10)
    assert attempts.read_text() in ("", "x")  # no second attempt
    assert has_ended_within(pid)


def test_slide_that_needs_too_much_memory_is_refused(harmful):
    source = harmful("bytearray(20 * 2**30)")
    with pytest.raises(ImageError, match=r"a\.tif: part of the slide cannot be read"):
        source.read(0, 0, 10, 10)


@pytest.mark.parametrize("name", ["openslide.bounds-width", "openslide.mpp-x"])
def test_sizes_that_are_not_numbers_are_refused(slide_library, tmp_path, name):
    source = LIBRARY.format(harm="").replace("= {}", f"= {{{name!r}: 'wide'}}")
    slide_library(source)
    (tmp_path / "a.svs").write_bytes(b"x" * 1000)
    with pytest.raises(ImageError, match=r"a\.svs: .*invalid sizes"):
        open_image(tmp_path / "a.svs")


def test_size_larger_than_the_file_is_refused(slide_library, tmp_path):
    """Even a thumbnail of such a slide would take days."""
    slide_library(LIBRARY.format(harm="").replace("(600, 440)", "(2000000000, 1000000)"))
    (tmp_path / "a.svs").write_bytes(b"x" * 1000)
    with pytest.raises(ImageError, match=r"a\.svs: .*2000000000 x 1000000 .*more than 1000 bytes"):
        open_image(tmp_path / "a.svs")


# --- one process for many reads -----------------------------------------------------------------


def test_process_is_reused_for_the_next_slide(tmp_path):
    slide_process.end_idle_processes()
    pids = set()
    for name in "abc":
        with open_image(save_slide(tmp_path / f"{name}.tif", scene())) as source:
            source.read(0, 0, 5, 5)
            pids.add(pid_of(source))
    assert len(pids) == 1
    assert len(slide_process._IDLE_PROCESSES) == 1


def test_closed_slides_leave_no_process(tmp_path):
    paths = [save_slide(tmp_path / f"{i}.tif", scene()) for i in range(4)]
    slide_process.end_idle_processes()
    n_before = len(slide_process._RUNNING_PROCESSES)
    sources = [open_image(path) for path in paths]
    assert len({pid_of(source) for source in sources}) == 4
    del sources
    assert len(slide_process._RUNNING_PROCESSES) - n_before <= 2


def test_file_that_is_no_slide_keeps_the_process_idle(tmp_path):
    slide_process.end_idle_processes()
    (tmp_path / "a.svs").write_bytes(b"no slide")
    with pytest.raises(ImageError):
        open_image(tmp_path / "a.svs")
    assert len(slide_process._IDLE_PROCESSES) == 1


def test_process_is_not_reused_after_damaged_pixels(harmful):
    source = harmful("raise ValueError('no\\nsuch  tile')")
    with pytest.raises(ImageError, match=r"a\.tif: part .*\(no such tile\)"):
        source.read(0, 0, 5, 5)
    source.close()
    assert not slide_process._IDLE_PROCESSES


def test_threads_read_concurrently_in_one_process(harmful):
    source = harmful("time.sleep(0.4)")
    n_before = len(slide_process._RUNNING_PROCESSES)
    start = time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda x: source.read(x, 0, 5, 5), range(4)))
    assert time.monotonic() - start < 1.2
    assert len(slide_process._RUNNING_PROCESSES) == n_before


def test_more_threads_than_connections(tmp_path, rng, monkeypatch):
    monkeypatch.setattr(slide_process, "max_connections", lambda: 2)
    slide_process.end_idle_processes()
    pixels = texture(rng)
    with open_image(save_slide(tmp_path / "a.tif", pixels)) as source:
        with ThreadPoolExecutor(8) as pool:
            columns = list(pool.map(lambda x: source.read(x, 0, 10, 440), range(0, 600, 10)))
        assert len(source._open_handle()._host[0]._free) <= 2
    np.testing.assert_array_equal(np.concatenate(columns, axis=1), pixels)


def test_pixels_are_the_same_without_a_subprocess(tmp_path, rng, monkeypatch):
    """Used if a process cannot be handed a socket."""
    path = save_slide(tmp_path / "a.tif", texture(rng))
    with open_image(path) as apart:
        monkeypatch.setattr(slide_process, "USE_SUBPROCESS", False)
        with open_image(path) as here:
            for region in ((3, 4, 50, 60), (0, 0, 600, 440, 2.7), (-9, 5, 200, 100, 4)):
                np.testing.assert_array_equal(apart.read(*region), here.read(*region))


# --- interrupts, forks, exit ----------------------------------------------------------------------


def test_interrupt_does_not_end_the_subprocess(tmp_path):
    with open_image(save_slide(tmp_path / "a.tif", scene())) as source:
        pid = pid_of(source)
        source.read(0, 0, 5, 5)
        os.kill(pid, signal.SIGINT)
        source.read(5, 5, 5, 5)
        assert pid_of(source) == pid


def test_connection_is_not_reused_after_an_interrupt(slide_library, tmp_path):
    library = LIBRARY.format(harm="time.sleep(0.5 * (corner[0] == 0))")
    slide_library(library.replace("(1, 2, 3, 255)", "(corner[0], 0, 0, 255)"))
    (tmp_path / "a.tif").write_bytes(b"x" * 1000)

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with open_image(tmp_path / "a.tif") as source:
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(KeyboardInterrupt):
                source.read(0, 0, 5, 5)
            for x in (7, 8):
                assert (source.read(x, 0, 5, 5)[..., 0] == x).all()
        assert not slide_process._IDLE_PROCESSES
    finally:
        signal.signal(signal.SIGALRM, before)


def test_forked_process_does_not_end_the_subprocess(tmp_path, rng):
    source = open_image(save_slide(tmp_path / "a.tif", texture(rng)))
    expected, pid = source.read(3, 4, 50, 60), pid_of(source)
    child = os.fork()
    if child == 0:
        same = np.array_equal(source.read(3, 4, 50, 60), expected) and pid_of(source) != pid
        source.close()
        slide_process.end_all_processes()
        os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    np.testing.assert_array_equal(source.read(3, 4, 50, 60), expected)
    assert pid_of(source) == pid


PARENT = """
import os, sys, time
from histodict.images.source import open_image
source = open_image(sys.argv[1])
source.read(0, 0, 5, 5)
if sys.argv[2] == "forks" and os.fork() == 0:
    time.sleep(20)  # holds whatever it has inherited
    os._exit(0)
print(source._open_handle()._host[0].pid, flush=True)
if sys.argv[2] != "ends":
    time.sleep(60)
"""


@needs_proc
@pytest.mark.parametrize("how", ["killed", "forks", "ends"])
def test_subprocess_ends_with_its_parent(tmp_path, how):
    path = save_slide(tmp_path / "a.tif", scene())
    command = [sys.executable, "-c", PARENT, path, how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        if how != "ends":
            parent.kill()
        parent.wait()
        assert has_ended_within(pid)


def test_subprocess_without_library_is_ended():
    class Bare:
        is_reusable, ended = True, False

        def request(self, name, *arguments):
            raise slide_process.MissingSlideLibraryError("no libopenslide")

        def end(self):
            self.ended = True

    bare = Bare()
    slide_process._release_process(bare)
    assert bare.ended and bare not in slide_process._IDLE_PROCESSES
