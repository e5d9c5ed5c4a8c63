"""Annotations of atoms by the user, and contributions of atoms to the score of an image.

An annotation has a name and a group, and states whether an atom is an artefact or disabled. Atoms
of the same name form one concept, whose contributions are added. An atom is selected by the label
CLASS:NUMBER, with numbers from 1 within the class, or by its name.

`AtomMeans` contains the statistics of each atom in an image, from which
`Aggregator.atom_contributions` computes the contributions to the scores:

| feature of the aggregator | contribution of an atom |
|---|---|
| margin | mean of its contributions to the margins of the patches (`methods.patch_classifier`) |
| proportion | sum of votes; the vote of a patch is divided among atoms that favour its class |
| codes, roots of codes | feature of the atom times its weight |
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
from ..utils.validation import check_type, check_whole_number


def code_signs(mean_codes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sign (1 or −1) of the mean code of each atom; 1 for a mean of 0."""
    return np.where(mean_codes < 0, -1.0, 1.0)


@dataclass(frozen=True)
class AtomMeans:
    """Mean statistics of atoms over the patches of an image, or of a class.

    Attributes
    ----------
    usage : (n_codes,), fraction of the patches that use an atom
    codes : (n_codes,), mean |code|
    mean_codes : (n_codes,), mean code
    margins : (n_classes, n_codes), contributions to the mean margin of each class
    class_votes : (n_classes, n_codes), contributions to the fraction of patches predicted as each
        class
    """

    usage: NDArray[np.float64]
    codes: NDArray[np.float64]
    mean_codes: NDArray[np.float64]
    margins: NDArray[np.float64]
    class_votes: NDArray[np.float64]


_REFERENCE_FIELDS = ("usage", "codes", "mean_codes", "margins", "class_votes")


def class_reference_to_arrays(reference: Sequence[AtomMeans]) -> dict[str, NDArray[Any]]:
    """Return the reference statistics of the classes as arrays by name, for a model file."""
    return {
        f"class_reference.{name}": np.stack([getattr(each, name) for each in reference])
        for name in _REFERENCE_FIELDS
    }


def class_reference_from_arrays(arrays: Mapping[str, NDArray[Any]]) -> list[AtomMeans]:
    """Return the reference statistics of each class from the arrays of a model file."""
    by_name = [arrays[f"class_reference.{name}"] for name in _REFERENCE_FIELDS]
    return [AtomMeans(*of_class) for of_class in zip(*by_name, strict=True)]


def dominant_code_signs(
    reference: Sequence[AtomMeans], atom_classes: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the sign of each atom's mean code in patches of the atom's class; 1 for a mean of 0.

    Training chooses the signs of atoms by codes over the atoms of one class, which can differ from
    codes over the atoms of all classes.
    """
    means = np.stack([of_class.mean_codes for of_class in reference])
    own_means = means[atom_classes, np.arange(len(atom_classes))]
    return code_signs(own_means)


class AtomAccumulator:
    """Accumulator of atom statistics over blocks of patches."""

    def __init__(self, n_classes: int, n_codes: int) -> None:
        self.n_patches = 0
        self._usage_counts, self._abs_code_sums, self._code_sums = np.zeros((3, n_codes))
        self._distances = np.zeros((n_classes, n_codes))
        self._class_counts = np.zeros((n_classes, n_codes))

    def add(
        self,
        codes: csr_array,
        contributions: DistanceContributions,
        predicted_classes: NDArray[np.integer],
        weights: NDArray[np.float64],
        selected: NDArray[np.bool_],
    ) -> None:
        """Add the statistics of a block of n patches.

        Parameters
        ----------
        codes : (n, n_codes), sparse codes of the patches
        contributions : contributions of the atoms to the distances of the patches from the classes
        predicted_classes : (n,), index of the predicted class
        weights : (n,), weight of each patch in the mean margins, from `patch_weights`, whether or
            not the patch is selected
        selected : (n,), whether each patch counts in usage, mean codes and class votes
        """
        chosen_codes = codes[np.flatnonzero(selected)]
        self.n_patches += chosen_codes.shape[0]
        self._usage_counts += np.bincount(
            chosen_codes.indices[chosen_codes.data != 0], minlength=chosen_codes.shape[1]
        )
        self._abs_code_sums += np.asarray(abs(chosen_codes).sum(axis=0), np.float64).ravel()
        self._code_sums += np.asarray(chosen_codes.sum(axis=0), np.float64).ravel()
        for class_index, of_class in enumerate(contributions.by_class):
            self._distances[class_index] += of_class.T @ weights
            predicted = np.flatnonzero((predicted_classes == class_index) & selected)
            if len(predicted):
                self._class_counts[class_index] += _share_votes(
                    contributions.margin_contributions(class_index)[predicted]
                )

    def mean(self) -> AtomMeans:
        """Return the statistics as means over the selected patches."""
        n = max(self.n_patches, 1)
        distances, n_classes = self._distances / n, len(self._distances)
        margins = (distances.sum(axis=0) - distances) / (n_classes - 1) - distances
        means = self._usage_counts / n, self._abs_code_sums / n, self._code_sums / n
        return AtomMeans(*means, margins, self._class_counts / n)


def _share_votes(contributions: csr_array) -> NDArray[np.float64]:
    """Divide one vote per row in proportion to its positive entries; return the sum per column."""
    positive = csr_array(contributions.maximum(0))
    total = np.asarray(positive.sum(axis=1)).ravel()
    weights = np.divide(1.0, total, out=np.zeros(len(total)), where=total > 0)
    votes: NDArray[np.float64] = positive.T @ weights
    return votes


def patch_weights(
    tissue: NDArray[np.bool_], selected: NDArray[np.bool_], n_steps: int
) -> NDArray[np.float64]:
    """Return the weight of each patch in the sum of smoothed margins over selected patches.

    All arrays have the shape (rows, columns). The weights are `selected` multiplied by the
    transpose of the linear map `smooth_margins`; `n_steps` is its parameter.
    """
    if not n_steps:
        return selected.astype(np.float64)
    width = 2 * n_steps + 1
    tissue_fraction = uniform_filter(tissue.astype(np.float64), width, mode="constant")
    weights = np.where(selected, 1 / np.maximum(tissue_fraction, 1e-12), 0)
    return np.where(tissue, uniform_filter(weights, width, mode="constant"), 0)


_MAX_NAME_LENGTH = 80
_FIELD_TYPES = {
    "atom": "int",
    "name": "str",
    "group": "str",
    "artefact": "bool",
    "disabled": "bool",
    "date": "str",
}


@dataclass(frozen=True)
class AtomAnnotation:
    """Annotation of one atom.

    Attributes
    ----------
    atom : index of the atom
    name : name given by the user; empty for none
    group : group given by the user; empty for none
    artefact : whether the atom represents an artefact
    disabled : whether predictions are made without the atom
    date : ISO date of the last change
    """

    atom: int
    name: str = ""
    group: str = ""
    artefact: bool = False
    disabled: bool = False
    date: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is annotated."""
        return not (self.name or self.group or self.artefact or self.disabled)


@dataclass(frozen=True)
class Concept:
    """All atoms of one name, or a single unnamed atom, which is named by its label CLASS:NUMBER."""

    name: str
    atoms: tuple[int, ...]
    group: str = ""
    artefact: bool = False
    is_named: bool = False


@dataclass(frozen=True)
class AtomAnnotations:
    """Annotations of the atoms of a model, in the order of the atoms."""

    entries: tuple[AtomAnnotation, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.entries)

    @property
    def disabled(self) -> list[int]:
        """Indices of the disabled atoms."""
        return [entry.atom for entry in self.entries if entry.disabled]

    def get(self, atom: int) -> AtomAnnotation:
        """Return the annotation of an atom; an empty one if it has none."""
        return next((entry for entry in self.entries if entry.atom == atom), AtomAnnotation(atom))

    def atoms_named(self, name: str) -> list[int]:
        """Return the indices of the atoms with this name."""
        return [entry.atom for entry in self.entries if entry.name == name]

    def by_name(self) -> dict[str, list[int]]:
        """Return the indices of the active (not disabled) atoms by name; omit names without any."""
        names = dict.fromkeys(entry.name for entry in self.entries if entry.name)
        active = {
            name: [a for a in self.atoms_named(name) if not self.get(a).disabled] for name in names
        }
        return {name: atoms for name, atoms in active.items() if atoms}

    def merged_atom_groups(self) -> list[tuple[int, ...]]:
        """Return the indices of the active atoms of each name that has several active atoms."""
        return [tuple(atoms) for atoms in self.by_name().values() if len(atoms) > 1]

    def with_changes(self, atoms: Iterable[int], **fields: Any) -> AtomAnnotations:
        """Return the annotations after setting these fields of some atoms.

        The date of an annotation that changes is today. Empty annotations are omitted.
        """
        entries = {entry.atom: entry for entry in self.entries}
        for atom in atoms:
            new = replace(self.get(atom), **fields)
            if new != self.get(atom):
                entries[atom] = replace(new, date=date.today().isoformat())
        ordered = sorted(entries.values(), key=lambda entry: entry.atom)
        return AtomAnnotations(tuple(entry for entry in ordered if not entry.is_empty))

    def to_list(self) -> list[dict[str, Any]]:
        """Return the annotations as JSON-serialisable dictionaries."""
        return [asdict(entry) for entry in self.entries]

    @classmethod
    def from_list(cls, entries: Sequence[Mapping[str, Any]]) -> AtomAnnotations:
        """Return the annotations from the result of `to_list`."""
        return cls(tuple(AtomAnnotation(**entry) for entry in entries))

    def concepts(self, labels: Sequence[str]) -> list[Concept]:
        """Return the concepts of all atoms; `labels` is the result of `atom_labels`."""
        concepts: dict[str, Concept] = {}
        for atom, label in enumerate(labels):
            entry = self.get(atom)
            key = entry.name or label
            concept = concepts.get(key, Concept(key, (), entry.group, is_named=bool(entry.name)))
            concepts[key] = replace(
                concept,
                atoms=(*concept.atoms, atom),
                group=concept.group or entry.group,
                artefact=concept.artefact or entry.artefact,
            )
        return list(concepts.values())


def atom_labels(atom_classes: NDArray[np.int64], classes: Sequence[str]) -> list[str]:
    """Return the label CLASS:NUMBER of each atom, from class indices and class names."""
    numbers = [count(1) for _ in classes]
    return [
        f"{classes[class_index]}:{next(numbers[class_index])}"
        for class_index in atom_classes.tolist()
    ]


def parse_atom_selector(
    text: str, labels: Sequence[str], annotations: AtomAnnotations
) -> list[int]:
    """Return the indices of the atoms that a text selects.

    The text is a name in `annotations`, or a comma-separated list of such names and of `labels`.
    Raise ValueError for an unknown name or label.
    """
    exact = annotations.atoms_named(text.strip())
    if exact:
        return exact
    atoms: list[int] = []
    for part in text.split(","):
        name = part.strip()
        matches = [labels.index(name)] if name in labels else annotations.atoms_named(name)
        if not matches:
            raise ValueError(
                f"unknown atom {name!r}. Write CLASS:NUMBER or a name that you gave; this model "
                f"has {_label_ranges(labels)}"
            )
        atoms += matches
    return atoms


def _label_ranges(labels: Sequence[str]) -> str:
    """Describe the labels of all atoms, such as "a:1 to a:9 and b:1 to b:9"."""
    by_class: dict[str, list[str]] = {}
    for label in labels:
        by_class.setdefault(label.rpartition(":")[0], []).append(label)
    return " and ".join(f"{names[0]} to {names[-1]}" for names in by_class.values())


def check_atom_annotations(entries: object) -> None:
    """Raise ValueError unless `entries` is a valid result of `AtomAnnotations.to_list`."""
    if not isinstance(entries, list):
        raise ValueError(f"atoms must be a list of annotations, not {short(entries)}")
    for entry in entries:
        check_type("annotation of an atom", entry, "dict[str, Any]")
        if set(entry) != set(_FIELD_TYPES):
            raise ValueError(
                f"an annotation of an atom must have the keys {sorted(_FIELD_TYPES)}, not "
                f"{short(sorted(entry))}"
            )
        for name, kind in _FIELD_TYPES.items():
            check_type(f"atoms: {name}", entry[name], kind)
        check_whole_number("atoms: atom", entry["atom"], 0)
        check_name(entry["name"])
        check_name(entry["group"])
        date.fromisoformat(entry["date"])
    atoms = [entry["atom"] for entry in entries]
    if sorted(set(atoms)) != atoms:
        raise ValueError("atoms: expected one annotation per atom, in order")


def check_name(name: str) -> None:
    """Raise ValueError unless a name is one printable line of at most 80 characters."""
    if name != " ".join(name.split()) or not name.isprintable() or len(name) > _MAX_NAME_LENGTH:
        raise ValueError(
            f"a name must be a single line of at most {_MAX_NAME_LENGTH} characters without "
            f"surrounding spaces, not {short(name)}"
        )
