"""A mark that one site leaves on images of one class is detected in every member that uses it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from histodict import EnsembleClassifier
from histodict.datasets.manifest import read_manifest
from histodict.explain.atom_statistics import confounded_atoms_of_members
from histodict.models.recipe import Recipe
from histodict.synthetic.dataset import write_synthetic_dataset

SMALL = Recipe(
    method_parameters={"n_atoms": 12, "n_iter": 4},
    patch_px=12,
    patches_per_class=600,
    features="centred",
    aggregation="margin",
    stain="none",
    quality_filters="none",
)


@pytest.fixture(scope="module")
def with_pen_strokes(tmp_path_factory):
    home = write_synthetic_dataset(tmp_path_factory.mktemp("sites") / "set", 12, 2, size=(96, 80))
    manifest = read_manifest(home / "manifest.csv")
    patients = sorted(set(manifest.patients))
    records = [
        replace(r, site="AB"[patients.index(r.patient) % 2], mpp=0.5) for r in manifest.records
    ]
    for record in records:
        if record.site == "B" and record.label == "inflamed":
            pixels = np.array(Image.open(record.path).convert("RGB"))
            pixels[20:60] = (40, 70, 190)  # a pen mark, with an edge in every patch
            pixels[20:60:6] = (200, 90, 60)
            Image.fromarray(pixels).save(record.path)
    return replace(manifest, records=tuple(records))


def test_confounded_atoms_of_other_members_are_found(with_pen_strokes):
    ensemble = EnsembleClassifier([SMALL, SMALL], folds=2).fit(with_pen_strokes)
    found = confounded_atoms_of_members(ensemble, with_pen_strokes, excluded_member=1)
    assert list(found) == [2] and found[2]
    assert found[2][0].site_variance_fraction > 0.5
    bare = replace(
        with_pen_strokes, records=tuple(replace(r, site=None) for r in with_pen_strokes.records)
    )
    assert confounded_atoms_of_members(ensemble, bare, excluded_member=1) == {}
    assert (
        confounded_atoms_of_members(ensemble.estimators_[0], with_pen_strokes, excluded_member=1)
        == {}
    )
