"""Tests of outlines in training and prediction, and of exported outlines, with exact positions."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import histodict
from histodict.annotations.annotation_file import AnnotationFile
from histodict.cli import app
from histodict.datasets.annotated import (
    match_annotations,
    read_images,
    split_by_annotation,
    with_annotations,
)
from histodict.datasets.manifest import ImageRecord, Manifest
from histodict.datasets.record import ManifestError
from histodict.explain.patch_sample import PatchSample
from histodict.export.qupath import geojson_features, save_geojson
from histodict.images.source import open_image
from histodict.model_selection.protocols import k_folds
from histodict.model_selection.splits import shared_patients
from histodict.models.cross_validation import TrainTestRun
from histodict.models.inputs import region_patch_mask
from histodict.models.patch_pipeline import SamplingArea, sample_training_patches
from histodict.models.recipe import Recipe
from histodict.patches.grid import PatchGrid
from histodict.patches.patch_map import NO_TISSUE
from histodict.patches.sampling import region_constraint
from histodict.synthetic.tissue_generator import make_tissue_image, random_stain
from histodict.utils.parallel import ThreadExecutor
from histodict.utils.progress import no_callback
from tests.annotations.outline_files import box, collection, feature, write_geojson
from tests.annotations.test_annotation_file import centres, winds_around

FAST = Recipe(
    method_parameters={"n_atoms": 12, "n_iter": 1},
    patch_px=16,
    patches_per_class=200,
    features="rgb",
)
SIZE = (160, 128)
# A star with a concavity and a hole, and no side along the pixels.
STAR = [[83.3, 9.2], [150.7, 14.1], [120.4, 60.6], [152.2, 119.9], [84.8, 110.3], [83.3, 9.2]]
HOLE = [[95.1, 30.2], [110.3, 33.9], [98.8, 52.5], [95.1, 30.2]]
BOX = box(6, 6, 70, 120)
RUN = ["--preset", "regions", "--set", "n_atoms=12", "--set", "n_iter=1"]
RUN += ["--set", "patches_per_class=100", "--set", "features=rgb", "--set", "stain=none"]


def star_pixels() -> np.ndarray:
    x, y = centres(*SIZE)
    return winds_around(np.array(STAR[:-1]), x, y) & ~winds_around(np.array(HOLE[:-1]), x, y)


def shares(pixels: np.ndarray, x: np.ndarray, y: np.ndarray, side: int) -> np.ndarray:
    sums = np.pad(pixels.cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    x, y = x.astype(int), y.astype(int)
    total = sums[y + side, x + side] - sums[y, x + side] - sums[y + side, x] + sums[y, x]
    return total / side**2


@pytest.fixture(scope="module")
def planted(tmp_path_factory) -> Path:
    """Four patients with two images each; the colour differs exactly inside the star."""
    folder = tmp_path_factory.mktemp("planted")
    (folder / "slides").mkdir()
    (folder / "geojson").mkdir()
    lines = ["path,patient,mpp"]
    for i in range(8):
        rng = np.random.default_rng(i)
        stain = random_stain(rng)
        image = make_tissue_image("healthy", stain, rng, SIZE)
        image[star_pixels()] = image[star_pixels()][:, [2, 0, 1]]
        Image.fromarray(image).save(folder / "slides" / f"s{i}.png")
        synthetic = collection(feature("Inflamed", STAR, HOLE), feature("Healthy", BOX))
        write_geojson(folder / "geojson" / f"s{i}.geojson", synthetic)
        lines.append(f"slides/s{i}.png,p{i // 2},0.5")
    (folder / "table.csv").write_text("\n".join(lines))
    return folder


@pytest.fixture(scope="module")
def model(planted):
    images = with_annotations(planted / "table.csv", planted / "geojson")
    return histodict.TissueClassifier(FAST).fit(
        split_by_annotation(images, ["Inflamed", "Healthy"])
    )


def test_training_patches_are_inside_their_outlines(tmp_path):
    """The colours of the image encode positions, so that every patch reveals its position."""
    x, y = np.meshgrid(np.arange(SIZE[0]), np.arange(SIZE[1]))
    Image.fromarray(np.stack([x, y, np.full_like(x, 100)], 2).astype(np.uint8)).save(
        tmp_path / "a.png"
    )
    path = write_geojson(tmp_path / "a.geojson", feature("Inflamed", STAR, HOLE))
    record = ImageRecord(
        tmp_path / "a.png", "Inflamed", "a", region_of_interest=AnnotationFile(path, ("Inflamed",))
    )
    recipe = Recipe(
        patch_px=8, patches_per_class=500, min_tissue_fraction=0.0, augment_patches=False
    )
    found = sample_training_patches(
        [SamplingArea(record, 0)], recipe, 0, None, no_callback, ThreadExecutor(1)
    )
    assert len(found.features) == 500
    blue = found.features[:, 128] / 100
    corners = np.rint(found.features[:, [0, 64]] / blue[:, None])
    inside = star_pixels()
    assert (shares(inside, *corners.T, 8) >= 0.5).all()
    everywhere = np.argwhere(np.ones((SIZE[1] - 7, SIZE[0] - 7)))[:, ::-1]
    with open_image(record.path) as image:
        allowed = region_constraint(
            record.region_of_interest.region_mask(image), PatchGrid.from_size(SIZE, 8, 8, 1.0)
        )
    expected = shares(inside, *everywhere.T, 8) >= 0.5
    np.testing.assert_array_equal(allowed.accepts(everywhere), expected)
    least, most = np.array(allowed.box).reshape(2, 2)
    chosen = everywhere[expected]
    assert (chosen >= least).all() and (chosen <= most).all()
    # For one region, patches outside do not touch it.
    mapped = ImageRecord(record.path, "", "a", annotations=AnnotationFile(path))
    outside = SamplingArea(mapped, 0, is_inside=False, region="Inflamed")
    found = sample_training_patches([outside], recipe, 0, None, no_callback, ThreadExecutor(1))
    blue = found.features[:, 128] / 100
    assert not shares(inside, *np.rint(found.features[:, [0, 64]] / blue[:, None]).T, 8).any()


def test_image_has_a_part_for_every_class(planted, model):
    images = with_annotations(planted / "table.csv", planted / "geojson")
    parts = split_by_annotation(images, ["Inflamed", "Healthy"])
    assert len(parts.records) == 16 and parts.n_images == 8
    assert parts.classes == ["Healthy", "Inflamed"]
    assert len(set(map(parts.name, parts.records))) == 16
    pairs = {(r.path, r.patient) for r in parts.records}
    assert pairs == {(r.path, r.patient) for r in images.records}
    assert model.training_info_["n_images"] == 8 and model.training_info_["n_parts"] == 16
    assert model.training_info_["n_patients"] == 4
    assert model.score(parts) == 1


def test_prediction_within_outlines_equals_that_of_the_complete_image_there(planted, model):
    path, synthetic = planted / "slides" / "s1.png", planted / "geojson" / "s1.geojson"
    complete = model.predict(path, mpp=0.5).patch_map
    part = model.predict(
        path, mpp=0.5, region_of_interest=AnnotationFile(synthetic, ("Inflamed",))
    ).patch_map
    inside = shares(star_pixels(), *complete.corners(), 16) >= 0.5
    assert 0 < inside.sum() < inside.size
    np.testing.assert_array_equal(
        part.predicted_classes, np.where(inside, complete.predicted_classes, NO_TISSUE)
    )
    np.testing.assert_allclose(part.margins[inside], complete.margins[inside], atol=1e-4)
    folder = model.predict([path], mpp=0.5, region_of_interest=planted / "geojson")
    both = model.predict(path, mpp=0.5, region_of_interest=str(synthetic)).patch_map
    assert (folder[0].patch_map.predicted_classes == both.predicted_classes).all()
    assert (both.tissue & ~part.tissue).any()
    with pytest.raises(ManifestError, match="one annotation file, but there are 2 images"):
        model.predict([path, path], region_of_interest=synthetic)
    with pytest.raises(ValueError, match="uses whole images and cannot be limited"):
        other = histodict.TissueClassifier("fast", method="lbp-colour")
        other.fit(split_by_annotation(read_with(planted), ["Inflamed", "Healthy"]))


def test_patches_that_show_atoms_are_inside_the_outlines(planted, model):
    parts = split_by_annotation(read_with(planted), ["Inflamed"])
    found = PatchSample.from_records(model.model_, parts.records[:2], 0)
    assert (shares(star_pixels(), *found.corners.T, 16) >= 0.5).all()


def read_with(planted: Path) -> Manifest:
    return with_annotations(planted / "table.csv", planted / "geojson")


def test_exported_regions_are_imported_as_the_same_patches(planted, tmp_path):
    """Exported outlines, imported again for training, give the same predictions."""
    images = read_with(planted)
    finder = histodict.RegionDetector(FAST, region="Inflamed").fit(images.select(range(6)))
    assert finder.class_names_ == ["not Inflamed", "Inflamed"]
    prediction = finder.predict(images.records[6].path, mpp=0.5)
    assert prediction.regions
    save_geojson(tmp_path / "found.geojson", geojson_features(prediction, outline_regions=True))
    own = ImageRecord(
        prediction.path, "", "p", annotations=AnnotationFile(tmp_path / "found.geojson")
    )
    found = region_patch_mask(own, prediction.patch_map)
    expected = np.zeros_like(found)
    for (rows, columns), cells, _ in prediction.patch_map.regions(1, prediction.min_patches):
        expected[rows, columns] |= cells
    np.testing.assert_array_equal(found, expected)
    truth = region_patch_mask(images.records[6], prediction.patch_map)
    np.testing.assert_array_equal(
        truth, shares(star_pixels(), *prediction.patch_map.corners(), 16) >= 0.5
    )


def test_ignored_areas_are_excluded_from_training_and_scores(planted, tmp_path):
    from histodict.models.region_detector import labelled_patch_mask

    synthetic = collection(feature("Inflamed", STAR, HOLE), feature("Ignore*", box(0, 0, 80, 128)))
    path = write_geojson(tmp_path / "s0.geojson", synthetic)
    image = planted / "slides" / "s0.png"
    record = ImageRecord(image, "", "a", annotations=AnnotationFile(path))
    patch_map = (
        histodict.RegionDetector(FAST, region="Inflamed")
        .fit(Manifest((record,)))
        .predict(image)
        .patch_map
    )
    assert not labelled_patch_mask(record, patch_map)[:, :5].any()
    assert labelled_patch_mask(record, patch_map)[:, 6:].any()


def test_unmatched_names_are_reported(planted, tmp_path):
    (tmp_path / "slides").mkdir()
    for name in ("s0", "s1"):
        (tmp_path / "slides" / f"{name}.png").write_bytes(
            (planted / "slides" / "s0.png").read_bytes()
        )
    (tmp_path / "geojson").mkdir()
    write_geojson(tmp_path / "geojson" / "other.geojson", feature("Tumor", BOX))
    with pytest.raises(ManifestError, match=r"named like an image; for example, other\.geojson"):
        with_annotations(tmp_path / "slides", tmp_path / "geojson")
    write_geojson(tmp_path / "geojson" / "s0.png.geojson.gz", feature("Tumor", BOX))
    found = with_annotations(tmp_path / "slides", tmp_path / "geojson")
    assert [record.path.name for record in found.records] == ["s0.png"]
    assert any("files without an image: other.geojson" in text for text in found.warnings)
    assert any("1 image skipped without annotations: s1.png" in w for w in found.warnings)
    with pytest.raises(
        ManifestError, match="no outline has the class 'Stroma'; the annotations have 'Tumor'"
    ):
        split_by_annotation(found, ["Tumor", "Stroma"])
    write_geojson(tmp_path / "geojson" / "s0.json", feature("Tumor", BOX))
    with pytest.raises(ManifestError, match="several annotation files"):
        with_annotations(tmp_path / "slides", tmp_path / "geojson")
    with pytest.raises(ManifestError, match="the folder contains no images"):
        read_images(tmp_path / "geojson")


def test_file_that_matches_two_images_is_refused(planted, tmp_path):
    content = (planted / "slides" / "s0.png").read_bytes()
    for folder in ("a", "b"):
        (tmp_path / "slides" / folder).mkdir(parents=True)
        (tmp_path / "slides" / folder / "s0.png").write_bytes(content)
    (tmp_path / "geojson").mkdir()
    write_geojson(tmp_path / "geojson" / "s0.geojson", feature("Tumor", BOX))
    images = sorted((tmp_path / "slides").rglob("*.png"))
    with pytest.raises(ManifestError, match=r"s0.geojson: matches two images, .*a.* and "):
        with_annotations(tmp_path / "slides", tmp_path / "geojson")
    with pytest.raises(ManifestError, match=r"s0.geojson: matches two images, .*a.* and "):
        match_annotations(images, tmp_path / "geojson")


@pytest.mark.parametrize(
    ("image", "outlines"),
    [
        ("s.ome.tiff", "s.geojson"),  # QuPath treats .ome.tiff as one suffix
        ("s.ome.tiff", "s.ome.geojson"),
        ("s.svs", "s.svs.geojson"),
        ("s.h5", "s.svs.geojson"),  # whatever slide the features are from
        ("s.h5", "s.ome.tiff.geojson.gz"),
        ("M\u00fc.svs", "Mu\u0308.geojson"),
    ],
)
def test_outline_files_are_matched_by_the_name_of_the_slide(tmp_path, image, outlines):
    write_geojson(tmp_path / outlines, feature("Tumor", BOX))
    write_geojson(tmp_path / "other.geojson", feature("Tumor", BOX))
    (found,) = match_annotations([Path("slides") / image], tmp_path)
    assert found.path == tmp_path / outlines


# --- the command line ---------------------------------------------------------------------------


def run(*note: object, status: int = 0) -> str:
    done = CliRunner().invoke(app, [str(word) for word in note])
    assert done.exit_code == status, done.output
    return " ".join(done.output.split())


def test_outlines_on_the_command_line(planted, tmp_path):
    saved, out = tmp_path / "m.histodict", tmp_path / "out"
    named = ["--annotations", planted / "geojson", "--regions", "Inflamed,Healthy"]
    output = run("train", planted / "table.csv", *named, *RUN, "-o", saved)
    assert "Trained on 16 annotated parts of 8 images" in output and "Healthy / Inflamed" in output
    output = run("predict", saved, planted / "table.csv", *named[:2], "-o", out)
    assert "Dice Inflamed of patches" in output
    scores = json.loads((out / "scores.json").read_text())["patches"]
    dice, iou = (scores[f"{name} Inflamed"]["value"] for name in ("Dice", "IoU"))
    assert iou == pytest.approx(dice / (2 - dice))
    hits = misses = alarms = 0
    for file in sorted((out / "maps").glob("*.npz")):
        patch_map = histodict.PatchMap.load(file)
        side = int(patch_map.grid.patch_side)
        inflamed = shares(star_pixels(), *patch_map.corners(), side) >= 0.5
        healthy = np.zeros((SIZE[1], SIZE[0]), bool)
        healthy[6:120, 6:70] = True
        labelled = inflamed | (shares(healthy, *patch_map.corners(), side) >= 0.5)
        labelled &= patch_map.tissue
        called = patch_map.predicted_classes == 1
        hits += (inflamed & called & labelled).sum()
        misses += (inflamed & ~called & labelled).sum()
        alarms += (~inflamed & called & labelled).sum()
    assert dice == pytest.approx(2 * hits / (2 * hits + misses + alarms))


def test_results_are_updated_if_outlines_change(planted, model, tmp_path):
    saved, out = model.save(tmp_path / "m.histodict"), tmp_path / "out"
    image, synthetic = planted / "slides" / "s1.png", tmp_path / "tissue.geojson"
    write_geojson(synthetic, feature("Tissue", BOX))
    command = ["predict", saved, image, "--within", synthetic, "-o", out, "--mpp", "0.5"]
    run(*command)
    (first,) = csv.DictReader((out / "predictions.csv").open())
    assert first["within"] == "tissue.geojson" and 0 < int(first["n_patches"]) < 60
    assert "(1 already finished)" in run(*command)
    write_geojson(synthetic, feature("Tissue", box(6, 6, 150, 120)))
    assert "done before" not in run(*command)
    (second,) = csv.DictReader((out / "predictions.csv").open())
    assert int(second["n_patches"]) > int(first["n_patches"])
    complete = ["predict", saved, planted / "slides" / "s2.png", "-o", out, "--mpp", "0.5"]
    assert "--within was set and is now not set" in run(*complete, status=2)
    write_geojson(synthetic, feature("Tissue", box(0, 0, 3, 3)))
    assert "no patch with tissue lies inside these annotations" in run(*command, status=1)
    write_geojson(synthetic, feature("Tissue", box(5000, 0, 5300, 300)))
    assert "are outside" in run(*command, status=1)
    assert "no outline has the class 'Tumor'" in run(*command, "--within-class", "Tumor", status=1)
    assert "--within-class needs --within" in run(*complete, "--within-class", "a", status=2)
    alone = [*complete, "--coordinates", "um"]
    assert "--coordinates needs --annotations or --within" in run(*alone, status=2)


def test_parts_are_split_by_patient_and_the_run_key_includes_outlines(planted, tmp_path):
    parts = split_by_annotation(read_with(planted), ["Inflamed", "Healthy"])
    for split in k_folds(parts, 2):
        assert not shared_patients(parts, split)
        assert {parts.records[i].label for i in split.test} == {"Inflamed", "Healthy"}
    learner = histodict.TissueClassifier(FAST)
    path = write_geojson(tmp_path / "s0.geojson", feature("Inflamed", STAR))
    image = planted / "slides" / "s0.png"
    records = [
        ImageRecord(image, "Inflamed", "a", region_of_interest=AnnotationFile(path, ("Inflamed",)))
    ]
    records += [
        replace(records[0], region_of_interest=AnnotationFile(path, ("Inflamed",), "slide"))
    ]
    records += [
        replace(records[0], region_of_interest=AnnotationFile(path)),
        replace(records[0], region_of_interest=None),
    ]
    records += [replace(records[-1], annotations=AnnotationFile(path))]
    manifests = [Manifest((record,)) for record in records]
    keys = [TrainTestRun(learner, manifest, manifests[0]).key for manifest in manifests]
    assert len(set(keys)) == len(keys)
    write_geojson(path, feature("Inflamed", STAR, HOLE))
    assert TrainTestRun(learner, manifests[0], manifests[0]).key not in keys


def test_incompatible_options_are_refused(planted, tmp_path):
    data, out = planted / "table.csv", ["-o", tmp_path / "m.histodict"]
    synthetic = ["--annotations", planted / "geojson"]
    assert "Give --annotations DIR" in run("train", data, "--regions", "a,b", *RUN, *out, status=2)
    assert "--annotations needs --regions" in run("train", data, *synthetic, *RUN, *out, status=2)
    assert "a class is listed twice" in run(
        "train", data, *synthetic, "--regions", "a,a", *RUN, *out, status=2
    )
    output = run("train", data, *synthetic, "--regions", "inflamed", *RUN, *out, status=2)
    assert (
        "no outline has the class 'inflamed'; the annotations have 'Healthy' (8), 'Inflamed' (8)"
        in output
    )
