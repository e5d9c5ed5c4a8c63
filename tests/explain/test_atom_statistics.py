"""Tests of atom statistics with planted effects, of dictionary stability and of atom
annotations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array

from histodict import TissueClassifier
from histodict.datasets.manifest import ImageRecord, read_manifest
from histodict.decision.atom_annotations import (
    AtomAnnotations,
    atom_labels,
    check_atom_annotations,
    parse_atom_selector,
)
from histodict.explain.atom_statistics import compute_atom_statistics, measure_stability
from histodict.explain.patch_sample import PatchSample
from histodict.models.image_pipeline import AtomTable
from histodict.models.recipe import Recipe
from histodict.synthetic.dataset import write_synthetic_dataset

CLASSES = ["a", "b"]
ATOMS = AtomTable(np.eye(4), np.array([0, 0, 1, 1]), None, np.ones(4))


def planted(n_patients=12, n_patches=20, seed=0):
    """Atom 1 separates the classes; atom 2 is used by patients of b from site z alone."""
    rng = np.random.default_rng(seed)
    records, codes, images, labels = [], [], [], []
    for place in range(2 * n_patients):
        label, site = CLASSES[place % 2], "yz"[(place // 2) % 2]
        records.append(ImageRecord(Path(f"{place}.png"), label, f"p{place}", site=site))
        for _ in range(n_patches):
            used = rng.random(4) < [0.5, 0.8 if label == "a" else 0.1, 0.0, 0.3]
            used[2] = label == "b" and site == "z" and rng.random() < 0.6
            codes.append(used * 1.0)
            images.append(place)
            labels.append(label)
    n = len(codes)
    return (
        PatchSample(
            np.array(images), np.zeros((n, 2), int), np.ones(n), csr_array(np.array(codes))
        ),
        labels,
        records,
    )


def test_planted_effects_are_recovered():
    gallery, labels, records = planted()
    statistics = compute_atom_statistics(
        ATOMS, AtomAnnotations(), gallery, labels, records, CLASSES
    )
    assert [atom.label for atom in statistics] == ["a:1", "a:2", "b:1", "b:2"]
    assert [atom.is_site_confounded for atom in statistics] == [False, False, True, False]
    used = gallery.codes.toarray() != 0
    own = np.array(labels) == "b"
    assert statistics[2].fractions["b"] == pytest.approx(used[own, 2].mean())
    assert statistics[2].fractions["a"] == 0 and statistics[2].n_patients == 6
    assert statistics[0].n_patients == statistics[0].of_patients == 24
    assert statistics[1].auc == 1 and statistics[1].auc_low > 0.9
    assert 0.2 < statistics[3].auc < 0.8
    assert statistics[2].site == "z" and statistics[2].site_excess == pytest.approx(0.6, abs=0.15)
    assert statistics[2].site_p_value <= 0.01 and statistics[2].site_variance_fraction > 0.8
    assert (
        statistics[2].group_variance_share["site"].low > 0.3
        and statistics[3].group_variance_share["site"].low == 0
    )
    assert np.isnan(
        statistics[2].group_variance_share["patient"].value
    )  # there is one image per patient
    assert (
        statistics[2].row()["similarity_other_seeds"] is None and statistics[2].row()["usage_b"] > 0
    )


def test_patient_and_slide_effects_are_reported_but_not_flagged():
    """Atom 0 follows the patient, atom 1 the slide, atom 3 neither; there are no sites."""
    rng = np.random.default_rng(1)
    records, codes, images, labels = [], [], [], []
    for patient in range(12):
        of_patient = rng.choice([0.1, 0.7])
        for slide in range(2):
            of_slide = (0.1, 0.7)[slide]
            for picture in range(3):
                label, name = CLASSES[patient % 2], f"p{patient}-{slide}"
                path = Path(f"{name}-{picture}.png")
                records.append(ImageRecord(path, label, f"p{patient}", slide=name))
                codes.append(rng.random((60, 4)) < [of_patient, of_slide, 0.3, 0.4])
                images += [len(records) - 1] * 60
                labels += [label] * 60
    n = len(images)
    used = csr_array(np.concatenate(codes).astype(float))
    gallery = PatchSample(np.array(images), np.zeros((n, 2), int), np.ones(n), used)
    statistics = compute_atom_statistics(
        ATOMS, AtomAnnotations(), gallery, labels, records, CLASSES
    )
    assert (
        statistics[0].group_variance_share["patient"].low > 0.5
        and statistics[0].group_variance_share["slide"].value < 0.3
    )
    assert (
        statistics[1].group_variance_share["slide"].low > 0.5
        and statistics[1].group_variance_share["patient"].low == 0
    )
    assert (
        statistics[3].group_variance_share["patient"].low == 0
        and statistics[3].group_variance_share["slide"].low == 0
    )
    assert np.isnan(statistics[0].group_variance_share["site"].value) and not any(
        atom.is_site_confounded for atom in statistics
    )
    row = statistics[1].row()
    assert (
        row["variance_share_slide"] == statistics[1].group_variance_share["slide"].value
        and row["variance_share_site"] is None
    )
    assert (
        row["variance_share_slide_low"]
        < row["variance_share_slide"]
        < row["variance_share_slide_high"]
    )


def test_without_sites_nothing_is_flagged():
    gallery, labels, records = planted()
    bare = [ImageRecord(r.path, r.label, r.patient) for r in records]
    statistics = compute_atom_statistics(ATOMS, AtomAnnotations(), gallery, labels, bare, CLASSES)
    assert not any(atom.is_site_confounded for atom in statistics)
    assert all(np.isnan(atom.site_p_value) for atom in statistics)


def test_unknown_sites_are_not_a_site():
    """One known site and missing values leave nothing to compare."""
    gallery, labels, records = planted()
    sites = [r.site if r.site == "z" else None for r in records]
    half = [
        ImageRecord(r.path, r.label, r.patient, site=s) for r, s in zip(records, sites, strict=True)
    ]
    statistics = compute_atom_statistics(ATOMS, AtomAnnotations(), gallery, labels, half, CLASSES)
    assert not any(atom.is_site_confounded for atom in statistics)
    assert all(np.isnan(atom.site_p_value) and atom.site == "" for atom in statistics)


def test_data_without_site_effect_are_rarely_flagged():
    flagged = 0
    for seed in range(20):
        gallery, labels, records = planted(seed=seed)
        rng = np.random.default_rng(seed)
        sites = rng.permutation([record.site for record in records])
        mixed = [
            ImageRecord(r.path, r.label, r.patient, site=s)
            for r, s in zip(records, sites, strict=True)
        ]
        statistics = compute_atom_statistics(
            ATOMS, AtomAnnotations(), gallery, labels, mixed, CLASSES
        )
        flagged += any(atom.is_site_confounded for atom in statistics)
    assert flagged <= 1


def test_top_patches_are_of_different_patients():
    gallery, _, records = planted()
    patient_indices = np.arange(len(records))
    users = gallery.top_patches(0, 8, patient_indices)
    assert len({int(gallery.images[patch]) for patch, _ in users}) == 8


# --- stability ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    folder = write_synthetic_dataset(tmp_path_factory.mktemp("set") / "t", 4, 2, size=(120, 96))
    return read_manifest(folder / "manifest.csv")


SMALL = Recipe(
    method_parameters={"n_atoms": 6, "n_iter": 2},
    patch_px=12,
    patches_per_class=150,
    features="centred",
    aggregation="margin",
)


def test_stability_is_1_for_the_same_training_and_lower_for_others(manifest):
    model = TissueClassifier(SMALL).fit(manifest)
    same = measure_stability(model, manifest, 1, lambda seed, images: model)
    np.testing.assert_allclose(same.other_seeds, 1, atol=1e-6)
    assert same.matched_halves == pytest.approx(1)
    requested = []

    def train(seed, images):
        requested.append((seed, len(images.records)))
        return TissueClassifier(SMALL, random_state=seed).fit(images)

    other = measure_stability(model, manifest, 2, train)
    assert {seed for seed, _ in requested} == {0, 1, 2}
    assert min(n for _, n in requested) < len(manifest.records)
    assert 0.2 < other.matched_other_seeds < 1 and (other.other_seeds >= 0).all()
    assert (
        other.halves.shape == (12,) and other.other_seeds.mean() >= other.matched_other_seeds - 1e-9
    )


def test_projected_atoms_are_compared_in_the_original_space(manifest):
    from dataclasses import replace

    recipe = replace(SMALL, n_components=8, whiten=True)
    model = TissueClassifier(recipe).fit(manifest)
    same = measure_stability(
        model, manifest, 1, lambda seed, images: TissueClassifier(recipe).fit(manifest)
    )
    np.testing.assert_allclose(same.other_seeds, 1, atol=1e-5)


# --- annotations --------------------------------------------------------------------------------


def test_atoms_are_selected_by_class_and_number_or_by_name():
    labels = atom_labels(np.array([0, 1, 1]), ["a, b", "c:d"])
    assert labels == ["a, b:1", "c:d:1", "c:d:2"]
    notes = AtomAnnotations().with_changes([1, 2], name="fat, lots")
    assert parse_atom_selector("c:d:2", labels, notes) == [2]
    assert parse_atom_selector("fat, lots", labels, notes) == [1, 2]
    assert parse_atom_selector("c:d:1, c:d:2", labels, notes) == [1, 2]
    with pytest.raises(ValueError, match="unknown atom 'x:1'"):
        parse_atom_selector("x:1", labels, notes)


def test_annotations_are_dated_and_removed_if_empty():
    notes = AtomAnnotations().with_changes([3], name="fat", disabled=True)
    (note,) = notes.to_list()
    assert note["atom"] == 3 and len(note["date"]) == 10
    check_atom_annotations(notes.to_list())
    assert AtomAnnotations.from_list(notes.to_list()) == notes
    assert not notes.with_changes([3], name="", disabled=False)


@pytest.mark.parametrize(
    "change",
    [
        {"atom": -1},
        {"atom": True},
        {"name": "two\nlines"},
        {"name": " padded"},
        {"name": "x" * 81},
        {"disabled": 1},
        {"date": "yesterday"},
        {"more": 1},
    ],
)
def test_invalid_annotation_is_refused(change):
    (note,) = AtomAnnotations().with_changes([3], name="fat").to_list()
    with pytest.raises(ValueError):
        check_atom_annotations([note | change])
    with pytest.raises(ValueError, match="one annotation"):
        check_atom_annotations([note, note])
    with pytest.raises(ValueError):
        check_atom_annotations({})
