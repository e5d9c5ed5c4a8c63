"""Tests of OME-TIFF and OME-Zarr files: pixels, pixel sizes and error messages."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest
import tifffile

from histodict.datasets.folder_layout import find_images
from histodict.datasets.manifest import ImageRecord, read_manifest
from histodict.datasets.survey import check_readable, common_pixel_size, find_identical_files
from histodict.images.pixel_size import PixelSizeOption, recorded_pixel_size, size_warnings
from histodict.images.source import ImageError, OmeTiffReader, OmeZarrReader, open_image
from histodict.models import TissueClassifier
from histodict.models.recipe import Recipe
from histodict.web.maps import TileCache
from tests.images.files import save_plain, texture, tissue
from tests.images.ome_files import laid_out, save_ome_tiff, save_ome_zarr, sized, zarr_group
from tests.optional_modules import require

require("zarr", "zarr is not installed")
require("ome_zarr", "ome-zarr is not installed")

SIZE = (603, 441)
TIFFS = {
    "rows": {},
    "strips": {"rowsperstrip": 7},
    "deflated strips": {"compression": "zlib", "predictor": True},
    "tiles": {"tile": (128, 128)},
    "deflated tiles": {"tile": (64, 96), "compression": "zlib"},
    "big endian": {"tile": (128, 128), "compression": "zlib", "byteorder": ">"},
}


@pytest.fixture(scope="module")
def pixels():
    return texture(np.random.default_rng(3), *SIZE)


def assert_same(path, pixels, mpp=None):
    """Compare all pixels, a region across tiles, and the area beyond the image."""
    height, width = pixels.shape[:2]
    with open_image(path) as source:
        assert source.size == (width, height)
        assert source.mpp == (None if mpp is None else pytest.approx(mpp))
        np.testing.assert_array_equal(source.read(0, 0, width, height), pixels)
        np.testing.assert_array_equal(source.read(37, 101, 211, 97), pixels[101:198, 37:248])
        beyond = source.read(width - 5, -3, 10, 10)
        np.testing.assert_array_equal(beyond[3:, :5], pixels[:7, width - 5 :])
        assert (beyond[:3] == 255).all() and (beyond[:, 5:] == 255).all()


# --- pixels and pixel size ----------------------------------------------------------------------


@pytest.mark.parametrize("planar", [False, True], ids=["interleaved", "planar"])
@pytest.mark.parametrize("kind", TIFFS)
def test_tiff_round_trip(tmp_path, pixels, kind, planar):
    options = dict(TIFFS[kind])
    endian = options.pop("byteorder", None)
    if endian:
        axes = {"axes": "SYX" if planar else "YXS", **sized(0.25)}
        laid = pixels.transpose(2, 0, 1) if planar else pixels
        options |= {"photometric": "rgb", "planarconfig": "separate" if planar else "contig"}
        path = tmp_path / "a.ome.tif"
        tifffile.imwrite(path, laid, ome=True, byteorder=endian, metadata=axes, **options)
    else:
        path = save_ome_tiff(tmp_path / "a.ome.tif", pixels, 0.25, planar=planar, **options)
    assert_same(path, pixels, 0.25)


@pytest.mark.parametrize("version", ["0.4", "0.5"])
@pytest.mark.parametrize("axes", ["cyx", "czyx", "tczyx"])
def test_folder_round_trip(tmp_path, pixels, version, axes):
    path = save_ome_zarr(tmp_path / "a.ome.zarr", pixels, 0.25, version=version, axes=axes)
    assert_same(path, pixels, 0.25)


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_folder_of_write_image_is_read(tmp_path, pixels, version):
    """Levels and pixel size as the library itself writes them."""
    from ome_zarr.writer import write_image

    group, form = zarr_group(tmp_path / "a.zarr", version)
    planes = laid_out(pixels, "cyx")
    write_image(
        planes,
        group,
        scale_factors=[2, 4],
        axes="cyx",
        fmt=form,
        scale={"c": 1, "y": 0.5, "x": 0.5},
        axes_units={"y": "micrometer", "x": "micrometer"},
    )
    assert_same(tmp_path / "a.zarr", pixels, 0.5)
    with open_image(tmp_path / "a.zarr") as source:
        assert [source._select_level(factor) for factor in (1, 2, 3, 4)] == [
            (0, 1.0),
            (1, 2.0),
            (1, 2.0),
            (2, 4.0),
        ]


def test_colours_in_separate_pages(tmp_path, pixels):
    """Bio-Formats writes channels that are not known to be colours in this way, with and without
    tiles."""
    for name, options in (("a", {}), ("b", {"tile": (64, 64), "compression": "zlib"})):
        path = tmp_path / f"{name}.ome.tiff"
        metadata = {"axes": "CYX", "Channel": {"Name": ["Red", "Green", "Blue"]}}
        planes = laid_out(pixels, "cyx")
        tifffile.imwrite(path, planes, photometric="minisblack", metadata=metadata, **options)
        assert_same(path, pixels)


def test_levels_are_used_at_the_right_positions(tmp_path):
    """Each level has its own colour, and a square is at a known position."""
    pixels = np.full((512, 640, 3), 200, np.uint8)
    pixels[128:256, 320:448] = (220, 30, 60)
    paths = [
        save_ome_tiff(tmp_path / "a.ome.tif", pixels, n_levels=3, tile=(64, 64)),
        save_ome_zarr(tmp_path / "a.ome.zarr", pixels, n_levels=3),
    ]
    for path in paths:
        with open_image(path) as source:
            assert source._select_level(4)[0] == 2
            for factor in (2, 4):
                found = source.read(304, 112, 160, 160, factor)
                inside = slice(16 // factor, 144 // factor)
                assert (found[inside, inside] == (220, 30, 60)).all()
                found[inside, inside] = 200
                assert (found == 200).all()


def test_jpeg_tiles_equal_openslide(tmp_path, rng):
    from tests.images.files import save_slide

    pytest.importorskip("imagecodecs", reason="imagecodecs is not installed")
    smooth = np.kron(rng.integers(60, 220, (30, 40, 3)), np.ones((16, 16, 1))).astype(np.uint8)
    options = {"tile": (128, 128), "compression": "jpeg"}
    path = save_ome_tiff(tmp_path / "a.ome.tif", smooth, 0.5, n_levels=2, **options)
    plain = tmp_path / "b.tif"
    tifffile.imwrite(plain, smooth, photometric="rgb", metadata=None, **options)
    with open_image(path) as ours, open_image(plain) as theirs:
        assert isinstance(ours, OmeTiffReader) and not isinstance(theirs, OmeTiffReader)
        full = (0, 0, *ours.size)
        np.testing.assert_array_equal(ours.read(*full), theirs.read(*full))
    assert not isinstance(open_image(save_slide(tmp_path / "c.tif", smooth)), OmeTiffReader)


@pytest.mark.parametrize(
    ("mpp", "unit", "expected"),
    [
        (0.5, "µm", 0.5),
        (250.0, "nm", 0.25),
        (5e-4, "mm", 0.5),
        (2.5e-5, "cm", 0.25),
        (0.5, "pixel", None),
        (1.0, "mm", None),  # not from a microscope
    ],
)
def test_pixel_size_units_of_xml(tmp_path, mpp, unit, expected):
    pixels = np.zeros((8, 8, 3), np.uint8)
    path = save_ome_tiff(tmp_path / "a.ome.tif", pixels, mpp, unit)
    with open_image(path) as source:
        assert source.mpp == (None if expected is None else pytest.approx(expected))


def test_resolution_tags_are_used_without_xml_pixel_size(tmp_path):
    pixels = np.zeros((8, 8, 3), np.uint8)
    resolution = {"resolution": (1e4 / 0.5, 1e4 / 0.5), "resolutionunit": 3}
    with open_image(save_ome_tiff(tmp_path / "a.ome.tif", pixels, **resolution)) as source:
        assert source.mpp == pytest.approx(0.5)


def test_pixel_size_units_of_folders(tmp_path):
    pixels = np.full((8, 8, 3), 7, np.uint8)
    for place, (unit, expected) in enumerate(
        [("micrometer", 0.5), ("millimeter", None), (None, None), ("nanometer", None)]
    ):
        path = save_ome_zarr(tmp_path / f"{place}.ome.zarr", pixels, 0.5, unit)
        with open_image(path) as source:
            assert source.mpp == expected
    with open_image(save_ome_zarr(tmp_path / "n.ome.zarr", pixels, 500, "nanometer")) as source:
        assert source.mpp == pytest.approx(0.5)


def test_scale_without_unit_is_quoted_if_the_size_is_unknown(tmp_path):
    pixels = np.full((8, 8, 3), 7, np.uint8)
    path = save_ome_zarr(tmp_path / "a.ome.zarr", pixels, 0.5, None)
    size = PixelSizeOption().resolve(path)
    assert (size.mpp, size.origin) == (None, "unknown")
    assert "a.ome.zarr has a scale of 0.5 without a unit" in size.hint
    row = {"path": str(path), "mpp": 0.25, "mpp_from": "assumed"}
    (text,) = size_warnings([size.with_assumed_mpp(0.25)], 0.25, None)
    assert size_warnings([recorded_pixel_size(row)], 0.25, None) == [text]
    assert text.endswith(
        "a.ome.zarr has a scale of 0.5 without a unit, which may be its pixel size in µm"
    )
    records = [ImageRecord(path, "a", ""), ImageRecord(path, "b", "", mpp=0.5)]
    with pytest.raises(ValueError, match=r"a\.ome\.zarr has a scale of 0\.5 without a unit"):
        common_pixel_size(records, None)
    for number, (mpp, unit) in enumerate([(0.5, "pixel"), (0.5, "micrometer"), (5000, None)]):
        other = save_ome_zarr(tmp_path / f"{number}.ome.zarr", pixels, mpp, unit)
        assert PixelSizeOption().resolve(other).hint == ""
    assert recorded_pixel_size(row | {"path": str(tmp_path / "gone.zarr")}).hint == ""


def test_scales_of_image_and_level_are_multiplied(tmp_path):
    path = save_ome_zarr(tmp_path / "a.ome.zarr", np.full((8, 8, 3), 7, np.uint8), 0.5)
    with edited(path) as ome:
        scale = {"type": "scale", "scale": [1.0, 0.5, 0.5]}
        ome["multiscales"][0]["coordinateTransformations"] = [scale]
    with open_image(path) as source:
        assert source.mpp == pytest.approx(0.25)


@pytest.mark.parametrize("white", [4095, 65535])
def test_colours_of_16_bits_are_scaled_to_8(tmp_path, pixels, white):
    wide = np.rint(pixels.astype(float) * (white / 255)).astype(np.uint16)
    wide[0, 0] = white
    expected = pixels.copy()
    expected[0, 0] = 255
    assert_same(save_ome_tiff(tmp_path / "a.ome.tif", wide, tile=(128, 128)), expected)
    assert_same(save_ome_zarr(tmp_path / "a.ome.zarr", wide), expected)


def test_transparent_pixels_are_white(tmp_path, pixels):
    opacity = np.full((*pixels.shape[:2], 1), 255, np.uint8)
    opacity[:100] = 0
    rgba = np.concatenate([pixels, opacity], axis=2)
    path = tmp_path / "a.ome.tif"
    tifffile.imwrite(
        path, rgba, photometric="rgb", extrasamples=["unassalpha"], metadata={"axes": "YXS"}
    )
    expected = pixels.copy()
    expected[:100] = 255
    assert_same(path, expected)


def test_grey_image(tmp_path, pixels):
    path = tmp_path / "a.ome.tif"
    tifffile.imwrite(path, pixels[..., 0], metadata={"axes": "YX"})
    assert_same(path, np.repeat(pixels[..., :1], 3, axis=2))


# --- predictions
# -----------------------------------------------------------------------------------


def test_predictions_equal_those_of_the_plain_image(tmp_path):
    """Bit for bit, from training to the map, including training on OME files alone."""
    rng = np.random.default_rng(0)
    recipe = Recipe(
        method_parameters={"n_atoms": 8, "n_iter": 2},
        patch_px=12,
        patches_per_class=200,
        downsample=2.0,
        stain="reinhard",
        features="centred",
        aggregation="margin",
    )
    kinds = {
        "plain": lambda at, pixels: save_plain(at.with_suffix(".png"), pixels),
        "tiff": lambda at, pixels: save_ome_tiff(
            at.with_suffix(".ome.tif"), pixels, 0.5, tile=(128, 128), compression="zlib"
        ),
        "zarr": lambda at, pixels: save_ome_zarr(at.with_suffix(".ome.zarr"), pixels, 0.5),
    }
    images = [(label, tissue(rng, 200, 240)) for label in ("a", "b") for _ in range(2)]
    predictions = {}
    for kind, save in kinds.items():
        lines = ["path,label,patient,mpp"]
        for place, (label, image) in enumerate(images):
            (tmp_path / kind / label).mkdir(parents=True, exist_ok=True)
            oriented = image if label == "a" else image[:, :, [2, 1, 0]]
            path = save(tmp_path / kind / label / f"{place}", oriented)
            lines.append(f"{label}/{path.name},{label},{place},0.5")
        table = tmp_path / kind / "manifest.csv"
        table.write_text("\n".join(lines))
        manifest = read_manifest(table)
        assert not check_readable(manifest.records, 1).unusable
        model = TissueClassifier(recipe, random_state=0).fit(manifest)
        found = [model.predict(record.path, mpp=record.mpp) for record in manifest.records]
        predictions[kind] = [
            (prediction.label, prediction.score, prediction.patch_map.predicted_classes.tolist())
            for prediction in found
        ]
    assert predictions["plain"] == predictions["tiff"] == predictions["zarr"]


def test_thumbnails_and_tiles_of_the_web_page(tmp_path, pixels):
    plain = save_plain(tmp_path / "a.png", pixels)
    folder = save_ome_zarr(tmp_path / "a.ome.zarr", pixels)
    responses = []
    for path in (plain, folder):
        tiles = TileCache(tmp_path / "thumbnails")
        record = ImageRecord(path, "", "")
        responses.append(
            (tiles.ensure_thumbnail_file(record).read_bytes(), tiles.tile(record, 1, 0, 0))
        )
    assert responses[0] == responses[1]


# --- a folder is one image ----------------------------------------------------------------------


def test_folder_is_one_image_wherever_images_are_listed(tmp_path, pixels):
    for label in ("a", "b"):
        for patient in ("p", "q"):
            place = tmp_path / label / patient
            place.mkdir(parents=True)
            save_ome_zarr(place / f"{label}.ome.zarr", pixels)
    manifest = read_manifest(tmp_path)
    assert [manifest.name(record) for record in manifest.records] == [
        "a/p/a.ome.zarr",
        "a/q/a.ome.zarr",
        "b/p/b.ome.zarr",
        "b/q/b.ome.zarr",
    ]
    assert len(find_images(tmp_path)[0]) == 4
    assert [len(group) for group in find_identical_files(manifest.records)] == [4]


def test_other_zarr_folders_are_skipped(tmp_path, pixels):
    save_plain(tmp_path / "a.png", pixels)
    zarr_group(tmp_path / "table.zarr")
    save_plain(tmp_path / "table.zarr" / "inside.png", pixels)
    assert find_images(tmp_path)[0] == [tmp_path / "a.png"]
    with pytest.raises(ImageError, match=r"table.zarr: is a Zarr folder without an image"):
        open_image(tmp_path / "table.zarr")


def test_folder_of_numbered_images(tmp_path, pixels):
    """Written by bioformats2raw: the first is the image, followed by its label and others."""
    import zarr

    root = zarr.open_group(str(tmp_path / "a.zarr"), mode="w", zarr_format=2)
    root.attrs["bioformats2raw.layout"] = 3
    save_ome_zarr(tmp_path / "a.zarr" / "0", pixels, 0.5, version="0.4")
    save_ome_zarr(tmp_path / "a.zarr" / "1", pixels[:9, :9], version="0.4")
    assert find_images(tmp_path)[0] == [tmp_path / "a.zarr"]
    assert_same(tmp_path / "a.zarr", pixels, 0.5)


# --- refused images ---------------------------------------------------------------------------


class edited:  # noqa: N801
    """Edit the attributes of a folder of version 0.5."""

    def __init__(self, path):
        self.file = path / "zarr.json"

    def __enter__(self):
        self.content = json.loads(self.file.read_text())
        return self.content["attributes"]["ome"]

    def __exit__(self, *error):
        self.file.write_text(json.dumps(self.content))


def save_channels(path, names, **more):
    planes = np.zeros((len(names), 16, 16), np.uint8)
    metadata = {"axes": "CYX", "Channel": {"Name": names, **more}}
    tifffile.imwrite(path, planes, photometric="minisblack", metadata=metadata)
    return path


@pytest.mark.parametrize("names", [["DAPI", "CD3", "CD8"], ["A", "B", "C", "D", "E"], ["R", "G"]])
def test_channels_that_are_no_colours_are_refused(tmp_path, names):
    path = save_channels(tmp_path / "a.ome.tif", names)
    with pytest.raises(ImageError, match=rf"has {len(names)} channels.*not red.*save it as RGB"):
        open_image(path)


def test_fluorescence_of_one_channel_is_refused(tmp_path):
    path = save_channels(tmp_path / "a.ome.tif", ["x"], EmissionWavelength=[460.0])
    with pytest.raises(ImageError, match=r"has 1 channel \(x\).*fluorescence"):
        open_image(path)


def test_channels_of_a_folder_that_are_no_colours_are_refused(tmp_path, pixels):
    path = save_ome_zarr(tmp_path / "a.ome.zarr", pixels)
    with edited(path) as ome:
        ome["omero"] = {"channels": [{"label": n, "color": "FF0000"} for n in ("c1", "c2", "c3")]}
    with pytest.raises(ImageError, match="not red, green and blue"):
        open_image(path)
    with edited(path) as ome:
        colours = ("FF0000", "00FF00", "0000FF")
        ome["omero"] = {"channels": [{"label": "", "color": colour} for colour in colours]}
    assert_same(path, pixels)


def test_stacks_and_time_series_are_refused(tmp_path, pixels):
    path = tmp_path / "a.ome.tif"
    tifffile.imwrite(path, np.stack([pixels] * 2), photometric="rgb", metadata={"axes": "ZYXS"})
    with pytest.raises(ImageError, match=r"has 2 focal planes \(z\)"):
        open_image(path)
    tifffile.imwrite(path, np.stack([pixels] * 3), photometric="rgb", metadata={"axes": "TYXS"})
    with pytest.raises(ImageError, match=r"has 3 time points \(t\)"):
        open_image(path)
    from ome_zarr.writer import write_image

    group, form = zarr_group(tmp_path / "a.ome.zarr")
    stack = np.zeros((3, 4, 32, 32), np.uint8)
    write_image(stack, group, axes="czyx", fmt=form, scale_factors=[2])
    with pytest.raises(ImageError, match=r"has 4 focal planes \(z\)"):
        open_image(tmp_path / "a.ome.zarr")


def test_several_images_in_a_file_are_refused(tmp_path, pixels):
    """A label image beside the slide is ignored; a second slide is refused."""
    path = tmp_path / "a.ome.tif"
    with tifffile.TiffWriter(path, ome=True) as tiff:
        tiff.write(pixels, photometric="rgb", metadata={"axes": "YXS"})
        tiff.write(pixels[:50, :60], photometric="rgb", metadata={"axes": "YXS"})
    assert_same(path, pixels)
    with tifffile.TiffWriter(path, ome=True) as tiff:
        tiff.write(pixels, photometric="rgb", metadata={"axes": "YXS"})
        tiff.write(pixels[:400], photometric="rgb", metadata={"axes": "YXS"})
    with pytest.raises(ImageError, match=r"contains 2 images.*separate file"):
        open_image(path)


def test_floating_point_pixels_are_refused(tmp_path, pixels):
    floats = pixels.astype(np.float32)
    for path in (
        save_ome_tiff(tmp_path / "a.ome.tif", floats),
        save_ome_zarr(tmp_path / "a.ome.zarr", floats),
    ):
        with pytest.raises(ImageError, match=r"of type float32.*8 bits per colour"):
            open_image(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": "0.9"}, "has version 0.9 of OME-Zarr; supported are 0.4 and 0.5"),
        ({"multiscales": []}, "without an image"),
        ({"plate": {}}, "is a plate"),
    ],
)
def test_invalid_folders_are_refused(tmp_path, pixels, change, message):
    path = save_ome_zarr(tmp_path / "a.ome.zarr", pixels)
    with edited(path) as ome:
        ome.update(change)
    with pytest.raises(ImageError, match=message):
        open_image(path)


def test_levels_outside_the_folder_are_refused(tmp_path, pixels):
    save_ome_zarr(tmp_path / "secret.zarr", pixels)
    path = save_ome_zarr(tmp_path / "a.ome.zarr", pixels)
    with edited(path) as ome:
        ome["multiscales"][0]["datasets"][0]["path"] = "../secret.zarr/s0"
    with pytest.raises(ImageError, match=r"the path .*secret.* of a level"):
        open_image(path)


def test_links_in_a_folder_are_refused(tmp_path, pixels):
    path = save_ome_zarr(tmp_path / "a.ome.zarr", pixels)
    chunk = next(file for file in sorted(path.rglob("*")) if file.name == "0" and file.is_file())
    chunk.rename(tmp_path / "chunk")
    os.symlink(tmp_path / "chunk", chunk)
    with pytest.raises(ImageError, match=r"folder contains links.*cp -rL"):
        open_image(path)


def test_too_large_chunks_are_refused(tmp_path, pixels):
    path = save_ome_zarr(tmp_path / "a.ome.zarr", pixels)
    file = next(path.glob("*/zarr.json"))
    content = json.loads(file.read_text())
    content["chunk_grid"]["configuration"]["chunk_shape"] = [3, 2**20, 2**20]
    file.write_text(json.dumps(content))
    with pytest.raises(ImageError, match=r"tiles of 1048576 x 1048576.*with tiles"):
        open_image(path)


def test_folder_larger_than_its_files_is_refused(tmp_path, pixels):
    path = save_ome_zarr(tmp_path / "a.ome.zarr", pixels)
    file = next(path.glob("*/zarr.json"))
    content = json.loads(file.read_text())
    content["shape"] = [3, 10**6, 10**6]
    file.write_text(json.dumps(content))
    with pytest.raises(ImageError, match=r"more than \d+ bytes can contain"):
        open_image(path)


def test_damage_is_reported(tmp_path, pixels):
    """An invalid chunk, a truncated file, and an invalid description."""
    path = save_ome_zarr(tmp_path / "a.ome.zarr", pixels)
    for chunk in (file for file in path.rglob("*") if file.is_file() and "c" in file.parts[-4:-1]):
        chunk.write_bytes(b"\x00" * 40)
    with open_image(path) as source, pytest.raises(ImageError, match="cannot be read"):
        source.read(0, 0, 300, 300)
    tiff = save_ome_tiff(tmp_path / "a.ome.tif", pixels)
    content = tiff.read_bytes()
    middle = len(content) // 2
    (tmp_path / "b.ome.tif").write_bytes(content[:middle])
    with (
        pytest.raises(ImageError, match=r"truncated|cannot be read|not a JPEG"),
        open_image(tmp_path / "b.ome.tif") as source,
    ):
        source.read(0, 0, *SIZE)
    (tmp_path / "c.ome.tif").write_bytes(content.replace(b"<Pixels", b"<Pixel>"))
    with pytest.raises(ImageError, match="cannot open"):
        open_image(tmp_path / "c.ome.tif")


def test_empty_folder_is_refused(tmp_path):
    (tmp_path / "a.ome.zarr").mkdir()
    with pytest.raises(ImageError, match="not a complete Zarr folder"):
        open_image(tmp_path / "a.ome.zarr")


def test_references_to_other_files_are_refused(tmp_path, pixels):
    """The description may refer to pixels in other files."""
    save_ome_tiff(tmp_path / "other.ome.tif", pixels)
    path = save_ome_tiff(tmp_path / "a.ome.tif", pixels)
    old = b'<TiffData IFD="0" PlaneCount="1"/>'
    new = b'<TiffData IFD="0"><UUID FileName="other.ome.tif">urn:uuid:1</UUID></TiffData>'
    with tifffile.TiffFile(path) as tiff:
        text = tiff.ome_metadata.encode()
    assert old in text
    tifffile.tiffcomment(path, text.replace(old, new))
    with pytest.raises(ImageError, match=r"part of the image is in another file"):
        open_image(path).read(0, 0, 9, 9)


def test_missing_zarr_is_reported(tmp_path, pixels, monkeypatch):
    path = save_ome_zarr(tmp_path / "a.ome.zarr", pixels)
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "zarr.py").write_text("raise ImportError('not here')")
    from histodict.images import slide_reader as slide_process

    slide_process.end_idle_processes()
    monkeypatch.syspath_prepend(str(hidden))
    try:
        with pytest.raises(
            ImageError, match=r"zarr, which is not installed.*pip install .*\.\[ome\]"
        ):
            open_image(path)
    finally:
        slide_process.end_idle_processes()


# --- signature of a folder ----------------------------------------------------------------------


def test_changed_chunk_changes_the_key(tmp_path, pixels):
    from histodict.images.memory_image import estimated_bytes
    from histodict.utils.files import content_digest, file_key

    path = save_ome_zarr(tmp_path / "a.ome.zarr", pixels)
    chunk = max(
        (file for file in path.rglob("*") if file.is_file()), key=lambda f: f.stat().st_size
    )
    before, digest = file_key(path), content_digest(path)
    assert file_key(path) == before
    assert estimated_bytes(path) == sum(f.stat().st_size for f in path.rglob("*") if f.is_file())
    with chunk.open("r+b") as file:  # in place: the modification time of the folder is unchanged
        file.seek(10)
        file.write(b"\x01\x02")
    assert file_key(path) != before
    assert content_digest(path) != digest
    copied = tmp_path / "b.ome.zarr"
    shutil.copytree(path, copied)
    assert content_digest(copied) == content_digest(path)
    assert isinstance(open_image(copied), OmeZarrReader)


def test_slow_folder_signature_is_cached_for_a_while(tmp_path, monkeypatch):
    from histodict.utils import files as module

    (tmp_path / "a").write_text("x")
    monkeypatch.setattr(module, "_MIN_CACHED_DURATION_S", 0.0)
    monkeypatch.setattr(module, "_CACHE_FACTOR", 1e6)
    first = module.folder_signature(str(tmp_path))
    (tmp_path / "b").write_text("y")
    assert module.folder_signature(str(tmp_path)) == first
    monkeypatch.setattr(module, "_SIGNATURES", {})
    assert module.folder_signature(str(tmp_path)) != first
