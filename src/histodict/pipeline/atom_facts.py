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

from ..decisions.atom_notes import AtomAnnotations, atom_labels
from ..evaluation.between_groups import (
    ConfoundingTest,
    arcsine_sqrt,
    confounding_test,
    intraclass_correlation,
)
from ..evaluation.by_patient import auc_per_feature
from ..images.manifest import ImageRecord
from .gallery import PatchSample
from .image_model import AtomTable
from .stability import AtomStability

# When an atom looks like a leak, of sites. docs/concepts.md says why these.
MAX_SITE_P_VALUE = (
    0.02  # at most, that atoms together differ so between sites, if sites meant nothing
)
MAX_ATOM_P_VALUE = 0.05  # at most, see `evaluation.between_groups.Leaks`
MIN_SITE_VARIANCE_SHARE = 0.25  # at least, of the variance of its use between patients of a class


class ValueWithInterval(NamedTuple):
    """A value and its interval of 95 %."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class AtomStatistics:
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
    site_variance_fraction, site_adjusted_p_value, site_p_value : of sites, see
    `evaluation.between_groups.Leaks`; the last
        is one number for all atoms; site : where it is used most beyond the others of the class;
        site_excess : by how many patches more
    seeds, halves : its best match in dictionaries of other seeds, and of halves of the patients:
        mean absolute cosine
    is_site_confounded : whether it looks like one, by the rule of docs/concepts.md
    """

    atom: int
    label: str
    class_name: str
    name: str
    group: str
    artefact: bool
    disabled: bool
    digest: str
    fractions: dict[str, float]
    n_patients: int
    of_patients: int
    auc: float
    auc_low: float
    auc_high: float
    group_variance_share: dict[str, ValueWithInterval]
    top_patient: float
    site_variance_fraction: float
    site_p_value: float
    site_adjusted_p_value: float
    site: str
    site_excess: float
    seeds: float
    halves: float
    is_site_confounded: bool

    def row(self) -> dict[str, Any]:
        """For a table: one value per column, and nothing where it is not known."""
        plain = asdict(self)
        shares, leak = plain.pop("fractions"), plain.pop("group_variance_share")
        plain |= {f"usage_{name}": share for name, share in shares.items()}
        for level, ends in leak.items():
            names = (
                f"variance_share_{level}",
                f"variance_share_{level}_low",
                f"variance_share_{level}_high",
            )
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

    usage: NDArray[np.float64]
    weights: NDArray[np.float64]
    classes: NDArray[np.int64]
    records: list[ImageRecord]

    def groups(self, key: Callable[[ImageRecord], str]) -> NDArray[np.int64]:
        """Which units are alike in something."""
        return np.unique([key(r) for r in self.records], return_inverse=True)[1].astype(np.int64)

    @property
    def patients(self) -> NDArray[np.int64]:
        return self.groups(_patient)

    def positions(self, is_known: Callable[[ImageRecord], Any]) -> _Units:
        """Those of which something is known."""
        rows = [place for place, record in enumerate(self.records) if is_known(record)]
        own = (self.usage[rows], self.weights[rows], self.classes[rows])
        return _Units(*own, [self.records[row] for row in rows])


def _patient(record: ImageRecord) -> str:
    return record.patient


def _site(record: ImageRecord) -> str:
    return record.site or ""


def _slide(record: ImageRecord) -> str:
    return record.slide or ""


def compute_atom_statistics(
    atoms: AtomTable,
    notes: AtomAnnotations,
    gallery: PatchSample,
    labels: Sequence[str],
    records: Sequence[ImageRecord],
    classes: Sequence[str],
    stability: AtomStability | None = None,
) -> list[AtomStatistics]:
    """Facts of all atoms, from patches of these records; `labels`: of every patch."""
    of_records = np.unique([_patient(r) for r in records], return_inverse=True)[1]
    units = _units(gallery, labels, records, classes, of_records)
    images = _units(gallery, labels, records, classes, np.arange(len(records)))
    aucs = [
        auc_per_feature(units.usage, units.classes == place, units.patients)
        for place in range(len(classes))
    ]
    placed = units.positions(_site)
    looks = (arcsine_sqrt(placed.usage), placed.weights)
    tested = confounding_test(looks, placed.classes, placed.groups(_site))
    flagged = _flagged(tested)
    told = _confounding_by_level(placed, images)
    names = [name for name in classes if name in set(labels)]
    groups = np.array([classes.index(n) if n in classes else len(classes) for n in labels])
    shares = gallery.fractions(groups, len(classes) + 1)
    in_patients = _patients_using(units)
    n_patients = len(np.unique(units.patients))
    found = []
    for atom, label in enumerate(atom_labels(atoms.classes, classes)):
        own, note = int(atoms.classes[atom]), notes.of(atom)
        site, excess = _most_used_at(placed, atom)
        found.append(
            AtomStatistics(
                atom=atom,
                label=label,
                class_name=classes[own],
                name=note.name,
                group=note.group,
                artefact=note.artefact,
                disabled=note.disabled,
                digest=atoms.digest(atom),
                fractions={name: float(shares[classes.index(name), atom]) for name in names},
                n_patients=int(in_patients[atom]),
                of_patients=n_patients,
                auc=float(aucs[own].value[atom]),
                auc_low=float(aucs[own].low[atom]),
                auc_high=float(aucs[own].high[atom]),
                group_variance_share={
                    level: ValueWithInterval(*ends[:, atom].tolist())
                    for level, ends in told.items()
                },
                top_patient=_top(units, own, atom),
                site_variance_fraction=float(tested.variance_fractions[atom]),
                site_p_value=tested.p_value,
                site_adjusted_p_value=float(tested.adjusted_p_values[atom]),
                site=site,
                site_excess=excess,
                seeds=float(stability.seeds[atom]) if stability else np.nan,
                halves=float(stability.halves[atom]) if stability else np.nan,
                is_site_confounded=bool(flagged[atom]),
            )
        )
    return found


def _flagged(tested: ConfoundingTest) -> NDArray[np.bool_]:
    """Which atoms look like a leak: if anything does, at least that of the largest η²."""
    if not tested.p_value <= MAX_SITE_P_VALUE:
        return np.zeros(len(tested.variance_fractions), bool)
    found: NDArray[np.bool_] = tested.adjusted_p_values <= MAX_ATOM_P_VALUE
    found &= tested.variance_fractions >= MIN_SITE_VARIANCE_SHARE
    found[tested.variance_fractions.argmax()] = True
    return found


def _confounding_by_level(placed: _Units, images: _Units) -> dict[str, NDArray[np.float64]]:
    """Per kind of group (3, n_atoms): the share of the variance between them, low and high.

    Sites are told apart among patients of a class; patients among images of a class; slides among
    images of a patient and class.
    """
    named = images.positions(_slide)
    owned = [f"{p} {c}" for p, c in zip(named.patients, named.classes, strict=True)]
    levels: dict[str, tuple[_Units, NDArray[Any], Callable[[ImageRecord], str]]] = {
        "site": (placed, placed.classes, _site),
        "patient": (images, images.classes, _patient),
        "slide": (named, np.unique(owned, return_inverse=True)[1], _slide),
    }
    found = {}
    for level, (units, blocks, key) in levels.items():
        groups = blocks * (len(units.records) + 1) + units.groups(key)
        share = intraclass_correlation(units.usage, blocks, groups, units.patients)
        found[level] = np.stack([share.value, share.low, share.high])
    return found


def _units(
    gallery: PatchSample,
    labels: Sequence[str],
    records: Sequence[ImageRecord],
    classes: Sequence[str],
    numbers: NDArray[Any],
) -> _Units:
    """`numbers`: of every record's unit."""
    known = np.flatnonzero([label in classes for label in labels])
    own = np.array([classes.index(labels[place]) for place in known.tolist()], np.int64)
    keys = numbers[gallery.images[known]] * len(classes) + own
    names, first, groups = np.unique(keys, return_index=True, return_inverse=True)
    own_patches = gallery.at(known)
    use, weights = (
        of(groups, len(names)) for of in (own_patches.fractions, own_patches.mean_weights)
    )
    of_units = [records[int(image)] for image in gallery.images[known[first]]]
    return _Units(use, weights, own[first], of_units)


def _patients_using(units: _Units) -> NDArray[np.int64]:
    patients = units.patients
    using = np.zeros((int(patients.max(initial=-1)) + 1, units.usage.shape[1]), bool)
    for unit, patient in enumerate(patients.tolist()):
        using[patient] |= units.usage[unit] > 0
    counts: NDArray[np.int64] = using.sum(axis=0)
    return counts


def _top(units: _Units, own: int, atom: int) -> float:
    """Of the use by patients of a class, the largest share."""
    use = units.usage[units.classes == own, atom]
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
                excess = units.usage[here, atom].mean() - units.usage[there, atom].mean()
                if excess > best:
                    best, name = float(excess), str(site)
    return name, best
