from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from histodict.decision.aggregation import (
    LinearAggregator,
    PatchStatistics,
    patch_margins,
    predicted_class,
    smooth_margins,
)
from histodict.patches.grid import PatchGrid
from histodict.patches.patch_map import PatchMap


def statistics_of(residuals, codes):
    """Return the statistics of an image whose patches all lie on tissue."""
    return PatchStatistics.from_map(residuals.argmin(axis=1), patch_margins(residuals), codes)


def image(rng, share, n_patches=200, n_classes=2):
    """Return the statistics of an image in which this share of the patches is of class 1."""
    residuals = rng.uniform(0.5, 1.0, (n_patches, n_classes))
    nearest = np.where(np.arange(n_patches) < share * n_patches, 1, 0)
    residuals[np.arange(n_patches), nearest] = 0.2
    return statistics_of(residuals, np.array([nearest.sum(), n_patches - nearest.sum()], float))


def test_statistics_count_tissue_only(rng):
    residuals = rng.random((6, 10, 3))
    margins = patch_margins(residuals.reshape(-1, 3)).reshape(6, 10, 3)
    predicted_classes = residuals.argmin(axis=2)
    background = rng.random((6, 10)) < 0.4
    predicted_classes[background] = -1
    statistics = PatchStatistics.from_map(predicted_classes, margins, np.zeros(5))
    assert statistics.n_patches == (~background).sum()
    assert statistics.class_counts.tolist() == [(predicted_classes == i).sum() for i in range(3)]
    np.testing.assert_allclose(statistics.margins, margins[~background].sum(axis=0))
    np.testing.assert_allclose(statistics.proportions.sum(), 1)


def test_neighbours_are_averaged_on_tissue_only(rng):
    margins = rng.standard_normal((7, 9, 2)).astype(np.float32)
    tissue = rng.random((7, 9)) < 0.7
    smooth = smooth_margins(margins, tissue, 1)
    for row, column in np.ndindex(7, 9):
        rows = slice(max(0, row - 1), row + 2)
        columns = slice(max(0, column - 1), column + 2)
        around = margins[rows, columns][tissue[rows, columns]]
        expected = around.mean(axis=0) if tissue[row, column] else 0
        np.testing.assert_allclose(smooth[row, column], expected, atol=1e-6)


def test_margins_are_positive_for_the_predicted_class_and_sum_to_zero(rng):
    residuals = rng.random((40, 4))
    margins = patch_margins(residuals)
    np.testing.assert_allclose(margins.sum(axis=1), 0, atol=1e-12)
    np.testing.assert_array_equal(margins.argmax(axis=1), residuals.argmin(axis=1))
    np.testing.assert_allclose(
        patch_margins(residuals[:, :2])[:, 1], residuals[:, 0] - residuals[:, 1]
    )


@pytest.mark.parametrize("rule", ["proportion", "margin", "codes", "margin-and-codes"])
def test_separable_images_are_separated(rng, rule):
    shares = np.concatenate([rng.uniform(0.1, 0.4, 12), rng.uniform(0.6, 0.9, 12)])
    labels = np.repeat([0, 1], 12)
    fitted = LinearAggregator.fit(rule, [image(rng, s) for s in shares], labels)
    assert [predicted_class(fitted.scores(image(rng, s))) for s in (0.2, 0.35, 0.65, 0.8)] == [
        0,
        0,
        1,
        1,
    ]


def test_theta_lies_between_the_classes_and_changes_the_prediction(rng):
    shares = np.concatenate([np.linspace(0.1, 0.3, 8), np.linspace(0.7, 0.9, 8)])
    fitted = LinearAggregator.fit(
        "proportion", [image(rng, s) for s in shares], np.repeat([0, 1], 8)
    )
    theta = fitted.threshold
    assert 0.3 < theta < 0.7
    assert theta == pytest.approx(0.5, abs=0.05)
    assert predicted_class(fitted.scores(image(rng, theta - 0.02))) == 0
    assert predicted_class(fitted.scores(image(rng, theta + 0.02))) == 1


def test_unbalanced_classes_do_not_move_theta_to_the_edge(rng):
    shares = np.concatenate([rng.uniform(0.1, 0.3, 60), rng.uniform(0.7, 0.9, 4)])
    labels = np.repeat([0, 1], [60, 4])
    fitted = LinearAggregator.fit("proportion", [image(rng, s) for s in shares], labels)
    assert 0.3 < fitted.threshold < 0.7


def test_three_classes(rng):
    def of_class(i):
        residuals = rng.uniform(0.4, 1.0, (100, 3))
        residuals[:70, i] = 0.1
        return statistics_of(residuals, np.zeros(6))

    labels = np.arange(18) % 3
    fitted = LinearAggregator.fit("proportion", [of_class(i) for i in labels], labels)
    assert [predicted_class(fitted.scores(of_class(i))) for i in (0, 1, 2)] == [0, 1, 2]
    assert fitted.threshold is None


def test_two_features_have_equal_weight_whatever_their_scale(rng):
    """The mean of the contributions of margin and root codes, each divided by its own scale."""
    shares = np.concatenate([rng.uniform(0.1, 0.5, 12), rng.uniform(0.5, 0.9, 12)])
    images, labels = [image(rng, s) for s in shares], np.repeat([0, 1], 12)
    fitted = LinearAggregator.fit("margin-and-codes", images, labels)
    assert fitted.threshold is None
    louder = [
        PatchStatistics(e.n_patches, e.class_counts, 1e4 * e.margins, e.codes) for e in images
    ]  # another unit of the margin
    other = LinearAggregator.fit("margin-and-codes", louder, labels)
    for one, two in zip(images, louder, strict=True):
        np.testing.assert_allclose(fitted.scores(one), other.scores(two), atol=1e-6)
    margin = LinearAggregator.fit("margin", images, labels)
    n_margin = margin.weights.size
    parts = np.array(
        [
            [
                fitted.weights[0, :n_margin] @ (e.margins[1:] / e.n_patches),
                fitted.weights[0, n_margin:] @ np.sqrt(e.codes / e.n_patches),
            ]
            for e in images
        ]
    )
    np.testing.assert_allclose(
        parts.sum(axis=1) + fitted.bias[0], [fitted.scores(e)[0] for e in images]
    )
    output = np.array([margin.scores(e)[0] for e in images])
    scale = np.sqrt(np.mean(output**2))
    np.testing.assert_allclose(
        fitted.weights[0, :n_margin], margin.weights[0] / (2 * scale), rtol=1e-6
    )


@pytest.mark.filterwarnings("error")
def test_constant_feature_is_ignored(rng):
    shares = np.concatenate([rng.uniform(0.1, 0.4, 6), rng.uniform(0.6, 0.9, 6)])
    labels = np.repeat([0, 1], 6)
    abstaining = [
        PatchStatistics(e.n_patches, e.class_counts, e.margins, np.zeros(2))
        for e in map(image_of(rng), shares)
    ]
    fitted = LinearAggregator.fit("margin-and-codes", abstaining, labels)
    assert [predicted_class(fitted.scores(e)) for e in abstaining] == labels.tolist()


def image_of(rng):
    return lambda share: image(rng, share)


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("name", ["margin", "margin-and-codes"])
def test_patch_scores_of_margin_aggregators_average_to_the_image_score(rng, name, n_classes):
    """By definition: weight times margin, and the rest of the score in equal parts."""
    images = [image(rng, 0.2 + 0.1 * k, 100, n_classes) for k in range(6)]
    labels = np.arange(6) * n_classes // 6
    rule = LinearAggregator.fit(name, images, labels)
    residuals = rng.random((5, 6, n_classes))
    margins = patch_margins(residuals.reshape(-1, n_classes)).reshape(5, 6, n_classes)
    predicted_classes = residuals.argmin(axis=2).astype(np.int16)
    predicted_classes[0, :3] = -1
    tissue = predicted_classes >= 0
    statistics = PatchStatistics.from_map(predicted_classes, margins, rng.random(2))
    scores = rule.scores(statistics)
    grid = PatchGrid(5, 6, 10, 10, 1.0)
    raw = PatchMap(grid, predicted_classes, margins, tuple("abc"[:n_classes]), Path("x"))
    shown = raw.centre_on_score(rule.patch_score_map(margins), scores)
    own = margins[..., 1:] if n_classes == 2 else margins
    weights = rule.weights[:, : own.shape[-1]]
    mean = own[tissue].mean(axis=0)
    expected = own @ weights.T + (scores - weights @ mean)
    found = shown.margins[..., 1:] if n_classes == 2 else shown.margins
    np.testing.assert_allclose(found[tissue], expected[tissue], atol=1e-5)
    np.testing.assert_allclose(found[tissue].mean(axis=0), scores, atol=1e-5)
    np.testing.assert_array_equal(shown.tissue, tissue)
    called = (expected[..., 0] > 0) if n_classes == 2 else expected.argmax(axis=2)
    np.testing.assert_array_equal(shown.predicted_classes[tissue], called[tissue])


@pytest.mark.parametrize("name", ["proportion", "codes"])
def test_other_aggregators_have_no_patch_scores(rng, name):
    images = [image(rng, 0.1 + 0.1 * k) for k in range(8)]
    rule = LinearAggregator.fit(name, images, np.arange(8) // 4)
    assert rule.patch_score_map(np.zeros((2, 2, 2), np.float32)) is None
    at = (0.31, 0.25) if name == "proportion" else None
    text = rule.describe_decision(["healthy", "inflamed"], at)
    if name == "proportion":
        assert text == "31 % of the patches; inflamed if ≥ 25 %"
    else:
        assert "independent of the colours" in text
