"""Tests of region detectors trained on masks and on crops, from Python and the command line."""

from __future__ import annotations

import csv
import json
import re
from copy import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.metrics import roc_auc_score
from typer.testing import CliRunner

from histodict import RegionDetector
from histodict.cli import app
from histodict.datasets.manifest import ImageRecord, Manifest, read_manifest
from histodict.models import load_model, save_model
from histodict.models.inputs import region_patch_mask
from histodict.models.recipe import Recipe, preset
from histodict.models.region_detector import region_classes
from histodict.patches.patch_map import NO_TISSUE
from histodict.synthetic.dataset import write_synthetic_dataset
from histodict.synthetic.tissue_generator import make_region_image, random_stain

FAST = Recipe(
    method_parameters={"n_atoms": 24, "n_iter": 3},
    patch_px=16,
    patches_per_class=400,
    stain="reinhard",
    features="centred",
    smoothing_radius=1,
)


@pytest.fixture(scope="module")
def tissue(tmp_path_factory):
    """Crops by class, and some images with masks of two foci each."""
    folder = write_synthetic_dataset(
        tmp_path_factory.mktemp("set") / "tissue", 4, 2, size=(240, 180)
    )
    masks = folder / "foci"
    masks.mkdir()
    lines = ["path,mask,patient,mpp"]
    for i in range(5):
        rng = np.random.default_rng(i)
        image, mask = make_region_image(random_stain(rng), rng, (420, 320), n_regions=2)
        Image.fromarray(image).save(masks / f"{i}.png")
        Image.fromarray(mask).save(masks / f"{i}-mask.png")
        lines.append(f"{i}.png,{i}-mask.png,p{i},0.5")
    (masks / "manifest.csv").write_text("\n".join(lines))
    return folder


@pytest.fixture(scope="module")
def trained_on_masks(tissue):
    manifest = read_manifest(tissue / "foci" / "manifest.csv")
    return RegionDetector(FAST, region="inflammation").fit(manifest.select([0, 1, 2]))


@pytest.fixture(scope="module")
def trained_on_crops(tissue):
    return RegionDetector(FAST, region="inflamed").fit(read_manifest(tissue / "manifest.csv"))


def auc(detector, records):
    """Return the AUC of the margins for patches inside the masks, over all images."""
    scores, truths = [], []
    for record in records:
        patch_map = detector.predict(record.path, mpp=record.mpp).patch_map
        on_tissue = patch_map.predicted_classes != NO_TISSUE
        scores.append(patch_map.margins[..., 1][on_tissue])
        truths.append(region_patch_mask(record, patch_map)[on_tissue])
    return roc_auc_score(np.concatenate(truths), np.concatenate(scores))


def test_margin_threshold_is_fitted_if_the_aggregator_requires_it(tissue, tmp_path):
    manifest = read_manifest(tissue / "foci" / "manifest.csv")
    closest, fitted = (
        RegionDetector(replace(FAST, aggregation=rule), region="inflammation").fit(
            manifest.select([0, 1])
        )
        for rule in ("proportion", "margin")
    )
    assert closest.margin_threshold_ == 0 != fitted.margin_threshold_
    record = manifest.records[3]
    before, after = (model.predict_one(record.path).patch_map for model in (closest, fitted))
    assert (after.predicted_classes == 1).sum() == (
        before.margins[..., 1][before.tissue] > fitted.margin_threshold_
    ).sum()
    assert ((after.predicted_classes == 1) == (after.margins[..., 1] > 0)).all()
    assert ((after.predicted_classes == NO_TISSUE) == (before.predicted_classes == NO_TISSUE)).all()
    save_model(fitted, tmp_path / "m.histodict")
    again = load_model(tmp_path / "m.histodict").predict_one(record.path)
    assert np.array_equal(again.patch_map.predicted_classes, after.predicted_classes)


def test_detector_is_trained_on_masks(tissue, trained_on_masks):
    manifest, detector = read_manifest(tissue / "foci" / "manifest.csv"), trained_on_masks
    assert detector.class_names_ == ["not inflammation", "inflammation"]
    assert 1 <= detector.min_patches_ <= 20
    assert auc(detector, manifest.select([3, 4]).records) > 0.85
    prediction = detector.predict(manifest.records[3].path)
    assert prediction.label == "inflammation"
    sizes = [region.n_patches for region in prediction.regions]
    assert sizes == sorted(sizes, reverse=True)
    assert prediction.score == sizes[0] >= prediction.min_patches
    for region in prediction.regions:
        assert region.area_px == region.n_patches * 16**2
        assert region.area_um2 is None  # a PNG has no pixel size
        left, top, right, bottom = region.box
        corners = np.array([c for polygon in region.polygons for c in polygon[0]])
        assert (corners.min(axis=0) == (left, top)).all()
        assert (corners.max(axis=0) == (right, bottom)).all()
    moved = detector.with_threshold(prediction.score)
    assert (
        moved.apply_threshold(prediction).summary()
        == moved.predict_one(prediction.path).summary()
        != prediction.summary()
    )
    assert (
        moved.with_threshold(prediction.score + 1).apply_threshold(prediction).label
        == "not inflammation"
    )
    with_mpp = detector.predict(manifest.records[3].path, mpp=0.5)
    assert with_mpp.regions[0].area_um2 == pytest.approx(with_mpp.regions[0].area_px / 4)


def test_detector_is_trained_on_crops(tissue, trained_on_crops):
    crops, detector = read_manifest(tissue / "manifest.csv"), trained_on_crops
    assert detector.class_names_ == ["healthy", "inflamed"]
    assert auc(detector, read_manifest(tissue / "foci" / "manifest.csv").records) > 0.75
    other = RegionDetector(FAST, region="healthy").fit(crops)
    assert other.class_names_ == ["inflamed", "healthy"]
    with pytest.raises(ValueError, match="not among the classes"):
        RegionDetector(FAST, region="tumour").fit(crops)


@pytest.mark.filterwarnings("ignore:.*(no patient|one image only)")
@pytest.mark.parametrize(
    ("labels", "region", "message"),
    [
        (None, "tumour", "neither a mask nor a label"),
        (["tumour", "tumour"], None, "name the label of the region, with region=…"),
        (["tumour", "normal"], None, "name the label of the region"),
        (["tumour", "tumour"], "tumor", "no image is labelled 'tumor'"),
        (["tumour", "normal", "tumour"], "tumor", r"labelled \['tumour'\]: use a label as"),
        (["other", "healthy"], "normal", "label images without the region 'not normal'"),
    ],
)
def test_images_without_mask_or_label_are_refused(tissue, tmp_path, labels, region, message):
    """The first image has a mask, the others do not."""
    cells = {"path": [tissue / "foci" / f"{i}.png" for i in range(len(labels or "two"))]}
    n_more = len(cells["path"]) - 1
    cells |= {"mask": [tissue / "foci" / "0-mask.png"] + n_more * [""], "label": labels}
    table = tmp_path / "table.csv"
    with table.open("w", newline="") as file:
        truths = {name: column for name, column in cells.items() if column}
        csv.writer(file).writerows([truths, *zip(*truths.values(), strict=True)])
    with pytest.raises(ValueError, match=message):
        RegionDetector(FAST, region=region).fit(table)
    if region is not None:
        for command in ("train", "evaluate"):
            arguments = [command, str(table), "--regions", region, "-o", str(tmp_path / "out")]
            run = CliRunner().invoke(app, arguments)
            assert run.exit_code == 2 and re.search(message, " ".join(run.output.split())), (
                run.output
            )


@pytest.mark.parametrize(
    ("labels", "region"),
    [
        (["normal"], "tumour"),
        (["no tumour"], "tumour"),
        (["not tumour"], "tumour"),
        (["no normal"], "normal"),
        (["stroma", "tumour"], "tumour"),
    ],
)
def test_labels_of_negative_images_may_accompany_masks(labels, region):
    masked = ImageRecord(Path("a.png"), "", "a", mask=Path("m.png"))
    others = [ImageRecord(Path(f"{label}.png"), label, label) for label in labels]
    manifest = Manifest((masked, *others), (), Path())
    assert region_classes(manifest, region) == [f"not {region}", region]


def test_background_image_has_no_label(trained_on_crops, tmp_path):
    Image.new("RGB", (200, 150), (244, 243, 245)).save(tmp_path / "background.png")
    prediction = trained_on_crops.predict(tmp_path / "background.png")
    assert (prediction.label, prediction.regions, prediction.n_patches) == (None, [], 0)


def test_loaded_model_finds_the_same_regions(tissue, trained_on_masks, tmp_path):
    manifest, detector = read_manifest(tissue / "foci" / "manifest.csv"), trained_on_masks
    loaded = load_model(save_model(detector, tmp_path / "foci.histodict"))
    assert isinstance(loaded, RegionDetector)
    np.testing.assert_array_equal(
        loaded.size_curve_.false_negative_rate, detector.size_curve_.false_negative_rate
    )
    one, two = (d.predict(manifest.records[4].path) for d in (detector, loaded))
    assert one.regions == two.regions and one.score == two.score


def test_detector_on_the_command_line(tissue, tmp_path):
    model, out = tmp_path / "foci.histodict", tmp_path / "found"
    options = ["--set", "n_atoms=12", "--set", "n_iter=2", "--set", "patches_per_class=200"]
    run = CliRunner().invoke(
        app,
        ["train", str(tissue / "foci"), "--regions", "focus", "-o", str(model), "--json", *options],
    )
    assert run.exit_code == 0, run.output
    info = json.loads(run.stdout)
    assert info["classes"] == ["not focus", "focus"] and info["min_patches"] >= 1
    image = tissue / "foci" / "3.png"
    run = CliRunner().invoke(
        app, ["predict", str(model), str(image), "-o", str(out), "--mpp", "0.5"]
    )
    assert run.exit_code == 0, run.output
    (row,) = csv.DictReader((out / "detections.csv").open())
    regions = list(csv.DictReader((out / "regions.csv").open()))
    assert (row["label"], int(row["n_regions"])) == ("focus", len(regions))
    assert all(float(r["area_um2"]) == pytest.approx(float(r["area_px"]) / 4) for r in regions)
    features = json.loads((out / "geojson" / f"{row['key']}.geojson").read_text())["features"]
    assert len(features) == len(regions)
    assert {f["properties"]["objectType"] for f in features} == {"annotation"}
    assert {f["geometry"]["type"] for f in features} <= {"Polygon", "MultiPolygon"}
    info = CliRunner().invoke(app, ["info", str(model)])
    assert "region-detector" in info.output


def test_images_without_regions_give_tables(tissue, trained_on_masks, tmp_path):
    detector = copy(trained_on_masks)
    detector.min_patches_ = 10_000
    save_model(detector, tmp_path / "m.histodict")
    out = tmp_path / "found"
    run = CliRunner().invoke(
        app,
        ["predict", str(tmp_path / "m.histodict"), str(tissue / "foci" / "0.png"), "-o", str(out)],
    )
    assert run.exit_code == 0, run.output
    (row,) = csv.DictReader((out / "detections.csv").open())
    assert row["label"] == "not inflammation"
    assert (out / "regions.csv").read_text().startswith('"path","region"')


def test_tumour_is_found_in_real_lymph_nodes(data_folder):
    """Half of the images are for training; adjacent tiles are in the same half, as the list is
    sorted."""
    manifest = read_manifest(data_folder / "camelyon-tumour")
    recipe = preset("regions").with_changes(
        method_parameters={"n_atoms": 40, "n_iter": 4}, patches_per_class=1_500
    )
    detector = RegionDetector(recipe, region="tumour").fit(manifest.select(range(16)))
    assert auc(detector, manifest.select(range(16, 32)).records) >= 0.80
