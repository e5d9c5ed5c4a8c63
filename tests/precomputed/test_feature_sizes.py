"""Small feature files with gigabytes of content are refused; so are links to other files."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib

import h5py
import numpy as np
import pytest

import histodict
from attacks.feature_bombs import BOMBS, deflated_zeros
from histodict.images.file_types import ImageError, decompressed_size
from histodict.precomputed.feature_file import check_features, open_features
from tests.precomputed.feature_files import some_vectors

VECTORS, COORDS = some_vectors()
N_MIB = 256
MOST_MIB = 160  # beside the loaded libraries

# Reads each file with a memory limit, and prints the result and the memory used.
READ = f"""
import json, resource, sys
from pathlib import Path
import h5py, numcodecs, zarr
from histodict.precomputed.feature_file import check_features
from histodict.images.file_types import ImageError

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))

used = next(int(x.split()[1]) for x in open("/proc/self/status") if x.startswith("VmData"))
limit = used * 1024 + {MOST_MIB} * 2**20
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
found = {{}}
for name, path in json.load(sys.stdin).items():
    try:
        check_features(Path(path))
        found[name] = "read"
    except ImageError as error:
        found[name] = str(error)
    except BaseException as error:
        found[name] = "BAD " + repr(error)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    if sys.platform != "linux":
        pytest.skip("memory is limited on Linux alone")
    folder = tmp_path_factory.mktemp("bombs")
    paths = {}
    for place, (name, (ending, write)) in enumerate(BOMBS.items()):
        paths[name] = str(write(folder / f"{place}{ending}", N_MIB))
    command = [sys.executable, "-c", READ]
    done = subprocess.run(command, input=json.dumps(paths), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", BOMBS)
def test_small_file_does_not_fill_the_memory(outcomes, name):
    found = outcomes[name]
    assert not found.startswith("BAD"), found
    assert "llocate" not in found and "memory (" not in found, found
    assert (found == "read") == (name == "npz: unused"), found


@pytest.mark.parametrize("level", [None, 1])
@pytest.mark.parametrize("codec", ["blosc", "gzip", "lz4", "zlib", "zstd"])
def test_unpacked_sizes_are_those_of_the_codecs(codec, level):
    import numcodecs

    data = np.random.default_rng(0).integers(0, 9, 400_000, np.uint8)
    parameters = {"level": level} if level and codec not in ("blosc", "lz4") else {}
    packed = bytes(numcodecs.get_codec({"id": codec, **parameters}).encode(data))
    assert decompressed_size(codec, packed, 1000) in (len(data), *range(1001, len(data)))
    assert decompressed_size(codec, packed, len(data)) == len(data)


def test_zstd_without_a_stated_size():
    zstd = pytest.importorskip("imagecodecs", reason="imagecodecs is not installed")
    data = np.random.default_rng(0).integers(0, 9, 400_000, np.uint8).tobytes()
    packed = bytearray(zstd.zstd_encode(data))
    assert decompressed_size("zstd", bytes(packed), 0) == len(data)
    frame = b"\x28\xb5\x2f\xfd\x00\x88" + ((1000 << 3) | 2 | 1).to_bytes(3, "little") + b"\0"
    assert decompressed_size("zstd", frame, 0) == 1000
    assert decompressed_size("zstd", frame * 3, 0) == 3000
    assert decompressed_size("zstd", b"no frame", 0) == 0


def test_deflated_data_are_counted_only_up_to_the_limit():
    assert decompressed_size("zlib", deflated_zeros(16), 2**24) == 2**24
    assert 2**20 < decompressed_size("zlib", deflated_zeros(64), 2**20) <= 2**22


# --- parts that are in another file -------------------------------------------------------------


def secret(folder):
    with h5py.File(folder / "secret.h5", "w") as file:
        file["features"], file["coords"] = VECTORS, COORDS
    (folder / "secret.raw").write_bytes(VECTORS.tobytes())
    return folder / "secret.h5"


def external_link(file, folder):
    file["features"] = h5py.ExternalLink(secret(folder), "features")


def soft_link_to_external(file, folder):
    file["more"] = h5py.ExternalLink(secret(folder), "/")
    file["features"] = h5py.SoftLink("/more/features")


def external_storage(file, folder):
    secret(folder)
    raw = [(str(folder / "secret.raw"), 0, h5py.h5f.UNLIMITED)]
    file.create_dataset("features", VECTORS.shape, VECTORS.dtype, external=raw)


def virtual_dataset(file, folder):
    layout = h5py.VirtualLayout(VECTORS.shape, VECTORS.dtype)
    layout[:] = h5py.VirtualSource(secret(folder), "features", VECTORS.shape)
    file.create_virtual_dataset("features", layout)


@pytest.mark.parametrize(
    "add_link", [external_link, soft_link_to_external, external_storage, virtual_dataset]
)
def test_links_to_other_files_are_refused(tmp_path, add_link):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["coords"] = COORDS
        add_link(file, tmp_path)
    with pytest.raises(ImageError, match=r"a\.h5: .*another file.*save all data in one file"):
        check_features(tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5", "r") as source, h5py.File(tmp_path / "b.h5", "w") as file:
        file["coords"] = source["coords"][...]
        file["own"] = VECTORS
        file["features"] = h5py.SoftLink("/own")
    check_features(tmp_path / "b.h5")  # a link inside the file is allowed


def test_links_of_anndata_to_other_files_are_refused(tmp_path):
    with h5py.File(tmp_path / "a.h5ad", "w") as file:
        file.create_group("obsm")["spatial"] = COORDS.astype(float)
        file["X"] = h5py.ExternalLink(secret(tmp_path), "features")
    with pytest.raises(ImageError, match="another file"):
        check_features(tmp_path / "a.h5ad")


# --- missing chunks -----------------------------------------------------------------------------


@pytest.mark.parametrize("chunks", [(8, 3), None])
def test_missing_chunks_are_counted(tmp_path, chunks):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["coords"] = COORDS
        made = file.create_dataset("features", VECTORS.shape, VECTORS.dtype, chunks=chunks)
        if chunks:
            made[:20] = VECTORS[:20]
    n_missing, n_chunks = (4, 11) if chunks else (1, 2)
    text = f"{n_missing} of {n_chunks} chunks are missing"
    with pytest.raises(ImageError, match=rf"a\.h5: {text}.*allow_missing_chunks"):
        check_features(tmp_path / "a.h5")
    with histodict.allow_missing_chunks(), pytest.warns(UserWarning, match=text):
        check_features(tmp_path / "a.h5")
        with open_features(tmp_path / "a.h5") as file:
            assert file.missing_chunks == n_missing


def test_compressed_chunks_are_read(tmp_path):
    options = {"chunks": (8, 6), "compression": "gzip", "shuffle": True, "fletcher32": True}
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("features", data=VECTORS, **options)
        file.create_dataset("coords", data=COORDS, chunks=(8, 2), compression="lzf")
    check_features(tmp_path / "a.h5")
    with open_features(tmp_path / "a.h5") as file:
        np.testing.assert_array_equal(file.read(slice(0, 40)), VECTORS)


@pytest.mark.parametrize("options", [{"scaleoffset": 9}, {"compression": "szip"}])
def test_filters_with_large_memory_parameters_are_refused(tmp_path, options):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["features"] = VECTORS
        try:
            file.create_dataset("coords", data=COORDS, chunks=(8, 2), **options)
        except ValueError:
            pytest.skip("this library lacks the filter")
    with pytest.raises(ImageError, match=r"unsupported filter .*; save it again with gzip"):
        check_features(tmp_path / "a.h5")


WHOLE = VECTORS.tobytes()


@pytest.mark.parametrize(
    ("filters", "stored"),
    [
        ({}, WHOLE[:-4]),
        ({"shuffle": True}, WHOLE[:-4]),
        ({"fletcher32": True}, b"abc"),
        ({"fletcher32": True}, WHOLE[:8]),
        ({"compression": "gzip", "fletcher32": True}, b"a"),
        ({"compression": "gzip"}, zlib.compress(WHOLE[:-4])),
        ({"compression": "gzip"}, zlib.compress(WHOLE + b"1234")),
        ({"compression": "gzip"}, b"no zlib data"),
        ({"compression": "gzip"}, zlib.compress(WHOLE)[:-9]),
    ],
)
def test_chunk_of_the_wrong_size_is_refused(tmp_path, filters, stored):
    """The HDF5 library would crash, or return unrelated memory as vectors."""
    with h5py.File(tmp_path / "features.h5", "w") as file:
        file["coords"] = COORDS
        kind, shape = VECTORS.dtype, VECTORS.shape
        dataset = file.create_dataset("features", shape, kind, chunks=shape, **filters)
        dataset.id.write_direct_chunk((0, 0), stored)
    with pytest.raises(ImageError, match=r"features.h5"):
        check_features(tmp_path / "features.h5")


@pytest.mark.parametrize("compression", [None, "gzip", "lzf"])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("fletcher32", [False, True])
def test_filters_of_the_library_are_read(tmp_path, compression, shuffle, fletcher32):
    vectors = np.vstack([VECTORS, np.zeros_like(VECTORS)])  # noise, then what compresses well
    with h5py.File(tmp_path / "features.h5", "w") as file:
        file["coords"] = np.vstack([COORDS, COORDS + np.array([0, 100_000])])
        filters = {"compression": compression, "shuffle": shuffle, "fletcher32": fletcher32}
        file.create_dataset("features", data=vectors, chunks=(7, vectors.shape[1]), **filters)
    with open_features(tmp_path / "features.h5") as file:
        np.testing.assert_array_equal(file.read(slice(0, len(vectors))), vectors)


def write_filtered(path, filters, stored, mask=0):
    """Write vectors in one chunk with these bytes; `filters` add low-level filters in order."""
    settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    settings.set_chunk(VECTORS.shape)
    for add_filter in filters:
        add_filter(settings)
    with h5py.File(path, "w") as file:
        file["coords"] = COORDS
        space = h5py.h5s.create_simple(VECTORS.shape)
        kind = h5py.h5t.py_create(VECTORS.dtype)
        dataset = h5py.h5d.create(file.id, b"features", kind, space, settings)
        if stored is None:
            dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, VECTORS)
        else:
            dataset.write_direct_chunk((0, 0), stored, mask)


GZIP, SHUFFLE, CHECKSUM = (
    lambda settings: settings.set_deflate(4),
    lambda settings: settings.set_shuffle(),
    lambda settings: settings.set_fletcher32(),
)


@pytest.mark.parametrize(
    ("filters", "stored", "mask"),
    [
        ((CHECKSUM, GZIP), None, 0),
        ((SHUFFLE, GZIP, CHECKSUM), None, 0),
        ((CHECKSUM, GZIP, CHECKSUM), None, 0),
        ((SHUFFLE, GZIP), WHOLE, 0b11),  # the chunk is stored without filters
    ],
)
def test_valid_orders_of_filters_are_read(tmp_path, filters, stored, mask):
    write_filtered(tmp_path / "features.h5", filters, stored, mask)
    with open_features(tmp_path / "features.h5") as file:
        np.testing.assert_array_equal(file.read(slice(0, len(VECTORS))), VECTORS)


def test_filter_after_compression_is_refused(tmp_path):
    """The size of its chunks cannot be checked: the HDF5 library would crash."""
    write_filtered(tmp_path / "features.h5", (GZIP, SHUFFLE), b"x" * 64)
    with pytest.raises(ImageError, match="has a filter after its compression"):
        check_features(tmp_path / "features.h5")
