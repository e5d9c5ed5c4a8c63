"""Tests of matching feature files to slides by name, with or without the image suffix."""

from __future__ import annotations

import os
import unicodedata

import pytest

from histodict.datasets.manifest import ManifestError, read_manifest
from histodict.datasets.survey import drop_unreadable
from tests.precomputed.feature_files import some_vectors, write_trident


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "features").mkdir()
    for name in ("S1", "TCGA-A1.DX1.uuid", "S3.ome", "S4"):
        write_trident(tmp_path / "features" / f"{name}.h5", *some_vectors())
    return tmp_path / "features"


def table(tmp_path, text):
    (tmp_path / "slides.csv").write_text(text)
    return tmp_path / "slides.csv"


def read(tmp_path, folder, text, **manifest_text):
    return read_manifest(table(tmp_path, text), features=folder, **manifest_text)


def test_slides_are_found_by_name(tmp_path, folder):
    (tmp_path / "S4.png").write_bytes(b"")
    names = ("S1.svs", "TCGA-A1.DX1.uuid", "deep/S3.ome.tiff", "S4.png")
    text = "path,label\n" + "".join(f"{name},{n % 2}\n" for n, name in enumerate(names))
    found = read(tmp_path, folder, text)
    expected = ["S1.h5", "TCGA-A1.DX1.uuid.h5", "S3.ome.h5", "S4.h5"]
    assert [found.name(record) for record in found.records] == expected
    assert not any(record.error for record in found.records)
    assert found.records[3].image == tmp_path / "S4.png"
    assert found.records[3].display_image == tmp_path / "S4.png"
    assert found.records[0].image is None and found.records[0].display_image == folder / "S1.h5"


def test_column_slide_is_sufficient(tmp_path, folder):
    found = read(tmp_path, folder, "slide_id,case_id,label\nS1,a,x\nS4,b,y\n")
    assert [r.path.name for r in found.records] == ["S1.h5", "S4.h5"]
    assert found.patients == ["a", "b"]
    with pytest.raises(ManifestError, match=r"no column for path.*features=…"):
        read_manifest(tmp_path / "slides.csv")


def test_missing_and_ambiguous_files_are_reported_per_slide(tmp_path, folder):
    (folder / "S4.npz").write_bytes(b"")
    found = read(tmp_path, folder, "slide,label\nS1,x\nS2,x\nS4,y\nS1.svs,y\n")
    text = [record.error for record in found.records]
    # the feature file of one would also match the other
    doubtful = "S1.h5: matches several slides"
    assert doubtful in text[0] and "S1 and " in text[0] and "S1.svs" in text[0]
    assert "no feature file of this slide" in text[1]
    assert "has several feature files" in text[2] and "S4.h5, S4.npz" in text[2]
    assert "such as S2.h5 (the folder has S1.h5)" in text[1]
    assert text[3] == text[0]
    others = read(tmp_path, folder, "slide,label\nS1,x\nS2,x\nS4,y\n")
    stored, errors = drop_unreadable(others)
    assert [record.path.name for record in stored.records] == ["S1.h5"]
    assert errors == text[1:3] and len(stored.skipped) == 2


def test_fifo_and_broken_link_are_reported_without_waiting(tmp_path, folder):
    os.mkfifo(folder / "P.h5")
    (folder / "L.npz").symlink_to("nowhere")
    manifest, errors = drop_unreadable(read(tmp_path, folder, "slide,label\nS1,a\nP,b\nL,b\n"))
    assert [record.path.name for record in manifest.records] == ["S1.h5"]
    assert "P.h5: not a regular file but a named pipe" in errors[0]
    assert "L.npz: not a regular file but a dangling link" in errors[1]


def test_unicode_normalisation_does_not_matter(tmp_path, folder):
    one, two = (unicodedata.normalize(form, "Müller") for form in ("NFC", "NFD"))
    write_trident(folder / f"{two}.h5", *some_vectors())
    found = read(tmp_path, folder, f"slide,label\nS1,x\n{one},y\n")
    assert not any(record.error for record in found.records)


def test_folder_without_feature_files_suggests_another(tmp_path, folder):
    text = "slide,label\nS1,x\n"
    with pytest.raises(
        ManifestError, match=r"contains no feature files.*feature files were found in"
    ):
        read(tmp_path, tmp_path, text)
    with pytest.raises(ManifestError, match="folder of feature files not found"):
        read(tmp_path, tmp_path / "nowhere", text)
