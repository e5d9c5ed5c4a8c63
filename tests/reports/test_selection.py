"""Reports of several methods on the same test images say that the best of them looks too good."""

from types import SimpleNamespace

from histodict.reports.evaluation_tables import selection_text


def done(*methods):
    return SimpleNamespace(methods=list(methods))


def test_one_method_needs_no_warning():
    assert selection_text(done("dfdl")) == []


def test_the_best_of_several_looks_too_good():
    (text,) = selection_text(done("dfdl", "odl", "lbp-colour"))
    assert "the best of these 3 methods" in text and "too optimistic" in text


def test_thresholds_adapted_to_the_test_images_are_named():
    (text,) = selection_text(done("dfdl+unlabelled"))
    assert "dfdl+unlabelled was adapted to the test images" in text
