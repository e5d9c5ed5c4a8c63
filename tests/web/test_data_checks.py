"""Warnings: each is given where it is due, and not where it is not."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from histodict.images.manifest import Manifest, Record, read_manifest
from histodict.web.data_checks import Look, likely_duplicates, quick_warnings, slow_warnings


def records(labels: str, patients: str) -> tuple[Record, ...]:
    rows = zip(labels, patients, strict=True)
    return tuple(Record(Path(f"{i}.png"), label, p) for i, (label, p) in enumerate(rows))


def test_imbalance_and_lonely_patients_are_told():
    (words,) = quick_warnings(Manifest(records("aaaaaaab" + "b", "12345678" + "9")))
    assert "Class imbalance: 7 images of a, but only 2 of b" in words
    assert quick_warnings(Manifest(records("aabb", "1234"))) == []
    (words,) = quick_warnings(Manifest(records("aabb", "1133")[:3] + records("b", "4")))
    assert words.startswith("All images of a come from one patient")


def test_the_manifests_own_warnings_are_passed_on(tissue):
    folder = tissue / "tissue"
    manifest = read_manifest(folder / "manifest.csv")
    assert quick_warnings(manifest) == []
    named = replace(manifest, warnings=("x.csv: NO PATIENT is given for 3 images.",))
    assert quick_warnings(named) == ["NO PATIENT is given for 3 images."]


@pytest.fixture
def greys(rng):
    coarse = rng.integers(0, 255, (6, 8, 8), dtype=np.uint8)
    return [np.asarray(Image.fromarray(c).resize((32, 32)), np.float32) for c in coarse]


@pytest.mark.parametrize("n_turns", range(4))
@pytest.mark.parametrize("mirrored", [False, True])
def test_copies_are_found_turned_mirrored_and_a_little_changed(greys, rng, n_turns, mirrored):
    copy = np.rot90(greys[2], n_turns)
    copy = copy[:, ::-1] if mirrored else copy
    brighter = 0.8 * copy + 20 + rng.normal(0, 2, copy.shape)
    assert likely_duplicates([*greys, brighter.astype(np.float32)]) == [(2, 6)]


def test_different_and_blank_images_are_no_copies(greys):
    blank = [np.full((32, 32), 240, np.float32)] * 2
    assert likely_duplicates([*greys, *blank]) == []
    assert likely_duplicates(greys[:1]) == []


def test_copies_under_two_patients_and_labels_are_pointed_out(greys):
    manifest = Manifest(records("ab", "12"))
    looks = [Look(record, greys[0], 0.5) for record in manifest.records]
    (words,) = slow_warnings(manifest, looks)
    assert "Likely duplicates" in words and "0.png and 1.png" in words
    assert "Pairs listed under different patients: 1" in words
    assert "Pairs with different labels: 1" in words


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ((0.25, 0.5), "Mixed pixel sizes, from 0.25 to 0.5"),
        ((0.5, None), "1 images is not known"),
        ((None, None), "shown in pixels"),
        ((0.5, 0.51), None),
    ],
)
def test_pixel_sizes(greys, sizes, words):
    manifest = Manifest(records("ab", "12"))
    rows = zip(manifest.records, greys, sizes, strict=False)
    found = slow_warnings(manifest, [Look(record, grey, mpp) for record, grey, mpp in rows])
    assert [words in text for text in found] == ([True] if words else [])


def test_unreadable_images_are_named():
    manifest = Manifest(records("ab", "12"))
    looks = [Look(record, None, reason="damaged") for record in manifest.records]
    assert slow_warnings(manifest, looks) == ["2 images cannot be read: 0.png; 1.png"]
