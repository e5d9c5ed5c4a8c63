"""Which atoms a model's patches use, by patches of labelled images, and facts of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ..execution.array_cache import ArrayCache
from ..execution.progress import Callback, no_callback
from ..images.manifest import ImageRecord, Manifest
from ..parameters import check_whole_number
from ..pipeline import Model, Plan
from ..pipeline.atom_facts import AtomStatistics, compute_atom_statistics
from ..pipeline.atoms import ClassAtomUsage, most_used_atoms, patch_labels, patient_indices
from ..pipeline.gallery import N_PATCHES, PatchSample
from ..pipeline.image_model import AtomTable
from ..pipeline.inputs import LabelledImages, resolve_labelled
from ..pipeline.stability import AtomStability, measure_stability

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
