"""Statistics of atoms: usage, discrimination of the classes, site confounding and stability.

The unit of the statistics is the patient. The usage of an atom in a patient is the fraction of the
patient's patches that use the atom; a patient with images of two classes is a unit of both. The
variance between patients or slides is computed from images.

Stability is measured by repeated training with other seeds or on half of the patients. It is the
largest |cos| of an atom with the atoms of the same class in the new dictionary, averaged over the
trainings; 1 means identical atoms.
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
    confounding_test,
    intraclass_correlation,
)
from ..metrics.intervals import auc_per_feature
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
    """Similarity of the atoms to those of repeated trainings.

    Attributes
    ----------
    other_seeds : (n_atoms,), mean |cos| with the most similar atoms of trainings with other seeds
    halves : (n_atoms,), the same for trainings on halves of the patients
    matched_other_seeds, matched_halves : means over atoms that are matched one to one
    n_trainings : number of trainings with other seeds, and of those on halves
    """

    other_seeds: NDArray[np.float64]
    halves: NDArray[np.float64]
    matched_other_seeds: float
    matched_halves: float
    n_trainings: int


def measure_stability(
    model: Any,
    manifest: Manifest,
    n_trainings: int,
    train: Callable[[int, Manifest], Any],
    callback: Callback = no_callback,
) -> AtomStability:
    """Train again with other seeds and on halves of the patients, and compare the atoms.

    Parameters
    ----------
    model : model whose atoms are compared
    manifest : training images of the model
    n_trainings : number of trainings with other seeds, and number of trainings on halves
    train : function (seed, images) that trains a model of the same recipe
    """
    rng = np.random.default_rng(model.random_state)
    runs: dict[str, list[tuple[NDArray[np.float64], float]]] = {"seeds": [], "halves": []}
    for index in range(n_trainings):
        callback(Progress("stability", 2 * index, 2 * n_trainings))
        seed = model.random_state + 1 + index
        runs["seeds"].append(_compare_atoms(model, train(seed, manifest)))
        callback(Progress("stability", 2 * index + 1, 2 * n_trainings))
        half = train(model.random_state, _select_half(manifest, rng))
        runs["halves"].append(_compare_atoms(model, half))
    callback(Progress("stability", 2 * n_trainings, 2 * n_trainings))
    seeds, halves = (np.mean([best for best, _ in runs[key]], axis=0) for key in runs)
    matched_seeds, matched_halves = (
        float(np.mean([mean for _, mean in runs[key]])) for key in runs
    )
    return AtomStability(seeds, halves, matched_seeds, matched_halves, n_trainings)


def _compare_atoms(reference: Any, other: Any) -> tuple[NDArray[np.float64], float]:
    """Return largest |cos| of each reference atom, and mean |cos| of a one-to-one matching."""
    (D, classes), (E, other_classes) = _unprojected_atoms(reference), _unprojected_atoms(other)
    best, matched = np.zeros(len(D)), np.zeros(len(D))
    for class_index in np.unique(classes):
        in_reference, in_other = classes == class_index, other_classes == class_index
        best[in_reference] = best_matches(D[in_reference], E[in_other]).cosines
        matched[in_reference] = match_atoms(D[in_reference], E[in_other]).cosines
    return best, float(matched.mean())


def _unprojected_atoms(model: Any) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the atoms in the space of the features before projection, and their classes."""
    atoms, projection = model.model_.atoms(), model.model_.projection_
    D = np.asarray(atoms.D, np.float64)
    if projection:  # whitened components are not orthogonal
        D = D @ np.linalg.pinv(projection.components.astype(np.float64)).T
    return D, atoms.classes


def _select_half(manifest: Manifest, rng: np.random.Generator) -> Manifest:
    """Return the images of a random half of the patients of each class, rounded up."""
    chosen: set[str] = set()
    for name in sorted({record.label for record in manifest.records}):
        patients = sorted({r.patient for r in manifest.records if r.label == name})
        if len(patients) < 2:
            raise ValueError(
                "stability over halves of the patients needs at least two patients per class; "
                f"{name or 'the images'} has one"
            )
        chosen |= set(rng.permutation(patients)[: (len(patients) + 1) // 2].tolist())
    return manifest.select([p for p, r in enumerate(manifest.records) if r.patient in chosen])


# Criteria for site confounding of an atom (docs/concepts.md).
MAX_SITE_P_VALUE = 0.02  # p-value of the permutation test over all atoms
MAX_ATOM_P_VALUE = 0.05  # adjusted p-value, see `metrics.confounding.ConfoundingTest`
MIN_SITE_VARIANCE_SHARE = 0.25  # of the variance of usage between patients of a class


class ValueWithInterval(NamedTuple):
    """Value with its 95 % confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class AtomStatistics:
    """Statistics of one atom; unknown numbers are NaN.

    Attributes
    ----------
    atom : index of the atom in the dictionary
    label : label CLASS:NUMBER
    class_name : class of the atom
    name, group, artefact, disabled : annotations by the user, as in `AtomAnnotation`
    digest : digest of the atom, which identifies it across models
    fractions : for each class, the fraction of the patches that use the atom
    n_patients : number of patients with a patch that uses the atom
    of_patients : number of all patients
    auc : AUC of the usage per patient for the class of the atom against the other classes
    auc_low, auc_high : 95 % confidence interval of the AUC, from a bootstrap of patients
    group_variance_share : for "site", "patient" and "slide", the fraction of the variance of usage
        that lies between them, within a class (slides: within a patient)
    largest_patient_share : largest fraction of the usage in the atom's class by one patient
    site_variance_fraction : fraction of the variance of usage between sites; see `ConfoundingTest`
    site_p_value, site_adjusted_p_value : p-value of all atoms together, and adjusted for this atom
    site : site whose mean usage exceeds that of the other sites of a class most
    site_excess : this excess, a difference of mean usages
    similarity_other_seeds, similarity_half_of_patients : stability, as in `AtomStability`
    is_site_confounded : whether the atom meets the criteria of docs/concepts.md
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
    largest_patient_share: float
    site_variance_fraction: float
    site_p_value: float
    site_adjusted_p_value: float
    site: str
    site_excess: float
    similarity_other_seeds: float
    similarity_half_of_patients: float
    is_site_confounded: bool

    def row(self) -> dict[str, Any]:
        """Return a flat table row; unknown values are None.

        Returns
        -------
        dict
        """
        values = asdict(self)
        fractions, variance_shares = values.pop("fractions"), values.pop("group_variance_share")
        values |= {f"usage_{name}": share for name, share in fractions.items()}
        for level, interval in variance_shares.items():
            columns = [f"variance_share_{level}{limit}" for limit in ("", "_low", "_high")]
            values |= dict(zip(columns, interval, strict=True))
        return {
            column: None if isinstance(value, float) and np.isnan(value) else value
            for column, value in values.items()
        }


@dataclass(frozen=True)
class _Units:
    """Units of the statistics: patients in a class, or images.

    `usage` and `weights` (n_units, n_atoms) are the fraction of the patches that use an atom, and
    its mean code. `classes` are class indices, and `records` the record of an image of each unit.
    """

    usage: NDArray[np.float64]
    weights: NDArray[np.float64]
    classes: NDArray[np.int64]
    records: list[ImageRecord]

    def groups(self, key: Callable[[ImageRecord], str]) -> NDArray[np.int64]:
        """Return the group index of each unit; units with the same key form a group."""
        return np.unique([key(r) for r in self.records], return_inverse=True)[1].astype(np.int64)

    @property
    def patients(self) -> NDArray[np.int64]:
        return self.groups(_patient)

    def select(self, is_known: Callable[[ImageRecord], Any]) -> _Units:
        """Return the units of the records for which `is_known` returns a true value."""
        rows = [row for row, record in enumerate(self.records) if is_known(record)]
        arrays = (self.usage[rows], self.weights[rows], self.classes[rows])
        return _Units(*arrays, [self.records[row] for row in rows])


def _patient(record: ImageRecord) -> str:
    return record.patient


def _site(record: ImageRecord) -> str:
    return record.site or ""


def _slide(record: ImageRecord) -> str:
    return record.slide or ""


def compute_atom_statistics(
    atoms: AtomTable,
    annotations: AtomAnnotations,
    sample: PatchSample,
    labels: Sequence[str],
    records: Sequence[ImageRecord],
    classes: Sequence[str],
    stability: AtomStability | None = None,
) -> list[AtomStatistics]:
    """Compute the statistics of all atoms from a sample of patches.

    Parameters
    ----------
    atoms : atoms of the model
    annotations : annotations of the atoms
    sample : sample of patches
    labels : label of each patch
    records : images of the sample
    classes : class names
    stability : similarity to the atoms of repeated trainings; None if it was not measured
    """
    patient_of_record = np.unique([_patient(r) for r in records], return_inverse=True)[1]
    units = _collect_units(sample, labels, records, classes, patient_of_record)
    images = _collect_units(sample, labels, records, classes, np.arange(len(records)))
    aucs = [
        auc_per_feature(units.usage, units.classes == class_index, units.patients)
        for class_index in range(len(classes))
    ]
    with_site = units.select(_site)
    transforms = (arcsine_sqrt(with_site.usage), with_site.weights)
    test = confounding_test(transforms, with_site.classes, with_site.groups(_site))
    is_confounded = _select_site_confounded(test)
    variance_shares = _variance_shares_by_level(with_site, images)
    names = [name for name in classes if name in set(labels)]
    groups = np.array([classes.index(n) if n in classes else len(classes) for n in labels])
    fractions = sample.fractions(groups, len(classes) + 1)
    n_patients_using = _count_patients_using(units)
    n_patients = len(np.unique(units.patients))
    result = []
    for atom, label in enumerate(atom_labels(atoms.classes, classes)):
        class_index, annotation = int(atoms.classes[atom]), annotations.get(atom)
        site, excess = _find_top_site(with_site, atom)
        result.append(
            AtomStatistics(
                atom=atom,
                label=label,
                class_name=classes[class_index],
                name=annotation.name,
                group=annotation.group,
                artefact=annotation.artefact,
                disabled=annotation.disabled,
                digest=atoms.digest(atom),
                fractions={name: float(fractions[classes.index(name), atom]) for name in names},
                n_patients=int(n_patients_using[atom]),
                of_patients=n_patients,
                auc=float(aucs[class_index].value[atom]),
                auc_low=float(aucs[class_index].low[atom]),
                auc_high=float(aucs[class_index].high[atom]),
                group_variance_share={
                    level: ValueWithInterval(*interval[:, atom].tolist())
                    for level, interval in variance_shares.items()
                },
                largest_patient_share=_largest_patient_fraction(units, class_index, atom),
                site_variance_fraction=float(test.variance_fractions[atom]),
                site_p_value=test.p_value,
                site_adjusted_p_value=float(test.adjusted_p_values[atom]),
                site=site,
                site_excess=excess,
                similarity_other_seeds=float(stability.other_seeds[atom]) if stability else np.nan,
                similarity_half_of_patients=float(stability.halves[atom]) if stability else np.nan,
                is_site_confounded=bool(is_confounded[atom]),
            )
        )
    return result


def _select_site_confounded(test: ConfoundingTest) -> NDArray[np.bool_]:
    """Return the mask (n_atoms,) of site-confounded atoms.

    No atom is selected if the test of all atoms is not significant; otherwise at least the atom
    with the largest variance fraction is.
    """
    if not test.p_value <= MAX_SITE_P_VALUE:
        return np.zeros(len(test.variance_fractions), bool)
    flagged: NDArray[np.bool_] = test.adjusted_p_values <= MAX_ATOM_P_VALUE
    flagged &= test.variance_fractions >= MIN_SITE_VARIANCE_SHARE
    flagged[test.variance_fractions.argmax()] = True
    return flagged


def _variance_shares_by_level(with_site: _Units, images: _Units) -> dict[str, NDArray[np.float64]]:
    """Return the variance share, its lower and its upper limit at each level, (3, n_atoms).

    Levels are "site" (sites compared within a class, over patients), "patient" (patients within a
    class, over images) and "slide" (slides within a patient and class, over images).
    """
    with_slide = images.select(_slide)
    patient_class_pairs = [
        f"{p} {c}" for p, c in zip(with_slide.patients, with_slide.classes, strict=True)
    ]
    levels: dict[str, tuple[_Units, NDArray[Any], Callable[[ImageRecord], str]]] = {
        "site": (with_site, with_site.classes, _site),
        "patient": (images, images.classes, _patient),
        "slide": (with_slide, np.unique(patient_class_pairs, return_inverse=True)[1], _slide),
    }
    result = {}
    for level, (units, blocks, key) in levels.items():
        groups = blocks * (len(units.records) + 1) + units.groups(key)
        correlation = intraclass_correlation(units.usage, blocks, groups, units.patients)
        result[level] = np.stack([correlation.value, correlation.low, correlation.high])
    return result


def _collect_units(
    sample: PatchSample,
    labels: Sequence[str],
    records: Sequence[ImageRecord],
    classes: Sequence[str],
    unit_of_record: NDArray[Any],
) -> _Units:
    """Group patches by unit and class; `unit_of_record` is the patient or image of each record."""
    known = np.flatnonzero([label in classes for label in labels])
    class_indices = np.array([classes.index(labels[patch]) for patch in known.tolist()], np.int64)
    keys = unit_of_record[sample.images[known]] * len(classes) + class_indices
    unit_keys, first, groups = np.unique(keys, return_index=True, return_inverse=True)
    selected = sample.select(known)
    usage = selected.fractions(groups, len(unit_keys))
    weights = selected.mean_weights(groups, len(unit_keys))
    unit_records = [records[int(image)] for image in sample.images[known[first]]]
    return _Units(usage, weights, class_indices[first], unit_records)


def _count_patients_using(units: _Units) -> NDArray[np.int64]:
    """Return the number of patients with a patch that uses each atom, (n_atoms,)."""
    patients = units.patients
    using = np.zeros((int(patients.max(initial=-1)) + 1, units.usage.shape[1]), bool)
    for unit, patient in enumerate(patients.tolist()):
        using[patient] |= units.usage[unit] > 0
    counts: NDArray[np.int64] = using.sum(axis=0)
    return counts


def _largest_patient_fraction(units: _Units, class_index: int, atom: int) -> float:
    """Return the largest fraction of an atom's usage in a class by one patient; NaN if unused."""
    usage = units.usage[units.classes == class_index, atom]
    return float(usage.max() / usage.sum()) if usage.sum() > 0 else np.nan


def _find_top_site(units: _Units, atom: int) -> tuple[str, float]:
    """Return the site whose mean usage most exceeds the other sites of a class, and the excess."""
    best, best_site = 0.0, ""
    sites = np.array([_site(record) for record in units.records])
    for class_index in np.unique(units.classes):
        of_class = units.classes == class_index
        for site in np.unique(sites[of_class]):
            at_site, elsewhere = of_class & (sites == site), of_class & (sites != site)
            if elsewhere.any():
                excess = units.usage[at_site, atom].mean() - units.usage[elsewhere, atom].mean()
                if excess > best:
                    best, best_site = float(excess), str(site)
    return best_site, best


_MIN_PATCHES_PER_IMAGE = 200  # of the sample, as usage is measured for each patient


@dataclass(frozen=True)
class AtomReportData:
    """Atoms of a model with the patches that use them.

    Attributes
    ----------
    atoms : atoms of the model
    sample : sample of patches
    labels : label of each patch
    classes : usage of the most used atoms of each class
    statistics : statistics of all atoms
    stability : stability of the atoms; None if it was not measured
    flagged : usage of the site-confounded atoms by class, largest variance fraction first
    """

    atoms: AtomTable
    sample: PatchSample
    labels: list[str]
    classes: list[ClassAtomUsage]
    statistics: list[AtomStatistics]
    stability: AtomStability | None = None
    flagged: list[ClassAtomUsage] = field(default_factory=list)

    @classmethod
    def from_model(
        cls,
        model: Model,
        sample: PatchSample,
        records: Sequence[ImageRecord],
        n_atoms: int,
        stability: AtomStability | None = None,
    ) -> AtomReportData:
        """Compute the report from a sample of patches, with up to `n_atoms` atoms per class."""
        atoms, labels = _get_atoms(model), patch_labels(model, sample, records)
        patients, names = patient_indices(records), model.class_names_
        shown = partial(most_used_atoms, atoms, sample, labels, names, patients=patients)
        annotations = model.model_.atom_annotations
        statistics = compute_atom_statistics(
            atoms, annotations, sample, labels, records, names, stability
        )
        confounded = [each.atom for each in statistics if each.is_site_confounded]
        flagged = [use for use in shown(n_atoms=n_atoms, candidates=confounded) if use.atoms]
        fractions = [each.site_variance_fraction for each in statistics]
        flagged.sort(key=lambda use: -max(fractions[usage.atom] for usage in use.atoms))
        return cls(atoms, sample, labels, shown(n_atoms=n_atoms), statistics, stability, flagged)

    @property
    def confounded_atoms(self) -> list[AtomStatistics]:
        """Statistics of the site-confounded atoms, by decreasing variance fraction."""
        confounded = [each for each in self.statistics if each.is_site_confounded]
        return sorted(confounded, key=lambda each: -each.site_variance_fraction)


def atom_statistics(
    model: Model, images: LabelledImages, *, stability: int = 0, callback: Callback = no_callback
) -> list[AtomStatistics]:
    """Return statistics of every atom of a model, from patches of labelled images.

    docs/concepts.md defines the statistics; their method `row` returns a table row.

    Parameters
    ----------
    model : fitted model with atoms; the first member of an ensemble is used
    images : labelled images as `fit` takes them, such as the training images
    stability : number of trainings with other seeds, and as many on halves of the patients
    callback : receives the progress

    Returns
    -------
    list of AtomStatistics
    """
    model._check_fitted()
    first = model.estimators_[0] if model.n_estimators_ > 1 else model  # type: ignore[union-attr]
    report = collect_atom_report(
        first, resolve_labelled(images), n_atoms=1, n_trainings=stability, callback=callback
    )
    return report.statistics


def collect_atom_report(
    model: Model,
    manifest: Manifest,
    *,
    n_atoms: int = 24,
    cache: Path | None = None,
    n_trainings: int = 0,
    callback: Callback = no_callback,
) -> AtomReportData:
    """Collect the most used atoms of every class and the statistics of all atoms.

    Parameters
    ----------
    model : fitted model with atoms
    manifest : labelled images to sample patches from
    n_atoms : maximum number of atoms per class
    cache : cache folder of the training, which may contain encoder features
    n_trainings : number of trainings with other seeds, and number of trainings on halves
    """
    check_whole_number("atoms", n_atoms, 1)
    check_whole_number("stability", n_trainings, 0)
    _get_atoms(model)
    records, pipeline = manifest.records, copy(model.model_)
    pipeline.cache = ArrayCache(cache) if cache else model.model_.cache
    n_patches = max(N_PATCHES, _MIN_PATCHES_PER_IMAGE * len(records))
    sample = PatchSample.from_records(pipeline, records, model.random_state, callback, n_patches)
    stability = None
    if n_trainings:
        stability = measure_stability(
            model, manifest, n_trainings, partial(_retrain, model, cache), callback
        )
    return AtomReportData.from_model(model, sample, records, n_atoms, stability)


def confounded_atoms_of_members(
    model: Model,
    manifest: Manifest,
    excluded_member: int,
    cache: Path | None = None,
    callback: Callback = no_callback,
) -> dict[int, list[AtomStatistics]]:
    """Return the site-confounded atoms of ensemble members, by member number, counted from 1.

    The member `excluded_member` and members without atoms are omitted.
    """
    sites = {record.site for record in manifest.records if record.site}
    if model.n_estimators_ == 1 or len(sites) < 2:
        return {}
    confounded = {}
    for number, estimator in enumerate(model.estimators_, 1):  # type: ignore[union-attr]
        if number != excluded_member and estimator.model_.atoms() is not None:
            report = collect_atom_report(
                estimator, manifest, n_atoms=1, cache=cache, callback=callback
            )
            confounded[number] = report.confounded_atoms
    return confounded


def _retrain(model: Model, cache: Path | None, seed: int, manifest: Manifest) -> Model:
    """Return a model with the recipe of `model`, trained with this seed on these images."""
    region = model.class_names_[1] if model.finds_regions else None
    plan, n_jobs = Plan(model.recipe), model.n_jobs
    new = plan.build_model(region=region, random_state=seed, n_jobs=n_jobs, cache=cache)
    return new.fit(manifest)


def to_json_dict(report: AtomReportData, names: Sequence[str]) -> dict[str, Any]:
    """Return the report as JSON-serialisable data; `names` are the names of the images."""
    sample = report.sample

    def patch_entry(patch: int, weight: float) -> dict[str, Any]:
        x, y = sample.corners[patch].tolist()
        image = names[int(sample.images[patch])]
        side = float(sample.side[patch])
        return {"image": image, "x": x, "y": y, "side": side, "weight": weight}

    classes = [asdict(use) for use in report.classes]
    for atom_usage in (atom_usage for use in classes for atom_usage in use["atoms"]):
        atom_usage["patches"] = [patch_entry(*patch) for patch in atom_usage["patches"]]
    statistics: dict[str, Any] = {"atoms": [atom.row() for atom in report.statistics]}
    if report.stability is not None:
        statistics["stability"] = {
            "trainings": report.stability.n_trainings,
            "matched_other_seeds": report.stability.matched_other_seeds,
            "matched_half_of_patients": report.stability.matched_halves,
        }
    return {"n_patches": len(report.labels), "classes": classes} | statistics


def _get_atoms(model: Model) -> AtomTable:
    """Return the atoms of the model; raise ValueError if it has none."""
    atoms = model.model_.atoms()
    if atoms is None:
        raise ValueError(model.model_.no_atoms_reason())
    return atoms
