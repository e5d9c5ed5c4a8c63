from __future__ import annotations

import os
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from histodict.utils.files import (
    OutputError,
    WriteError,
    atomic_write,
    check_writable_file,
    content_digest,
    file_key,
    files_key,
    stat_signature,
)

DAY = 24 * 3600
CONTENTS = [str(i) * (20_000 + i) for i in range(4)]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_concurrent_writers_of_one_file_do_not_disturb_each_other(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text(CONTENTS[0])

    def write_and_read(text):
        for _ in range(50):
            with atomic_write(path) as partial:
                partial.write_text(text)
            assert path.read_text() in CONTENTS

    with ThreadPoolExecutor(len(CONTENTS)) as pool:
        for done in [pool.submit(write_and_read, text) for text in CONTENTS]:
            done.result()
    assert names(tmp_path) == ["table.csv"]


def test_failed_write_keeps_the_old_file(tmp_path):
    path = tmp_path / "new folder" / "table.csv"
    for content in ("old", "new"):
        with atomic_write(path) as partial:
            partial.write_text(content)
    with pytest.raises(RuntimeError), atomic_write(path) as partial:
        partial.write_text("half of")
        raise RuntimeError
    assert path.read_text() == "new"
    assert names(path.parent) == ["table.csv"]


def test_write_without_file_is_refused(tmp_path):
    path = tmp_path / "table.csv"
    with pytest.raises(FileNotFoundError), atomic_write(path):
        pass
    assert names(tmp_path) == []


def test_partial_file_has_same_folder_and_suffix(tmp_path):
    with atomic_write(tmp_path / "a.tif") as partial:
        partial.write_text("")
        assert (partial.parent, partial.suffix) == (tmp_path, ".tif")
        assert partial.name.startswith(".")


def test_stale_partial_files_are_removed(tmp_path):
    """A power cut leaves a partial file; the next run that writes here a day later removes it."""
    with pytest.raises(KeyboardInterrupt), atomic_write(tmp_path / "a.csv") as partial:
        left = partial
        raise KeyboardInterrupt
    folder = tmp_path / "other"
    folder.mkdir()
    stale, fresh = folder / left.name, folder / f".{'0' * 16}{left.name[17:]}"
    others = folder / "a.partial.csv", folder / ".partial.a.csv"
    for path in (stale, fresh, *others):
        path.write_text("")
        if path != fresh:
            os.utime(path, (time.time() - 2 * DAY,) * 2)
    with atomic_write(folder / "a.csv") as partial:
        partial.write_text("")
    assert names(folder) == sorted(["a.csv", fresh.name, *(path.name for path in others)])


def test_content_digest_detects_changes_of_same_size_and_time(tmp_path):
    file = tmp_path / "a.png"
    file.write_bytes(b"one")
    state, before = file.stat(), content_digest(file)
    file.write_bytes(b"two")
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert content_digest(file) != before
    other = tmp_path / "b.png"
    other.write_bytes(b"one")
    assert content_digest(other) == before


def count_stat_calls(monkeypatch, function):
    """Count calls of stat, lstat and readlink by `function`."""
    n = 0

    def counted(original):
        def counting(*args, **named):
            nonlocal n
            n += 1
            return original(*args, **named)

        return counting

    with monkeypatch.context() as patch:
        for name in ("stat", "lstat", "readlink"):
            patch.setattr(os, name, counted(getattr(os, name)))
        function()
    return n


@pytest.mark.parametrize("key", [stat_signature, file_key, content_digest])
def test_unchanged_file_needs_one_stat_call(tmp_path, monkeypatch, key):
    file = tmp_path / "some" / "folders" / "deep" / "a.png"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"one")
    before = key(file)
    assert count_stat_calls(monkeypatch, lambda: key(file)) == 1
    assert key(file) == before


@pytest.fixture
def no_clock(monkeypatch):
    """Give all files equal times, as if they were written at once."""
    summary = os.stat

    def stopped(*args, **named):
        found = summary(*args, **named)
        names = ("st_dev", "st_ino", "st_mode", "st_size")
        values = {name: getattr(found, name) for name in names}
        return SimpleNamespace(**values, st_mtime_ns=0, st_ctime_ns=0)

    monkeypatch.setattr(os, "stat", stopped)


def point_link_to(link, target):
    link.unlink(missing_ok=True)
    link.symlink_to(target)


@pytest.mark.parametrize("key", [stat_signature, file_key, content_digest])
def test_changed_link_target_is_detected(tmp_path, no_clock, key):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.png").write_text(name)
    file, folder = tmp_path / "link.png", tmp_path / "folder"
    found = {"file": [], "folder": []}
    for name in ("one", "two", "one"):
        point_link_to(file, tmp_path / name / "a.png")
        point_link_to(folder, tmp_path / name)
        found["file"].append(key(file))
        found["folder"].append(key(folder / "a.png"))
    for first, second, third in found.values():
        assert first != second and first == third


def test_key_of_files_lists_the_folder_once(tmp_path, monkeypatch):
    """Each file of a DICOM folder has all others as siblings."""
    counts = []
    for n_files in (10, 20):
        folder = tmp_path / str(n_files)
        folder.mkdir()
        files = [folder / f"{number}.dcm" for number in range(n_files)]
        for file in (*files, folder / "beside.txt"):
            file.write_bytes(b"one")
        files_key(files)
        counts.append(count_stat_calls(monkeypatch, lambda files=files: files_key(files)))
    assert counts[1] < 2.2 * counts[0]
    keys = [files_key(files)]
    for change in (
        lambda: (folder / "beside.txt").write_bytes(b"other"),
        lambda: files[3].write_bytes(b"another"),
        lambda: files[4].unlink(),
    ):
        change()
        assert files_key(files) not in keys
        keys.append(files_key(files))


def test_file_key_has_the_resolved_path(tmp_path, monkeypatch):
    (tmp_path / "one" / "deep").mkdir(parents=True)
    (tmp_path / "two").symlink_to(tmp_path / "one" / "deep")
    file = tmp_path / "one" / "a.png"
    file.write_bytes(b"one")
    monkeypatch.chdir(tmp_path)
    roundabout = (tmp_path / "two" / ".." / "a.png", file.relative_to(tmp_path))
    assert [file_key(path)[0] for path in roundabout] == 2 * [str(file.resolve())]


@pytest.mark.parametrize("key", [stat_signature, file_key, content_digest])
def test_replaced_file_of_same_size_and_time_is_detected(tmp_path, key):
    file, other = tmp_path / "a.png", tmp_path / "b.png"
    for path in (file, other):
        path.write_text(path.name)
        os.utime(path, ns=(0, 0))
    before = key(file)
    os.replace(other, file)
    assert key(file) != before


def test_digest_covers_all_files_of_a_slide(tmp_path):
    index, folder = tmp_path / "a.mrxs", tmp_path / "a"
    index.write_bytes(b"index")
    alone = content_digest(index)
    folder.mkdir()
    (folder / "Data0000.dat").write_bytes(b"pixels")
    with_data = content_digest(index)
    (folder / "Data0000.dat").write_bytes(b"others, and more")
    assert len({alone, with_data, content_digest(index)}) == 3
    series = tmp_path / "series"
    series.mkdir()
    for name in ("1.dcm", "2.dcm"):
        (series / name).write_bytes(name.encode())
    before = content_digest(series / "1.dcm")
    (series / "2.dcm").write_bytes(b"changed pixels")
    assert content_digest(series / "1.dcm") != before


def write_dicom(path, uid, more=b""):
    value = uid.encode() + b"\0" * (len(uid) % 2)
    element = struct.pack("<HH2sH", 0x0020, 0x000E, b"UI", len(value)) + value
    path.write_bytes(b"\0" * 128 + b"DICM" + element + more)


def test_key_of_dicom_covers_the_files_of_its_series(tmp_path, monkeypatch):
    for number in range(40):
        write_dicom(tmp_path / f"{number}.dcm", f"1.2.{number // 2}")
    first = tmp_path / "0.dcm"
    before = file_key(first)
    counts = [count_stat_calls(monkeypatch, lambda: file_key(first))]
    write_dicom(tmp_path / "2.dcm", "1.2.1", b"another slide")
    assert file_key(first) == before
    write_dicom(tmp_path / "1.dcm", "1.2.0", b"a level of this one")
    changed = file_key(first)
    write_dicom(tmp_path / "new.dcm", "1.2.0")
    assert len({repr(key) for key in (before, changed, file_key(first))}) == 3
    for number in range(100, 140):
        write_dicom(tmp_path / f"{number}.dcm", f"1.3.{number}")
    file_key(first)
    (tmp_path / "new.dcm").unlink()
    file_key(first)
    counts.append(count_stat_calls(monkeypatch, lambda: file_key(first)))
    assert counts[0] == counts[1]


LONGEST = 255  # maximal length of a file name in bytes, on nearly all file systems


@pytest.mark.parametrize(
    "name", ["n" * 245 + ".geojson", "ü" * 120 + ".npz", "n" * 255, "n." + "s" * 253]
)
def test_longest_file_names_can_be_written(tmp_path, name):
    path = tmp_path / os.fsdecode(os.fsencode(name)[-LONGEST:])
    with atomic_write(path) as partial:
        partial.write_text("all of it")
        assert len(os.fsencode(partial.name)) < 100
    assert path.read_text() == "all of it"
    assert names(tmp_path) == [path.name]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
def test_full_disk_is_reported_with_the_file(tmp_path):
    path = tmp_path / "table.csv"
    with (
        pytest.raises(OSError, match=r"table\.csv: cannot be written.*disk is full; free some"),
        atomic_write(path) as partial,
    ):
        partial.symlink_to("/dev/full")
        partial.write_text("some text")
    assert names(tmp_path) == []


@pytest.mark.parametrize("error", [OSError("30 requested and 0 written"), RuntimeError("io")])
def test_unspecific_write_error_on_a_full_disk_is_reported(tmp_path, monkeypatch, error):
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 4096}))
    with (
        pytest.raises(OSError, match=r"map\.npz: cannot be written.*disk is full"),
        atomic_write(tmp_path / "map.npz"),
    ):
        raise error


def test_error_without_file_name_gets_the_path(tmp_path):
    with (
        pytest.raises(OSError, match=r"a\.png: cannot be written .encoder error"),
        atomic_write(tmp_path / "a.png"),
    ):
        raise OSError("encoder error")


def test_error_about_another_file_is_unchanged(tmp_path):
    with pytest.raises(FileNotFoundError, match="other"), atomic_write(tmp_path / "a.png"):
        (tmp_path / "other").read_text()


def test_empty_folder_at_the_path_is_replaced(tmp_path):
    for stored in ((), ("a file",)):
        path = tmp_path / f"table{len(stored)}.csv"
        path.mkdir()
        for name in stored:
            (path / name).touch()
        try:
            with atomic_write(path) as partial:
                partial.write_text("new")
        except OSError as error:
            assert stored and str(path) in str(error)
        assert path.is_dir() == bool(stored)


@pytest.mark.parametrize("is_there", [True, False])
def test_write_through_a_link_changes_its_target(tmp_path, is_there):
    (tmp_path / "store").mkdir()
    target, link = tmp_path / "store" / "new.txt", tmp_path / "link.txt"
    if is_there:
        target.write_text("old", encoding="utf-8")
    (tmp_path / "first").symlink_to(target)
    link.symlink_to("first")
    check_writable_file(link)
    with atomic_write(link) as partial:
        assert partial.parent == target.parent
        partial.write_text("new", encoding="utf-8")
    assert link.is_symlink() and target.read_text(encoding="utf-8") == "new"
    assert not target.is_symlink() and os.listdir(target.parent) == ["new.txt"]


def test_devices_pipes_and_circular_links_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "null").symlink_to(os.devnull)
    names = {"circle": "choose another name", "null": "a device", "pipe": "a pipe"}
    for name, text in names.items():
        path = tmp_path / name
        with pytest.raises(OutputError, match=f"^{path}: .*{text}"):
            check_writable_file(path)
        with pytest.raises(WriteError, match=f"^{path}: .*{text}"), atomic_write(path) as partial:
            partial.touch()
    assert not os.path.isfile(os.devnull) and sorted(os.listdir(tmp_path)) == list(names)
