"""What is known of every atom: who uses it, how well it tells classes apart, what else it tells.

Patients are what is counted. The use of an atom in a patient is the share of the patient's patches
that use it; a patient with images of two classes counts in each. How well use tells patients or
slides apart is counted by images.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..decisions.atom_notes import AtomNotes, atom_labels
from ..evaluation.between_groups import Leaks, between_groups, leaks, made_even
from ..evaluation.by_patient import aucs_by_patient
from ..images.manifest import Record
from .gallery import Gallery
from .image_model import Atoms
from .stability import Stability

# When an atom looks like a leak, of sites. docs/concepts.md says why these.
LEAK_CHANCE = 0.02  # at most, that atoms together differ so between sites, if sites meant nothing
LEAK_DOUBT = 0.05  # at most, see `evaluation.between_groups.Leaks`
LEAK_SHARE = 0.25  # at least, of the variance of its use between patients of a class


class Estimate(NamedTuple):
    """A value and its interval of 95 %."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class AtomFacts:
    """What is known of one atom; numbers that are not known are NaN.

    Attributes
    ----------
    atom : its place in the codes; label : CLASS:NUMBER; owner : its class; digest : which tells it
        from atoms of other models
    shares : by class, share of its patches that use the atom
    n_patients : patients with a patch that uses it
    auc, auc_low, auc_high : how well its use in a patient alone tells its class from the others,
        with an interval of 95 % from draws of patients
    leak : by "site", "patient" and "slide", how well its use tells these apart beyond the class
        (slides: beyond the patient): the share of its variance that lies between them
    top_patient : of its use by its class, the share that comes from the one patient that has most
    site_share, site_doubt, site_chance : of sites, see `evaluation.between_groups.Leaks`; the last
        is one number for all atoms; site : where it is used most beyond the others of the class;
        site_excess : by how many patches more
    seeds, halves : its best match in dictionaries of other seeds, and of halves of the patients:
        mean absolute cosine
    is_leak : whether it looks like one, by the rule of docs/concepts.md
    """

    atom: int
    label: str
    owner: str
    name: str
    group: str
    artefact: bool
    off: bool
    digest: str
    shares: dict[str, float]
    n_patients: int
    of_patients: int
    auc: float
    auc_low: float
    auc_high: float
    leak: dict[str, Estimate]
    top_patient: float
    site_share: float
    site_chance: float
    site_doubt: float
    site: str
    site_excess: float
    seeds: float
    halves: float
    is_leak: bool

    def row(self) -> dict[str, Any]:
        """For a table: one value per column, and nothing where it is not known."""
        plain = asdict(self)
        shares, leak = plain.pop("shares"), plain.pop("leak")
        plain |= {f"use_{name}": share for name, share in shares.items()}
        for level, ends in leak.items():
            names = (f"leak_{level}", f"leak_{level}_low", f"leak_{level}_high")
            plain |= dict(zip(names, ends, strict=True))
        return {
            name: None if isinstance(value, float) and np.isnan(value) else value
            for name, value in plain.items()
        }


@dataclass(frozen=True)
class _Units:
    """Patients, or images, by class: use and mean weights (n_units, n_atoms), of each
    its class and a record.
    """

    use: NDArray[np.float64]
    weights: NDArray[np.float64]
    classes: NDArray[np.int64]
    records: list[Record]

    def places(self, key: Callable[[Record], str]) -> NDArray[np.int64]:
        """Which units are alike in something."""
        return np.unique([key(r) for r in self.records], return_inverse=True)[1].astype(np.int64)

    @property
    def patients(self) -> NDArray[np.int64]:
        return self.places(_patient)

    def where(self, is_known: Callable[[Record], Any]) -> _Units:
        """Those of which something is known."""
        rows = [place for place, record in enumerate(self.records) if is_known(record)]
        own = (self.use[rows], self.weights[rows], self.classes[rows])
        return _Units(*own, [self.records[row] for row in rows])


def _patient(record: Record) -> str:
    return record.patient


def _site(record: Record) -> str:
    return record.site or ""


def _slide(record: Record) -> str:
    return record.slide or ""


def facts_of_atoms(
    atoms: Atoms,
    notes: AtomNotes,
    gallery: Gallery,
    labels: Sequence[str],
    records: Sequence[Record],
    classes: Sequence[str],
    stability: Stability | None = None,
) -> list[AtomFacts]:
    """Facts of all atoms, from patches of these records; `labels`: of every patch."""
    of_records = np.unique([_patient(r) for r in records], return_inverse=True)[1]
    units = _units(gallery, labels, records, classes, of_records)
    images = _units(gallery, labels, records, classes, np.arange(len(records)))
    aucs = [
        aucs_by_patient(units.use, units.classes == place, units.patients)
        for place in range(len(classes))
    ]
    placed = units.where(_site)
    looks = (made_even(placed.use), placed.weights)
    tested = leaks(looks, placed.classes, placed.places(_site))
    flagged = _flagged(tested)
    told = _leaks_by_level(placed, images)
    names = [name for name in classes if name in set(labels)]
    groups = np.array([classes.index(n) if n in classes else len(classes) for n in labels])
    shares = gallery.shares(groups, len(classes) + 1)
    in_patients = _patients_using(units)
    n_patients = len(np.unique(units.patients))
    found = []
    for atom, label in enumerate(atom_labels(atoms.classes, classes)):
        own, note = int(atoms.classes[atom]), notes.of(atom)
        site, excess = _most_used_at(placed, atom)
        found.append(
            AtomFacts(
                atom=atom,
                label=label,
                owner=classes[own],
                name=note.name,
                group=note.group,
                artefact=note.artefact,
                off=note.off,
                digest=atoms.digest(atom),
                shares={name: float(shares[classes.index(name), atom]) for name in names},
                n_patients=int(in_patients[atom]),
                of_patients=n_patients,
                auc=float(aucs[own].value[atom]),
                auc_low=float(aucs[own].low[atom]),
                auc_high=float(aucs[own].high[atom]),
                leak={level: Estimate(*ends[:, atom].tolist()) for level, ends in told.items()},
                top_patient=_top(units, own, atom),
                site_share=float(tested.shares[atom]),
                site_chance=tested.chance,
                site_doubt=float(tested.doubts[atom]),
                site=site,
                site_excess=excess,
                seeds=float(stability.seeds[atom]) if stability else np.nan,
                halves=float(stability.halves[atom]) if stability else np.nan,
                is_leak=bool(flagged[atom]),
            )
        )
    return found


def _flagged(tested: Leaks) -> NDArray[np.bool_]:
    """Which atoms look like a leak: if anything does, at least that of the largest η²."""
    if not tested.chance <= LEAK_CHANCE:
        return np.zeros(len(tested.shares), bool)
    found: NDArray[np.bool_] = tested.doubts <= LEAK_DOUBT
    found &= tested.shares >= LEAK_SHARE
    found[tested.shares.argmax()] = True
    return found


def _leaks_by_level(placed: _Units, images: _Units) -> dict[str, NDArray[np.float64]]:
    """Per kind of group (3, n_atoms): the share of the variance between them, low and high.

    Sites are told apart among patients of a class; patients among images of a class; slides among
    images of a patient and class.
    """
    named = images.where(_slide)
    owned = [f"{p} {c}" for p, c in zip(named.patients, named.classes, strict=True)]
    levels: dict[str, tuple[_Units, NDArray[Any], Callable[[Record], str]]] = {
        "site": (placed, placed.classes, _site),
        "patient": (images, images.classes, _patient),
        "slide": (named, np.unique(owned, return_inverse=True)[1], _slide),
    }
    found = {}
    for level, (units, blocks, key) in levels.items():
        groups = blocks * (len(units.records) + 1) + units.places(key)
        share = between_groups(units.use, blocks, groups, units.patients)
        found[level] = np.stack([share.value, share.low, share.high])
    return found


def _units(
    gallery: Gallery,
    labels: Sequence[str],
    records: Sequence[Record],
    classes: Sequence[str],
    numbers: NDArray[Any],
) -> _Units:
    """`numbers`: of every record's unit."""
    known = np.flatnonzero([label in classes for label in labels])
    own = np.array([classes.index(labels[place]) for place in known.tolist()], np.int64)
    keys = numbers[gallery.images[known]] * len(classes) + own
    names, first, groups = np.unique(keys, return_index=True, return_inverse=True)
    own_patches = gallery.at(known)
    use, weights = (of(groups, len(names)) for of in (own_patches.shares, own_patches.mean_weights))
    of_units = [records[int(image)] for image in gallery.images[known[first]]]
    return _Units(use, weights, own[first], of_units)


def _patients_using(units: _Units) -> NDArray[np.int64]:
    patients = units.patients
    using = np.zeros((int(patients.max(initial=-1)) + 1, units.use.shape[1]), bool)
    for unit, patient in enumerate(patients.tolist()):
        using[patient] |= units.use[unit] > 0
    counts: NDArray[np.int64] = using.sum(axis=0)
    return counts


def _top(units: _Units, own: int, atom: int) -> float:
    """Of the use by patients of a class, the largest share."""
    use = units.use[units.classes == own, atom]
    return float(use.max() / use.sum()) if use.sum() > 0 else np.nan


def _most_used_at(units: _Units, atom: int) -> tuple[str, float]:
    """The site, of any class, whose patients use an atom most beyond others of the same class."""
    best, name = 0.0, ""
    sites = np.array([_site(record) for record in units.records])
    for place in np.unique(units.classes):
        of_class = units.classes == place
        for site in np.unique(sites[of_class]):
            here, there = of_class & (sites == site), of_class & (sites != site)
            if there.any():
                excess = units.use[here, atom].mean() - units.use[there, atom].mean()
                if excess > best:
                    best, name = float(excess), str(site)
    return name, best
