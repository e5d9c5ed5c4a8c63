"""What a file holds: its own bytes and, of slides in several files, the others too."""

from __future__ import annotations

import os

from histodict.execution.digests import content_digest


def test_other_bytes_are_noticed_even_if_size_and_time_are_the_same(tmp_path):
    file = tmp_path / "a.png"
    file.write_bytes(b"one")
    state, before = file.stat(), content_digest(file)
    file.write_bytes(b"two")
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert content_digest(file) != before
    other = tmp_path / "b.png"
    other.write_bytes(b"one")
    assert content_digest(other) == before


def test_slides_that_lie_in_several_files(tmp_path):
    index, folder = tmp_path / "a.mrxs", tmp_path / "a"
    index.write_bytes(b"index")
    alone = content_digest(index)
    folder.mkdir()
    (folder / "Data0000.dat").write_bytes(b"pixels")
    whole = content_digest(index)
    (folder / "Data0000.dat").write_bytes(b"others, and more")
    assert len({alone, whole, content_digest(index)}) == 3
    series = tmp_path / "series"
    series.mkdir()
    for name in ("1.dcm", "2.dcm"):
        (series / name).write_bytes(name.encode())
    before = content_digest(series / "1.dcm")
    (series / "2.dcm").write_bytes(b"changed pixels")
    assert content_digest(series / "1.dcm") != before
