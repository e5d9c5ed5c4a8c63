"""Tests of Zarr folders: no code is run, links are not followed, missing chunks are refused."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest

import histodict
from attacks.zarr_files import image_attributes, payload, write_array_2, write_array_3, write_group
from histodict.images.source import ImageError, open_image
from histodict.images.zarr_store import CODECS_2, CODECS_3
from histodict.precomputed.feature_file import check_features, open_features
from tests.optional_modules import import_lazily
from tests.precomputed.feature_files import some_vectors

zarr = import_lazily("zarr")

VECTORS, COORDS = some_vectors()
PIXELS = np.random.default_rng(0).integers(1, 255, (3, 40, 50), np.uint8)
PICKLE = {"id": "pickle", "protocol": 5}
WRITERS = {2: write_array_2, 3: write_array_3}

# Metadata that name the codec pickle, by version.
POISON = {
    "filter": (2, {"filters": [PICKLE]}),
    "compressor": (2, {"compressor": PICKLE}),
    "objects": (2, {"dtype": "|O", "filters": [{"id": "vlen-utf8"}, PICKLE]}),
    "objects, pickled": (2, {"dtype": "|O", "filters": [PICKLE]}),
    "after a known codec": (2, {"filters": [{"id": "shuffle", "elementsize": 4}, PICKLE]}),
    "codec of version 3": (3, {"codecs": ["bytes", {"name": "numcodecs.pickle"}]}),
    "in a shard": (
        3,
        {
            "codecs": [
                {
                    "name": "sharding_indexed",
                    "configuration": {
                        "chunk_shape": None,  # replaced by that of the array
                        "codecs": [{"name": "numcodecs.pickle"}],
                        "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
                    },
                }
            ]
        },
    ),
}


def poisoned(version, changes, array, folder, marker):
    changes = json.loads(json.dumps(changes))
    for codec in changes.get("codecs", []):
        if isinstance(codec, dict) and "chunk_shape" in codec.get("configuration", {}):
            codec["configuration"]["chunk_shape"] = array.shape
    WRITERS[version](folder, array, payload(marker), **changes)


@pytest.mark.parametrize("where", ["image", "features", "coords"])
@pytest.mark.parametrize("kind", POISON)
def test_code_in_a_folder_is_not_run(tmp_path, kind, where):
    version, changes = POISON[kind]
    marker = tmp_path / "was-run"
    write = WRITERS[version]
    if where == "image":
        path = write_group(tmp_path / "a.ome.zarr", version, image_attributes(version))
        poisoned(version, changes, PIXELS, path / "s0", marker)
    else:
        path = write_group(tmp_path / "a.zarr", version)
        for name, array in (("features", VECTORS), ("coords", COORDS)):
            if name == where:
                poisoned(version, changes, array, path / name, marker)
            else:
                write(path / name, array)
    with pytest.raises(ImageError, match=r"is not accepted|only numbers are supported"):
        if where == "image":
            open_image(path).read(0, 0, 9, 9)
        else:
            check_features(path)
    assert not marker.exists()


@pytest.mark.parametrize("version", [2, 3])
def test_consolidated_metadata_are_not_used(tmp_path, version):
    """They may name another codec than the array itself."""
    path = write_group(tmp_path / "a.zarr", version)
    for name, array in (("features", VECTORS), ("coords", COORDS)):
        WRITERS[version](path / name, array)
    marker = tmp_path / "was-run"
    if version == 2:
        array = json.loads((path / "coords/.zarray").read_text()) | {"filters": [PICKLE]}
        class_names = {".zgroup": {"zarr_format": 2}, "coords/.zarray": array}
        consolidated = {"zarr_consolidated_format": 1, "metadata": class_names}
        (path / ".zmetadata").write_text(json.dumps(consolidated))
    else:
        array = json.loads((path / "coords/zarr.json").read_text())
        array["codecs"].append({"name": "numcodecs.pickle"})
        group = json.loads((path / "zarr.json").read_text())
        inline = {"kind": "inline", "must_understand": False, "metadata": {"coords": array}}
        (path / "zarr.json").write_text(json.dumps(group | {"consolidated_metadata": inline}))
    check_features(path)
    with open_features(path) as file:
        np.testing.assert_array_equal(file.coords, COORDS)
    assert not marker.exists()


def create(group, name, values, chunks="auto", **options):
    """Also works with versions of zarr whose groups take no data."""
    array = group.create_array(
        name, shape=values.shape, dtype=values.dtype, chunks=chunks, **options
    )
    array[...] = values


def numcodecs_of(name):
    import numcodecs

    parameters = {"zstd": {"level": 1}, "blosc": {"cname": "lz4"}}
    return numcodecs.get_codec({"id": name, **parameters.get(name, {})})


@pytest.mark.parametrize("name", sorted(CODECS_2))
def test_accepted_codecs_of_version_2_are_read(tmp_path, name):
    group = zarr.open_group(str(tmp_path / "a.zarr"), mode="w", zarr_format=2)
    for key, array in (("features", VECTORS), ("coords", COORDS)):
        options = {"compressors": numcodecs_of(name), "chunks": (7, array.shape[1])}
        create(group, key, array, **options)
    assert_read(tmp_path / "a.zarr")


@pytest.mark.parametrize("name", [*sorted(set(CODECS_3) - {"bytes", "transpose"}), "shards"])
def test_accepted_codecs_of_version_3_are_read(tmp_path, name):
    from zarr import codecs

    class_names = {"blosc": "BloscCodec", "crc32c": "Crc32cCodec", "gzip": "GzipCodec"}
    made = getattr(codecs, class_names.get(name, "ZstdCodec"))()
    group = zarr.open_group(str(tmp_path / "a.zarr"), mode="w")
    for key, array in (("features", VECTORS), ("coords", COORDS)):
        options = {"chunks": (4, array.shape[1]), "compressors": [made]}
        shards = {"shards": (16, array.shape[1])} if name == "shards" else {}
        create(group, key, array, **options, **shards)
    assert_read(tmp_path / "a.zarr")


def assert_read(path):
    check_features(path)
    with open_features(path) as file:
        assert file.missing_chunks == 0
        np.testing.assert_array_equal(file.coords, COORDS)
        np.testing.assert_array_equal(file.read(slice(3, 31)), VECTORS[3:31])


ODD = {
    "2: shape": (2, {"shape": [-1, 6]}, "shape"),
    "2: no chunks": (2, {"chunks": [0, 6]}, "shape"),
    "2: axes": (2, {"chunks": [4]}, "axes"),
    "2: structured": (2, {"dtype": [["a", "<f4"]]}, "data type"),
    "2: text": (2, {"dtype": "<U9"}, "data type"),
    "2: time": (2, {"dtype": "<M8[ns]"}, "data type"),
    "2: fill value": (2, {"fill_value": "gASVJAAAAAAAAACMBXBvc2l4"}, "fill value"),
    "2: parameter": (2, {"compressor": {"id": "zstd", "cls": "x"}}, "unknown parameter"),
    "2: nested parameter": (2, {"compressor": {"id": "zstd", "level": {}}}, "unknown parameter"),
    "2: unknown codec": (2, {"compressor": {"id": "lzma"}}, "is not accepted"),
    "3: text": (3, {"data_type": "string"}, "data type"),
    "3: grid": (3, {"chunk_grid": {"name": "rectilinear", "configuration": {}}}, "grid"),
    "3: transformers": (3, {"storage_transformers": [{"name": "x"}]}, "transformers"),
    "3: field": (3, {"must": {"name": "x"}}, "unknown field"),
    "3: twice": (3, {"codecs": ["bytes", "zstd", "gzip"]}, "more than once"),
    "3: shards of shards": (
        3,
        {
            "codecs": [
                {
                    "name": "sharding_indexed",
                    "configuration": {
                        "chunk_shape": [40, 6],
                        "codecs": [{"name": "sharding_indexed"}],
                        "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
                    },
                }
            ]
        },
        "is not accepted",
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_invalid_metadata_are_refused(tmp_path, name):
    version, changes, text = ODD[name]
    path = write_group(tmp_path / "a.zarr", version)
    WRITERS[version](path / "coords", COORDS)
    WRITERS[version](path / "features", VECTORS, **changes)
    with pytest.raises(ImageError, match=rf"a\.zarr: .*{text}"):
        check_features(path)


@pytest.mark.parametrize("what", ["chunk", "metadata", "array"])
def test_links_in_a_feature_folder_are_refused(tmp_path, what):
    path = write_group(tmp_path / "a.zarr", 2)
    write_array_2(path / "features", VECTORS)
    write_array_2(path / "coords", COORDS)
    check_features(path)
    linked = {"chunk": "coords/0.0", "metadata": "coords/.zarray", "array": "coords"}[what]
    (path / linked).rename(tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", path / linked)
    with pytest.raises(ImageError, match=r"folder contains links.*cp -rL"):
        check_features(path)


def test_truncated_chunk_is_refused(tmp_path):
    """Blosc reads beyond the end of an uncompressed truncated chunk."""
    path = tmp_path / "a.zarr"
    group = zarr.open_group(str(path), mode="w", zarr_format=2)
    for name, values in (("features", VECTORS), ("coords", COORDS)):
        create(group, name, values, compressors=numcodecs_of("blosc"))
    chunk = path / "features/0.0"
    chunk.write_bytes(chunk.read_bytes()[:-40])
    with pytest.raises(ImageError, match="truncated; copy the file again"):
        check_features(path)


# --- missing chunks -----------------------------------------------------------------------------


def write_features(path, form, **options):
    group = zarr.open_group(str(path), mode="w", zarr_format=form)
    chunks = {"chunks": (4, 3)}
    create(group, "features", VECTORS, **chunks, **options)
    create(group, "coords", COORDS + 1)
    return path


LAYOUTS = {
    "2 with dots": (2, {"chunk_key_encoding": {"name": "v2", "separator": "."}}, "features/3.1"),
    "2 with slashes": (2, {"chunk_key_encoding": {"name": "v2", "separator": "/"}}, "features/3/1"),
    "3": (3, {}, "features/c/3/1"),
    "3 with dots": (
        3,
        {"chunk_key_encoding": {"name": "default", "separator": "."}},
        "features/c.3.1",
    ),
    "3 as 2": (3, {"chunk_key_encoding": {"name": "v2", "separator": "."}}, "features/3.1"),
    "3 in shards": (3, {"shards": (12, 6)}, "features/c/1/0"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_features_with_missing_chunks_are_refused(tmp_path, layout):
    form, options, lost = LAYOUTS[layout]
    path = write_features(tmp_path / "a.zarr", form, **options)
    check_features(path)
    (path / lost).unlink()
    n_missing = 6 if "shards" in options else 1
    with pytest.raises(
        ImageError, match=rf"{n_missing} of 21 chunks are missing.*allow_missing_chunks"
    ):
        check_features(path)
    with (
        histodict.allow_missing_chunks(),
        pytest.warns(
            UserWarning, match=rf"a.zarr: {n_missing} of 21 chunks are missing; they are read"
        ),
        open_features(path) as file,
    ):
        assert file.missing_chunks == n_missing
        assert (file.read(slice(12, 16))[:, 3:] == 0).all()
    with pytest.raises(ImageError, match="are missing"):
        check_features(path)


def test_missing_chunk_of_a_shard_is_refused(tmp_path):
    """Zarr omits chunks of the fill value alone; the last shards extend beyond the array."""
    vectors = VECTORS.copy()
    vectors[8:12, :3] = 0
    group = zarr.open_group(str(tmp_path / "a.zarr"), mode="w")
    create(group, "features", vectors, chunks=(4, 3), shards=(12, 6))
    create(group, "coords", COORDS + 1)
    with pytest.raises(ImageError, match="1 of 21 chunks are missing"):
        check_features(tmp_path / "a.zarr")


def test_files_that_are_no_chunks_are_not_counted(tmp_path):
    path = write_features(tmp_path / "a.zarr", 2)
    shutil.copy(path / "features/3.1", path / "features/99.1")
    shutil.copy(path / "features/3.1", path / "features/03.1")
    (path / "features/3.1").unlink()
    with pytest.raises(ImageError, match="1 of 21 chunks are missing"):
        check_features(path)


@pytest.mark.parametrize("version", [2, 3])
def test_image_with_missing_chunks_is_refused(tmp_path, version):
    path = write_group(tmp_path / "a.ome.zarr", version, image_attributes(version))
    group = zarr.open_group(str(path), mode="r+")
    create(group, "s0", PIXELS, chunks=(1, 16, 16))
    open_image(path).read(0, 0, 50, 40)
    for name in ("0.1.1", "0.1.2") if version == 2 else ("c/0/1/1", "c/0/1/2"):
        (path / "s0" / name).unlink()
    with pytest.raises(ImageError, match=r"2 of 36 chunks are missing.*allow_missing"):
        open_image(path)
    with histodict.allow_missing_chunks(), pytest.warns(UserWarning, match="2 of 36 chunks"):
        source = open_image(path)
        assert source.missing_chunks == 2
        assert (source.read(16, 16, 32, 16)[..., 0] == 0).all()


def test_lone_surrogate_in_metadata_is_escaped_in_the_message(tmp_path):
    attributes = image_attributes(2)
    attributes["multiscales"][0]["version"] = "\ud800"
    path = write_group(tmp_path / "a.ome.zarr", 2, attributes)
    write_array_2(path / "s0", PIXELS)
    with pytest.raises(ImageError) as error, open_image(path):
        pass
    assert "a.ome.zarr" in str(error.value) and str(error.value).isprintable()
