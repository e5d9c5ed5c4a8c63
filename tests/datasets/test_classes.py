"""Tests of the positive class and the order of classes."""

from __future__ import annotations

import pytest

from histodict.datasets.manifest import ImageRecord, Manifest, ManifestError
from histodict.datasets.record import guess_positive_class, order_classes


@pytest.mark.parametrize(
    ("healthy", "ill"),
    [
        ("normal", "adenocarcinoma"),
        ("benign", "malignant"),
        ("normal", "abnormal"),
        ("not MVP", "MVP"),
        ("UDH", "DCIS"),
        ("Normal tissue", "Carcinoma"),
        ("1_normal", "0_cancer"),
        ("non-tumour", "tumour"),
        ("no_tumor", "tumor"),
        ("uninvolved", "involved"),
        ("Control", "Alport"),
        ("Stroma", "Tumor"),
        ("stroma", "carcinoma in situ"),
    ],
)
def test_positive_class_is_guessed_from_names(healthy, ill):
    for names in ([healthy, ill], [ill, healthy]):
        assert guess_positive_class(names) == ill
        assert order_classes(names) == [healthy, ill]


@pytest.mark.parametrize(
    "names",
    [("grade 1", "grade 2"), ("tumour", "carcinoma"), ("benign", "normal"), ("b", "a", "c")],
)
def test_uninformative_names_are_sorted(names):
    assert guess_positive_class(names) is None
    assert order_classes(names) == sorted(names)


def manifest(tmp_path, *labels):
    records = (ImageRecord(tmp_path / f"{i}.png", label, str(i)) for i, label in enumerate(labels))
    return Manifest(tuple(records))


def test_requested_positive_class_overrides_the_guess(tmp_path):
    images = manifest(tmp_path, "normal", "cancer", "normal")
    assert images.classes == ["normal", "cancer"]
    requested = images.with_positive("normal")
    assert requested.classes == requested.select([0, 1]).classes == ["cancer", "normal"]


def test_invalid_positive_class_is_refused(tmp_path):
    with pytest.raises(ManifestError, match="unknown positive class 'tumour'"):
        manifest(tmp_path, "normal", "cancer").with_positive("tumour")
    with pytest.raises(ManifestError, match="there are 3 classes instead of two"):
        manifest(tmp_path, "a", "b", "c").with_positive("a")
