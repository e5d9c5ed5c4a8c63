import numpy as np
import pytest

from histodict.pipeline.concept_answers import ConceptHead, answer_rows, unseen_right
from histodict.pipeline.concepts import Usage


@pytest.fixture
def usage():
    rng = np.random.default_rng(0)
    shares = rng.random((12, 5))
    positive, negative = rng.random((2, 12, 5))
    positive[6:, 2] += 3
    return Usage(np.full(12, 50), shares, positive, negative)


LABELS = ["a"] * 6 + ["b"] * 6


def test_contributions_of_concepts_add_up_to_the_score(usage):
    head = ConceptHead.fit(usage.weights, LABELS)
    parts = head.contributions(usage.weights)
    assert parts.shape == (12, 5)
    direct = head.bias + (usage.weights - head.centre) @ head.weights
    assert parts.sum(axis=1) + head.bias == pytest.approx(direct, abs=1e-9)
    assert head.scores(usage.weights) == pytest.approx(direct, abs=1e-9)


def test_the_concept_that_tells_classes_apart_is_named(usage):
    names = [f"c{k}" for k in range(5)]
    labels = ["a", "a", "", "", "", "", "b", "b", "", "", "", ""]
    _, rows = answer_rows(usage, labels, [f"i{k}" for k in range(12)], names)
    assert [row["answer"] for row in rows] == LABELS
    assert all("'c2'" in row["because"].split(";")[0] for row in rows[6:])


def test_a_patient_is_asked_only_where_both_classes_remain(usage):
    patients = ["p"] * 6 + [f"q{k}" for k in range(6)]
    assert unseen_right(usage, LABELS, patients) == (6, 6)  # all of class a are of one patient


def test_labels_of_another_number_of_classes_are_refused(usage):
    with pytest.raises(ValueError, match="two classes, not 3"):
        ConceptHead.fit(usage.weights, ["a", "b", "c"] * 4)
