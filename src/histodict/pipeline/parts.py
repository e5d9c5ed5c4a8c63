"""The parts of an answer: what each concept, and each view of a panel, has to do with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..decisions.atom_notes import atom_labels
from ..execution.texts import percent
from .spoken import Spoken


@dataclass(frozen=True)
class Part:
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
    why_whole : of a view as a whole, why it has no concepts
    """

    name: str
    owner: str
    adds: NDArray[np.float64]
    use: float | None = None
    usual_use: dict[str, float] = field(default_factory=dict)
    usual: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    where: NDArray[np.float32] | None = None
    group: str = ""
    artefact: bool = False
    is_named: bool = False
    atoms: tuple[int, ...] = ()
    sign: float = 1.0
    view: int = 0
    of_panel: bool = False
    why_whole: str = ""

    @property
    def full_name(self) -> str:
        """With the number of its view, as names of different views may be the same."""
        whole = ", as a whole" * (self.use is None)
        return f"view {self.view + 1}: {self.name}{whole}" if self.of_panel else self.name

    @property
    def quoted(self) -> str:
        """In a sentence."""
        name = f"“{self.name}”" if self.is_named else self.name
        return f"{name} of view {self.view + 1}" if self.of_panel else name

    def usual_words(self, name: str) -> str:
        """What is usual in a class: of several atoms their sum, and so at most that; or nothing."""
        if name not in self.usual_use:
            return ""
        return "at most " * (len(self.atoms) > 1) + percent(self.usual_use[name])


@dataclass(frozen=True)
class Vote:
    """What a view of a panel says: its place, how it looks, and its part of the scores."""

    view: int
    name: str
    adds: NDArray[np.float64]


def parts_of(own: Spoken, classes: Sequence[str], of_panel: bool) -> list[Part]:
    """What a view says, concept by concept; as one part where it has no atoms."""
    atoms = own.model.atoms()
    if atoms is None or own.parts is None or own.look is None:
        name, adds = own.model.recipe.method, own.factor * own.scores
        whole = own.model.why_no_atoms()
        return [Part(name, "", adds, view=own.view, of_panel=of_panel, why_whole=whole)]
    labels, evidence = atom_labels(atoms.classes, classes), own.look.evidence
    found = []
    for concept in own.model.notes.concepts(labels):
        places = [a for a in concept.atoms if a not in own.model.method_.off_]
        if not places:
            continue
        places.sort(key=lambda a: -evidence.shares[a])
        owners = {classes[int(atoms.classes[a])] for a in places}
        found.append(
            Part(
                concept.name,
                owners.pop() if len(owners) == 1 else "",
                own.factor * own.parts[:, places].sum(axis=1),
                *_use(own, places, classes),
                _where(own, places),
                concept.group,
                concept.artefact,
                concept.is_named,
                tuple(places),
                float(atoms.signs[places[0]]),
                own.view,
                of_panel,
            )
        )
    return [part for part in found if part.use or any(map(np.any, part.usual.values()))]


def _use(
    own: Spoken, places: list[int], classes: Sequence[str]
) -> tuple[float, dict[str, float], dict[str, NDArray[np.float64]]]:
    """Use of a concept, and what is usual, by class: of several atoms, at most their sum."""
    assert own.look is not None
    alone = float(own.look.evidence.shares[places].max())
    use = own.look.together.get(tuple(sorted(places)), alone)
    usual_use = {
        name: min(1.0, float(of_class.shares[places].sum()))
        for name, of_class in zip(classes, own.model.typical_, strict=True)
    }
    usual = {
        name: own.factor * parts[:, places].sum(axis=1)
        for name, parts in zip(classes, own.usual, strict=True)
    }
    return use, usual_use, usual


def _where(own: Spoken, places: list[int]) -> NDArray[np.float32]:
    assert own.look is not None
    share = own.look.where[places].max(axis=0)
    found: NDArray[np.float32] = np.where(own.look.tissue, share, np.nan).astype(np.float32)
    return found
