"""Tests of the statistics of atoms against a direct computation, and of annotations."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array

from histodict.decision.atom_annotations import (
    AtomAccumulator,
    AtomAnnotations,
    AtomMeans,
    Concept,
    check_name,
    code_signs,
    dominant_code_signs,
)
from histodict.methods.patch_classifier import DistanceContributions


@pytest.mark.parametrize("n_classes", [2, 3, 4])
def test_statistics_are_means_over_the_selected_patches(rng, n_classes):
    n, n_codes = 30, 7
    codes = rng.normal(size=(n, n_codes)) * (rng.random((n, n_codes)) < 0.6)
    # Small, so that also votes are divided whose positive contributions have a sum below 1.
    distances = 0.1 * rng.normal(size=(n_classes, n, n_codes)) * (codes != 0)
    classes, weights = rng.integers(0, n_classes, n), rng.random(n)
    selected = rng.random(n) < 0.7
    accumulator = AtomAccumulator(n_classes, n_codes)
    for rows in (slice(0, 11), slice(11, None)):
        by_class = [csr_array(part[rows]) for part in distances]
        accumulator.add(
            csr_array(codes[rows]),
            DistanceContributions(by_class, np.zeros((len(codes[rows]), n_classes))),
            classes[rows],
            weights[rows],
            selected[rows],
        )
    found = accumulator.mean()

    chosen = codes[selected]
    np.testing.assert_allclose(found.usage, (chosen != 0).mean(axis=0))
    np.testing.assert_allclose(found.codes, np.abs(chosen).mean(axis=0))
    np.testing.assert_allclose(found.mean_codes, chosen.mean(axis=0))
    margins = np.stack(
        [np.delete(distances, i, axis=0).mean(axis=0) - distances[i] for i in range(n_classes)]
    )
    expected = np.einsum("i,cij->cj", weights, margins) / selected.sum()
    np.testing.assert_allclose(found.margins, expected)
    votes = np.zeros((n_classes, n_codes))
    for row in np.flatnonzero(selected):
        favourable = np.maximum(margins[classes[row], row], 0)
        if favourable.any():
            votes[classes[row]] += favourable / favourable.sum()
    np.testing.assert_allclose(found.class_votes, votes / selected.sum())


def test_signs_are_those_of_the_mean_codes_in_the_own_class():
    assert code_signs(np.array([-2.0, 0.0, 0.5])).tolist() == [-1, 1, 1]
    empty = np.zeros(3)
    reference = [
        AtomMeans(empty, empty, np.array(means), empty[None], empty[None])
        for means in ([-1.0, 1.0, -1.0], [1.0, -1.0, -1.0])
    ]
    assert dominant_code_signs(reference, np.array([0, 0, 1])).tolist() == [-1, 1, -1]


def test_concept_is_an_artefact_and_has_a_group_if_one_of_its_atoms_has():
    notes = (
        AtomAnnotations()
        .with_changes([0, 2], name="ink")
        .with_changes([2], artefact=True, group="pen")
    )
    notes = notes.with_changes([3], artefact=True)
    assert notes.concepts(["a:1", "a:2", "b:1", "b:2"]) == [
        Concept("ink", (0, 2), "pen", artefact=True, is_named=True),
        Concept("a:2", (1,)),
        Concept("b:2", (3,), artefact=True),
    ]
    assert not notes.concepts(["a:1", "a:2"])[1].is_named


def test_names_have_at_most_80_characters():
    check_name("x" * 80)
    with pytest.raises(ValueError, match="at most 80 characters"):
        check_name("x" * 81)
