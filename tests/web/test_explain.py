"""The why of a call adds up: parts rebuild the patch, residuals are the method's own."""

import numpy as np
import pytest

from histodict.pipeline import BLANK
from histodict.pipeline.atoms import Atoms
from histodict.pipeline.gallery import Gallery
from histodict.pipeline.view import open_view
from histodict.web.explain import explain
from histodict.web.maps import answer_image, map_picture, outlines, stored_map


@pytest.fixture(scope="module")
def gallery(model, manifest):
    return Gallery.of(model.model_, manifest.records, 0)


@pytest.fixture(scope="module")
def patch_map(model, manifest, tmp_path_factory):
    folder = tmp_path_factory.mktemp("maps")
    record = manifest.records[0]
    answer = answer_image(model, record, folder)
    assert answer["value"] == pytest.approx(answer["shares"]["inflamed"])
    return stored_map(folder, record.path)


def test_the_stored_map_is_the_models(model, manifest, patch_map):
    winners = model.predict(manifest.records[0].path, mpp=0.5).patch_map.winners
    np.testing.assert_array_equal(patch_map.winners, winners)


def test_residuals_and_atoms_are_those_of_the_method(model, manifest, gallery, patch_map):
    row, column = (int(x) for x in np.argwhere(patch_map.winners != BLANK)[3])
    record = manifest.records[0]
    found = explain(model, record, patch_map, gallery, row, column)
    with open_view(record.path, record.mpp, model.recipe) as view:
        y = view.chunk_vectors(patch_map.grid, slice(row, row + 1), slice(column, column + 1))[1]
    code, residuals = model.model_.method_.encode(y)
    assert [entry["residual"] for entry in found["classes"]] == pytest.approx(residuals[0])
    assert found["winner"] == model.classes_[residuals[0].argmin()]
    weights = code.toarray()[0]
    assert {e["atom"]: e["weight"] for e in found["atoms"]} == {
        int(k): pytest.approx(weights[k])
        for k in np.argsort(-np.abs(weights))[: len(found["atoms"])]
    }
    assert found["is_residual"]
    assert found["n_atoms_used"] == np.count_nonzero(weights)
    atoms = Atoms.of(model.model_)
    for place, residual in enumerate(residuals[0]):
        rebuilt = np.where(atoms.classes == place, weights, 0) @ atoms.D
        assert np.linalg.norm(y[0] - rebuilt) == pytest.approx(residual, abs=1e-4)


def test_glass_is_not_explained(model, manifest, gallery, patch_map):
    winners = patch_map.winners.copy()
    winners[0, 0] = BLANK
    blank = type(patch_map)(patch_map.grid, winners, patch_map.margins)
    found = explain(model, manifest.records[0], blank, gallery, 0, 0)
    assert found["winner"] is None and "glass" in found["words"]
    with pytest.raises(KeyError):
        explain(model, manifest.records[0], patch_map, gallery, -1, 0)


def test_the_map_picture_shows_winners_alone_or_together(patch_map):
    everything, second = map_picture(patch_map, None), map_picture(patch_map, 1)
    assert ((everything[..., 3] > 0) == (patch_map.winners != BLANK)).all()
    assert ((second[..., 3] > 0) == (patch_map.winners == 1)).all()
    assert everything[..., 3].max() == 255


def test_outlines_enclose_as_much_as_the_patches_do(patch_map):
    def area(ring):
        x, y = np.array(ring[::2]), np.array(ring[1::2])
        return np.sum(x[:-1] * y[1:] - x[1:] * y[:-1]) / 2

    rings = outlines(patch_map, 0, 1)
    step = patch_map.grid.stride_px * patch_map.grid.downsample
    assert sum(map(area, rings)) == pytest.approx((patch_map.winners == 0).sum() * step**2)
    assert len(outlines(patch_map, 0, 10**6)) == 0


def test_words_call_a_distance_a_distance():
    from histodict.web.explain import _words

    said = _words(["a", "b"], 0, np.array([-0.3, 0.2]), False)
    assert said == "This patch is closest to a: its distance is -0.30, that of b 0.20."
    assert "Together with its neighbours" in _words(["a", "b"], 1, np.array([0.1, 0.2]), True)
