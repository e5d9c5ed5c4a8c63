"""Tests of the tissue classifier, from image files to predictions, on a small synthetic set."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from histodict.datasets.manifest import read_manifest
from histodict.images.source import ImageError
from histodict.models import (
    EnsembleClassifier,
    RegionDetector,
    TissueClassifier,
    load_model,
    save_model,
)
from histodict.models.model_file import read_header
from histodict.models.recipe import Recipe, preset
from histodict.patches.patch_map import NO_TISSUE
from histodict.synthetic.dataset import write_synthetic_dataset

FAST = Recipe(
    method_parameters={"n_atoms": 40, "n_iter": 4},
    patch_px=16,
    patches_per_class=800,
    stain="reinhard",
    features="centred",
    aggregation="margin",
)


@pytest.fixture(scope="module")
def tissue(tmp_path_factory):
    return write_synthetic_dataset(tmp_path_factory.mktemp("set") / "tissue", 4, 4, size=(240, 180))


@pytest.fixture(scope="module")
def halves(tissue):
    manifest = read_manifest(tissue / "manifest.csv")
    patients = sorted(set(manifest.patients))
    places = [i for i, patient in enumerate(manifest.patients) if patient in patients[:2]]
    others = [i for i in range(len(manifest.records)) if i not in places]
    return manifest.select(places), manifest.select(others)


@pytest.fixture(scope="module")
def model(halves):
    return TissueClassifier(FAST, random_state=1).fit(halves[0])


def test_predictions_for_test_patients(model, halves):
    predictions = [model.predict(record.path, mpp=record.mpp) for record in halves[1].records]
    right = [a.label == r.label for a, r in zip(predictions, halves[1].records, strict=True)]
    assert np.mean(right) >= 0.75
    for prediction in predictions:
        predicted_classes = prediction.patch_map.predicted_classes
        assert prediction.n_patches == (predicted_classes != NO_TISSUE).sum()
        assert sum(prediction.proportions.values()) == pytest.approx(1)
        shares = [(predicted_classes == i).sum() / prediction.n_patches for i in range(2)]
        np.testing.assert_allclose(list(prediction.proportions.values()), shares)
        assert (prediction.label == model.classes_[1]) == (prediction.score > 0)


def test_same_seed_gives_the_same_model_for_any_number_of_threads(halves):
    one, two = (TissueClassifier(FAST, random_state=3, n_jobs=n).fit(halves[0]) for n in (1, 2))
    np.testing.assert_array_equal(
        one.model_.classifier_.dictionaries_, two.model_.classifier_.dictionaries_
    )
    np.testing.assert_array_equal(one.aggregator_.weights, two.aggregator_.weights)


@pytest.mark.parametrize("recipe", [FAST, preset("fast", "mean-logistic")], ids=["patches", "mean"])
def test_background_training_image_is_warned_of(halves, tmp_path, recipe):
    Image.new("RGB", (200, 150), (244, 243, 245)).save(tmp_path / "background.png")
    first, *_ = records = halves[0].records
    background = replace(first, path=tmp_path / "background.png")
    with pytest.warns(
        UserWarning, match="1 training image without tissue was not used: background.png"
    ):
        TissueClassifier(recipe).fit(replace(halves[0], records=(*records, background)))


def test_background_image_has_no_label(model, tmp_path):
    Image.new("RGB", (200, 150), (244, 243, 245)).save(tmp_path / "background.png")
    prediction = model.predict(tmp_path / "background.png")
    assert prediction.label is None
    assert prediction.n_patches == 0


def test_another_pixel_size_is_refused(model, halves):
    with pytest.raises(ImageError, match="trained on"):
        model.predict(halves[1].records[0].path, mpp=0.25)


def test_images_are_reduced_to_the_working_pixel_size(halves, tmp_path):
    recipe = FAST.with_changes(mpp=1.0)
    model = TissueClassifier(recipe).fit(halves[0])
    record = halves[1].records[0]
    fine = model.predict(record.path, mpp=0.5).patch_map.predicted_classes.shape
    with Image.open(record.path) as image:
        assert fine == (image.height // 2 // 16, image.width // 2 // 16)
    with pytest.raises(ImageError, match="pixel size is unknown"):
        Image.new("RGB", (200, 150)).save(tmp_path / "unknown.png")
        model.predict(tmp_path / "unknown.png")
    with pytest.raises(ImageError, match="coarser"):
        model.predict(record.path, mpp=2.0)


def test_ensemble_has_probabilities_and_an_adjusted_threshold(halves, tmp_path):
    model = EnsembleClassifier([FAST], folds=2, random_state=1).fit(halves[0])
    plain = TissueClassifier(FAST, random_state=1).fit(halves[0])
    np.testing.assert_array_equal(
        model.model_.classifier_.dictionaries_, plain.model_.classifier_.dictionaries_
    )
    assert model.threshold != plain.threshold  # out-of-fold scores move θ
    assert model.predict(halves[1].records[0].path).threshold == model.threshold
    loaded = load_model(save_model(model, tmp_path / "m.histodict"))
    for record in halves[1].records[:3]:
        prediction = model.predict(record.path, mpp=record.mpp, error_rate=0.2)
        probabilities = prediction.probabilities
        assert sum(probabilities.values()) == pytest.approx(1)
        assert probabilities[prediction.label] >= 0.5
        value = model.score_to_decision_value(prediction.score)
        assert value == pytest.approx(
            plain.score_to_decision_value(plain.predict(record.path).score)
        )
        assert (value > model.threshold) == (prediction.label == model.classes_[1])
        assert prediction.prediction_set == [
            name
            for name in model.classes_
            if 1 - probabilities[name]
            <= model.calibration_.nonconformity_scores[int(np.ceil(9 * 0.8)) - 1]
        ]
        assert (
            loaded.predict(record.path, mpp=record.mpp, error_rate=0.2).probabilities
            == probabilities
        )
        assert plain.predict(record.path, mpp=record.mpp).probabilities == {}


def test_map_is_centred_on_the_score(model, halves):
    """Its mean over tissue is the score, also with a moved threshold."""
    for record in halves[1].records:
        for used in (model, model.with_threshold(model.threshold + 0.02)):
            prediction = used.predict(record.path, mpp=record.mpp)
            patch_map = prediction.patch_map
            output = patch_map.margins[..., 1][patch_map.tissue]
            assert output.mean() == pytest.approx(prediction.score, abs=1e-5)
            scored = used.model_.score_image(record.path, record.mpp)
            raw, statistics = scored.patch_map, scored.patch_statistics
            assert used.aggregator_.scores(statistics) - used.threshold_shift_ == pytest.approx(
                prediction.score
            )
            spread = np.ptp(raw.margins[..., 1][raw.tissue]) * used.aggregator_.weights[0, 0]
            assert np.ptp(output) == pytest.approx(spread, rel=1e-4)
            np.testing.assert_array_equal(
                patch_map.predicted_classes == 1, patch_map.margins[..., 1] > 0
            )
            assert prediction.proportions == patch_map.proportions


def test_proportion_map_shows_the_counted_patches(halves):
    model = TissueClassifier(FAST.with_changes(aggregation="proportion"), random_state=1).fit(
        halves[0]
    )
    record = halves[1].records[0]
    prediction = model.predict(record.path, mpp=record.mpp)
    raw = model.model_.score_image(record.path, record.mpp).patch_map
    np.testing.assert_array_equal(prediction.patch_map.predicted_classes, raw.predicted_classes)
    share, theta = prediction.proportions["inflamed"], prediction.threshold
    assert prediction.decision_value == pytest.approx(share)
    assert f"{100 * share:.0f} % of the patches; inflamed if ≥ {100 * theta:.0f} %" in (
        prediction.summary()
    )
    row = prediction.row()
    assert row["decision_value"] == prediction.decision_value and row["threshold"] == theta


def test_two_classes_have_one_score_and_more_have_one_each(halves):
    """Without θ there is no threshold that could be compared with a score."""
    recipe = FAST.with_changes(aggregation="margin-and-codes", patches_per_class=200)
    train, test = halves
    two = TissueClassifier(recipe, random_state=1).fit(train)
    row = two.predict(test.records[0].path, mpp=test.records[0].mpp).row()
    assert not {"value", "threshold"} & set(row)
    names = {"healthy": "healthy", "inflamed": "mild"}
    records = [
        replace(r, label="severe" if i % 3 == 0 and r.label == "inflamed" else names[r.label])
        for i, r in enumerate(train.records)
    ]
    three = TissueClassifier(recipe, random_state=1).fit(replace(train, records=tuple(records)))
    prediction = three.predict(test.records[0].path, mpp=test.records[0].mpp)
    row = prediction.row()
    scores = {name: row[f"score_{name}"] for name in ("healthy", "mild", "severe")}
    assert max(scores, key=scores.get) == row["label"] and max(scores.values()) == row["score"]
    patch_map = prediction.patch_map
    np.testing.assert_allclose(
        patch_map.margins[patch_map.tissue].mean(axis=0), list(scores.values()), atol=1e-5
    )


def test_threshold_can_be_moved(model, halves):
    record = halves[1].records[0]
    value = model.score_to_decision_value(model.predict(record.path, mpp=record.mpp).score)
    for shift, place in ((-0.01, 1), (0.01, 0)):
        moved = model.with_threshold(value + shift)
        assert moved.threshold == pytest.approx(value + shift)
        assert moved.predict(record.path, mpp=record.mpp).label == model.classes_[place]


def test_model_file_gives_the_same_predictions(model, halves, tmp_path):
    path = save_model(model, tmp_path / "größe.histodict")
    loaded = load_model(path)
    for record in halves[1].records[:3]:
        one, two = model.predict(record.path), loaded.predict(record.path)
        assert (one.label, one.score) == (two.label, two.score)
        np.testing.assert_array_equal(one.patch_map.margins, two.patch_map.margins)
    header = read_header(path)
    assert header["classes"] == ["healthy", "inflamed"]
    assert header["training_info"]["manifest_digest"] == halves[0].digest()
    assert [p.name for p in tmp_path.iterdir()] == ["größe.histodict"]


def test_unfitted_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match="this model is not fitted"):
        TissueClassifier("fast").predict(tmp_path / "a.png")
    with pytest.raises(ValueError, match="this model is not fitted"):
        EnsembleClassifier([FAST]).predict(tmp_path / "a.png")
    with pytest.raises(ValueError, match="this model is not fitted"):
        RegionDetector("regions").predict(tmp_path / "a.png")


@pytest.mark.parametrize("rule", ["margin", "proportion", "margin-and-codes"])
def test_prediction_is_updated_for_a_moved_threshold(halves, rule):
    """Like the model with the moved threshold, without the image: label, score, summary and map."""
    few = {"n_atoms": 12, "n_iter": 2}
    small = replace(FAST, aggregation=rule, method_parameters=few, patches_per_class=200)
    model = TissueClassifier(small).fit(halves[0])
    records = halves[1].records[:6]
    before = [model.predict_one(record.path, mpp=record.mpp) for record in records]
    values = sorted(prediction.decision_value for prediction in before)
    n_below = sum(value <= model.decision_threshold.value for value in values)
    place = 2 if n_below != 2 else 3  # different from the threshold of the model
    moved = model.with_threshold((values[place - 1] + values[place]) / 2)
    for record, prediction in zip(records, before, strict=True):
        redrawn, requested = (
            moved.apply_threshold(prediction),
            moved.predict_one(record.path, mpp=record.mpp),
        )
        assert redrawn.label == requested.label
        assert redrawn.summary() == requested.summary()
        assert redrawn.scores == pytest.approx(requested.scores)
        assert redrawn.row() == pytest.approx(requested.row())
        assert (
            redrawn.patch_map.predicted_classes == requested.patch_map.predicted_classes
        ).mean() > 0.99
        np.testing.assert_allclose(
            redrawn.patch_map.margins, requested.patch_map.margins, atol=1e-4
        )
        assert model.apply_threshold(prediction).summary() == prediction.summary()
        assert model.apply_threshold(prediction).patch_map is prediction.patch_map
    labels = [moved.apply_threshold(prediction).label for prediction in before]
    assert labels != [prediction.label for prediction in before]
