"""A data set's files are listed once, and again as soon as they have changed."""

import os
import time
from dataclasses import replace

import pytest

from histodict.annotations.annotation_file import AnnotationFile
from histodict.datasets import manifest
from histodict.datasets.record import ImageRecord
from histodict.web import datasets
from histodict.web.dataset_checks import summarize_image
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
    """Images of two classes, in folders of their own."""
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
    return UserWorkspace.of(tmp_path / "workspace", "local")


def write_table(path, rows):
    path.write_text("path,label,patient\n" + "\n".join(rows))


def settle(folder):
    """As if nothing had changed here for years."""
    for path in (folder, *folder.rglob("*")):
        os.utime(path, (LONG_AGO, LONG_AGO))


def names(sources, source):
    return {record.path.name for record in sources.listing(source).manifest.records}


def test_an_image_among_thousands_is_found_at_once(user, sources, folder):
    """Every tile asks for its image: that must not read the table again."""
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
        assert find_dataset(user, sources, dataset.id).image(short_id(name)).path.name == name
        seconds.append(time.perf_counter() - started)
    assert min(seconds) < 0.005


def test_a_table_is_read_once_and_again_when_it_has_changed(sources, folder, monkeypatch):
    reads = count_calls(monkeypatch, manifest, "_from_rows")
    table = folder / "set.csv"
    write_table(table, ["a/1.png,x,1", "b/3.png,y,2"])
    settle(folder)
    for _ in range(3):
        assert names(sources, table) == {"1.png", "3.png"}
    assert len(reads) == 1
    write_table(table, ["a/2.png,x,1", "b/4.png,y,2"])  # as long as before
    os.utime(table, (LONG_AGO, LONG_AGO))  # and, as it says, as old
    assert names(sources, table) == {"2.png", "4.png"}
    table.unlink()
    with pytest.raises(ValueError, match="no such file"):
        sources.listing(table)


def test_what_has_just_changed_is_not_trusted(sources, folder, monkeypatch):
    """Two changes in one step of the file system's clock look like one."""
    reads = count_calls(monkeypatch, manifest, "_from_rows")
    table = folder / "set.csv"
    write_table(table, ["a/1.png,x,1", "b/3.png,y,2"])
    for _ in range(3):
        sources.listing(table)
    assert len(reads) == 3


def test_folders_of_classes_are_listed_once_and_again_when_they_change(
    sources, folder, monkeypatch
):
    reads = count_calls(monkeypatch, datasets, "from_folder")

    def seen():
        before = names(sources, folder)
        settle(folder)
        n_reads = len(reads)
        assert names(sources, folder) == names(sources, folder) == before
        assert len(reads) <= n_reads + 1
        return before

    assert seen() == {"1.png", "2.png", "3.png", "4.png"}
    (folder / "a" / "5.png").touch()
    assert "5.png" in seen()
    (folder / "b" / "4.png").unlink()
    assert "4.png" not in seen()
    (folder / "c").mkdir()
    (folder / "c" / "6.png").touch()
    assert "6.png" in seen()
    write_table(folder / "manifest.csv", ["a/1.png,x,1", "b/3.png,y,2"])
    assert names(sources, folder) == {"1.png", "3.png"}
    settle(folder)
    names(sources, folder)
    (folder / "manifest.csv").unlink()
    assert "5.png" in names(sources, folder)


def test_images_without_classes_are_noticed_at_any_depth(sources, folder):
    deep = folder / "a" / "b" / "c"
    deep.mkdir(parents=True)
    settle(folder)
    with pytest.raises(ValueError, match="neither"):
        sources.listing(folder / "a" / "b")
    assert names(sources, folder / "a") == {"1.png", "2.png"}
    settle(folder)
    names(sources, folder / "a")
    (deep / "7.png").touch()
    assert names(sources, folder / "a") == {"1.png", "2.png", "7.png"}
    manifest = sources.listing(folder / "a").manifest
    assert manifest.classes == []  # one class tells nothing apart
    assert "no folders of two or more classes: these images have no labels" in manifest.warnings[0]


def test_a_new_image_of_a_patient_is_noticed(sources, folder):
    """class / patient / image: neither the set's folder nor the class's has changed."""
    for place in ("a/p1", "b/p2"):
        (folder / place).mkdir()
        (folder / place / "5.png").touch()
    settle(folder)
    assert len(sources.listing(folder).manifest.records) == 6
    (folder / "a" / "p1" / "6.png").touch()
    assert "6.png" in names(sources, folder)


def test_a_new_image_in_a_linked_class_is_noticed(sources, folder):
    (folder / "a").rename(folder / ".store")
    (folder / "a").symlink_to(folder / ".store")
    settle(folder)
    assert names(sources, folder) == {"1.png", "2.png", "3.png", "4.png"}
    (folder / ".store" / "5.png").touch()
    assert "5.png" in names(sources, folder)


def test_splits_beside_classes_can_be_looked_at(sources, folder):
    (folder / "test").mkdir()
    (folder / "test" / "5.png").touch()
    (text,) = sources.listing(folder).manifest.warnings
    assert "splits by their names (test)" in text and "have no labels" in text


def test_a_table_without_labels_is_looked_at(sources, folder):
    table = folder / "set.csv"
    table.write_text("path,mpp\na/1.png,0.5\nb/3.png,")
    manifest = sources.listing(table).manifest
    assert [record.mpp for record in manifest.records] == [0.5, None]
    assert "have no labels" in manifest.warnings[0]
    table.write_text("path,label\na/1.png,x\nb/3.png,")
    with pytest.raises(ValueError, match="line 3: the label is empty"):
        sources.listing(table)


def test_why_a_folder_cannot_be_learnt_and_what_is_left_out_is_said(sources, folder):
    (folder / "B").mkdir()
    (folder / "B" / "9.png").touch()
    (folder / "B" / "8.webp").touch()
    first, second = sources.listing(folder).manifest.warnings
    assert "differ only in case" in first and "have no labels" in first
    assert "B/8.webp" in second


def test_a_file_is_checked_whenever_it_is_read(user, sources, folder, tmp_path):
    """A link that leads out since the table was read: nothing reads through it."""
    table = folder / "set.csv"
    write_table(table, ["a/1.png,x,1", "b/3.png,y,2"])
    settle(folder)
    dataset = open_dataset(user, sources, table)
    (tmp_path / "secret.png").touch()
    (folder / "a" / "1.png").unlink()
    (folder / "a" / "1.png").symlink_to(tmp_path / "secret.png")
    assert find_dataset(user, sources, dataset.id).listing is dataset.listing
    for read in (
        lambda: dataset.image(short_id("a/1.png")),
        lambda: add_correction(dataset, short_id("a/1.png"), "y", [0, 0, 50, 50]),
        lambda: training_manifest(dataset),
    ):
        with pytest.raises(ForbiddenFileError):
            read()

    def thumbnail(record):
        sources.check(record)
        raise AssertionError("it was let through")

    assert "outside" in summarize_image(dataset.manifest.records[0], thumbnail).reason


def test_outlines_outside_of_the_folders_are_not_read(sources, folder, tmp_path):
    """The cell of a mask may name a file of outlines: it is checked as a picture is."""
    (tmp_path / "secret.xml").touch()
    (folder / "inside.xml").touch()
    own, secret = (
        AnnotationFile(path) for path in (folder / "inside.xml", tmp_path / "secret.xml")
    )
    record = ImageRecord(folder / "a" / "1.png", "", "1", annotations=own)
    assert sources.check(record) is record
    for other in (replace(record, annotations=secret), replace(record, region_of_interest=secret)):
        with pytest.raises(ForbiddenFileError):
            sources.check(other)


def test_a_table_that_is_a_link_out_is_refused(sources, folder, tmp_path):
    write_table(tmp_path / "elsewhere.csv", [f"{folder}/a/1.png,x,1", f"{folder}/b/3.png,y,2"])
    (folder / "manifest.csv").symlink_to(tmp_path / "elsewhere.csv")
    with pytest.raises(ForbiddenFileError):
        sources.listing(folder)


def looks_at_the_disk(monkeypatch):
    """Grows by one with every question to the file system about a path."""
    return [count_calls(monkeypatch, os, name) for name in ("stat", "lstat", "scandir", "listdir")]


@pytest.mark.parametrize("in_table", [False, True])
def test_a_tile_asks_the_disk_as_often_however_many_images_there_are(
    user, tmp_path, monkeypatch, in_table
):
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
            summaries = looks_at_the_disk(patch)
            assert find_dataset(user, sources, dataset.id, image).image(image).path.exists()
            counts.append(sum(map(len, summaries)))
    assert 0 < counts[0] == counts[1]


def test_an_image_alone_is_still_found_as_it_is_now(user, sources, folder):
    """Though not all folders are looked at: those that lead to it, or the table, are."""
    for place in ("a/p1", "b/p2"):
        (folder / place).mkdir()
        (folder / place / "9.png").touch()
    settle(folder)
    dataset = open_dataset(user, sources, folder)
    image = short_id("a/p1/9.png")

    def names_now():
        found = find_dataset(user, sources, dataset.id, image)
        return set(found.listing.names.values())

    assert "a/p1/9.png" in names_now()
    (folder / "b" / "p2" / "10.png").touch()  # of no concern to this image
    settle(folder / "b" / "p2")
    assert "b/p2/10.png" not in names_now()
    assert "b/p2/10.png" in find_dataset(user, sources, dataset.id).listing.names.values()
    (folder / "a" / "p1").rename(folder / "a" / "p3")
    assert "a/p3/9.png" in names_now() and "a/p1/9.png" not in names_now()
    settle(folder)
    assert find_dataset(user, sources, dataset.id, image).listing.by_id.get(image) is None
    image = short_id("a/1.png")
    write_table(folder / "manifest.csv", ["a/2.png,x,1", "b/3.png,y,2"])
    assert names_now() == {"a/2.png", "b/3.png"}


def test_a_change_while_thousands_are_listed_is_not_missed(sources, folder, monkeypatch):
    """Settled is what was so before the listing began, not when it ended a while later."""
    read, now = datasets._list_images, time.time()
    monkeypatch.setattr(datasets.time, "time", lambda: now)

    def slowly(*given):
        nonlocal now
        found = read(*given)
        now += 10
        return found

    monkeypatch.setattr(datasets, "_list_images", slowly)
    assert not sources.listing(folder).was_settled
