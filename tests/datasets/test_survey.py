"""Tests of the checks before work starts: unreadable and duplicate images."""

from __future__ import annotations

import re
from importlib import import_module

import numpy as np
import pytest
from PIL import Image

from histodict.datasets import survey as module
from histodict.datasets.manifest import Manifest
from histodict.datasets.record import ImageRecord, ManifestError
from histodict.datasets.survey import (
    check_duplicates_by_content,
    check_readable,
    drop_unreadable,
    find_identical_files,
    with_pixel_size,
)
from histodict.images.source import ImageError
from tests.images.files import save_tiff_of_size


def save(path, seed=0):
    pixels = np.random.default_rng(seed).integers(0, 255, (40, 40, 3), np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def manifest(folder, *rows):
    return Manifest(tuple(ImageRecord(folder / n, label, n) for n, label in rows), root=folder)


@pytest.fixture
def damaged(tmp_path):
    """Of four images, one is truncated after its header and one is empty."""
    for seed, name in enumerate("abcd"):
        save(tmp_path / f"{name}.png", seed)
    full = (tmp_path / "b.png").read_bytes()
    (tmp_path / "b.png").write_bytes(full[: len(full) // 2])
    (tmp_path / "d.png").write_bytes(b"")
    return manifest(tmp_path, ("a.png", "x"), ("b.png", "x"), ("c.png", "y"), ("d.png", "y"))


def test_all_unreadable_images_are_reported_together(damaged):
    with pytest.raises(ImageError) as raised:
        check_readable(damaged.records).raise_if_unusable()
    first, *lines = str(raised.value).splitlines()
    assert "2 of 4 images cannot be used" in first
    home, _, name = re.search(r"skip them with ([\w.]+):", first)[1].rpartition(".")
    assert getattr(import_module(home), name) is drop_unreadable
    assert all(name in line for name, line in zip(("b.png", "d.png"), lines, strict=True))
    reported = []
    check_readable(damaged.records, 1, reported.append)
    assert [step.done for step in reported] == [0, 1, 2, 3, 4]


def test_readable_images_remain_and_skipped_ones_are_recorded(damaged):
    stored, errors = drop_unreadable(damaged)
    assert [r.path.name for r in stored.records] == ["a.png", "c.png"]
    assert stored.skipped == ("b.png", "d.png") and len(errors) == 2
    check_readable(stored.records).raise_if_unusable()


def test_unreadable_mask_counts_as_its_image(tmp_path):
    record = ImageRecord(save(tmp_path / "a.png"), "", "p", mask=tmp_path / "m.png")
    save(tmp_path / "m.png")
    assert check_readable([record]).unusable == []
    Image.new("L", (90, 10)).save(tmp_path / "m.png")
    ((_, reason),) = check_readable([record]).unusable
    assert "different aspect ratios" in reason


def test_duplicate_in_two_classes_is_refused_and_in_one_class_warned_of(tmp_path):
    for name in ("a.png", "b.png"):
        save(tmp_path / name)
    save(tmp_path / "c.png", 1)
    with pytest.raises(
        ManifestError, match=r"a\.png and b\.png are identical images with different labels, 'x'"
    ):
        check_duplicates_by_content(
            manifest(tmp_path, ("a.png", "x"), ("b.png", "y"), ("c.png", "y"))
        )
    (text,) = check_duplicates_by_content(
        manifest(tmp_path, ("a.png", "x"), ("b.png", "x"), ("c.png", "y"))
    )
    assert "1 image with copies" in text and "a.png = b.png" in text
    assert check_duplicates_by_content(manifest(tmp_path, ("a.png", "x"), ("c.png", "y"))) == []


def test_only_files_of_equal_size_and_beginning_are_read(tmp_path, monkeypatch):
    """Of four files of equal size, two have equal beginnings; these differ at the end."""
    contents = {"a": b"1" * 70_000 + b"x", "b": b"1" * 70_000 + b"y", "c": b"2" * 70_001, "d": b"3"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    read = []
    digest = module.content_digest
    monkeypatch.setattr(
        module, "content_digest", lambda path: read.append(path.name) or digest(path)
    )
    assert find_identical_files(manifest(tmp_path, *((n, "x") for n in "abcd")).records) == []
    assert read == ["a", "b"]


def test_unexpected_error_is_reported_like_others(tmp_path, monkeypatch):
    save(tmp_path / "a.png")
    save(tmp_path / "b.png", 1)
    opened = module.open_image

    def open_image(path, mpp):
        if path.name == "a.png":
            raise ZeroDivisionError("division by zero")
        return opened(path, mpp)

    monkeypatch.setattr(module, "open_image", open_image)
    ((record, reason),) = module.check_readable(
        manifest(tmp_path, ("a.png", "x"), ("b.png", "y")).records
    ).unusable
    assert record.path.name == "a.png"
    assert f"{record.path}: unexpected ZeroDivisionError: division by zero [at " in reason


def test_pixel_size_fills_or_overrides(tmp_path):
    save_tiff_of_size(tmp_path / "told.tif", 0.25)
    save(tmp_path / "silent.png")
    images = manifest(tmp_path, ("told.tif", "x"), ("silent.png", "y"))
    assert [r.mpp for r in with_pixel_size(images, 0.5).records] == [None, 0.5]
    assert [r.mpp for r in with_pixel_size(images, override_mpp=1.0).records] == [1.0, 1.0]
    assert with_pixel_size(images) is images
