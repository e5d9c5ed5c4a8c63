"""Reports of several methods on the same test images warn that the best result is optimistic."""

from types import SimpleNamespace

from histodict.reports.evaluation_tables import selection_warnings


def done(*methods):
    return SimpleNamespace(methods=list(methods))


def test_single_method_has_no_warning():
    assert selection_warnings(done("dfdl")) == []


def test_best_of_several_methods_is_warned_of():
    (text,) = selection_warnings(done("dfdl", "odl", "lbp-colour"))
    assert "the best of 3 methods" in text and "too optimistic" in text


def test_thresholds_adapted_to_the_test_images_are_named():
    (text,) = selection_warnings(done("dfdl+unlabelled"))
    assert "dfdl+unlabelled was adapted to the test images" in text
