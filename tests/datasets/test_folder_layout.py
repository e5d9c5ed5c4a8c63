"""Tests of reading images from folders of various layouts."""

from __future__ import annotations

import os

import pytest

from histodict.datasets.folder_layout import find_images
from histodict.datasets.manifest import ImageRecord, ManifestError, read_manifest
from histodict.datasets.survey import check_readable
from histodict.images.source import ImageError, open_image


def lay_out(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return folder


def rows(manifest):
    return [
        (manifest.name(record), record.label, record.patient, record.slide, record.split)
        for record in manifest.records
    ]


def test_sub_folders_of_a_class_are_patients(tmp_path):
    names = ("normal/p1/a.png", "normal/p1/b.png", "tumour/p1/a.png", "tumour/p2/s7/a.png")
    manifest = read_manifest(lay_out(tmp_path, *names))
    assert rows(manifest) == [
        ("normal/p1/a.png", "normal", "p1", None, None),
        ("normal/p1/b.png", "normal", "p1", None, None),
        ("tumour/p1/a.png", "tumour", "p1", None, None),
        ("tumour/p2/s7/a.png", "tumour", "p2", "s7", None),
    ]
    assert not any("no patient" in text for text in manifest.warnings)


def test_images_beside_patient_folders_have_no_patient(tmp_path):
    manifest = read_manifest(lay_out(tmp_path, "a/p1/1.png", "a/2.png", "b/p2/3.png", "b/p3/4.png"))
    assert [record.patient for record in manifest.records] == ["a/2.png", "p1", "p2", "p3"]
    assert any("no patient is specified for 1 image" in text for text in manifest.warnings)


def test_images_beside_classes_are_skipped_with_a_warning(tmp_path):
    names = ("a/1.png", "b/2.png", "3.png", "4.webp", "notes.txt")
    manifest = read_manifest(lay_out(tmp_path, *names))
    assert len(manifest.records) == 2
    (text,) = (text for text in manifest.warnings if "outside the class folders" in text)
    assert text.endswith(": 3.png, 4.webp")


def test_split_folders_are_no_classes(tmp_path):
    names = ("train/normal/1.png", "train/tumour/2.png", "Test/normal/3.png", "Test/tumour/4.png")
    manifest = read_manifest(lay_out(tmp_path, *names))
    assert manifest.classes == ["normal", "tumour"]
    assert [record.split for record in manifest.records] == ["Test", "Test", "train", "train"]


def test_empty_folder_beside_splits_does_not_matter(tmp_path):
    (tmp_path / "results").mkdir()
    test_split_folders_are_no_classes(tmp_path)
    assert any("results: skipped" in w for w in read_manifest(tmp_path).warnings)


def test_splits_beside_classes_are_refused(tmp_path):
    lay_out(tmp_path, "train/normal/1.png", "test/normal/2.png", "tumour/3.png")
    with pytest.raises(ManifestError, match=r"named like splits \(test, train\) .* \(tumour\)"):
        read_manifest(tmp_path)


def test_folder_with_an_image_suffix_is_entered(tmp_path):
    lay_out(tmp_path, "benign/P1.jpg", "benign/P1/0.png", "benign/P1/1.png", "malignant/P2.jpg")
    found = [path.relative_to(tmp_path).as_posix() for path in find_images(tmp_path)[0]]
    expected = ["benign/P1/0.png", "benign/P1/1.png", "benign/P1.jpg", "malignant/P2.jpg"]
    assert found == [name for name, *_ in rows(read_manifest(tmp_path))] == expected


def test_data_folder_of_a_slide_is_skipped(tmp_path):
    lay_out(tmp_path, "a/P1.mrxs", "a/P1/label.png", "b/P2.MRXS", "b/P2/label.png")
    assert find_images(tmp_path)[0] == [tmp_path / "a" / "P1.mrxs", tmp_path / "b" / "P2.MRXS"]
    assert len(read_manifest(tmp_path).records) == 2


def test_linked_folders_are_entered_and_cycles_are_not(tmp_path):
    store, data = lay_out(tmp_path / "store", "p1/1.png", "p1/2.png"), tmp_path / "data"
    lay_out(data, "b/p2/3.png", "b/p3/4.png")
    (data / "a").symlink_to(store)
    (data / "all").symlink_to(data)
    (data / "b" / "p2" / "up").symlink_to(data)
    (store / "p1" / "self").symlink_to(store)
    expected = ["a/p1/1.png", "a/p1/2.png", "b/p2/3.png", "b/p3/4.png"]
    assert [path.relative_to(data).as_posix() for path in find_images(data)[0]] == expected
    assert [name for name, *_ in rows(read_manifest(data))] == expected


def test_unreadable_folder_is_skipped_with_a_warning(tmp_path, monkeypatch):
    lay_out(tmp_path, "a/p1/1.png", "a/p2/2.png", "b/p3/3.png", "b/p4/4.png")
    closed = tmp_path / "a" / "p2"  # simulated, because permissions do not restrict root
    monkeypatch.setattr("os.access", lambda path, mode: path != closed)
    images, others = find_images(tmp_path)
    assert [path.name for path in images] == ["1.png", "3.png", "4.png"] and others == [closed]
    assert any("p2/ (not readable)" in text for text in read_manifest(tmp_path).warnings)


def test_unreadable_folder_and_slide_folder_are_no_classes(tmp_path, monkeypatch):
    lay_out(tmp_path, "a/1.png", "a/2.png", "b/3.png", "b/4.png", "c/5.png")
    lay_out(tmp_path, "P1.mrxs", "P1/label.png")
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path / "c")
    manifest = read_manifest(tmp_path)
    assert manifest.classes == ["a", "b"] and len(manifest.records) == 4
    text = " ".join(manifest.warnings)
    assert "c/ (not readable)" in text and "outside the class folders: P1.mrxs" in text


def test_every_folder_is_scanned_once(tmp_path, monkeypatch):
    lay_out(tmp_path, "a/p1/1.png", "a/p2/2.png", "b/p3/3.png", "b/p4/4.png")
    scanned, scan = [], os.scandir

    def counted(folder):
        scanned.append(folder)
        return scan(folder)

    monkeypatch.setattr("os.scandir", counted)
    assert len(read_manifest(tmp_path).records) == 4
    assert len(scanned) == len(set(scanned)) == 7


def test_mask_folders_are_neither_classes_nor_images_nor_patients(tmp_path):
    names = ("masks/1.png", "a/masks/1.png", "a/1.png", "a/2.png", "b/3.png", "b/4.png")
    manifest = read_manifest(lay_out(tmp_path, *names))
    assert [manifest.name(r) for r in manifest.records] == [
        "a/1.png",
        "a/2.png",
        "b/3.png",
        "b/4.png",
    ]
    text = " ".join(manifest.warnings)
    assert f"{tmp_path}: skipped files that are not images: masks/ (masks)" in text
    assert f"{tmp_path / 'a'}: skipped files that are not images: masks/ (masks)" in text


def test_images_of_unsupported_formats_are_warned_of(tmp_path):
    lay_out(tmp_path, "a/1.png", "a/2.png", "a/3.webp", "b/4.png", "b/5.png", "b/p/6.jp2")
    text = " ".join(read_manifest(tmp_path).warnings)
    assert "3.webp" in text and "6.jp2" in text


def test_folder_of_masks_alone_is_refused(tmp_path):
    with pytest.raises(ManifestError, match="sub-folder of images"):
        read_manifest(lay_out(tmp_path, "masks/1.png"))


def test_find_images(tmp_path):
    lay_out(tmp_path, "1.png", "p/2.jpg", "masks/3.png", ".hidden/4.png", "p/5.gif", "notes.txt")
    lay_out(tmp_path, "p/._2.jpg")  # files that macOS leaves beside images
    images, others = find_images(tmp_path)
    assert images == [tmp_path / "1.png", tmp_path / "p" / "2.jpg"]
    assert others == [tmp_path / "masks", tmp_path / "p" / "5.gif"]


def odd_entries(folder):
    """Create one special entry of each kind, with and without an image suffix."""
    folder.mkdir(parents=True, exist_ok=True)
    for ending in (".png", ""):
        os.mkfifo(folder / f"pipe{ending}")
        (folder / f"lost{ending}").symlink_to("nowhere")
        (folder / f"circle{ending}").symlink_to(f"circle{ending}")
        (folder / f"device{ending}").symlink_to("/dev/null")
    (folder / "folder.png").mkdir()
    (folder / "up").symlink_to("..")
    return folder


NAMES = ["circle", "device", "lost", "pipe"]


def test_special_entries_are_reported_wherever_a_folder_is_listed(tmp_path):
    lay_out(tmp_path, "a/1.png", "b/2.png")
    odd = odd_entries(tmp_path / "a")
    images, others = find_images(tmp_path)
    names = sorted(path.relative_to(tmp_path).as_posix() for path in images)
    expected = [f"a/{name}.png" for name in [*NAMES, "folder"]]
    assert names == sorted([*expected, "a/1.png", "b/2.png"])
    assert sorted(path.name for path in others) == [*NAMES, "up"]
    manifest = read_manifest(tmp_path)
    assert len(manifest.records) == 7
    (text,) = (text for text in manifest.warnings if text.startswith(f"{odd}: skipped"))
    for reported in (
        "circle (a cycle of links)",
        "device (a device)",
        "lost (a dangling link)",
        "pipe (a named pipe)",
        "up/ (link to a folder above it)",
    ):
        assert reported in text


@pytest.mark.parametrize("name", [*NAMES, "folder"])
def test_special_file_as_image_is_refused_without_waiting(tmp_path, name):
    path = odd_entries(tmp_path) / f"{name}.png"
    with pytest.raises(ImageError, match=f"^{path}: (not|is) "):
        open_image(path)
    assert check_readable([ImageRecord(path, "a", "p")]).unusable


def test_folders_that_link_to_each_other_are_listed_quickly(tmp_path):
    """There are millions of paths without a cycle."""
    for own in range(10):
        lay_out(tmp_path, f"{own}/1.png")
        for other in range(10):
            (tmp_path / str(own) / f"to{other}").symlink_to(tmp_path / str(other))
    images, others = find_images(tmp_path)
    assert {os.path.realpath(path) for path in images} == {
        str(tmp_path / str(own) / "1.png") for own in range(10)
    }
    assert len(images) < 1000 and others


def test_very_deep_folders_are_reported(tmp_path):
    lay_out(tmp_path, "1.png", "/".join(["d"] * 200) + "/2.png")
    images, (deep,) = find_images(tmp_path)
    assert images == [tmp_path / "1.png"] and len(deep.relative_to(tmp_path).parts) == 100
