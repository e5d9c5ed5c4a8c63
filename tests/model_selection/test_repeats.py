from __future__ import annotations

import numpy as np
import pytest

from histodict.model_selection.protocols import (
    Repeat,
    collect_repeats,
    k_folds,
    learning_curve_splits,
)
from tests.model_selection.manifests import UCSB, manifest_of

MANIFEST = manifest_of(UCSB)


def test_folds_are_joined_per_repeat():
    splits = k_folds(MANIFEST, 5, n_repeats=3)
    # The prediction is a number that encodes image and repeat.
    predictions = [np.array(split.test) + 100.0 * split.repeat for split in splits]
    repeats = collect_repeats(MANIFEST, splits, predictions)
    assert len(repeats) == 3
    for repeat, tested in enumerate(repeats):
        images = (tested.predictions - 100 * repeat).astype(int)
        assert sorted(images) == list(range(58))
        assert tested.labels.tolist() == [MANIFEST.labels[i] for i in images]
        assert tested.patients.tolist() == [MANIFEST.patients[i] for i in images]


def test_columns_remain():
    splits = k_folds(MANIFEST, 2)
    (tested,) = collect_repeats(MANIFEST, splits, [np.ones((len(s.test), 4)) for s in splits])
    assert tested.predictions.shape == (58, 4)


def test_repeats_of_one_training_size_are_collected():
    splits = learning_curve_splits(MANIFEST, (3, 5), n_repeats=2)
    small = [split for split in splits if split.n_per_class == 3]
    assert len(collect_repeats(MANIFEST, small, [split.test for split in small])) == 2
    with pytest.raises(ValueError, match=r"test some images twice .*single n_per_class"):
        collect_repeats(MANIFEST, splits, [split.test for split in splits])


def test_predictions_of_wrong_shape_are_refused():
    splits = k_folds(MANIFEST, 2)
    with pytest.raises(ValueError, match=r"'repeat 1, fold 1' tests \d+ images, .*shape \(1,\)"):
        collect_repeats(MANIFEST, splits, [[1], [1]])
    with pytest.raises(ValueError, match="2 splits, but predictions of 1"):
        collect_repeats(MANIFEST, splits, [splits.splits[0].test])
    with pytest.raises(ValueError, match="one entry per image"):
        Repeat(np.zeros(3), np.zeros(2), np.zeros(3))
    with pytest.raises(ValueError, match="one entry per image"):
        Repeat(np.zeros(0), np.zeros(0), np.zeros(0))
