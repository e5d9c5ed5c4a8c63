"""Tests of the stain model: variation between patients, and the law of Beer and Lambert."""

from dataclasses import astuple, replace

import numpy as np
import pytest
from scipy import ndimage

from histodict.synthetic.tissue_generator import make_tissue_image, random_stain


def test_stain_vectors_are_unit_and_differ_between_patients():
    stains = [random_stain(np.random.default_rng(i)) for i in range(50)]
    for vectors in ([s.haematoxylin for s in stains], [s.eosin for s in stains]):
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1)
        assert np.min(vectors) > 0
        assert np.std(vectors, axis=0).min() > 0.005
    strengths = np.array([(s.haematoxylin_strength, s.eosin_strength) for s in stains])
    assert np.all(strengths.max(axis=0) > 2 * strengths.min(axis=0))
    assert 190 < np.min([s.white for s in stains]) <= np.max([s.white for s in stains]) < 255
    assert len({astuple(s) for s in stains}) == len(stains)


def test_density_is_proportional_to_the_strength_of_the_stain():
    """Beer-Lambert: twice the dye gives twice the optical density on the same tissue."""
    stain = replace(random_stain(np.random.default_rng(0)), haematoxylin_strength=0.5)
    stain = replace(stain, eosin_strength=0.5)
    twice = replace(stain, haematoxylin_strength=1.0, eosin_strength=1.0)
    weak, strong = (
        ndimage.gaussian_filter(
            make_tissue_image("healthy", s, np.random.default_rng(3), (320, 240)).astype(float),
            (6, 6, 0),
        )
        for s in (stain, twice)
    )
    ratio = np.log(strong / np.array(stain.white)) / np.log(weak / np.array(stain.white))
    assert np.median(ratio) == pytest.approx(2, abs=0.15)
