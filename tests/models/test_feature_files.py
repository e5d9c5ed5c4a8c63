"""Predictions from feature files have the bits of predictions from pixels."""

from __future__ import annotations

import shutil
from dataclasses import replace

import h5py
import numpy as np
import pytest
from PIL import Image

from histodict import EnsembleClassifier, TissueClassifier
from histodict.batch import predict_images
from histodict.datasets.manifest import ImageRecord, read_manifest
from histodict.decision.atom_annotations import AtomAnnotations
from histodict.encoders import ENCODERS, clear_encoder_cache, register_encoder
from histodict.explain.patch_sample import PatchSample
from histodict.images.file_types import ImageError
from histodict.models import feature_extraction as extraction
from histodict.models import inputs as sizes
from histodict.models import load_model
from histodict.models.feature_extraction import extract_features, extraction_recipe
from histodict.models.recipe import PRESETS, Recipe
from histodict.patches.patch_map import PatchMap
from histodict.precomputed.feature_file import common_metadata, open_features
from histodict.reports.atoms_page import collect_atom_report, write_atoms_page
from histodict.reports.explanation_page import write_explanation_page
from histodict.synthetic.dataset import write_synthetic_dataset
from histodict.utils.parallel import ThreadExecutor
from tests.images.ome_files import save_ome_zarr
from tests.precomputed.feature_files import write_trident

SMALL = {"n_atoms": 12, "n_iter": 3}
SETTINGS = {"patches_per_class": 120, "n_components": 6}


class TinyEncoder:
    """Means and deviations of the colours of a cell and its quarters: an encoder without torch."""

    stride_px, digest = 16, "tiny-1"

    def feature_map(self, pixels):
        h, w = (n // 8 for n in pixels.shape[:2])
        parts = pixels.reshape(h, 8, w, 8, 3).astype(np.float32) / 255
        found = np.concatenate([parts.mean(axis=(1, 3)), parts.std(axis=(1, 3))], axis=-1)
        quarters = found.reshape(h // 2, 2, w // 2, 2, 6).transpose(0, 2, 1, 3, 4)
        return quarters.reshape(h // 2, w // 2, 24)


@pytest.fixture(autouse=True)
def tiny():
    register_encoder("tiny", TinyEncoder)
    yield
    del ENCODERS["tiny"]
    clear_encoder_cache()


@pytest.fixture(scope="module")
def tissue(tmp_path_factory):
    return write_synthetic_dataset(tmp_path_factory.mktemp("set") / "tissue", 3, 3, size=(160, 120))


def recipe(features="tiny", **changes):
    made = extraction_recipe(features, {}) if features != "precomputed" else PRESETS["precomputed"]
    return replace(made, method_parameters=SMALL, **(SETTINGS | changes))


def extracted(tissue, folder, features="tiny", **how):
    records = read_manifest(tissue / "manifest.csv").records
    done = extract_features(extraction_recipe(features, {}), records, folder, **how)
    assert not done.failures and len(done.files) == len(records)
    return done


def assert_same_predictions(first, second):
    for a, b in zip(first, second, strict=True):
        assert (a.label, a.scores, a.n_patches) == (b.label, b.scores, b.n_patches)
        for name in ("predicted_classes", "margins"):
            np.testing.assert_array_equal(
                getattr(a.patch_map, name), getattr(b.patch_map, name), strict=True
            )


def test_files_of_an_encoder_give_its_bits(tissue, tmp_path, monkeypatch):
    """In the same order of images, which otherwise depends on the content of their files."""
    monkeypatch.setattr(sizes, "sorted_by_content", lambda manifest: manifest)
    extracted(tissue, tmp_path / "f", n_jobs=2)
    table = tissue / "manifest.csv"
    stored = read_manifest(table, features=tmp_path / "f")
    from_pixels = TissueClassifier(recipe(), n_jobs=1).fit(read_manifest(table))
    from_files = TissueClassifier(recipe(), n_jobs=1).fit(stored)
    arrays, others = from_pixels.to_model_data().arrays, from_files.to_model_data().arrays
    for name in arrays:
        np.testing.assert_array_equal(arrays[name], others[name], strict=True)
    requested = read_manifest(table)
    assert_same_predictions(from_pixels.predict(requested), from_files.predict(stored))
    assert_same_predictions(
        from_pixels.predict(requested), from_pixels.predict(stored)
    )  # trained on pixels


def test_pixel_vectors_can_be_predicted_but_not_trained_on(tissue, tmp_path):
    extracted(tissue, tmp_path / "f", "centred")
    own = replace(extraction_recipe("centred", {}), method_parameters=SMALL, patches_per_class=120)
    stored = read_manifest(tissue / "manifest.csv", features=tmp_path / "f")
    model = TissueClassifier(own, n_jobs=1).fit(tissue / "manifest.csv")
    assert_same_predictions(
        model.predict(read_manifest(tissue / "manifest.csv")), model.predict(stored)
    )
    with pytest.raises(ValueError, match="between grid positions"):
        TissueClassifier(own).fit(stored)


def as_trident(source, target, rng=None):
    """Write the same vectors with attributes of TRIDENT only, and rows in another order."""
    target.mkdir()
    for path in source.iterdir():
        with h5py.File(path) as file:
            vectors, coords = file["features"][:], file["coords"][:]
            reported = dict(file["coords"].attrs)
        order = rng.permutation(len(vectors)) if rng else np.arange(len(vectors))
        write_trident(target / path.name, vectors[order], coords[order], "tiny", **reported)


@pytest.mark.parametrize("method", ["dfdl", "logistic", "mean-logistic"])
def test_files_of_other_programs_give_the_same_predictions(tissue, tmp_path, method):
    extracted(tissue, tmp_path / "ours")
    as_trident(tmp_path / "ours", tmp_path / "theirs", np.random.default_rng(0))
    predictions = []
    for name in ("ours", "theirs"):
        stored = read_manifest(tissue / "manifest.csv", features=tmp_path / name)
        small = {k: v for k, v in SMALL.items() if method == "dfdl"}
        made = replace(recipe("precomputed"), method=method, method_parameters=small)
        model = TissueClassifier(made, n_jobs=1).fit(stored)
        predictions.append(model.predict(stored))
    if method == "mean-logistic":
        assert [a.scores for a in predictions[0]] == [a.scores for a in predictions[1]]
        return
    for a, b in zip(*predictions, strict=True):
        assert (a.label, a.scores) == (b.label, b.scores)
        ours, theirs = a.patch_map, b.patch_map
        shape = tuple(map(min, ours.predicted_classes.shape, theirs.predicted_classes.shape))
        part = tuple(slice(n) for n in shape)
        np.testing.assert_array_equal(ours.margins[part], theirs.margins[part])
        assert ours.n_patches == theirs.n_patches


def test_calibrated_model_is_saved_with_its_feature_metadata(tissue, tmp_path):
    extracted(tissue, tmp_path / "f")
    stored = read_manifest(tissue / "manifest.csv", features=tmp_path / "f")
    model = EnsembleClassifier([recipe("precomputed")], folds=2, n_jobs=1).fit(stored)
    again = load_model(model.save(tmp_path / "a.histodict"))
    assert_same_predictions(model.predict(stored), again.predict(stored))
    reported = again.estimators_[0].model_.feature_metadata_
    assert (reported.length, reported.encoder, reported.patch_px) == (24, "tiny", 16)
    assert all(0 <= p <= 1 for p in again.predict_proba(stored).ravel())
    with pytest.raises(ImageError, match="features=…"):
        again.predict(read_manifest(tissue / "manifest.csv"))


def test_incompatible_vectors_are_refused(tissue, tmp_path):
    extracted(tissue, tmp_path / "f")
    stored = read_manifest(tissue / "manifest.csv", features=tmp_path / "f")
    model = TissueClassifier(recipe("precomputed")).fit(stored)
    vectors, coords = np.ones((4, 30), np.float32), np.arange(8).reshape(4, 2) * 512
    other = write_trident(tmp_path / "a.h5", vectors, coords, None, patch_size=16)
    with pytest.raises(ImageError, match=r"a.h5: .*vectors of length 30, not 24"):
        model.predict(other)
    other = write_trident(tmp_path / "b.h5", vectors[:, :24], coords, "uni_v1", patch_size=16)
    with pytest.raises(ImageError, match="encoder uni_v1, not tiny"):
        model.predict(other)
    with pytest.raises(ImageError, match="vectors from `histodict features`"):
        TissueClassifier(recipe()).fit(read_manifest(tissue / "manifest.csv")).predict(other)
    stained = TissueClassifier(recipe(stain="none"))
    with pytest.raises(ImageError, match="stain 'reinhard', not 'none'"):
        stained.fit(stored)


def test_methods_that_need_pixels_are_refused():
    for method in ("lbp-colour", "shirc"):
        with pytest.raises(ValueError, match="needs pixels"):
            Recipe(method=method, features="precomputed")


def test_atoms_are_shown_by_patches_of_the_files(tissue, tmp_path):
    extracted(tissue, tmp_path / "f")
    stored = read_manifest(tissue / "manifest.csv", features=tmp_path / "f")
    model = TissueClassifier(recipe("precomputed"), n_jobs=1).fit(stored)
    gallery = PatchSample.from_records(model.model_, stored.records, 0)
    with open_features(stored.records[0].path) as file:
        corners = {tuple(at) for at in file.coords.tolist()}
    own = gallery.corners[gallery.images == 0].tolist()
    assert own and {tuple(at) for at in own} <= corners
    assert (gallery.side == 16).all()


def test_reports_need_no_pixels(tissue, tmp_path):
    """Without the images: contributions add up, atoms are disabled, both reports are written."""
    extracted(tissue, tmp_path / "f")
    stored = read_manifest(tissue / "manifest.csv", features=tmp_path / "f")
    alone = replace(stored, records=tuple(replace(r, image=None) for r in stored.records))
    model = TissueClassifier(recipe("precomputed"), n_jobs=1).fit(alone)
    explanation = model.explain(alone.records[-1].path)
    total = explanation.constant + sum(part.contribution for part in explanation.contributions)
    np.testing.assert_allclose(total, explanation.scores, atol=1e-6)
    off = model.with_atom_annotations(
        AtomAnnotations().with_changes([0, 13], name="odd", disabled=True)
    )
    assert off.predict_one(alone.records[-1].path).scores != tuple(explanation.scores)
    found = collect_atom_report(off, alone, n_atoms=3)
    assert found.statistics[0].name == "odd" and found.statistics[0].fractions["healthy"] == 0
    write_atoms_page(tmp_path / "atoms.html", off, alone, found)
    assert 'class="atom-map"' in (tmp_path / "atoms.html").read_text()
    write_explanation_page(tmp_path / "why.html", model, [explanation], alone.records[-1:])
    assert ", because " in (tmp_path / "why.html").read_text()


# --- extraction ---------------------------------------------------------------------------------


def test_files_are_written_once_and_again_if_the_image_changed(tissue, tmp_path):
    first = extracted(tissue, tmp_path / "f", executor=ThreadExecutor(2))
    states = {file: file.stat().st_mtime_ns for file in first.files}
    assert extracted(tissue, tmp_path / "f").n_skipped == len(first.files)
    assert all(file.stat().st_mtime_ns == states[file] for file in first.files)
    image = read_manifest(tissue / "manifest.csv").records[0].path
    content = image.read_bytes()
    try:
        image.write_bytes(content)  # another modification time
        assert extracted(tissue, tmp_path / "f").n_skipped == len(first.files) - 1
    finally:
        image.write_bytes(content)
    (tmp_path / "f" / ".0123456789abcdef.partial.h5").write_bytes(b"of a run that was killed")
    assert extracted(tissue, tmp_path / "f", mpp=None).n_skipped == len(first.files) - 1


def test_files_with_other_settings_remain_and_are_refused(tissue, tmp_path):
    extracted(tissue, tmp_path / "f")
    records = read_manifest(tissue / "manifest.csv").records
    with pytest.raises(ValueError, match="stain: reinhard in the file, none now"):
        extract_features(extraction_recipe("tiny", {"stain": "none"}), records, tmp_path / "f")
    (tmp_path / "g").mkdir()
    foreign = tmp_path / "g" / f"{records[0].path.stem}.h5"
    write_trident(foreign, np.ones((2, 3), np.float32), np.array([[0, 0], [0, 512]]))
    before = foreign.read_bytes()
    with pytest.raises(ValueError, match="not from `histodict features`"):
        extract_features(extraction_recipe("tiny", {}), records, tmp_path / "g")
    assert foreign.read_bytes() == before
    with pytest.raises(ValueError, match="has no effect on features"):
        extraction_recipe("tiny", {"n_atoms": "3"})


def test_unreadable_and_background_images_do_not_stop_others(tissue, tmp_path):
    good = read_manifest(tissue / "manifest.csv").records[0]
    (tmp_path / "torn.png").write_bytes(b"\x89PNG torn")
    Image.new("RGB", (240, 180), "white").save(tmp_path / "background.png")
    bad = [
        ImageRecord(tmp_path / name, "", "") for name in ("torn.png", "background.png", "gone.png")
    ]
    done = extract_features(extraction_recipe("tiny", {}), [*bad, good], tmp_path / "f")
    assert [file.stem for file in done.files] == [good.path.stem]
    errors = dict(done.failures)
    assert "no tissue" in errors[bad[1].path] and len(errors) == 3
    assert [path.name for path in (tmp_path / "f").iterdir()] == [done.files[0].name]
    twins = [good, replace(good, path=tmp_path / good.path.name)]
    with pytest.raises(ValueError, match="have the same output file"):
        extract_features(extraction_recipe("tiny", {}), twins, tmp_path / "f")


def test_unexpected_error_of_one_image_does_not_stop_others(tissue, tmp_path, monkeypatch):
    first, second, *_ = read_manifest(tissue / "manifest.csv").records
    opened = extraction.open_prepared_image

    def open_or_fail(path, *arguments):
        if path.name == first.path.name:
            raise AttributeError("no such attribute")
        return opened(path, *arguments)

    monkeypatch.setattr(extraction, "open_prepared_image", open_or_fail)
    done = extract_features(extraction_recipe("tiny", {}), [first, second], tmp_path / "f")
    assert [file.stem for file in done.files] == [second.path.stem]
    ((path, reason),) = done.failures
    assert path == first.path and reason.startswith("unexpected AttributeError: no such attribute")


def test_changed_ome_zarr_image_is_extracted_again(tissue, tmp_path):
    pytest.importorskip("ome_zarr", reason="writes OME-Zarr")
    pixels = np.asarray(Image.open(read_manifest(tissue / "manifest.csv").records[0].path))
    slide, settings = tmp_path / "a.ome.zarr", extraction_recipe("tiny", {})

    def extract():
        return extract_features(settings, [ImageRecord(slide, "", "")], tmp_path / "f")

    save_ome_zarr(slide, pixels)
    assert extract().n_skipped == 0 and extract().n_skipped == 1
    before = next((tmp_path / "f").iterdir()).read_bytes()
    shutil.rmtree(slide)
    save_ome_zarr(slide, pixels[::-1])
    assert extract().n_skipped == 0
    assert next((tmp_path / "f").iterdir()).read_bytes() != before
    shutil.rmtree(slide)
    save_ome_zarr(slide, np.full_like(pixels, 255))
    ((_, reason),) = extract().failures
    assert "a.ome.zarr: no tissue found" in reason


def test_pixel_sizes_may_differ_slightly(tissue, tmp_path):
    """By as much as training images may differ, which these files replace."""
    sizes = dict.fromkeys((0.2, 0.1903, 0.2097))  # for 0.1903, 10 / (m * (0.4 / m)) is not 25
    records = read_manifest(tissue / "manifest.csv").records[: len(sizes)]
    sized = [replace(record, mpp=mpp) for record, mpp in zip(records, sizes, strict=True)]
    for name, settings in (("as they are", {}), ("at one size", {"mpp": "0.4"})):
        files = extract_features(extraction_recipe("tiny", settings), sized, tmp_path / name).files
        assert common_metadata(files) is not None
    far = replace(read_manifest(tissue / "manifest.csv").records[3], mpp=0.4)
    files += extract_features(extraction_recipe("tiny", {}), [far], tmp_path / "far").files
    alike = extract_features(extraction_recipe("tiny", {}), sized, tmp_path / "as they are").files
    with pytest.raises(ImageError, match="magnification 25"):
        common_metadata([*alike, *files[-1:]])


def test_attributes_equal_those_of_trident(tissue, tmp_path):
    record = replace(read_manifest(tissue / "manifest.csv").records[0], mpp=0.5)
    (path,) = extract_features(
        extraction_recipe("tiny", {"downsample": "2"}), [record], tmp_path / "f"
    ).files
    with h5py.File(path) as file:
        reported = dict(file["coords"].attrs)
        assert file["features"].dtype == np.float16 and file["features"].attrs["encoder"] == "tiny"
        assert (file["coords"][:] % 32 == 0).all()
    assert (reported["patch_size"], reported["patch_size_level0"], reported["overlap"]) == (
        16,
        32,
        0,
    )
    assert (reported["level0_width"], reported["level0_height"]) == (160, 120)
    assert (reported["level0_magnification"], reported["target_magnification"]) == (20, 10)


# --- maps on images -----------------------------------------------------------------------------


def test_map_of_a_feature_file_is_aligned_with_its_image(tissue, tmp_path):
    extracted(tissue, tmp_path / "f")
    stored = read_manifest(tissue / "manifest.csv", features=tmp_path / "f")
    model = TissueClassifier(recipe("precomputed"), n_jobs=1).fit(stored)
    with_image, alone = stored.records[0], replace(stored.records[1], image=None)
    result = predict_images(model, "digest", [with_image, alone], tmp_path / "out")
    assert not result.failures
    first, second = (
        PatchMap.load(tmp_path / "out" / "maps" / f"{row['key']}.npz") for row in result.rows
    )
    assert first.path == with_image.image.absolute() and second.path == alone.path.absolute()
    from_pixels = TissueClassifier(recipe(), n_jobs=1).fit(tissue / "manifest.csv")
    expected = from_pixels.predict(with_image.image).patch_map
    np.testing.assert_array_equal(first.tissue, expected.tissue)  # the tissue positions
