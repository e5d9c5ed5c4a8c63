from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from histodict.model_selection.protocols import balanced_folds, fold_totals
from tests.model_selection.manifests import GLAS, UCSB


def imbalance(counts, folds, n_folds):
    """Return Σ ((F − T)/T)² and the number of classes missing in folds."""
    F = fold_totals(counts, np.asarray(folds), n_folds)
    T = counts.sum(axis=0) / n_folds
    return (((F - T) / T) ** 2).sum(), (F == 0).sum()


def test_fold_totals_by_hand():
    counts = np.array([[1, 0], [2, 5], [0, 3]])
    assert fold_totals(counts, np.array([1, 0, 1]), 3).tolist() == [[2, 5], [1, 3], [0, 0]]


def test_close_to_the_best_of_all_divisions(rng):
    for _ in range(5):
        counts = rng.integers(0, 9, (8, 2))
        counts[0], counts[1] = (4, 0), (0, 4)
        every = [imbalance(counts, folds, 2) for folds in product(range(2), repeat=8)]
        best = min(value for value, holes in every if holes == 0)
        reference = np.median([value for value, holes in every if holes == 0])
        found = [imbalance(counts, balanced_folds(counts, 2, rng), 2) for _ in range(5)]
        assert all(holes == 0 for _, holes in found)
        assert min(value for value, _ in found) == pytest.approx(best)
        assert max(value for value, _ in found) < best + 0.25 * (reference - best)


@pytest.mark.parametrize("n_folds", [2, 3, 5])
@pytest.mark.parametrize("patients", [GLAS, UCSB], ids=["glas", "ucsb"])
def test_no_single_move_or_swap_is_better(rng, patients, n_folds):
    counts = np.array([*patients.values()])
    folds = balanced_folds(counts, n_folds, rng)
    # The number of patients has a twentieth of the weight of a class.
    ones = np.ones((len(counts), 1), int)

    def cost(folds):
        return imbalance(counts, folds, n_folds)[0] + 0.05 * imbalance(ones, folds, n_folds)[0]

    for i, j in product(range(len(counts)), repeat=2):
        swapped = folds.copy()
        swapped[[i, j]] = folds[[j, i]]
        assert cost(swapped) > cost(folds) - 1e-8
    for i, fold in product(range(len(counts)), range(n_folds)):
        moved = folds.copy()
        moved[i] = fold
        assert cost(moved) > cost(folds) - 1e-8


def test_single_images_are_divided_evenly(rng):
    counts = np.eye(3, dtype=int)[rng.integers(3, size=500)]
    F = fold_totals(counts, balanced_folds(counts, 7, rng), 7)
    assert np.ptp(F, axis=0).max() <= 1


def test_no_fold_is_empty_and_rare_classes_are_spread():
    counts = np.array(
        [[30, 0, 0], [1, 0, 0], [1, 0, 0], [0, 9, 0], [0, 1, 0], [0, 1, 1], [2, 0, 1]]
    )
    for seed in range(20):
        F = fold_totals(counts, balanced_folds(counts, 3, np.random.default_rng(seed)), 3)
        assert (F.sum(axis=1) > 0).all()
        assert (F > 0).sum(axis=0).tolist() == [3, 3, 2]


# Cases in which evenness alone, or a single start, leaves a class out of more folds than necessary.
HARD = [
    ([[0, 13, 5], [7, 16, 0], [4, 8, 5], [9, 0, 14]], 3, 81),
    ([[0, 0, 13], [17, 0, 12], [19, 10, 7], [0, 2, 0], [7, 8, 0], [0, 12, 3]], 4, 916),
]


@pytest.mark.parametrize(("counts", "n_folds", "seed"), HARD)
def test_fewest_possible_classes_are_missing(counts, n_folds, seed):
    counts = np.array(counts)
    every = product(range(n_folds), repeat=len(counts))
    fewest = min(
        imbalance(counts, folds, n_folds)[1] for folds in every if len(set(folds)) == n_folds
    )
    for s in range(seed, seed + 10):
        folds = balanced_folds(counts, n_folds, np.random.default_rng(s))
        assert imbalance(counts, folds, n_folds)[1] == fewest
