"""Tests of the most used atoms of each class, counted by hand on six patches."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from scipy.sparse import csr_array

from histodict.datasets.manifest import ImageRecord
from histodict.explain.patch_sample import PatchSample, most_used_atoms, patch_labels
from histodict.models import RegionDetector, TissueClassifier
from histodict.models.image_pipeline import AtomTable

LABELS = ["a", "a", "b", "b", "b", "b"]
# Atoms 0 to 2 are of class a, 3 to 5 of class b; atom 4 is unused.
CODES = np.array(
    [
        [0.1, 1.0, 0.0, 0.0, 0.0, 0.0],
        [0.0, 2.0, 0.0, 0.3, 0.0, 0.0],
        [9.0, 0.0, 1.0, 0.0, 0.0, 1.0],
        [0.0, 0.0, 1.0, 0.0, 0.0, 2.0],
        [0.0, 0.0, 0.0, 0.5, 0.0, -3.0],
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
    ]
)
ATOMS = AtomTable(np.eye(6), np.array([0, 0, 0, 1, 1, 1]), None, np.ones(6))


def gallery_of(codes=CODES, corners=None):
    n = len(codes)
    corners = np.zeros((n, 2), np.int64) if corners is None else corners
    return PatchSample(np.arange(n), corners, np.full(n, 10.0), csr_array(codes))


def test_atoms_are_sorted_by_usage_in_their_class():
    of_a, of_b = most_used_atoms(ATOMS, gallery_of(), LABELS, ["a", "b"], 5)
    # In patches of a: atom 1 in both, 0 in one, 2 in none; weights do not count.
    assert [use.atom for use in of_a.atoms] == [1, 0, 2]
    assert of_a.atoms[1].fractions == {"a": 0.5, "b": 0.25}
    assert [use.atom for use in of_b.atoms] == [5, 3]
    assert of_b.atoms[0].fractions == {"a": 0.0, "b": 0.75}
    assert of_b.atoms[0].patches == [(4, -3.0), (3, 2.0), (2, 1.0)]
    assert (of_b.n_atoms, of_b.n_active) == (3, 2)
    assert of_a.per_patch == {"a": 1.5, "b": 0.75}
    assert of_b.per_patch == {"a": 0.5, "b": 1.0}


def test_number_of_atoms_is_limited():
    found = most_used_atoms(ATOMS, gallery_of(), LABELS, ["a", "b"], 1)
    assert [[use.atom for use in group.atoms] for group in found] == [[1], [5]]


def test_atoms_are_sorted_by_all_patches_for_other_classes():
    of_a, of_b = most_used_atoms(ATOMS, gallery_of(), ["other"] * 6, ["a", "b"], 5)
    assert [use.atom for use in of_a.atoms] == [0, 1, 2]
    assert of_b.atoms[0].fractions == {"other": 0.5}


def test_patch_labels_are_those_of_the_image_or_the_mask(tmp_path):
    mask = np.zeros((40, 40), np.uint8)
    mask[:, 20:] = 255
    Image.fromarray(mask).save(tmp_path / "mask.png")
    Image.new("RGB", (40, 40)).save(tmp_path / "image.png")
    masked = ImageRecord(tmp_path / "image.png", "", "p", mask=tmp_path / "mask.png")
    corners = np.array([[0, 0], [14, 0], [16, 0], [30, 30], [0, 0], [0, 0]])
    gallery = PatchSample(
        np.array([0, 0, 0, 0, 1, 2]), corners, np.full(6, 10.0), csr_array(np.ones((6, 1)))
    )
    records = [masked, ImageRecord(tmp_path, "spot", "p"), ImageRecord(tmp_path, "rest", "p")]
    detector = RegionDetector("regions", region="spot")
    detector.class_names_ = ["no spot", "spot"]
    no, yes = detector.class_names_
    assert patch_labels(detector, gallery, records) == [no, no, yes, yes, yes, no]
    classifier = TissueClassifier("fast")
    assert patch_labels(classifier, gallery, records)[3:] == ["no label", "spot", "rest"]


@pytest.mark.parametrize("method", ["nearest-mean", "lbp-colour"])
def test_methods_without_atoms_have_none(method):
    model = TissueClassifier("fast", method=method)
    from histodict.methods.registry import get_method
    from histodict.models.image_pipeline import WholeImagePipeline
    from histodict.models.patch_pipeline import PatchPipeline

    kind = PatchPipeline if model.recipe.is_patch_level else WholeImagePipeline
    inner = kind(model.recipe, ["a", "b"], 0, 1)
    inner.classifier_ = get_method(method).load_class()()
    assert inner.atoms() is None and repr(method) in inner.no_atoms_reason()
