"""What people have said of a model's atoms: names, groups, artefacts, and which are switched off.

Atoms of the same name are one concept: what they do is added up. An atom goes by CLASS:NUMBER, the
number counted from 1 within its class, or by its name.

What every atom has to do with an image's score: parts that add up to it.

`image_rules.Evidence` says what the patches of an image said together; here the same is said atom
by atom, and `Aggregator.parts` carries it through the rule:

| feature of the rule | an atom's part in it |
|---|---|
| margin | the mean of its parts in the patches' margins (`methods.atom_parts`) |
| proportion | its share of the patches' votes: one is shared among all that spoke for the winner |
| codes, roots of codes | the atom's own number |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from itertools import count
from reprlib import repr as short
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import uniform_filter
from scipy.sparse import csr_array

from ..methods.patch_classifier import DistanceContributions
from ..utils.validation import check_kind, check_whole_number


def code_signs(leaning: NDArray[np.float64]) -> NDArray[np.float64]:
    """In which sign atoms are used whose codes lean so: 1 where they lean to neither side."""
    return np.where(leaning < 0, -1.0, 1.0)


@dataclass(frozen=True)
class AtomReference:
    """Means over the patches of an image, or of a class.

    usage : (n_codes,), fraction of the patches that use an atom
    codes : (n_codes,), mean |code|
    mean_codes : (n_codes,), mean code
    margins : (n_classes, n_codes), contributions to the mean margin of each class
    class_votes : (n_classes, n_codes), contributions to the fraction of patches of each class
    """

    usage: NDArray[np.float64]
    codes: NDArray[np.float64]
    mean_codes: NDArray[np.float64]
    margins: NDArray[np.float64]
    class_votes: NDArray[np.float64]


class AtomAccumulator:
    """Adds up atom evidence over blocks of patches; what is said is the mean over those chosen."""

    def __init__(self, n_classes: int, n_codes: int) -> None:
        self.n_patches = 0
        self._users, self._codes, self._leaning = np.zeros((3, n_codes))
        self._distances = np.zeros((n_classes, n_codes))
        self._class_counts = np.zeros((n_classes, n_codes))

    def add(
        self,
        codes: csr_array,
        parts: DistanceContributions,
        winners: NDArray[np.integer],
        weights: NDArray[np.float64],
        chosen: NDArray[np.bool_],
    ) -> None:
        """Patches' codes, their parts, the class that won each, how much its margin counts, and
        which of them are chosen: by `patch_weights` the margins of others may count, too.
        """
        own = codes[np.flatnonzero(chosen)]
        self.n_patches += own.shape[0]
        self._users += np.bincount(own.indices[own.data != 0], minlength=own.shape[1])
        self._codes += np.asarray(abs(own).sum(axis=0), np.float64).ravel()
        self._leaning += np.asarray(own.sum(axis=0), np.float64).ravel()
        for place, part in enumerate(parts.by_class):
            self._distances[place] += part.T @ weights
            won = np.flatnonzero((winners == place) & chosen)
            if len(won):
                self._class_counts[place] += _votes(parts.of_margin(place)[won])

    def mean(self) -> AtomReference:
        n = max(self.n_patches, 1)
        left, n_classes = self._distances / n, len(self._distances)
        margins = (left.sum(axis=0) - left) / (n_classes - 1) - left
        used = self._users / n, self._codes / n, self._leaning / n
        return AtomReference(*used, margins, self._class_counts / n)


def _votes(spoken: csr_array) -> NDArray[np.float64]:
    """One vote of every row, shared among what is positive in it; summed over the rows."""
    for_it = csr_array(spoken.maximum(0))
    total = np.asarray(for_it.sum(axis=1)).ravel()
    share = np.divide(1.0, total, out=np.zeros(len(total)), where=total > 0)
    found: NDArray[np.float64] = for_it.T @ share
    return found


def patch_weights(
    tissue: NDArray[np.bool_], chosen: NDArray[np.bool_], n_steps: int
) -> NDArray[np.float64]:
    """How often a patch's margin counts in the sum over those chosen, if each of these takes the
    mean of its neighbours on tissue: (rows, columns).

    It is the transpose of `smooth_margins`, applied to who is chosen.
    """
    if not n_steps:
        return chosen.astype(np.float64)
    width = 2 * n_steps + 1
    around = uniform_filter(tissue.astype(np.float64), width, mode="constant")
    taken = np.where(chosen, 1 / np.maximum(around, 1e-12), 0)
    return np.where(tissue, uniform_filter(taken, width, mode="constant"), 0)


_MAX_CHARACTERS = 80
_KINDS = {
    "atom": "int",
    "name": "str",
    "group": "str",
    "artefact": "bool",
    "disabled": "bool",
    "date": "str",
}


@dataclass(frozen=True)
class AtomAnnotation:
    """Of one atom, by its place in the codes.

    date : of the last change, as 2026-11-18
    """

    atom: int
    name: str = ""
    group: str = ""
    artefact: bool = False
    disabled: bool = False
    date: str = ""

    @property
    def is_empty(self) -> bool:
        return not (self.name or self.group or self.artefact or self.disabled)


@dataclass(frozen=True)
class Concept:
    """Atoms that are spoken of as one: those of a name, or one alone.

    name : as people named it, else CLASS:NUMBER
    """

    name: str
    atoms: tuple[int, ...]
    group: str = ""
    artefact: bool = False
    is_named: bool = False


@dataclass(frozen=True)
class AtomAnnotations:
    """The notes of a model, in the order of its atoms."""

    notes: tuple[AtomAnnotation, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.notes)

    @property
    def disabled(self) -> list[int]:
        return [note.atom for note in self.notes if note.disabled]

    def of(self, atom: int) -> AtomAnnotation:
        return next((note for note in self.notes if note.atom == atom), AtomAnnotation(atom))

    def named(self, name: str) -> list[int]:
        return [note.atom for note in self.notes if note.name == name]

    def by_name(self) -> dict[str, list[int]]:
        """The atoms of every name, without those that are off and names that are left with none."""
        names = dict.fromkeys(note.name for note in self.notes if note.name)
        found = {name: [a for a in self.named(name) if not self.of(a).disabled] for name in names}
        return {name: atoms for name, atoms in found.items() if atoms}

    def merged_atom_groups(self) -> list[tuple[int, ...]]:
        """The atoms of every name that several have, without those that are off."""
        return [tuple(atoms) for atoms in self.by_name().values() if len(atoms) > 1]

    def changed(self, atoms: Iterable[int], **values: Any) -> AtomAnnotations:
        """With these values for these atoms, dated today; a note that says nothing is left out."""
        found = {note.atom: note for note in self.notes}
        for atom in atoms:
            new = replace(self.of(atom), **values)
            if new != self.of(atom):
                found[atom] = replace(new, date=date.today().isoformat())
        kept = sorted(found.values(), key=lambda note: note.atom)
        return AtomAnnotations(tuple(note for note in kept if not note.is_empty))

    def to_list(self) -> list[dict[str, Any]]:
        return [asdict(note) for note in self.notes]

    @classmethod
    def from_list(cls, notes: Sequence[Mapping[str, Any]]) -> AtomAnnotations:
        return cls(tuple(AtomAnnotation(**note) for note in notes))

    def concepts(self, labels: Sequence[str]) -> list[Concept]:
        """All atoms, those of a name together; `labels`: of every atom, from `atom_labels`."""
        found: dict[str, Concept] = {}
        for atom, label in enumerate(labels):
            note = self.of(atom)
            key = note.name or label
            before = found.get(key, Concept(key, (), note.group, is_named=bool(note.name)))
            found[key] = replace(
                before,
                atoms=(*before.atoms, atom),
                group=before.group or note.group,
                artefact=before.artefact or note.artefact,
            )
        return list(found.values())


def atom_labels(atom_classes: NDArray[np.int64], classes: Sequence[str]) -> list[str]:
    """CLASS:NUMBER of every atom, by the place of its class."""
    numbers = [count(1) for _ in classes]
    return [f"{classes[own]}:{next(numbers[own])}" for own in atom_classes.tolist()]


def parse_atom_selector(text: str, labels: Sequence[str], notes: AtomAnnotations) -> list[int]:
    """The atoms that a text names: CLASS:NUMBER, a name, or several with commas between them."""
    whole = notes.named(text.strip())
    if whole:
        return whole
    found: list[int] = []
    for part in text.split(","):
        own = part.strip()
        places = [labels.index(own)] if own in labels else notes.named(own)
        if not places:
            first, last = labels[0], labels[-1]
            raise ValueError(
                f"there is no atom {own!r}: atoms go by CLASS:NUMBER, here {first} to {last}, or "
                "by a name that was given to them"
            )
        found += places
    return found


def check_notes(notes: object) -> None:
    """Refuses what cannot be notes of a model's atoms."""
    if not isinstance(notes, list):
        raise ValueError(f"atoms must be a list of notes, not {short(notes)}")
    for note in notes:
        check_kind("a note of an atom", note, "dict[str, Any]")
        if set(note) != set(_KINDS):
            raise ValueError(f"a note of an atom has {sorted(_KINDS)}, not {short(sorted(note))}")
        for name, kind in _KINDS.items():
            check_kind(f"atoms: {name}", note[name], kind)
        check_whole_number("atoms: atom", note["atom"], 0)
        check_name(note["name"])
        check_name(note["group"])
        date.fromisoformat(note["date"])
    places = [note["atom"] for note in notes]
    if sorted(set(places)) != places:
        raise ValueError("atoms: every atom has one note, in their order")


def check_name(name: str) -> None:
    """Refuses a name that would not be shown as it is, or that is too long for a legend."""
    if name != " ".join(name.split()) or not name.isprintable() or len(name) > _MAX_CHARACTERS:
        raise ValueError(
            f"a name is one line of at most {_MAX_CHARACTERS} letters, without spaces around it, "
            f"not {short(name)}"
        )
