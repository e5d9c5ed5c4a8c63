import numpy as np
import pytest

from histodict.explain.concept_discovery import (
    ConceptClassifier,
    ConceptUsage,
    concept_prediction_rows,
    leave_one_patient_out_accuracy,
)


@pytest.fixture
def usage():
    rng = np.random.default_rng(0)
    shares = rng.random((12, 5))
    positive, negative = rng.random((2, 12, 5))
    positive[6:, 2] += 3
    return ConceptUsage(np.full(12, 50), shares, positive, negative)


LABELS = ["a"] * 6 + ["b"] * 6


def test_concept_contributions_add_up_to_the_score(usage):
    head = ConceptClassifier.fit(usage.weights, LABELS)
    contributions = head.contributions(usage.weights)
    assert contributions.shape == (12, 1, 5)
    direct = head.bias + (usage.weights - head.centre) @ head.weights.T
    np.testing.assert_allclose(contributions.sum(axis=2) + head.bias, direct, atol=1e-9)
    np.testing.assert_allclose(head.scores(usage.weights), direct, atol=1e-9)


def test_separating_concept_is_named(usage):
    names = [f"c{k}" for k in range(5)]
    labels = ["a", "a", "", "", "", "", "b", "b", "", "", "", ""]
    _, rows = concept_prediction_rows(usage, labels, [f"i{k}" for k in range(12)], names)
    assert [row["label"] for row in rows] == LABELS
    assert all("'c2'" in row["because"].split(";")[0] for row in rows[6:])


def test_patients_are_left_out_only_if_both_classes_remain(usage):
    patients = ["p"] * 6 + [f"q{k}" for k in range(6)]
    assert leave_one_patient_out_accuracy(usage, LABELS, patients) == (
        6,
        6,
    )  # all of class a are of one patient


def test_contributions_of_three_classes_add_up(usage):
    """The third class uses concept 4 alone; the others are unchanged."""
    usage.positive[8:, 4] += 3
    usage.positive[8:, 2] -= 3
    labels = ["a"] * 6 + ["b"] * 2 + ["c"] * 4
    expected = [label if place % 2 else "" for place, label in enumerate(labels)]
    expected[6] = "b"
    head, rows = concept_prediction_rows(
        usage, expected, [f"i{k}" for k in range(12)], list("vwxyz")
    )
    assert [row["label"] for row in rows] == labels
    contributions, scores = head.contributions(usage.weights), head.scores(usage.weights)
    assert contributions.shape == (12, 3, 5)
    np.testing.assert_allclose(contributions.sum(axis=2) + head.bias, scores, atol=1e-9)
    assert rows[11]["score"] == rows[11]["score_c"] == max(np.round(scores[11], 6))
    assert "'z'" in rows[11]["because"].split(";")[0] and "labelled" in rows[11]["because"]
    assert leave_one_patient_out_accuracy(usage, expected, [f"p{k}" for k in range(12)])[1] > 0


def test_labels_of_one_class_are_refused(usage):
    with pytest.raises(ValueError, match="two classes or more"):
        ConceptClassifier.fit(usage.weights, ["a"] * 12)
