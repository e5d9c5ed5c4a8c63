"""Tests of data checks: each warning is given if it applies, and not otherwise."""

import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from histodict.datasets.manifest import ImageRecord, Manifest, read_manifest
from histodict.images.pixel_size import PixelSize
from histodict.web.dataset_checks import (
    BackgroundChecks,
    ImageCheck,
    find_likely_duplicates,
    image_warnings,
    manifest_warnings,
)
from histodict.web.maps import TileCache
from tests.web.app import count_calls


def records(labels: str, patients: str) -> tuple[ImageRecord, ...]:
    rows = zip(labels, patients, strict=True)
    return tuple(ImageRecord(Path(f"{i}.png"), label, p) for i, (label, p) in enumerate(rows))


def test_imbalance_and_single_patients_are_warned_of():
    (text,) = manifest_warnings(Manifest(records("aaaaaaab" + "b", "12345678" + "9")))
    assert "Class imbalance: 7 images of a, but only 2 of b" in text
    assert manifest_warnings(Manifest(records("aabb", "1234"))) == []
    (text,) = manifest_warnings(Manifest(records("aabb", "1133")[:3] + records("b", "4")))
    assert text.startswith("All images of a come from one patient")


def test_warnings_of_the_manifest_are_included(tissue):
    folder = tissue / "tissue"
    manifest = read_manifest(folder / "manifest.csv")
    assert manifest_warnings(manifest) == []
    named = replace(manifest, warnings=("x.csv: no patient is specified for 3 images.",))
    assert manifest_warnings(named) == ["no patient is specified for 3 images."]


@pytest.fixture
def greys(rng):
    coarse = rng.integers(0, 255, (6, 8, 8), dtype=np.uint8)
    return [np.asarray(Image.fromarray(c).resize((32, 32)), np.float32) for c in coarse]


@pytest.mark.parametrize("n_rotations", range(4))
@pytest.mark.parametrize("mirrored", [False, True])
def test_rotated_mirrored_and_slightly_changed_copies_are_found(greys, rng, n_rotations, mirrored):
    copy = np.rot90(greys[2], n_rotations)
    copy = copy[:, ::-1] if mirrored else copy
    brighter = 0.8 * copy + 20 + rng.normal(0, 2, copy.shape)
    assert find_likely_duplicates([*greys, brighter.astype(np.float32)]) == [(2, 6)]


def test_different_and_blank_images_are_no_copies(greys):
    blank = [np.full((32, 32), 240, np.float32)] * 2
    assert find_likely_duplicates([*greys, *blank]) == []
    assert find_likely_duplicates(greys[:1]) == []


def test_copies_with_two_patients_and_labels_are_reported(greys):
    manifest = Manifest(records("ab", "12"))
    summaries = [
        ImageCheck(record, greys[0], PixelSize(0.5, "file")) for record in manifest.records
    ]
    (text,) = image_warnings(manifest, summaries)
    assert "Likely duplicates" in text and "0.png and 1.png" in text
    assert "Pairs with different patients: 1" in text
    assert "Pairs with different labels: 1" in text


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((0.25, 0.5), "Mixed pixel sizes, from 0.25 to 0.5"),
        ((0.5, None), "pixel size of 1 of 2 images is unknown. Images with and without"),
        ((None, None), "pixel size of 2 of 2 images is unknown: lengths are shown in pixels"),
        ((0.5, 0.51), None),
    ],
)
def test_pixel_sizes(greys, sizes, message):
    manifest = Manifest(records("ab", "12"))
    rows = zip(manifest.records, greys, sizes, strict=False)
    summaries = [ImageCheck(record, grey, PixelSize(mpp, "file")) for record, grey, mpp in rows]
    found = image_warnings(manifest, summaries)
    assert [message in text for text in found] == ([True] if message else [])


def checked(checks, manifest, thumbnail, mpp=None):
    """Return the final report of a check."""
    while not (found := checks.request_check(manifest, thumbnail, mpp))["ready"]:
        time.sleep(0.01)
    return found


@pytest.fixture
def folder(tmp_path, rng):
    """Four images of two classes in the current folder."""
    for place, name in enumerate(("a/0.png", "a/1.png", "b/2.png", "b/3.png")):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        pixels = rng.integers(0, 255, (40 + place, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    return tmp_path


@pytest.fixture
def run_checks(folder, tmp_path_factory):
    checks, tiles = BackgroundChecks(), TileCache(tmp_path_factory.mktemp("thumbnails"))
    yield lambda mpp=None: checked(checks, read_manifest(folder), tiles.ensure_thumbnail_file, mpp)
    checks.close()


def test_unreadable_images_are_reported_with_the_reason(run_checks, folder):
    (folder / "a" / "0.png").write_bytes(b"no image")
    (folder / "b" / "2.png").write_bytes((folder / "b" / "3.png").read_bytes()[:200])
    bad = run_checks()["bad"]
    assert [entry["name"] for entry in bad] == ["a/0.png", "b/2.png"]
    assert all(entry["reason"] and str(folder) not in entry["reason"] for entry in bad)


def test_unreadable_mask_is_reported_with_the_hint_of_the_page(run_checks, folder):
    (folder / "masks").mkdir()
    (folder / "masks" / "m.png").write_bytes(b"no image")
    (folder / "manifest.csv").write_text("path,mask,patient\na/0.png,masks/m.png,1\n")
    (bad,) = run_checks()["bad"]
    assert bad["name"] == "a/0.png" and bad["reason"].startswith("mask m.png: ")
    assert "--" not in bad["reason"] and str(folder) not in bad["reason"]


def test_image_that_exceeds_memory_does_not_end_the_check(folder):
    def thumbnail(record):
        raise MemoryError

    checks = BackgroundChecks()
    bad = checked(checks, read_manifest(folder), thumbnail)["bad"]
    checks.close()
    assert len(bad) == 4 and all("not enough memory" in entry["reason"] for entry in bad)


def test_changed_image_is_checked_again(run_checks, folder):
    assert run_checks()["bad"] == []
    (folder / "a" / "0.png").write_bytes(b"no image")
    assert [entry["name"] for entry in run_checks()["bad"]] == ["a/0.png"]


def test_duplicate_in_two_classes_is_refused(run_checks, folder):
    (folder / "b" / "4.png").write_bytes((folder / "a" / "1.png").read_bytes())
    (text,) = run_checks()["refused"]
    labels = "with different labels, 'a' and 'b'"
    assert text.startswith(f"a/1.png and b/4.png are identical images {labels}")


def test_pixel_sizes_are_counted_by_origin(run_checks, folder):
    assert run_checks()["sizes"] == [{"mpp": None, "from": "unknown", "n_images": 4}]
    lines = ["path,label,mpp", "a/0.png,a,0.25", "a/1.png,a,0.25", "b/2.png,b,"]
    (folder / "manifest.csv").write_text("\n".join(lines))
    found = run_checks(0.5)
    assert found["sizes"] == [
        {"mpp": 0.25, "from": "table", "n_images": 2},
        {"mpp": 0.5, "from": "command", "n_images": 1},
    ]
    assert "Mixed pixel sizes" in found["warnings"][0]


def test_warning_names_its_folder(folder):
    (folder / "a" / "5.webp").write_bytes(b"x")
    warnings = manifest_warnings(read_manifest(folder))
    assert "in a: skipped files that are not images: 5.webp" in warnings


def test_running_check_is_followed_without_listing_files(folder, monkeypatch):
    """The page requests it every second; checking 50,000 files each time took as long."""
    from histodict.web import dataset_checks as data_checks

    going_on = threading.Event()

    def thumbnail(record):
        going_on.wait(20)
        raise OSError("none")

    checks, manifest = BackgroundChecks(), read_manifest(folder)
    check = checks.request_check(manifest, thumbnail)["check"]
    summaries = count_calls(monkeypatch, data_checks, "_file_signature")
    followed = checks.running_state(check, folder)
    assert followed is not None and not followed["ready"] and followed["of"] == 4
    assert summaries == []
    assert checks.running_state(check, folder / "a") is None  # of another set
    assert checks.running_state("0" * 12, folder) is None
    going_on.set()
    assert checked(checks, manifest, thumbnail)["ready"]
    assert checks.running_state(check, folder) is None  # a finished check starts again
    checks.close()


@pytest.mark.parametrize("n_busy", [3, 10**9])
def test_check_yields_to_requests_but_ends(folder, monkeypatch, n_busy):
    from histodict.web import dataset_checks as data_checks

    monkeypatch.setattr(data_checks, "_MAX_WAIT", 0.05)
    requested = []

    def thumbnail(record):
        assert len(requested) > 3  # it waited until then
        raise OSError("none")

    def is_busy():
        requested.append(1)
        return len(requested) <= n_busy

    checks = BackgroundChecks(is_busy)
    found = checked(checks, read_manifest(folder), thumbnail)
    assert found["ready"] and {entry["reason"] for entry in found["bad"]} == {"none"}
    checks.close()
