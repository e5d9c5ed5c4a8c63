"""A tile with hardly any detected tissue is used completely, with a warning."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from histodict.datasets.manifest import read_manifest
from histodict.models import TissueClassifier
from histodict.models.recipe import Recipe
from histodict.patches.patch_map import PatchMap
from histodict.synthetic.dataset import write_synthetic_dataset
from tests.images.files import save_plain

SMALL = Recipe(method_parameters={"n_atoms": 8, "n_iter": 1}, patch_px=16, patches_per_class=200)


def pale(rng, height=160, width=200):
    """Return unstained tissue: structure, with colours within 0.05 of the background."""
    rows, columns = np.mgrid[:height, :width]
    light = 226 + 9 * np.sin(rows / 3) * np.cos(columns / 4)
    return np.clip(light[..., None] + rng.normal(0, 1, (height, width, 3)), 0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_synthetic_dataset(tmp_path_factory.mktemp("tissue"), 2, 1, size=(240, 180))


@pytest.fixture(scope="module")
def model(folder):
    return TissueClassifier(SMALL).fit(read_manifest(folder))


def test_pale_tile_is_used_completely_with_a_note(model, tmp_path, rng):
    prediction = model.predict_one(save_plain(tmp_path / "pale.png", pale(rng)))
    assert prediction.label is not None
    assert prediction.n_patches == (200 // 16) * (160 // 16)
    assert "the whole image was used" in prediction.summary()
    assert prediction.row()["whole_image"] is True
    prediction.patch_map.save(tmp_path / "map.npz")
    assert PatchMap.load(tmp_path / "map.npz").whole_image


def test_empty_background_has_no_tissue(model, tmp_path, rng):
    background = np.clip(rng.normal(240, 2, (160, 200, 3)), 0, 255).astype(np.uint8)
    prediction = model.predict_one(save_plain(tmp_path / "background.png", background))
    assert prediction.label is None
    assert "whole_image" not in prediction.row()


def test_tissue_on_background_is_not_used_completely(model, folder):
    prediction = model.predict_one(read_manifest(folder).records[0].path)
    assert "whole_image" not in prediction.row()
    assert "whole image" not in prediction.summary()


def test_training_names_the_images_that_it_uses_completely(folder, tmp_path, rng):
    copied = shutil.copytree(folder, tmp_path / "set")
    save_plain(read_manifest(copied).records[0].path, pale(rng))
    with pytest.warns(UserWarning, match=r"1 training image with hardly any tissue"):
        TissueClassifier(SMALL).fit(read_manifest(copied))
