"""What a model says of an image, in parts of its atoms: a second look, patch by patch."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from ..decisions.atom_evidence import AtomAccumulator, AtomReference, patch_weights
from ..decisions.image_rules import n_scores
from ..execution.local import map_blocks
from ..execution.progress import Callback, no_callback
from ..images.annotations.drawing import AnnotationFile
from ..images.in_memory import ImageLike
from ..images.readers import ImageError
from ..patches.patch_map import NO_TISSUE, PatchMap
from .image_model import ImagePipeline
from .opening import open_prepared_image

_MAP_CELLS = 48  # of the longer side of an atom's map
# From the atom evidence of an image, or of a class, to parts (n_scores, n_codes).
Parts = Callable[[AtomReference], NDArray[np.float64]]


@dataclass(frozen=True)
class AtomActivity:
    """Of one image: what its atoms say, and where each is used.

    where : (n_codes, rows, columns) of a coarse grid over the image: share of the patches there
        that use the atom; tissue : (rows, columns), whether there are any
    together : of atoms that have one name, the share of the patches that use any of them
    """

    patch_statistics: AtomReference
    positions: NDArray[np.float32]
    tissue: NDArray[np.bool_]
    total: dict[tuple[int, ...], float] = field(default_factory=dict)


@dataclass(frozen=True)
class ScoreContributions:
    """What one model says; scores, parts and usual parts are its own, before `factor`.

    parts : (n_scores, n_codes); None where the model has no atoms, and speaks as a whole
    usual : per class, the parts of its typical training patches; empty without parts
    factor : (n_scores,), how much it counts where several decide
    view : its place among them
    """

    model: ImagePipeline
    scores: NDArray[np.float64]
    activity: AtomActivity | None = None
    parts: NDArray[np.float64] | None = None
    reference: list[NDArray[np.float64]] = field(default_factory=list)
    factor: NDArray[np.float64] = field(default_factory=lambda: np.ones(1))
    member: int = 0

    @property
    def name(self) -> str:
        """How it looks: by which method, at what, and from how near."""
        recipe = self.model.recipe
        words = [
            f"{recipe.method} on {recipe.features}" if recipe.is_patch_level else recipe.method
        ]
        if recipe.stain != "none":
            words.append(f"stain {recipe.stain}")
        if recipe.mpp is not None:
            words.append(f"{recipe.mpp:g} µm per pixel")
        elif recipe.downsample > 1:
            words.append(f"reduced {recipe.downsample:g} times")
        return ", ".join(words)


def explain_model(
    model: ImagePipeline,
    path: ImageLike,
    mpp: float | None,
    callback: Callback = no_callback,
    within: AnnotationFile | None = None,
) -> ScoreContributions | None:
    """What a view says; None of glass, and of an image that does not suit it."""
    try:
        look = model.score_image(path, mpp, callback, within)
    except ImageError:
        return None
    if look.scores is None:
        return None
    if model.atoms() is None or look.patch_map is None or model.aggregator_ is None:
        return ScoreContributions(model, look.scores)
    chosen = look.patch_map.predicted_classes != NO_TISSUE
    atoms = atom_activity(model, look.patch_map, chosen, path, mpp, within)
    return _in_parts(model, look.scores, atoms, model.aggregator_.parts)


def explain_ensemble(panel: Any, *image: Any) -> list[ScoreContributions]:
    """What the members of a `EnsembleClassifier` say that are not silent, each as much as it
    counts.
    """
    told = [member.score_contributions(*image) for member in panel.estimators_]
    silent = np.full(n_scores(len(panel.classes_)), np.nan)
    scores = np.array([own[0].scores if own else silent for own in told])
    factors = panel.combination_.score_gradients(scores)
    return [
        replace(own[0], factor=factors[place], member=place)
        for place, own in enumerate(told)
        if own
    ]


def explain_regions(
    detector: Any,
    path: ImageLike,
    mpp: float | None,
    callback: Callback = no_callback,
    within: AnnotationFile | None = None,
) -> ScoreContributions | None:
    """Of a `RegionDetector`: the mean margin of the patches that are called region, beyond the cut;
    of an image without any, that of all its patches.
    """
    model = detector.model_
    patch_map, evidence = model.predict_patches(path, mpp, callback, within)
    if not evidence.n_patches:
        return None
    called = patch_map.threshold(detector.margin_threshold_).predicted_classes == 1
    chosen = called if called.any() else patch_map.predicted_classes != NO_TISSUE
    mean = float(patch_map.margins[..., 1][chosen].mean(dtype=np.float64))
    scores = np.array([mean - detector.margin_threshold_])
    if model.atoms() is None:
        return ScoreContributions(model, scores)
    atoms = atom_activity(model, patch_map, chosen, path, mpp, within)
    return _in_parts(model, scores, atoms, lambda of: of.margins[1:])


def _in_parts(
    model: ImagePipeline, scores: NDArray[np.float64], look: AtomActivity, parts: Parts
) -> ScoreContributions:
    usual = [parts(of_class).copy() for of_class in model.class_reference_]
    for of_class in usual:
        of_class[:, list(model.method_.disabled_atoms_)] = 0
    return ScoreContributions(model, scores, look, parts(look.patch_statistics), usual)


def atom_activity(
    model: ImagePipeline,
    patch_map: PatchMap,
    chosen: NDArray[np.bool_],
    path: ImageLike,
    mpp: float | None,
    within: AnnotationFile | None,
) -> AtomActivity:
    """Code the patches of a map again, and say what each atom has to do with those chosen.

    `patch_map`: as the model's patches decided it, before a rule moved its line.
    """
    method, recipe = copy(model.method_).set_params(n_jobs=1), model.recipe
    tissue = patch_map.predicted_classes != NO_TISSUE
    weights = patch_weights(tissue, chosen, recipe.smoothing_radius)
    sums = AtomAccumulator(len(model.classes), method.n_codes_)
    spread = _CoarseActivityMap(tissue.shape, method.n_codes_)
    counts = dict.fromkeys(model.atom_annotations.merged_atom_groups(), 0)
    with open_prepared_image(
        path, mpp, recipe, model.mpp_, model.cache, model.feature_metadata_, within
    ) as view:
        grid = view.grid()

        def work(chunk: tuple[slice, slice]) -> Any:
            here, vectors = view.chunk_features(grid, *chunk)
            cells = np.add(np.argwhere(here), (chunk[0].start, chunk[1].start))
            if not len(vectors):
                return cells, None, None
            projected = model.project(vectors)
            codes, distances = method.encode(projected)
            return cells, codes, method.distance_contributions(projected, codes, distances)

        for cells, codes, parts in map_blocks(work, view.chunks(grid), model.n_jobs):
            if codes is None:
                continue
            at = tuple(cells.T)
            sums.add(codes, parts, patch_map.predicted_classes[at], weights[at], chosen[at])
            spread.add(cells, codes)
            for atoms in counts:
                used = np.asarray((codes[:, list(atoms)] != 0).sum(axis=1)).ravel() > 0
                counts[atoms] += int((used & chosen[at]).sum())
    together = {atoms: count / max(1, sums.n_patches) for atoms, count in counts.items()}
    return AtomActivity(sums.mean(), *spread.fractions(), together)


class _CoarseActivityMap:
    """Counts over the cells of a coarse grid which atoms the patches there use."""

    def __init__(self, shape: tuple[int, ...], n_codes: int) -> None:
        self._step = max(1, -(-max(shape) // _MAP_CELLS))
        self._shape = tuple(-(-side // self._step) for side in shape)
        self._users = np.zeros((n_codes, *self._shape), np.float32)
        self._patches = np.zeros(self._shape, np.float32)

    def add(self, cells: NDArray[np.int64], codes: csr_array) -> None:
        rows, columns = (cells // self._step).T
        np.add.at(self._patches, (rows, columns), 1)
        used = codes.tocoo()
        at, atoms = used.coords if hasattr(used, "coords") else (used.row, used.col)
        is_used = used.data != 0
        at, atoms = at[is_used], atoms[is_used]
        np.add.at(self._users, (atoms, rows[at], columns[at]), 1)

    def fractions(self) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        shares = self._users / np.maximum(self._patches, 1)
        return shares.astype(np.float32), self._patches > 0
