"""Contributions of atoms, concepts and ensemble members to the scores of an image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from ..decision.atom_annotations import AtomAccumulator, AtomMeans, patch_weights
from ..encoders import get_patch_features
from ..methods.patch_classifier import DistanceContributions
from ..models.image_pipeline import ImagePipeline, ImageScores, PatchRecorder
from ..patches.patch_map import NO_TISSUE, PatchMap
from ..utils.text_io import percent

_MAP_SIZE = 48  # cells along the longer side of an activity map


@dataclass(frozen=True)
class AtomActivity:
    """Atom statistics of one image and a coarse map of where each atom is used.

    Attributes
    ----------
    patch_statistics : mean statistics of the atoms over the patches
    usage_map : (n_codes, rows, columns), fraction of the patches in each cell that use each atom
    tissue : (rows, columns), mask of the cells with patches
    group_usage : for the atoms of each name, fraction of the patches that use at least one of them
    """

    patch_statistics: AtomMeans
    usage_map: NDArray[np.float32]
    tissue: NDArray[np.bool_]
    group_usage: dict[tuple[int, ...], float] = field(default_factory=dict)


class CoarseActivityMap:
    """Coarse grid that counts, in each cell, the patches that use each atom.

    `shape` is the number of rows and columns of patches.
    """

    def __init__(self, shape: tuple[int, ...], n_codes: int) -> None:
        self._step = max(1, -(-max(shape) // _MAP_SIZE))
        self._shape = tuple(-(-side // self._step) for side in shape)
        self._usage_counts = np.zeros((n_codes, *self._shape), np.float32)
        self._patch_counts = np.zeros(self._shape, np.float32)

    def add(self, positions: NDArray[np.int64], codes: csr_array) -> None:
        """Add patches with positions (row, column), (n, 2), and codes (n, n_codes)."""
        rows, columns = (positions // self._step).T
        np.add.at(self._patch_counts, (rows, columns), 1)
        used = codes.tocoo()
        patches, atoms = used.coords if hasattr(used, "coords") else (used.row, used.col)
        is_used = used.data != 0
        patches, atoms = patches[is_used], atoms[is_used]
        np.add.at(self._usage_counts, (atoms, rows[patches], columns[patches]), 1)

    def fractions(self) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Return the fractions of patches that use each atom, and the mask of cells with patches.

        The shapes are (n_codes, rows, columns) and (rows, columns).
        """
        fractions = self._usage_counts / np.maximum(self._patch_counts, 1)
        return fractions.astype(np.float32), self._patch_counts > 0


@dataclass(frozen=True)
class ConceptContribution:
    """Contribution of one concept, or of a whole model without atoms, to the scores of an image.

    Attributes
    ----------
    name : name given by the user, or the label of the atom
    class_name : class of the atoms; empty for a whole model and for atoms of several classes
    contribution : (n_scores,), contribution to the scores
    usage : fraction of the patches that use the concept; None for a whole model
    reference_usage : for each class, the usage in its training patches
    reference_contribution : for each class, the mean contribution in its training patches
    usage_map : (rows, columns), fraction of the patches that use the concept; NaN on background
    group : group given by the user; empty for none
    artefact : whether the user marked the atoms as artefact
    is_named : whether the user named the atoms
    atoms : atom indices, the most used first
    sign : sign (1 or −1) of the codes of the first atom
    member : index of the model in the ensemble
    is_ensemble_member : whether the model is a member of an ensemble
    no_atoms_reason : reason why a whole model has no concepts; empty for a concept
    """

    name: str
    class_name: str
    contribution: NDArray[np.float64]
    usage: float | None = None
    reference_usage: dict[str, float] = field(default_factory=dict)
    reference_contribution: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    usage_map: NDArray[np.float32] | None = None
    group: str = ""
    artefact: bool = False
    is_named: bool = False
    atoms: tuple[int, ...] = ()
    sign: float = 1.0
    member: int = 0
    is_ensemble_member: bool = False
    no_atoms_reason: str = ""

    @property
    def full_name(self) -> str:
        """Name, prefixed with the member number in an ensemble."""
        return (
            f"base model {self.member + 1}: {self.name}" if self.is_ensemble_member else self.name
        )

    @property
    def quoted(self) -> str:
        """Name for use in a sentence, in quotation marks if the user gave it."""
        name = f"“{self.name}”" if self.is_named else self.name
        return f"{name} of base model {self.member + 1}" if self.is_ensemble_member else name

    def describe_reference(self, name: str) -> str:
        """Return the reference usage of the class `name` as text; "" if it is unknown.

        For several atoms only an upper bound is known, which is written as "at most …".
        """
        if name not in self.reference_usage:
            return ""
        return "at most " * (len(self.atoms) > 1) + percent(self.reference_usage[name])


@dataclass(frozen=True)
class MemberContribution:
    """Contribution (n_scores,) of an ensemble member, its index and its description (`name`)."""

    member: int
    name: str
    contribution: NDArray[np.float64]


# Computes contributions (n_scores, n_codes) from the atom statistics of an image or a class.
ContributionFunction = Callable[[AtomMeans], NDArray[np.float64]]


@dataclass(frozen=True)
class ScoreContributions:
    """Scores of a model for an image, and contributions of its atoms; `factor` is not applied.

    Attributes
    ----------
    model : model that computes the scores
    scores : (n_scores,), scores of the image
    activity : statistics of the atoms in the image; None without atoms
    by_atom : (n_scores, n_codes), contributions of the atoms; None without atoms
    reference : for each class, the mean contributions (n_scores, n_codes) in its training patches;
        empty without atoms
    factor : (n_scores,), factor by which the ensemble multiplies the scores of this model
    member : index of the model in the ensemble
    """

    model: ImagePipeline
    scores: NDArray[np.float64]
    activity: AtomActivity | None = None
    by_atom: NDArray[np.float64] | None = None
    reference: list[NDArray[np.float64]] = field(default_factory=list)
    factor: NDArray[np.float64] = field(default_factory=lambda: np.ones(1))
    member: int = 0

    def usage_and_reference(
        self, indices: list[int], classes: Sequence[str]
    ) -> tuple[float, dict[str, float], dict[str, NDArray[np.float64]]]:
        """Return the usage of a concept, and its reference usage and contribution for each class.

        Parameters
        ----------
        indices : atoms of the concept
        classes : class names
        """
        assert self.activity is not None
        max_usage = float(self.activity.patch_statistics.usage[indices].max())
        usage = self.activity.group_usage.get(tuple(sorted(indices)), max_usage)
        reference_usage = {
            name: min(1.0, float(statistics.usage[indices].sum()))
            for name, statistics in zip(classes, self.model.class_reference_, strict=True)
        }
        reference = {
            name: self.factor * parts[:, indices].sum(axis=1)
            for name, parts in zip(classes, self.reference, strict=True)
        }
        return usage, reference_usage, reference

    def usage_map(self, indices: list[int]) -> NDArray[np.float32]:
        """Return the fraction of patches per map cell that use the atoms; NaN on background.

        For several atoms, this is the maximum of their fractions.
        """
        assert self.activity is not None
        usage = self.activity.usage_map[indices].max(axis=0)
        fractions: NDArray[np.float32] = np.where(self.activity.tissue, usage, np.nan).astype(
            np.float32
        )
        return fractions

    @property
    def name(self) -> str:
        """Description of the model: method, features, stain normalisation and magnification."""
        recipe = self.model.recipe
        name = recipe.method
        if recipe.is_patch_level:
            is_pixels = get_patch_features(recipe.features).atoms_are_images
            name += f" on {recipe.features}{' pixels' * is_pixels}"
        description = [name]
        if recipe.stain != "none":
            description.append(f"stain correction {recipe.stain}")
        if recipe.mpp is not None:
            description.append(f"{recipe.mpp:g} µm per pixel")
        elif recipe.downsample > 1:
            description.append(f"reduced by a factor of {recipe.downsample:g}")
        return ", ".join(description)


class ActivityRecorder(PatchRecorder):
    """Recorder of the scores of an image and the activity of each atom in its patches.

    Codes and contributions stay in memory until the last chunk of the image has been added, as the
    weights of patches depend on the whole map.

    Parameters
    ----------
    model : ImagePipeline
        Model whose patches are recorded.
    select : callable, optional
        Function from a patch map to the mask of patches that count; by default, `tissue_mask`.

    Attributes
    ----------
    image_scores : ImageScores or None
        Scores of the image; None if the image could not be scored.
    activity : AtomActivity or None
        Activity of the atoms; None without atoms or tissue.
    """

    def __init__(
        self, model: ImagePipeline, select: Callable[[PatchMap], NDArray[np.bool_]] | None = None
    ) -> None:
        self.image_scores: ImageScores | None = None
        self.activity: AtomActivity | None = None
        self.needs_contributions = model.atoms() is not None
        self._model = model
        self._select = select or tissue_mask
        self._chunks: list[tuple[NDArray[np.int64], csr_array, DistanceContributions]] = []

    def add(
        self,
        positions: NDArray[np.int64],
        codes: csr_array,
        contributions: DistanceContributions | None,
    ) -> None:
        """Store codes and contributions of a chunk of patches at `positions` (row, column)."""
        if contributions is not None:
            self._chunks.append((positions, codes, contributions))

    def finish(self, image_scores: ImageScores) -> None:
        """Compute the activity of the atoms in the selected patches."""
        self.image_scores = image_scores
        chunks, self._chunks = self._chunks, []
        patch_map = image_scores.patch_map
        if not chunks or patch_map is None:
            return
        model, chosen = self._model, self._select(patch_map)
        predicted = patch_map.predicted_classes
        weights = patch_weights(predicted != NO_TISSUE, chosen, model.recipe.smoothing_radius)
        sums = AtomAccumulator(len(model.classes), model.classifier_.n_codes_)
        activity_map = CoarseActivityMap(predicted.shape, model.classifier_.n_codes_)
        counts = dict.fromkeys(model.atom_annotations.merged_atom_groups(), 0)
        for positions, codes, contributions in chunks:
            index = tuple(positions.T)
            sums.add(codes, contributions, predicted[index], weights[index], chosen[index])
            activity_map.add(positions, codes)
            for atoms in counts:
                used = np.asarray((codes[:, list(atoms)] != 0).sum(axis=1)).ravel() > 0
                counts[atoms] += int((used & chosen[index]).sum())
        group_usage = {atoms: count / max(1, sums.n_patches) for atoms, count in counts.items()}
        self.activity = AtomActivity(sums.mean(), *activity_map.fractions(), group_usage)

    def contributions(
        self, scores: NDArray[np.float64], contribution_function: ContributionFunction
    ) -> ScoreContributions:
        """Return the contributions of the atoms in the image and, for comparison, in each class.

        For a class, they are the mean contributions in its training patches. Without atoms or
        tissue, the result contains only `scores`.

        Parameters
        ----------
        scores : (n_scores,), scores of the image
        contribution_function : computes the contributions of atoms from their statistics
        """
        model = self._model
        if self.activity is None:
            return ScoreContributions(model, scores)
        reference = [contribution_function(each).copy() for each in model.class_reference_]
        for contributions in reference:
            contributions[:, list(model.classifier_.disabled_atoms_)] = 0
        in_image = contribution_function(self.activity.patch_statistics)
        return ScoreContributions(model, scores, self.activity, in_image, reference)


def tissue_mask(patch_map: PatchMap) -> NDArray[np.bool_]:
    """Return the mask (rows, columns) of the patches on tissue."""
    return patch_map.predicted_classes != NO_TISSUE
