"""Tests of the index of data sets: files are listed once, and again after a change."""

import os
import time
from dataclasses import replace

import pytest

from histodict.annotations.annotation_file import AnnotationFile
from histodict.datasets import manifest
from histodict.datasets.record import ImageRecord
from histodict.web import datasets
from histodict.web.dataset_checks import check_image
from histodict.web.datasets import (
    DatasetIndexCache,
    add_correction,
    find_dataset,
    open_dataset,
    training_manifest,
)
from histodict.web.workspace import DataFolders, ForbiddenFileError, UserWorkspace, short_id
from tests.web.app import count_calls

N_MANY = 5000
LONG_AGO = 1_000_000_000


@pytest.fixture
def folder(tmp_path):
    """Images of two classes in separate folders."""
    for name in ("a/1.png", "a/2.png", "b/3.png", "b/4.png"):
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return tmp_path / "data"


@pytest.fixture
def sources(folder):
    return DatasetIndexCache(DataFolders([folder]))


@pytest.fixture
def user(tmp_path):
    return UserWorkspace.open(tmp_path / "workspace", "local")


def write_table(path, rows):
    path.write_text("path,label,patient\n" + "\n".join(rows))


def settle(folder):
    """Date all files back, so that they count as settled."""
    for path in (folder, *folder.rglob("*")):
        os.utime(path, (LONG_AGO, LONG_AGO))


def names(sources, source):
    return {record.path.name for record in sources.get_index(source).manifest.records}


def test_image_among_thousands_is_found_quickly(user, sources, folder):
    """Every tile looks up its image, which must not read the table again."""
    images = [f"{number}.png" for number in range(N_MANY)]
    for name in images:
        (folder / name).touch()
    table = folder / "set.csv"
    write_table(table, [f"{name},{'ab'[n % 2]},p{n}" for n, name in enumerate(images)])
    os.utime(table, (LONG_AGO, LONG_AGO))
    dataset = open_dataset(user, sources, table)
    seconds = []
    for name in images[::1000]:
        started = time.perf_counter()
        assert find_dataset(user, sources, dataset.id).find_image(short_id(name)).path.name == name
        seconds.append(time.perf_counter() - started)
    assert min(seconds) < 0.005


def test_table_is_read_once_and_again_after_a_change(sources, folder, monkeypatch):
    reads = count_calls(monkeypatch, manifest, "_read_rows")
    table = folder / "set.csv"
    write_table(table, ["a/1.png,x,1", "b/3.png,y,2"])
    settle(folder)
    for _ in range(3):
        assert names(sources, table) == {"1.png", "3.png"}
    assert len(reads) == 1
    write_table(table, ["a/2.png,x,1", "b/4.png,y,2"])  # of the same length
    os.utime(table, (LONG_AGO, LONG_AGO))  # and of the same modification time
    assert names(sources, table) == {"2.png", "4.png"}
    table.unlink()
    with pytest.raises(ValueError, match="not found"):
        sources.get_index(table)


def test_recent_change_is_not_cached(sources, folder, monkeypatch):
    """Two changes within the resolution of file times look like one."""
    reads = count_calls(monkeypatch, manifest, "_read_rows")
    table = folder / "set.csv"
    write_table(table, ["a/1.png,x,1", "b/3.png,y,2"])
    for _ in range(3):
        sources.get_index(table)
    assert len(reads) == 3


def test_class_folders_are_listed_once_and_again_after_a_change(sources, folder, monkeypatch):
    reads = count_calls(monkeypatch, datasets, "from_folder")

    def listed():
        before = names(sources, folder)
        settle(folder)
        n_reads = len(reads)
        assert names(sources, folder) == names(sources, folder) == before
        assert len(reads) <= n_reads + 1
        return before

    assert listed() == {"1.png", "2.png", "3.png", "4.png"}
    (folder / "a" / "5.png").touch()
    assert "5.png" in listed()
    (folder / "b" / "4.png").unlink()
    assert "4.png" not in listed()
    (folder / "c").mkdir()
    (folder / "c" / "6.png").touch()
    assert "6.png" in listed()
    write_table(folder / "manifest.csv", ["a/1.png,x,1", "b/3.png,y,2"])
    assert names(sources, folder) == {"1.png", "3.png"}
    settle(folder)
    names(sources, folder)
    (folder / "manifest.csv").unlink()
    assert "5.png" in names(sources, folder)


def test_images_without_classes_are_found_at_any_depth(sources, folder):
    deep = folder / "a" / "b" / "c"
    deep.mkdir(parents=True)
    settle(folder)
    with pytest.raises(ValueError, match="neither"):
        sources.get_index(folder / "a" / "b")
    assert names(sources, folder / "a") == {"1.png", "2.png"}
    settle(folder)
    names(sources, folder / "a")
    (deep / "7.png").touch()
    assert names(sources, folder / "a") == {"1.png", "2.png", "7.png"}
    manifest = sources.get_index(folder / "a").manifest
    assert manifest.classes == []  # a single class
    assert "one per class: these images have no labels" in manifest.warnings[0]


def test_new_image_of_a_patient_is_found(sources, folder):
    """class / patient / image: neither the folder of the set nor of the class has changed."""
    for place in ("a/p1", "b/p2"):
        (folder / place).mkdir()
        (folder / place / "5.png").touch()
    settle(folder)
    assert len(sources.get_index(folder).manifest.records) == 6
    (folder / "a" / "p1" / "6.png").touch()
    assert "6.png" in names(sources, folder)


def test_new_image_in_a_linked_class_is_found(sources, folder):
    (folder / "a").rename(folder / ".store")
    (folder / "a").symlink_to(folder / ".store")
    settle(folder)
    assert names(sources, folder) == {"1.png", "2.png", "3.png", "4.png"}
    (folder / ".store" / "5.png").touch()
    assert "5.png" in names(sources, folder)


def test_splits_beside_classes_can_be_viewed(sources, folder):
    (folder / "test").mkdir()
    (folder / "test" / "5.png").touch()
    (text,) = sources.get_index(folder).manifest.warnings
    assert "named like splits (test)" in text and "have no labels" in text


def test_table_without_labels_can_be_viewed(sources, folder):
    table = folder / "set.csv"
    table.write_text("path,mpp\na/1.png,0.5\nb/3.png,")
    manifest = sources.get_index(table).manifest
    assert [record.mpp for record in manifest.records] == [0.5, None]
    assert "have no labels" in manifest.warnings[0]
    table.write_text("path,label\na/1.png,x\nb/3.png,")
    with pytest.raises(ValueError, match="line 3: the field 'label' is empty"):
        sources.get_index(table)


def test_unusable_and_skipped_entries_are_reported(sources, folder):
    (folder / "B").mkdir()
    (folder / "B" / "9.png").touch()
    (folder / "B" / "8.webp").touch()
    first, second = sources.get_index(folder).manifest.warnings
    assert "differ only in case" in first and "have no labels" in first
    assert "B/8.webp" in second


def test_file_is_checked_at_every_read(user, sources, folder, tmp_path):
    """A link that leads outside since the table was read is not followed."""
    table = folder / "set.csv"
    write_table(table, ["a/1.png,x,1", "b/3.png,y,2"])
    settle(folder)
    dataset = open_dataset(user, sources, table)
    (tmp_path / "secret.png").touch()
    (folder / "a" / "1.png").unlink()
    (folder / "a" / "1.png").symlink_to(tmp_path / "secret.png")
    assert find_dataset(user, sources, dataset.id).index is dataset.index
    for read in (
        lambda: dataset.find_image(short_id("a/1.png")),
        lambda: add_correction(dataset, short_id("a/1.png"), "y", [0, 0, 50, 50]),
        lambda: training_manifest(dataset),
    ):
        with pytest.raises(ForbiddenFileError):
            read()

    def thumbnail(record):
        sources.check_record(record)
        raise AssertionError("it was let through")

    assert "outside" in check_image(dataset.manifest.records[0], thumbnail).reason


def test_outlines_outside_the_folders_are_not_read(sources, folder, tmp_path):
    """A mask may be a file of outlines, which is checked like an image."""
    (tmp_path / "secret.xml").touch()
    (folder / "inside.xml").touch()
    own, secret = (
        AnnotationFile(path) for path in (folder / "inside.xml", tmp_path / "secret.xml")
    )
    record = ImageRecord(folder / "a" / "1.png", "", "1", annotations=own)
    assert sources.check_record(record) is record
    for other in (replace(record, annotations=secret), replace(record, region_of_interest=secret)):
        with pytest.raises(ForbiddenFileError):
            sources.check_record(other)


def test_table_that_links_outside_is_refused(sources, folder, tmp_path):
    write_table(tmp_path / "elsewhere.csv", [f"{folder}/a/1.png,x,1", f"{folder}/b/3.png,y,2"])
    (folder / "manifest.csv").symlink_to(tmp_path / "elsewhere.csv")
    with pytest.raises(ForbiddenFileError):
        sources.get_index(folder)


def count_stat_calls(monkeypatch):
    """Return a list that grows by one with every stat call for a path."""
    return [count_calls(monkeypatch, os, name) for name in ("stat", "lstat", "scandir", "listdir")]


@pytest.mark.parametrize("in_table", [False, True])
def test_tile_needs_a_constant_number_of_stat_calls(user, tmp_path, monkeypatch, in_table):
    counts = []
    for n_patients in (3, 60):
        folder = tmp_path / str(n_patients)
        paths = [f"{'ab'[n % 2]}/p{n}/{n}.png" for n in range(n_patients)]
        for path in paths:
            (folder / path).parent.mkdir(parents=True)
            (folder / path).touch()
        if in_table:
            write_table(folder / "manifest.csv", [f"{p},{p[0]},{p}" for p in paths])
        settle(folder)
        sources = DatasetIndexCache(DataFolders([folder]))
        dataset = open_dataset(user, sources, folder)
        image = short_id(paths[-1])
        with monkeypatch.context() as patch:
            summaries = count_stat_calls(patch)
            assert find_dataset(user, sources, dataset.id, image).find_image(image).path.exists()
            counts.append(sum(map(len, summaries)))
    assert 0 < counts[0] == counts[1]


def test_single_image_reflects_its_current_state(user, sources, folder):
    """Only the folders on the path to the image, or the table, are checked."""
    for place in ("a/p1", "b/p2"):
        (folder / place).mkdir()
        (folder / place / "9.png").touch()
    settle(folder)
    dataset = open_dataset(user, sources, folder)
    image = short_id("a/p1/9.png")

    def names_now():
        found = find_dataset(user, sources, dataset.id, image)
        return set(found.index.names.values())

    assert "a/p1/9.png" in names_now()
    (folder / "b" / "p2" / "10.png").touch()  # irrelevant to this image
    settle(folder / "b" / "p2")
    assert "b/p2/10.png" not in names_now()
    assert "b/p2/10.png" in find_dataset(user, sources, dataset.id).index.names.values()
    (folder / "a" / "p1").rename(folder / "a" / "p3")
    assert "a/p3/9.png" in names_now() and "a/p1/9.png" not in names_now()
    settle(folder)
    assert find_dataset(user, sources, dataset.id, image).index.by_id.get(image) is None
    image = short_id("a/1.png")
    write_table(folder / "manifest.csv", ["a/2.png,x,1", "b/3.png,y,2"])
    assert names_now() == {"a/2.png", "b/3.png"}


def test_change_during_a_long_listing_is_detected(sources, folder, monkeypatch):
    """Files count as settled by the start of the listing, not by its end."""
    read, now = datasets._list_images, time.time()
    monkeypatch.setattr(datasets.time, "time", lambda: now)

    def slowly(*args):
        nonlocal now
        found = read(*args)
        now += 10
        return found

    monkeypatch.setattr(datasets, "_list_images", slowly)
    assert not sources.get_index(folder).are_states_final
