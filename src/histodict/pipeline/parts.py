"""The parts of an answer: what each concept, and each view of a panel, has to do with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..decisions.atom_notes import atom_labels
from ..execution.texts import percent
from .spoken import ScoreContributions


@dataclass(frozen=True)
class ConceptContribution:
    """What one concept has to do with an answer.

    name : as people named it, else CLASS:NUMBER
    owner : the class whose atoms these are; empty where it is no concept, but a view as a whole
    use : share of the image's patches that use it; None of a view as a whole
    usual_use : by class, the same of its training patches
    adds : (n_scores,), its part of the scores
    usual : by class, its part in what its training patches say
    where : (rows, columns), share of the patches there that use it, NaN on glass
    atoms : their places, the one most used first; sign : in which that one is usually used
    view : of a panel, the place of the member; of_panel : whether it is of one
    why_whole_image : of a view as a whole, why it has no concepts
    """

    name: str
    class_name: str
    adds: NDArray[np.float64]
    usage: float | None = None
    reference_usage: dict[str, float] = field(default_factory=dict)
    reference_contribution: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    positions: NDArray[np.float32] | None = None
    group: str = ""
    artefact: bool = False
    is_named: bool = False
    atoms: tuple[int, ...] = ()
    sign: float = 1.0
    member: int = 0
    of_ensemble: bool = False
    why_whole_image: str = ""

    @property
    def full_name(self) -> str:
        """With the number of its view, as names of different views may be the same."""
        whole = ", as a whole" * (self.usage is None)
        return f"view {self.member + 1}: {self.name}{whole}" if self.of_ensemble else self.name

    @property
    def quoted(self) -> str:
        """In a sentence."""
        name = f"“{self.name}”" if self.is_named else self.name
        return f"{name} of view {self.member + 1}" if self.of_ensemble else name

    def describe_reference(self, name: str) -> str:
        """What is usual in a class: of several atoms their sum, and so at most that; or nothing."""
        if name not in self.reference_usage:
            return ""
        return "at most " * (len(self.atoms) > 1) + percent(self.reference_usage[name])


@dataclass(frozen=True)
class MemberContribution:
    """What a view of a panel says: its place, how it looks, and its part of the scores."""

    member: int
    name: str
    adds: NDArray[np.float64]


def group_by_concept(
    own: ScoreContributions, classes: Sequence[str], of_panel: bool
) -> list[ConceptContribution]:
    """What a view says, concept by concept; as one part where it has no atoms."""
    atoms = own.model.atoms()
    if atoms is None or own.parts is None or own.activity is None:
        name, adds = own.model.recipe.method, own.factor * own.scores
        whole = own.model.no_atoms_reason()
        return [
            ConceptContribution(
                name, "", adds, member=own.member, of_ensemble=of_panel, why_whole_image=whole
            )
        ]
    labels, evidence = atom_labels(atoms.classes, classes), own.activity.patch_statistics
    found = []
    for concept in own.model.atom_annotations.concepts(labels):
        places = [a for a in concept.atoms if a not in own.model.method_.disabled_atoms_]
        if not places:
            continue
        places.sort(key=lambda a: -evidence.usage[a])
        owners = {classes[int(atoms.classes[a])] for a in places}
        found.append(
            ConceptContribution(
                concept.name,
                owners.pop() if len(owners) == 1 else "",
                own.factor * own.parts[:, places].sum(axis=1),
                *_usage(own, places, classes),
                _positions(own, places),
                concept.group,
                concept.artefact,
                concept.is_named,
                tuple(places),
                float(atoms.signs[places[0]]),
                own.member,
                of_panel,
            )
        )
    return [
        part
        for part in found
        if part.usage or any(map(np.any, part.reference_contribution.values()))
    ]


def _usage(
    own: ScoreContributions, places: list[int], classes: Sequence[str]
) -> tuple[float, dict[str, float], dict[str, NDArray[np.float64]]]:
    """Use of a concept, and what is usual, by class: of several atoms, at most their sum."""
    assert own.activity is not None
    alone = float(own.activity.patch_statistics.usage[places].max())
    use = own.activity.total.get(tuple(sorted(places)), alone)
    usual_use = {
        name: min(1.0, float(of_class.usage[places].sum()))
        for name, of_class in zip(classes, own.model.class_reference_, strict=True)
    }
    usual = {
        name: own.factor * parts[:, places].sum(axis=1)
        for name, parts in zip(classes, own.reference, strict=True)
    }
    return use, usual_use, usual


def _positions(own: ScoreContributions, places: list[int]) -> NDArray[np.float32]:
    assert own.activity is not None
    share = own.activity.positions[places].max(axis=0)
    found: NDArray[np.float32] = np.where(own.activity.tissue, share, np.nan).astype(np.float32)
    return found
