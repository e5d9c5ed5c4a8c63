"""Would the same atoms be found again: by another seed, by other patients?

The model is trained again, and every atom is held against the atoms of the same class: its best
match is the largest |cos|, and the mean over the trainings is what is said. 1 is the same atom.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..dictionaries.matching import best_matches, match_atoms
from ..execution.progress import Callback, Progress, no_callback
from ..images.manifest import Manifest


@dataclass(frozen=True)
class AtomStability:
    """Per atom (n_atoms,): mean |cos| of its best match with other seeds, and with halves of the
    patients; `matched`: the means over all atoms where no two may share a match.
    """

    seeds: NDArray[np.float64]
    halves: NDArray[np.float64]
    matched_seeds: float
    matched_halves: float
    n_trainings: int


def measure_stability(
    model: Any,
    manifest: Manifest,
    n_trainings: int,
    train: Callable[[int, Manifest], Any],
    callback: Callback = no_callback,
) -> AtomStability:
    """From so many trainings with other seeds on all patients, and as many on halves of them.

    train(seed, images) : a trained model like this one
    """
    rng = np.random.default_rng(model.random_state)
    runs: dict[str, list[tuple[NDArray[np.float64], float]]] = {"seeds": [], "halves": []}
    for place in range(n_trainings):
        callback(Progress("stability", 2 * place, 2 * n_trainings))
        seed = model.random_state + 1 + place
        runs["seeds"].append(_compare(model, train(seed, manifest)))
        callback(Progress("stability", 2 * place + 1, 2 * n_trainings))
        half = train(model.random_state, _half(manifest, rng))
        runs["halves"].append(_compare(model, half))
    callback(Progress("stability", 2 * n_trainings, 2 * n_trainings))
    seeds, halves = (np.mean([best for best, _ in runs[key]], axis=0) for key in runs)
    of_seeds, of_halves = (float(np.mean([mean for _, mean in runs[key]])) for key in runs)
    return AtomStability(seeds, halves, of_seeds, of_halves, n_trainings)


def _compare(ours: Any, theirs: Any) -> tuple[NDArray[np.float64], float]:
    """Best |cos| of each of our atoms, and the mean |cos| of the one-to-one matching."""
    (D, classes), (E, others) = _in_the_open(ours), _in_the_open(theirs)
    best, matched = np.zeros(len(D)), np.zeros(len(D))
    for place in np.unique(classes):
        own, other = classes == place, others == place
        best[own] = best_matches(D[own], E[other]).cosines
        matched[own] = match_atoms(D[own], E[other]).cosines
    return best, float(matched.mean())


def _in_the_open(model: Any) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Atoms as directions among the vectors before any projection, and their classes."""
    atoms, projection = model.model_.atoms(), model.model_.projection_
    D = np.asarray(atoms.D, np.float64)
    if projection:  # components may be whitened, and so no rotation
        D = D @ np.linalg.pinv(projection.components.astype(np.float64)).T
    return D, atoms.classes


def _half(manifest: Manifest, rng: np.random.Generator) -> Manifest:
    """Half of the patients of every class, and at least one."""
    chosen: set[str] = set()
    for name in sorted({record.label for record in manifest.records}):
        patients = sorted({r.patient for r in manifest.records if r.label == name})
        if len(patients) < 2:
            raise ValueError(
                f"stability over halves of the patients needs two patients of every class or more; "
                f"{name or 'the images'} has one"
            )
        chosen |= set(rng.permutation(patients)[: (len(patients) + 1) // 2].tolist())
    return manifest.select([p for p, r in enumerate(manifest.records) if r.patient in chosen])
