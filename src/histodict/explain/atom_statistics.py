"""What is known of every atom: who uses it, how well it tells classes apart, what else it tells.

Patients are what is counted. The use of an atom in a patient is the share of the patient's patches
that use it; a patient with images of two classes counts in each. How well use tells patients or
slides apart is counted by images.

Would the same atoms be found again: by another seed, by other patients?

The model is trained again, and every atom is held against the atoms of the same class: its best
match is the largest |cos|, and the mean over the trainings is what is said. 1 is the same atom.

Which atoms a model's patches use, by patches of labelled images, and facts of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..datasets.manifest import ImageRecord, Manifest
from ..decision.atom_annotations import AtomAnnotations, atom_labels
from ..dictionaries.atoms import best_matches, match_atoms
from ..metrics.confounding import (
    ConfoundingTest,
    arcsine_sqrt,
    auc_per_feature,
    confounding_test,
    intraclass_correlation,
)
from ..models import Model, Plan
from ..models.image_pipeline import AtomTable
from ..models.inputs import LabelledImages, resolve_labelled
from ..utils.cache import ArrayCache
from ..utils.progress import Callback, Progress, no_callback
from ..utils.validation import check_whole_number
from .patch_sample import (
    N_PATCHES,
    ClassAtomUsage,
    PatchSample,
    most_used_atoms,
    patch_labels,
    patient_indices,
)


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


_MIN_PATCHES = 200  # of every image: facts are about patients


@dataclass(frozen=True)
class AtomReportData:
    """The atoms of a model's classes, and the patches that show how they are used.

    facts : of all atoms, by their place
    flagged : those that look like a leak, whether or not they are among the most used, by class:
        first the one with the atom that tells sites apart best
    """

    atoms: AtomTable
    gallery: PatchSample
    labels: list[str]
    classes: list[ClassAtomUsage]
    statistics: list[AtomStatistics]
    stability: AtomStability | None = None
    flagged: list[ClassAtomUsage] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        model: Model,
        gallery: PatchSample,
        records: Sequence[ImageRecord],
        n_atoms: int,
        stability: AtomStability | None = None,
    ) -> AtomReportData:
        atoms, labels = _atoms(model), patch_labels(model, gallery, records)
        owners, names = patient_indices(records), model.classes_
        shown = partial(most_used_atoms, atoms, gallery, labels, names, owners=owners)
        notes = model.model_.atom_annotations
        facts = compute_atom_statistics(atoms, notes, gallery, labels, records, names, stability)
        leaks = [fact.atom for fact in facts if fact.is_site_confounded]
        flagged = [use for use in shown(n_atoms=n_atoms, only=leaks) if use.atoms]
        flagged.sort(
            key=lambda use: -max(facts[line.atom].site_variance_fraction for line in use.atoms)
        )
        return cls(atoms, gallery, labels, shown(n_atoms=n_atoms), facts, stability, flagged)

    @property
    def confounding(self) -> list[AtomStatistics]:
        """Atoms that look like a leak, those that tell sites apart best first."""
        found = [fact for fact in self.statistics if fact.is_site_confounded]
        return sorted(found, key=lambda fact: -fact.site_variance_fraction)


def atom_statistics(
    model: Model,
    images: LabelledImages,
    *,
    stability: int = 0,
    callback: Callback = no_callback,
) -> list[AtomStatistics]:
    """What is known of every atom of a model, by patches of labelled images.

    Who uses it, in how many patients, how well it alone tells the classes apart, how well it tells
    sites, patients and slides apart beyond the class. docs/concepts.md says how each is measured;
    `fact.row()` is a row for a table.

    Parameters
    ----------
    model : one that has learnt and has atoms; of a panel, its first member, and `panel.members_`
        are the others
    images : what it learnt from, or other images with labels: as `fit` takes them
    stability : how often to train again with other seeds, and as often on half of the patients, to
        say how much of each atom is found again
    """
    model._check_fitted()
    first = model.estimators_[0] if model.n_estimators_ > 1 else model  # type: ignore[union-attr]
    found = collect_atom_report(
        first, resolve_labelled(images), n_atoms=1, n_trainings=stability, callback=callback
    )
    return found.statistics


def collect_atom_report(
    model: Model,
    manifest: Manifest,
    *,
    n_atoms: int = 24,
    cache: Path | None = None,
    n_trainings: int = 0,
    callback: Callback = no_callback,
) -> AtomReportData:
    """The most used atoms of every class, by patches of these images, and facts of all atoms.

    `cache`: the folder of a training, which may know the cells of a network. `n_trainings`: how
    often to train again, by other seeds and on halves of the patients, to see which atoms last.
    """
    check_whole_number("atoms", n_atoms, 1)
    check_whole_number("stability", n_trainings, 0)
    _atoms(model)
    records, patches = manifest.records, copy(model.model_)
    patches.cache = ArrayCache(cache) if cache else model.model_.cache
    n_patches = max(N_PATCHES, _MIN_PATCHES * len(records))
    gallery = PatchSample.of(patches, records, model.random_state, callback, n_patches)
    stability = None
    if n_trainings:
        stability = measure_stability(
            model, manifest, n_trainings, partial(_train_again, model, cache), callback
        )
    return AtomReportData.of(model, gallery, records, n_atoms, stability)


def confounded_atoms_of_members(
    model: Model,
    manifest: Manifest,
    but: int,
    cache: Path | None = None,
    callback: Callback = no_callback,
) -> dict[int, list[AtomStatistics]]:
    """Of a panel's other views, by their numbers from 1: atoms that look like a leak of sites.

    `but`: the view that is looked at anyway. What pixels do not see, cells of a network may, and
    the other way round. Views without atoms say nothing.
    """
    sites = {record.site for record in manifest.records if record.site}
    if model.n_estimators_ == 1 or len(sites) < 2:
        return {}
    found = {}
    for number, view in enumerate(model.estimators_, 1):  # type: ignore[union-attr]
        if number != but and view.model_.atoms() is not None:
            own = collect_atom_report(view, manifest, n_atoms=1, cache=cache, callback=callback)
            found[number] = own.confounding
    return found


def _train_again(model: Model, cache: Path | None, seed: int, manifest: Manifest) -> Model:
    """One model by the recipe of what is shown, on these images."""
    region = model.classes_[1] if model.finds_regions else None
    plan, n_jobs = Plan(model.recipe), model.n_jobs
    new = plan.build_model(region=region, random_state=seed, n_jobs=n_jobs, cache=cache)
    return new.fit(manifest)


def to_json_dict(found: AtomReportData, names: Sequence[str]) -> dict[str, Any]:
    """What was found, for programs; an atom goes by its place in the codes."""
    gallery = found.gallery

    def place(patch: int, weight: float) -> dict[str, Any]:
        x, y = gallery.corners[patch].tolist()
        image = names[int(gallery.images[patch])]
        side = float(gallery.side[patch])
        return {"image": image, "x": x, "y": y, "side": side, "weight": weight}

    classes = [asdict(use) for use in found.classes]
    for line in (line for use in classes for line in use["atoms"]):
        line["patches"] = [place(*patch) for patch in line["patches"]]
    known: dict[str, Any] = {"atoms": [fact.row() for fact in found.statistics]}
    if found.stability is not None:
        known["stability"] = {
            "trainings": found.stability.n_trainings,
            "matched_seeds": found.stability.matched_seeds,
            "matched_halves": found.stability.matched_halves,
        }
    return {"n_patches": len(found.labels), "classes": classes} | known


def _atoms(model: Model) -> AtomTable:
    """The model's atoms; a ValueError says why there are none."""
    atoms = model.model_.atoms()
    if atoms is None:
        raise ValueError(model.model_.no_atoms_reason())
    return atoms
