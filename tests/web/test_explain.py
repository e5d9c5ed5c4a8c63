"""Explanations of patches add up: contributions rebuild the patch, residuals equal the method's."""

from dataclasses import replace

import numpy as np
import pytest

from histodict.decision.atom_annotations import AtomAnnotations
from histodict.models.prepared_image import open_prepared_image
from histodict.patches.patch_map import NO_TISSUE
from histodict.web.patch_explanation import _explanation_text, explain


@pytest.fixture(scope="module")
def patch_map(model, manifest):
    return model.predict_one(manifest.records[0].path, mpp=manifest.records[0].mpp).patch_map


def test_residuals_and_atoms_equal_those_of_the_method(model, manifest, gallery, patch_map):
    row, column = (int(x) for x in np.argwhere(patch_map.predicted_classes != NO_TISSUE)[3])
    with open_prepared_image(
        manifest.records[0].path, manifest.records[0].mpp, model.recipe
    ) as prepared:
        found = explain(model, prepared, patch_map, gallery, row, column)
        y = prepared.chunk_features(patch_map.grid, slice(row, row + 1), slice(column, column + 1))[
            1
        ]
    code, residuals = model.model_.classifier_.encode(y)
    assert [entry["residual"] for entry in found["classes"]] == pytest.approx(residuals[0])
    assert found["winner"] == model.classes_[residuals[0].argmin()]
    weights = code.toarray()[0]
    assert {e["atom"]: e["weight"] for e in found["atoms"]} == {
        int(k): pytest.approx(weights[k])
        for k in np.argsort(-np.abs(weights))[: len(found["atoms"])]
    }
    assert found["is_residual"]
    assert found["n_atoms_used"] == np.count_nonzero(weights)
    atoms = model.model_.atoms()
    for place, residual in enumerate(residuals[0]):
        rebuilt = np.where(atoms.classes == place, weights, 0) @ atoms.D
        assert np.linalg.norm(y[0] - rebuilt) == pytest.approx(residual, abs=1e-4)


def test_background_is_not_explained(model, manifest, gallery, patch_map):
    predicted_classes = patch_map.predicted_classes.copy()
    predicted_classes[0, 0] = NO_TISSUE
    blank = replace(patch_map, predicted_classes=predicted_classes)
    with open_prepared_image(
        manifest.records[0].path, manifest.records[0].mpp, model.recipe
    ) as prepared:
        found = explain(model, prepared, blank, gallery, 0, 0)
        assert found["winner"] is None and found["words"].startswith("No tissue found here")
        with pytest.raises(KeyError):
            explain(model, prepared, patch_map, gallery, -1, 0)


def test_text_of_a_distance():
    message = _explanation_text(["a", "b"], 0, np.array([-0.3, 0.2]), False)
    assert message == "This patch is closest to a: its distance is -0.30, that of b 0.20."
    assert "The map shows it as b" in _explanation_text(["a", "b"], 1, np.array([0.1, 0.2]), True)


def test_named_atoms_are_explained_by_name(model, manifest, gallery, patch_map):
    row, column = (int(x) for x in np.argwhere(patch_map.predicted_classes != NO_TISSUE)[3])

    def explained(options):
        with open_prepared_image(
            manifest.records[0].path, manifest.records[0].mpp, model.recipe
        ) as prepared:
            return explain(options, prepared, patch_map, gallery, row, column)["atoms"]

    first = explained(model)[0]["atom"]
    named = model.with_atom_annotations(AtomAnnotations().with_changes([first], name="dark nuclei"))
    assert {line["name"] for line in explained(model)} == {""}
    assert {line["atom"]: line["name"] for line in explained(named)}[first] == "dark nuclei"
    without = model.with_atom_annotations(AtomAnnotations().with_changes([first], disabled=True))
    assert first not in {line["atom"] for line in explained(without)}
