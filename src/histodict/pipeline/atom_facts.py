"""What is known of every atom: who uses it, how well it tells classes apart, what else it tells.

Patients are what is counted. The use of an atom in a patient is the share of the patient's patches
that use it; a patient with images of two classes counts in each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..decisions.atom_notes import AtomNotes, atom_labels
from ..evaluation.by_patient import Leaks, aucs_by_patient, leaks
from ..images.manifest import Record
from .gallery import Gallery
from .image_model import Atoms
from .stability import Stability

# When an atom looks like a leak: all of these. docs/concepts.md says how they were chosen.
LEAK_CHANCE = 0.03  # of such a difference between sites in any atom, if sites meant nothing
LEAK_SHARE = 0.5  # of the variance of its use between patients of a class, between sites
LEAK_USE = 0.02  # the site that uses it most uses it in so many patches more than the others


@dataclass(frozen=True)
class AtomFacts:
    """One atom; numbers that are not known are NaN.

    atom : its place in the codes; label : CLASS:NUMBER; owner : its class
    shares : by class, share of its patches that use the atom
    n_patients : patients with a patch that uses it
    auc, auc_low, auc_high : how well its use in a patient alone tells its class from the others,
        with an interval of 95 % from draws of patients
    top_patient : of its use by its class, the share that comes from the one patient that has most
    site_share, site_chance : see `evaluation.by_patient.Leaks`, of sites; site : where it is used
        most beyond the others of the class; site_excess : by how many patches more
    seeds, halves : its best match in dictionaries of other seeds, and of halves of the patients:
        mean |cos|
    is_leak : whether it looks like one, by the rule of docs/concepts.md
    """

    atom: int
    label: str
    owner: str
    name: str
    group: str
    artefact: bool
    off: bool
    shares: dict[str, float]
    n_patients: int
    of_patients: int
    auc: float
    auc_low: float
    auc_high: float
    top_patient: float
    site_share: float
    site_chance: float
    site: str
    site_excess: float
    seeds: float
    halves: float
    is_leak: bool

    def row(self) -> dict[str, Any]:
        """For a table: one value per column, and nothing where it is not known."""
        plain = asdict(self)
        shares = plain.pop("shares")
        plain |= {f"use_{name}": share for name, share in shares.items()}
        return {
            name: None if isinstance(value, float) and np.isnan(value) else value
            for name, value in plain.items()
        }


@dataclass(frozen=True)
class _Units:
    """Patients by class: use (n_units, n_atoms), and of each its class, patient and site."""

    use: NDArray[np.float64]
    classes: NDArray[np.int64]
    patients: NDArray[np.int64]
    sites: NDArray[np.int64]
    site_names: list[str]

    def of_known_sites(self) -> _Units:
        """Without patients whose site nobody knows, unless that is all of them."""
        known = np.array([self.site_names[site] != "" for site in self.sites.tolist()], bool)
        if not known.any():
            return self
        own = (self.use[known], self.classes[known], self.patients[known], self.sites[known])
        return _Units(*own, self.site_names)


def atom_facts(
    atoms: Atoms,
    notes: AtomNotes,
    gallery: Gallery,
    labels: Sequence[str],
    records: Sequence[Record],
    classes: Sequence[str],
    stability: Stability | None = None,
) -> list[AtomFacts]:
    """Facts of all atoms, from patches of these records; `labels`: of every patch."""
    units = _units(gallery, labels, records, classes)
    aucs = [
        aucs_by_patient(units.use, units.classes == place, units.patients)
        for place in range(len(classes))
    ]
    placed = units.of_known_sites()
    leak = leaks(placed.use, placed.classes, placed.sites)
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
                shares={name: float(shares[classes.index(name), atom]) for name in names},
                n_patients=int(in_patients[atom]),
                of_patients=n_patients,
                auc=float(aucs[own].value[atom]),
                auc_low=float(aucs[own].low[atom]),
                auc_high=float(aucs[own].high[atom]),
                top_patient=_top(units, own, atom),
                site_share=float(leak.shares[atom]),
                site_chance=float(leak.chances[atom]),
                site=site,
                site_excess=excess,
                seeds=float(stability.seeds[atom]) if stability else np.nan,
                halves=float(stability.halves[atom]) if stability else np.nan,
                is_leak=_is_leak(leak, atom, excess),
            )
        )
    return found


def _is_leak(leak: Leaks, atom: int, excess: float) -> bool:
    return bool(
        leak.chances[atom] <= LEAK_CHANCE and leak.shares[atom] >= LEAK_SHARE and excess >= LEAK_USE
    )


def _units(
    gallery: Gallery, labels: Sequence[str], records: Sequence[Record], classes: Sequence[str]
) -> _Units:
    known = [place for place, label in enumerate(labels) if label in classes]
    keys = [(records[int(gallery.images[p])].patient, classes.index(labels[p])) for p in known]
    names = sorted(set(keys))
    place_of = {key: place for place, key in enumerate(names)}
    used = (gallery.codes[known] != 0).astype(np.float64)
    groups = np.array([place_of[key] for key in keys], np.int64)
    use = np.zeros((len(names), gallery.codes.shape[1]))
    for unit in range(len(names)):
        use[unit] = used[np.flatnonzero(groups == unit)].mean(axis=0)
    sites = {r.patient: r.site or "" for r in records}
    site_names = sorted(set(sites.values()))
    patients = sorted({patient for patient, _ in names})
    return _Units(
        use,
        np.array([place for _, place in names], np.int64),
        np.array([patients.index(patient) for patient, _ in names], np.int64),
        np.array([site_names.index(sites[patient]) for patient, _ in names], np.int64),
        site_names,
    )


def _patients_using(units: _Units) -> NDArray[np.int64]:
    using = np.zeros((int(units.patients.max(initial=-1)) + 1, units.use.shape[1]), bool)
    for unit, patient in enumerate(units.patients.tolist()):
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
    for place in np.unique(units.classes):
        of_class = units.classes == place
        for site in np.unique(units.sites[of_class]):
            here = of_class & (units.sites == site)
            there = of_class & (units.sites != site)
            if there.any():
                excess = units.use[here, atom].mean() - units.use[there, atom].mean()
                if excess > best:
                    best, name = float(excess), units.site_names[int(site)]
    return name, best
