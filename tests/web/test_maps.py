"""Stored predictions and maps equal those of the model and are aligned with the image."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

from histodict.batch import output_key
from histodict.images.pixel_size import PixelSizeOption
from histodict.models import load_model
from histodict.patches.grid import PatchGrid
from histodict.patches.patch_map import NO_TISSUE, PatchMap
from histodict.utils.text_io import write_checked_json
from histodict.web.maps import (
    apply_threshold,
    compute_prediction,
    load_map,
    load_prediction,
    prediction_to_json,
    region_outlines,
    render_map,
)
from histodict.web.workspace import read_json


@pytest.fixture(scope="module")
def folder(model, manifest, tmp_path_factory):
    folder = tmp_path_factory.mktemp("maps")
    compute_prediction(model, manifest.records[0], folder)
    return folder


@pytest.fixture(scope="module")
def patch_map(folder, manifest):
    return load_map(folder, manifest.records[0])


def test_stored_prediction_equals_that_of_the_model(model, manifest, folder, patch_map):
    record = manifest.records[0]
    response = model.predict(record.path, mpp=record.mpp)
    response_data = load_prediction(folder, record)
    assert (response_data["answer"], response_data["score"]) == (response.label, response.score)
    assert response_data["value"] == pytest.approx(response_data["shares"]["inflamed"])
    assert response_data["shares"] == response.proportions
    np.testing.assert_array_equal(patch_map.predicted_classes, response.patch_map.predicted_classes)
    assert (patch_map.grid, patch_map.path) == (response.patch_map.grid, record.path)


def test_uncertain_prediction_keeps_the_best_guess(model, manifest):
    certain = model.predict(manifest.records[0].path)
    unsure = replace(certain, probabilities={"healthy": 0.5, "inflamed": 0.5}, prediction_set=[])
    values = prediction_to_json(unsure)
    assert values["is_uncertain"] and values["answer"] == certain.label
    assert values["words"].startswith(f"uncertain (best guess: {certain.label})")
    assert not prediction_to_json(certain)["is_uncertain"]


def test_origin_of_the_pixel_size_is_reported(model, manifest, folder, tmp_path):
    response_data = load_prediction(folder, manifest.records[0])
    assert (response_data["mpp"], response_data["mpp_from"]) == (manifest.records[0].mpp, "table")
    response_data = compute_prediction(model, replace(manifest.records[0], mpp=None), tmp_path)
    assert (response_data["mpp"], response_data["mpp_from"]) == (model.model_.mpp_, "assumed")


def test_position_of_the_grid_is_reported(folder, manifest):
    grid = load_prediction(folder, manifest.records[0])["grid"]
    place = {"left": 0, "top": 0, "shift": 0}
    assert grid == {"n_rows": 10, "n_columns": 13, "side": 12, "step": 12} | place


def test_map_image_shows_one_class_or_all(patch_map):
    predicted_classes = patch_map.predicted_classes.copy()
    predicted_classes[0, 0] = NO_TISSUE
    patch_map = replace(patch_map, predicted_classes=predicted_classes)
    everything, second = render_map(patch_map, None), render_map(patch_map, 1)
    assert ((everything[..., 3] > 0) == (predicted_classes != NO_TISSUE)).all()
    assert ((second[..., 3] > 0) == (predicted_classes == 1)).all()
    assert everything[..., 3].max() == 255


def test_outlines_surround_the_patches(patch_map):
    """Overlapping patches, reduced by 2: cells of 8 pixels that begin 4 from the border."""
    predicted_classes = np.zeros((4, 5), np.int16)
    predicted_classes[1:3, 2] = 1
    margins = np.zeros((4, 5, 2), np.float32)
    grid = PatchGrid(4, 5, patch_px=8, stride_px=4, downsample=2.0)
    small = replace(patch_map, grid=grid, predicted_classes=predicted_classes, margins=margins)
    (ring,) = region_outlines(small, 1, 2)
    assert ring[:2] == ring[-2:]
    assert (min(ring[::2]), max(ring[::2])) == (2 * 8 + 4, 3 * 8 + 4)
    assert (min(ring[1::2]), max(ring[1::2])) == (1 * 8 + 4, 3 * 8 + 4)
    assert region_outlines(small, 1, 3) == []


def test_outlines_enclose_the_area_of_the_patches(patch_map):
    def area(ring):
        x, y = np.array(ring[::2]), np.array(ring[1::2])
        return np.sum(x[:-1] * y[1:] - x[1:] * y[:-1]) / 2

    rings = region_outlines(patch_map, 0, 1)
    assert len(rings) > 0
    assert sum(map(area, rings)) == pytest.approx((patch_map.predicted_classes == 0).sum() * 12**2)


def make_old(folder, record):
    """Change the two files to those of version 0.1."""
    key = output_key(record.path)
    patch_map = load_map(folder, record)
    response_data = read_json(folder / f"{key}.json")
    del response_data["format_version"]
    response_data["grid"] |= {"patch_px": 12, "stride_px": 12, "downsample": 1.0}
    write_checked_json(folder / f"{key}.json", response_data)
    margins = patch_map.margins.astype(np.float16)
    np.savez_compressed(
        folder / f"{key}.npz", predicted_classes=patch_map.predicted_classes, margins=margins
    )


def test_files_of_an_earlier_version_are_ignored(model, manifest, tmp_path):
    record = manifest.records[0]
    compute_prediction(model, record, tmp_path)
    make_old(tmp_path, record)
    assert load_prediction(tmp_path, record) is None
    with pytest.raises(KeyError, match="no patch map yet"):
        load_map(tmp_path, record)
    compute_prediction(model, record, tmp_path)
    assert load_map(tmp_path, record).classes == ("healthy", "inflamed")


def test_changed_image_is_computed_again(model, manifest, tmp_path):
    path = tmp_path / "image.png"
    shutil.copy(manifest.records[0].path, path)
    record = replace(manifest.records[0], path=path)
    compute_prediction(model, record, tmp_path / "maps")
    assert load_prediction(tmp_path / "maps", record) is not None
    assert load_prediction(tmp_path / "maps", replace(record, mpp=0.3)) is None
    shutil.copy(manifest.records[-1].path, path)
    assert load_prediction(tmp_path / "maps", record) is None
    with pytest.raises(KeyError, match="no patch map yet"):
        load_map(tmp_path / "maps", record)


def test_every_flipped_bit_of_a_map_is_harmless_or_refused(patch_map, tmp_path):
    """Some are detected by the zip file, others only when arrays are decompressed."""
    file = tmp_path / "map.npz"
    patch_map.save(file)
    content = file.read_bytes()
    refused = 0
    for place in range(0, len(content), max(1, len(content) // 400)):
        file.write_bytes(content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :])
        try:
            PatchMap.load(file)
        except ValueError as error:
            refused += 1
            assert str(file) in str(error)
    assert refused > 50


@pytest.mark.parametrize("name", ["dfdl", "textures", "ensemble", "regions", "three"])
def test_stored_prediction_is_updated_for_a_threshold(name, small_models, manifest, tmp_path):
    """For every kind of model and any threshold; with the model's own threshold nothing changes."""
    model = load_model(small_models.path(name))
    record = manifest.records[0]
    stored = compute_prediction(model, record, tmp_path)
    patch_map = load_map(tmp_path, record) if stored["grid"] else None
    same = prediction_to_json(apply_threshold(model, stored, patch_map, record.path))
    assert same.pop("score") == pytest.approx(stored["score"])
    assert same == {key: stored[key] for key in same}
    if model.decision_threshold is None:
        return
    by = max(1, 0.2 * abs(stored["value"])) if model.finds_regions else 0.05 + abs(stored["value"])
    moved = model.with_threshold(stored["value"] + by)
    found = prediction_to_json(apply_threshold(moved, stored, patch_map, record.path))
    requested = prediction_to_json(
        moved.predict_one(record.path, mpp=PixelSizeOption(table=record.mpp))
    )
    assert found["answer"] == requested["answer"] == model.classes_[0]
    assert found["words"] == requested["words"] != stored["words"]
    assert found["shares"] == pytest.approx(requested["shares"], abs=0.02)


@pytest.mark.parametrize(("least", "most"), [(1, 400), (3, 400), (1, 7)])
def test_outlines_are_the_rings_of_the_largest_regions(patch_map, least, most):
    """Computed at once from arrays; one by one the result is the same."""
    rng = np.random.default_rng(3)
    predicted_classes = (rng.random((30, 40)) > 0.7).astype(np.int16)
    grid = PatchGrid(30, 40, patch_px=7, stride_px=7, downsample=1.5, left=40.0, top=3.0)
    annotated = replace(
        patch_map, grid=grid, predicted_classes=predicted_classes, margins=np.zeros((30, 40, 2))
    )
    wanted = [
        [length for corner in ring for length in corner]
        for _, _, polygons in annotated.regions(1, least, most)
        for polygon in polygons
        for ring in polygon
    ]
    found = annotated.rings(1, least, most)
    assert len(found) > 5
    assert sorted(found) == sorted(wanted)
