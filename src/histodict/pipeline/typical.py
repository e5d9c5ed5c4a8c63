"""What training patches of each class referencely say, atom by atom: what an image is held against.

A model keeps it, so that an answer can be explained without the training images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..decisions.atom_evidence import AtomAccumulator, AtomReference, code_signs
from ..methods.patch_classifier import PatchClassifier
from .training_patches import TrainingPatches

_NAMES = ("usage", "codes", "mean_codes", "margins", "class_votes")
_N_PATCHES = 1000  # of a class, about


def fit_class_reference(
    method: PatchClassifier,
    patches: TrainingPatches,
    project: Callable[[NDArray[np.float32]], NDArray[np.float32]],
    n_classes: int,
) -> list[AtomReference]:
    """Of some patches of every class, spread over all of its images."""
    found = []
    for place in range(n_classes):
        rows = np.flatnonzero(patches.labels == place)
        rows = rows[:: max(1, len(rows) // _N_PATCHES)]
        vectors = project(patches.features[rows])
        sums = AtomAccumulator(n_classes, method.n_codes_)
        codes, distances = method.encode(vectors)
        parts = method.distance_contributions(vectors, codes, distances)
        every = np.ones(len(rows))
        sums.add(codes, parts, distances.argmin(axis=1), every, every > 0)
        found.append(sums.mean())
    return found


def class_reference_to_arrays(reference: Sequence[AtomReference]) -> dict[str, NDArray[Any]]:
    """Return the arrays for a model file."""
    return {
        f"class_reference.{name}": np.stack([getattr(each, name) for each in reference])
        for name in _NAMES
    }


def class_reference_from_arrays(arrays: Mapping[str, NDArray[Any]]) -> list[AtomReference]:
    """Return the class statistics from the arrays of a model file."""
    by_name = [arrays[f"class_reference.{name}"] for name in _NAMES]
    return [AtomReference(*of_class) for of_class in zip(*by_name, strict=True)]


def dominant_code_signs(
    reference: Sequence[AtomReference], atom_classes: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Per atom the sign of the sum of its codes in patches of its own class; 1 where it is 0.

    Training leaves an atom in the sign in which codes over its own class's atoms have it more
    often; here all classes' atoms compete, and weights count.
    """
    leaning = np.stack([of_class.mean_codes for of_class in reference])
    own = leaning[atom_classes, np.arange(len(atom_classes))]
    return code_signs(own)
