"""Tests of the model report: atoms, predictions and the threshold."""

import html
from dataclasses import replace

import pytest

from histodict.explain.patch_sample import PatchSample
from histodict.metrics.intervals import few_patients_warning
from histodict.models import TissueClassifier
from histodict.web.model_report import (
    StoredPredictions,
    confusion_table,
    selection_warning,
    top_atom_patches,
    write_report,
)


def nothing(folder, model):
    """Return no test image: none is available."""
    return StoredPredictions({}, folder, None, model)


@pytest.mark.parametrize("components", [0, 6])
def test_report_shows_the_top_patches_of_atoms(recipe, manifest, tmp_path, components):
    """Whether atoms can be displayed as images or, like those of components, not."""
    model = TissueClassifier(recipe.with_changes(n_components=components)).fit(manifest)
    gallery = PatchSample.from_records(model.model_, manifest.records, 0)
    users = top_atom_patches(model, gallery, manifest)
    results = {"images": [], "operating_point": None}
    write_report(tmp_path / "report.html", model, [], results, nothing(tmp_path, model), users)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    n_atoms = sum(len(group["rows"]) for group in users)
    assert text.count('class="atom-picture"') == (0 if components else n_atoms)
    assert text.count('<div class="atom-users"') == n_atoms == 16
    assert ('alt="atoms of healthy"' in text) == (components == 0)
    assert f'title="{manifest.name(manifest.records[0])}: ' in text
    assert top_atom_patches(model, None, manifest) == []


@pytest.mark.parametrize(
    ("point", "rates"),
    [
        ({"kind": "proportion", "value": 2.0, "higher_is_positive": True}, "0.333, 0.500"),
        ({"kind": "proportion", "value": 2.0, "higher_is_positive": False}, "0.333, 0.500"),
        # Exactly m connected patches form a region.
        ({"kind": "patches", "value": 2}, "0.667, 1.000"),
    ],
)
def test_roc_curve_contains_the_threshold(model, tmp_path, point, rates):
    """False and true positive rate at the threshold, for both directions of the value."""
    mirrored = 4 if point.get("higher_is_positive") is False else 0
    rows = [
        {
            "image": str(i),
            "name": f"<{i}>.png",
            "patient": "p",
            "label": label,
            "answer": "healthy",
            "value": abs(mirrored - value),
            "grid": None,
        }
        for i, (label, value) in enumerate(
            [("healthy", 1), ("healthy", 2), ("healthy", 3), ("inflamed", 2), ("inflamed", 4)]
        )
    ]
    results = {"images": rows, "operating_point": point}
    write_report(tmp_path / "report.html", model, [], results, nothing(tmp_path, model), [])
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert f"at the operating points: the model {rates}" in text
    assert "&lt;3&gt;.png, &lt;4&gt;.png" in text  # wrong predictions, as text


def result_rows(*pairs):
    return [
        {
            "label": label,
            "answer": response,
            "patient": "p",
            "name": label,
            "value": 0.0,
            "grid": None,
        }
        for label, response in pairs
    ]


def test_confusion_table_counts_every_prediction():
    rows = result_rows(("a", "a"), ("b", "a"), ("b", "b"), ("b", "b"))
    assert confusion_table(["a", "b"], rows) == [("a", [1, 0]), ("b", [1, 2])]


def test_label_that_was_not_in_training_has_its_row(model, tmp_path):
    """A test label may be corrected to a class without training patients."""
    rows = result_rows(
        ("healthy", "healthy"), ("sick", "inflamed"), ("sick", "healthy"), ("", "healthy")
    )
    table = confusion_table(model.class_names_, rows)
    assert table == [
        ("healthy", [1, 0]),
        ("inflamed", [0, 0]),
        ("no label", [1, 0]),
        ("sick", [1, 1]),
    ]
    results = {"images": rows, "operating_point": None}
    write_report(tmp_path / "report.html", model, [], results, nothing(tmp_path, model), [])
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    miss = '<td class="miss">1</td>'
    assert f"<td>sick</td>{miss}{miss}" in text


def test_assumed_pixel_sizes_and_failures_are_reported(model, tmp_path):
    rows = [
        row | {"mpp": 0.5, "mpp_from": "assumed"} for row in result_rows(("healthy", "healthy"))
    ]
    without_prediction = {"label": "healthy", "answer": None, "patient": "p", "value": None}
    rows.append(without_prediction | {"name": "far.png", "failure": "has 2 µm per pixel"})
    rows.append(without_prediction | {"name": "background.png"})
    results = {"images": rows, "operating_point": None}
    write_report(tmp_path / "r.html", model, [], results, nothing(tmp_path, model), [])
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "pixel size of the image is not known. The model assumes 0.5" in text
    assert "far.png: has 2 µm per pixel" in text and "background.png: No tissue found here" in text
    assert "images of 1 patient not used for training" in text
    warning = "few patients (1 with images of 'healthy'): the 95 % intervals are unreliable"
    assert few_patients_warning(["healthy"], ["p"]).startswith(warning)
    assert warning in html.unescape(text)


def test_enough_patients_give_no_warning(model, tmp_path):
    rows = [
        row | {"patient": str(patient)}
        for patient in range(10)
        for row in result_rows(("healthy", "healthy"), ("inflamed", "inflamed"))
    ]
    results, path = {"images": rows, "operating_point": None}, tmp_path / "r.html"
    write_report(path, model, [], results, nothing(tmp_path, model), [])
    assert "few patients" not in path.read_text(encoding="utf-8")
    write_report(path, model, [], results | {"images": rows[:-1]}, nothing(tmp_path, model), [])
    assert "few patients (9 with images of 'inflamed')" in html.unescape(
        path.read_text(encoding="utf-8")
    )


def test_uncertain_predictions_are_shown_with_the_best_guess(
    model, manifest, tmp_path, monkeypatch
):
    record = manifest.records[0]
    stored = StoredPredictions({"x": record}, tmp_path, None, model)
    certain = model.predict(record.path)
    rows = [
        row | {"image": "x", "grid": {}, "answer": certain.label}
        for row in result_rows((record.label, certain.label))
    ]
    results, path = {"images": rows, "operating_point": None}, tmp_path / "r.html"
    unsure = replace(certain, probabilities={"healthy": 0.5, "inflamed": 0.5})
    for prediction, text in (
        (unsure, f">uncertain (best guess: {certain.label})<"),
        (certain, f">{certain.label}</span></figcaption>"),
    ):
        monkeypatch.setattr(StoredPredictions, "load", lambda *_, found=prediction: found)
        write_report(path, model, [], results, stored, [])
        assert text in path.read_text(encoding="utf-8")


def test_best_of_several_models_is_warned_of(model, tmp_path):
    assert selection_warning(1) == ""
    results = {"images": result_rows(("healthy", "healthy")), "operating_point": None}
    path, stored = tmp_path / "r.html", nothing(tmp_path, model)
    write_report(path, model, [], results, stored, [], selection_note=selection_warning(3))
    assert "3 models were tested on these patients" in path.read_text(encoding="utf-8")
