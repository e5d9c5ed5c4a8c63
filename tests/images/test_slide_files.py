"""Slides of several files count once wherever images are listed."""

from __future__ import annotations

import time

import numpy as np
import pytest
from PIL import Image

from histodict.datasets.annotated import read_images
from histodict.datasets.folder_layout import find_images
from histodict.datasets.manifest import ManifestError, read_manifest
from histodict.images.file_types import split_redundant_files
from histodict.images.source import open_image
from histodict.utils.dicom_header import Series, read_series
from tests.images.dicom_files import save_dicom_level, save_dicom_slide

LEVELS = ["2.dcm", "1.dcm", "0.dcm"]  # the finest level is last by name


@pytest.fixture
def pixels(rng):
    return np.kron(rng.integers(0, 256, (12, 16, 3)), np.ones((16, 16, 1))).astype(np.uint8)


def test_dicom_series_is_one_image_by_its_finest_level(tmp_path, pixels):
    first, *_ = save_dicom_slide(tmp_path / "a" / "P1", LEVELS, pixels, "1.2.3.1")
    flat = [[f"{slide}-{name}" for name in LEVELS] for slide in "xy"]
    second, third = (
        save_dicom_slide(tmp_path / "b", names, pixels, f"1.2.3.{10 + place}")[0]
        for place, names in enumerate(flat)
    )
    manifest = read_manifest(tmp_path)
    assert [record.path for record in manifest.records] == [first, second, third]
    assert len(set(manifest.patients)) == 3
    assert find_images(tmp_path) == ([first, second, third], [])
    assert [record.path for record in read_images(tmp_path).records] == [first, second, third]
    with open_image(first) as source:
        assert source.size == (256, 192) and source.mpp == 0.5


def test_explicit_levels_of_one_slide_are_one_image(tmp_path, pixels):
    levels = save_dicom_slide(tmp_path, LEVELS, pixels, "1.2.3.1")
    other = save_dicom_level(tmp_path / "other.dcm", pixels, "1.2.3.2")
    assert split_redundant_files([*levels[::-1], other]) == ([levels[0], other], levels[:0:-1])


def test_table_of_two_levels_is_refused(tmp_path, pixels):
    save_dicom_slide(tmp_path, LEVELS, pixels, "1.2.3.1")
    table = tmp_path / "slides.csv"
    table.write_text("path,label,patient\n0.dcm,a,p1\n2.dcm,a,p2\n", encoding="utf-8")
    text = r"0\.dcm \(line 2\) and .*2\.dcm \(line 3\) are files of the same slide .*1\.2\.3\.1"
    with pytest.raises(ManifestError, match=text):
        read_manifest(table)


def test_levels_in_two_folders_are_refused(tmp_path, pixels):
    save_dicom_level(tmp_path / "a" / "p1" / "0.dcm", pixels, "1.2.3.1")
    save_dicom_level(tmp_path / "b" / "p2" / "1.dcm", pixels, "1.2.3.1", level=1)
    with pytest.raises(ManifestError, match=r"0\.dcm and .*1\.dcm are files of the same slide"):
        read_manifest(tmp_path)


def test_damaged_header_gives_no_series_and_no_error(tmp_path, pixels, rng):
    data = save_dicom_level(tmp_path / "whole.dcm", pixels, "1.2.3.1").read_bytes()
    path, found = tmp_path / "damaged.dcm", set()
    assert read_series(tmp_path / "whole.dcm") == Series("1.2.3.1", 12)
    for length in range(0, 800, 7):
        path.write_bytes(data[:length])
        found.add(read_series(path))
    for _ in range(500):
        damaged = bytearray(data[:2000])
        for at in rng.integers(132, 800, 3):
            damaged[at] = int(rng.integers(256))
        path.write_bytes(damaged)
        read_series(path)
    assert found == {None, Series("1.2.3.1", 1), Series("1.2.3.1", 12)}


def save_image(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8)).save(path)


def test_tiles_of_a_vms_slide_are_no_images(tmp_path):
    for name in ("s-0-0.jpg", "s-1-0.jpg", "s_macro.jpg", "other.jpg"):
        save_image(tmp_path / "a" / name)
    index = "[Virtual Microscope Specimen]\nNoJpegColumns=2\nImageFile=s-0-0.jpg\n"
    index += "ImageFile(1,0)=s-1-0.jpg\r\nMacroImage=s_macro.jpg\n"
    (tmp_path / "a" / "s.vms").write_text(index, encoding="utf-8")
    names = [path.name for path in find_images(tmp_path)[0]]
    assert names == ["other.jpg", "s.vms"]
    table = tmp_path / "a" / "t.csv"
    table.write_text("path,label\ns.vms,a\ns-1-0.jpg,b\n", encoding="utf-8")
    with pytest.raises(ManifestError, match=r"s\.vms \(line 2\) and .*s-1-0\.jpg \(line 3\)"):
        read_manifest(table)


def test_ndpi_set_is_one_image(tmp_path):
    for name in ("dapi.ndpi", "fitc.ndpi", "alone.ndpi"):
        (tmp_path / name).write_bytes(b"x")
    index = "[NanoZoomer Digital Pathology Image Set]\nNoImages=2\n"
    (tmp_path / "s.ndpis").write_text(
        f"{index}Image0=fitc.ndpi\nImage1=dapi.ndpi\n", encoding="utf-8"
    )
    assert [path.name for path in find_images(tmp_path)[0]] == ["alone.ndpi", "dapi.ndpi"]


def test_many_files_are_listed_quickly(tmp_path, pixels):
    data = save_dicom_level(tmp_path / "0.dcm", pixels[:8, :8], "1.2.3.1000").read_bytes()
    for slide in range(250):
        for level in range(4):
            own = data.replace(b"1.2.3.1000", b"1.2.3.%04d" % (slide + 1000))
            (tmp_path / f"{slide}-{level}.dcm").write_bytes(own)
    (tmp_path / "0.dcm").unlink()
    begun = time.monotonic()
    assert len(find_images(tmp_path)[0]) == 250
    assert time.monotonic() - begun < 2
