"""Tests of feature files in every format, of attributes of TRIDENT and CLAM, and of invalid
files."""

from __future__ import annotations

import sys

import h5py
import numpy as np
import pytest

from histodict.datasets.folder_layout import FeatureFolder
from histodict.images import slide_reader as slide_process
from histodict.images.file_types import ImageError
from histodict.images.source import open_image
from histodict.precomputed.feature_file import (
    FeatureMetadata,
    check_features,
    common_metadata,
    open_features,
)
from tests.optional_modules import import_lazily
from tests.precomputed.feature_files import some_vectors, write_clam, write_trident

zarr = import_lazily("zarr")

VECTORS, COORDS = some_vectors()


def write_npz(path, vectors, coords):
    np.savez(path, features=vectors, coords=coords, patch_size_level0=512)
    return path


def write_zarr(path, vectors, coords):
    group = zarr.open_group(str(path), mode="w")
    group.create_array("features", data=vectors)
    group.create_array("coords", data=coords).attrs["patch_size_level0"] = 512
    return path


FORMS = {"a.h5": write_trident, "b.hdf5": write_clam, "c.npz": write_npz, "d.zarr": write_zarr}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("nested", [False, True])
def test_every_format_gives_the_same_rows(tmp_path, name, nested):
    vectors, coords = (VECTORS[None], COORDS[None]) if nested else (VECTORS, COORDS)
    if nested and name == "b.hdf5":
        pytest.skip("CLAM does not write it so")
    path = FORMS[name](tmp_path / name, vectors, coords)
    check_features(path)
    with open_features(path) as file:
        np.testing.assert_array_equal(file.coords, COORDS)
        np.testing.assert_array_equal(file.read(slice(3, 9)), VECTORS[3:9])
        some = np.array([30, 2, 39, 3, 2, 17])
        np.testing.assert_array_equal(file.read_rows(some), VECTORS[some])
        assert file.read_rows(some[:0]).shape == (0, 6)
        assert file.side == 512 and file.metadata.length == 6


def test_half_precision_is_read(tmp_path):
    half = VECTORS.astype(np.float16)
    with open_features(write_trident(tmp_path / "a.h5", half, COORDS)) as file:
        found = file.read(slice(None))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, half.astype(np.float32))


def test_attributes_of_trident(tmp_path):
    reported = {"overlap": 64, "level0_magnification": None}
    with open_features(write_trident(tmp_path / "a.h5", VECTORS, COORDS, **reported)) as file:
        assert file.metadata == FeatureMetadata(6, "uni_v1", 256, 20.0)
        assert (file.side, file.overlap, file.size) == (512, 128, (6000, 5000))
    with open_features(write_trident(tmp_path / "b.h5", VECTORS, COORDS, encoder=None)) as file:
        assert file.metadata.encoder is None


def test_attributes_of_clam_coords(tmp_path):
    path = write_clam(tmp_path / "a.h5", VECTORS, COORDS)
    with open_features(path) as file:  # no attribute: derived from the positions
        assert file.side == 512 and file.size is None and file.metadata == FeatureMetadata(6)
        assert file.extent == (int(COORDS[:, 0].max()) + 512, int(COORDS[:, 1].max()) + 512)
    with h5py.File(path, "a") as file:
        file["coords"].attrs.update(patch_size=256, patch_level=1, downsample=(4.0, 4.0))
    with open_features(path) as file:
        assert file.side == 1024


def test_placeholder_image_is_white_and_has_the_size_of_the_slide(tmp_path):
    with open_image(write_trident(tmp_path / "a.h5", VECTORS, COORDS)) as placeholder:
        assert placeholder.size == (6000, 5000)
        small = placeholder.thumbnail(600)
    assert small.shape == (500, 600, 3) and (small == 255).all()


# --- refused files ------------------------------------------------------------------------------


def nan_at(row):
    vectors = VECTORS.copy()
    vectors[row, 2] = np.nan
    return vectors


BAD = {
    "contains no vectors": (VECTORS[:0], COORDS[:0]),
    "patch 17 contains NaN": (nan_at(17), COORDS),
    "NaN or infinity": (np.where(VECTORS > 2, np.inf, VECTORS), COORDS),
    "for 40 vectors": (VECTORS, COORDS[:-1]),
    "whole numbers from 0 to": (VECTORS, COORDS - 10_000),
    "must be level-0 pixels": (VECTORS, COORDS.astype(float) * 1e300),
    "extend to \\(14096, 13584\\), but the slide has 6000 x 5000": (VECTORS, COORDS + 10_000),
    "distance of patches is 512 pixels .* but 128 by": (VECTORS, COORDS // 4),
    "all 40 patches have the same coords": (VECTORS, np.zeros_like(COORDS)),
    "one vector of 6 values for the whole slide": (VECTORS[0], COORDS),
    "must have shape \\(n_patches, n_features\\)": (VECTORS.reshape(2, 20, 6), COORDS),
    "must be floating-point numbers": (VECTORS.astype(np.int32), COORDS),
}


@pytest.mark.parametrize("message", BAD)
def test_unusable_content_is_refused(tmp_path, message):
    path = write_trident(tmp_path / "a.h5", *BAD[message])
    with pytest.raises(ImageError, match=f"a.h5: .*{message}"):
        check_features(path)


@pytest.mark.parametrize("name", ["a.h5", "a.npz", "a.zarr"])
def test_missing_file_or_wrong_format_is_refused(tmp_path, name):
    with pytest.raises(ImageError, match="file not found"):
        check_features(tmp_path / name)
    if name == "a.zarr":
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).write_bytes(b"no features")
    reasons = f"{name}: not an HDF5 file|not an .npz file|not a complete Zarr folder"
    with pytest.raises(ImageError, match=reasons):
        check_features(tmp_path / name)


def test_missing_arrays_are_refused(tmp_path):
    for name, text in (("coords", "no array 'features'; the file has: coords"),):
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file[name] = COORDS
        with pytest.raises(ImageError, match=text):
            check_features(tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["features"] = VECTORS
    with pytest.raises(ImageError, match="the array 'coords' is missing"):
        check_features(tmp_path / "a.h5")


def test_truncated_file_is_refused(tmp_path):
    vectors, coords = np.ones((3000, 64), np.float32), np.zeros((3000, 2), np.int64)
    path = write_trident(tmp_path / "a.h5", vectors, coords)
    path.write_bytes(path.read_bytes()[:200_000])
    with pytest.raises(ImageError, match=r"a\.h5: "):
        check_features(path)


def test_file_that_hangs_the_library_is_refused(tmp_path, monkeypatch):
    """HDF5 never finds the end of an attribute heap that was overwritten with zeros."""
    good = write_trident(tmp_path / "a.h5", VECTORS, COORDS)
    content = bytearray(good.read_bytes())
    start = content.find(b"GCOL") + 16
    content[start : start + 400] = bytes(400)
    (tmp_path / "b.h5").write_bytes(content)
    check_features(good)  # starts a process
    monkeypatch.setattr(slide_process, "REPLY_TIMEOUT_S", 2)
    with pytest.raises(ImageError, match=r"b\.h5: the HDF5 library did not read the file in time"):
        check_features(tmp_path / "b.h5")
    monkeypatch.undo()
    other = write_trident(tmp_path / "c.h5", VECTORS, COORDS)
    check_features(other)  # by another process


def test_missing_library_is_reported(tmp_path, monkeypatch):
    path = write_trident(tmp_path / "a.h5", VECTORS, COORDS)
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ImageError, match=r'pip install "\.\[features\]"'):
        check_features(path)


@pytest.mark.parametrize("beside", ["a.h5", "../h5_files/a.h5", None])
def test_tensors_without_positions_are_refused_with_a_suggestion(tmp_path, beside):
    (tmp_path / "pt_files").mkdir()
    path = tmp_path / "pt_files" / "a.pt"
    path.write_bytes(b"PK")
    text = "use the .h5 file of this slide"
    if beside:
        other = (path.parent / beside).resolve()
        other.parent.mkdir(exist_ok=True)
        write_trident(other, VECTORS, COORDS)
        text = f"use {other}"
    with pytest.raises(ImageError, match=f"a.pt: .pt files contain no patch positions; {text}"):
        open_image(path)
    if beside != "a.h5":
        with pytest.raises(ValueError, match=f"a.pt: .pt files contain no patch positions; {text}"):
            FeatureFolder(path.parent)


# --- attributes ---------------------------------------------------------------------------------

BAD_ATTRIBUTES = {
    "patch_size_level0": [1e300, np.inf, np.nan, -512, 0, "wide", [512, 512, 512], [512, 1024]],
    "patch_size": [2**62, 255.5, np.void(b"ab"), True],
    "overlap": [256, 1e20],
    "target_magnification": [0, "20x", 1 + 2j],
    "level0_width": [-1, 10**9],
    "level0_height": [np.nan],
    "level0_mpp": [1e-300],
    "encoder": [7, np.arange(3), "a" * 5000, "two\nlines"],
    "histodict": [
        "no JSON",
        "[1]",
        "[" * 100_000,
        '{"offset": [1e400, "a"]}',
        '{"offset": [6000, 0]}',
        '{"offset": 3}',
        '{"offset": [true, false]}',
        '{"recipe": [1]}',
        '{"grid": "none"}',
        '{"grid": NaN}',
        7,
    ],
}
CASES = [(name, value) for name, values in BAD_ATTRIBUTES.items() for value in values]


@pytest.mark.parametrize(("name", "value"), CASES)
def test_invalid_attribute_is_refused(tmp_path, name, value):
    path = write_trident(tmp_path / "a.h5", VECTORS, COORDS, **{name: value})
    with h5py.File(path, "a") as file:
        if name == "encoder":  # two arrays have it
            file["features"].attrs["encoder"] = value
    with pytest.raises(ImageError, match=f"a.h5: the attribute {name}.* must be ") as refused:
        check_features(path)
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize(
    ("name", "value", "field", "expected"),
    [
        ("patch_size_level0", "512", "side", 512),
        ("patch_size_level0", None, "side", 512),
        ("patch_size_level0", h5py.Empty("f4"), "side", 512),
        ("patch_size_level0", [500.0, 510.0], "side", 500),
        ("overlap", -64, "overlap", -128),  # patches with gaps between them
        ("encoder", ["uni_v2"], "encoder", "uni_v2"),
        ("patch_size", np.float32(256), "patch_px", 256),
    ],
)
def test_attribute_types_of_other_programs_are_read(tmp_path, name, value, field, expected):
    path = write_trident(tmp_path / "a.h5", VECTORS, COORDS)
    with h5py.File(path, "a") as file:
        file["features" if name == "encoder" else "coords"].attrs[name] = (
            "None" if value is None else value
        )
    with open_features(path) as file:
        home = file if hasattr(file, field) else file.metadata
        assert getattr(home, field) == expected


def test_side_from_the_clam_level_is_checked(tmp_path):
    path = write_clam(tmp_path / "a.h5", VECTORS, COORDS)
    with h5py.File(path, "a") as file:
        file["coords"].attrs.update(patch_size=1_900_000, patch_level=1, downsample=1e5)
    with pytest.raises(ImageError, match=r"attribute downsample must be .* from 1 to 2,000,000"):
        check_features(path)


def test_attributes_of_npz_and_zarr_are_checked(tmp_path):
    np.savez(tmp_path / "a.npz", features=VECTORS, coords=COORDS, patch_size_level0=1e300)
    group = zarr.open_group(str(write_zarr(tmp_path / "a.zarr", VECTORS, COORDS)), mode="a")
    group["coords"].attrs["patch_size_level0"] = {"deep": [1e300]}
    for name in ("a.npz", "a.zarr"):
        with pytest.raises(ImageError, match=f"{name}: the attribute patch_size_level0 must be"):
            check_features(tmp_path / name)


def test_coords_beyond_every_slide_are_refused(tmp_path):
    for number, far in enumerate((1e300, np.inf, np.nan)):
        coords = COORDS.astype(float)
        coords[3, 1] = far
        path = write_trident(tmp_path / f"{number}.h5", VECTORS, coords)
        with pytest.raises(ImageError, match="coords must be level-0 pixels"):
            check_features(path)


# --- many files ---------------------------------------------------------------------------------


def test_files_of_one_model_must_match(tmp_path):
    a = write_trident(tmp_path / "a.h5", VECTORS, COORDS)
    abstaining = write_clam(tmp_path / "b.h5", VECTORS, COORDS)
    assert common_metadata([abstaining, a]) == FeatureMetadata(6, "uni_v1", 256, 20.0)
    assert common_metadata([tmp_path / "c.png"]) is None
    other = write_trident(tmp_path / "c.h5", VECTORS, COORDS, encoder="conch_v1")
    with pytest.raises(ImageError, match=r"c.h5: .*differ from those of .*a.h5 .encoder conch_v1"):
        common_metadata([a, abstaining, other])
    longer = write_clam(tmp_path / "d.h5", np.hstack([VECTORS, VECTORS]), COORDS)
    with pytest.raises(ImageError, match="vectors of length 12, not 6"):
        common_metadata([abstaining, longer])
