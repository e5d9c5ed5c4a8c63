"""From the patches of labelled images to a patch classifier, and from an image to its patch map.

image ─► reduced, stain-normalised ─► patches on tissue ─► vectors ─► codes and distances ─► winners
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from inspect import signature
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from ..decisions.atom_notes import AtomNotes
from ..decisions.image_rules import (
    RULES,
    Evidence,
    ImageRule,
    check_scores,
    mean_of_neighbours,
    patch_margins,
)
from ..execution.executor import Executor, Threads
from ..execution.local import map_blocks
from ..execution.progress import Callback, ignore
from ..images.annotations.drawing import Drawing
from ..images.in_memory import ImageFile, image_bytes
from ..images.manifest import Manifest, Record
from ..learnt_arrays import Learnt
from ..methods.patch_classifier import PatchClassifier
from ..methods.registry import method_entry
from ..model_content import ModelContent, arrays_of
from ..networks import vectors_named
from ..patches.grid import PatchGrid
from ..patches.patch_map import BLANK, PatchMap
from ..patches.projection import Projection
from .image_model import Atoms, ImageModel, Look
from .opening import open_view
from .reach import report_windows
from .training_patches import PatchSource, for_every, sample_training
from .typical import read_typical, typical_arrays, typical_use, usual_signs
from .view import View, nothing_found

Chunk = tuple[slice, slice]


class PatchModel(ImageModel):
    """A patch classifier with everything that stands between it and an image file.

    Attributes, beside those of every `ImageModel`
    ----------
    projection_ : principal components of the vectors, where the recipe asks for them
    """

    method_: PatchClassifier
    projection_: Projection | None

    def fit_images(
        self,
        manifest: Manifest,
        labels: NDArray[np.int64],
        callback: Callback,
        executor: Executor | None,
        start_from: ImageModel | None,
    ) -> dict[str, Any]:
        """Learn from patches of all images, then fit the rule on the same images."""
        sources = [
            PatchSource(record, label)
            for record, label in zip(manifest.records, labels.tolist(), strict=True)
        ]
        n_patches = self.fit(sources, callback, executor, start_from)
        self.rule_ = self._fitted_rule(manifest.records, labels, callback, executor)
        return {"n_patches": n_patches}

    def _fitted_rule(
        self,
        records: Sequence[Record],
        labels: NDArray[np.int64],
        callback: Callback,
        executor: Executor | None = None,
    ) -> ImageRule:
        evidence = self.judge_all(records, _evidence, callback, executor)
        seen = np.array([e.n_patches > 0 for e in evidence])
        evidence, name = [e for e in evidence if e.n_patches], self.recipe.rule
        missing = sorted(set(range(len(self.classes))) - set(labels[seen].tolist()))
        if missing:
            what = f"any image of class {self.classes[missing[0]]!r}"
            raise ValueError(nothing_found(what, self.recipe))
        return RULES[name].fit(name, evidence, labels[seen])

    def with_line(
        self, records: Sequence[Record], labels: NDArray[np.int64], callback: Callback
    ) -> Self:
        changed = copy(self)
        changed.rule_ = self._fitted_rule(records, labels, callback)
        return changed

    def fit(
        self,
        sources: Sequence[PatchSource],
        callback: Callback = ignore,
        executor: Executor | None = None,
        start_from: ImageModel | None = None,
    ) -> int:
        """Sample patches, about as many from every image of a class, and train; their number.

        `start_from`: a model of the same recipe and classes, whose dictionaries are gone on from.
        """
        start = self._start(start_from) if start_from is not None else None
        if start and start.notes:
            warnings.warn(
                "atoms change as training goes on: their names, and what was switched off, are "
                "not carried over",
                stacklevel=2,
            )
        self._look_at_files([source.record for source in sources])
        found = sample_training(
            sources,
            self.recipe,
            self.random_state,
            self.cache,
            callback,
            executor or Threads(self.n_jobs),
        )
        X = found.vectors
        self._check_classes(found.labels)
        self.projection_ = start.projection_ if start else None
        if self.recipe.components and not self.projection_:
            n_components = self.recipe.components
            self.projection_ = Projection.fit(X, n_components, whiten=self.recipe.whiten)
        self.method_ = self.new_method()
        if start:
            self.method_.set_params(warm_start=True)
            for name in ("classes_", "n_features_in_", *self.method_.fitted_arrays):
                setattr(self.method_, name, getattr(start.method_, name))
        options = {"callback": callback, "executor": executor}
        # Most methods train in this process alone.
        known = signature(self.method_.fit).parameters
        own = {name: options[name] for name in options if name in known}
        self.method_.fit(self.project(X), found.labels, **own)
        self.typical_ = typical_use(self.method_, found, self.project, len(self.classes))
        return len(X)

    def _check_classes(self, labels: NDArray[np.int64]) -> None:
        counts = np.bincount(labels, minlength=len(self.classes))
        for name, count in zip(self.classes, counts, strict=True):
            if count == 0:
                raise ValueError(nothing_found(f"any image of class {name!r}", self.recipe))

    def look(
        self,
        path: ImageFile,
        mpp: float | None = None,
        callback: Callback = ignore,
        within: Drawing | None = None,
    ) -> Look:
        assert self.rule_ is not None
        patch_map, evidence = self.judge(path, mpp, callback, within)
        if not evidence.n_patches:
            return Look(None, patch_map, evidence)
        scores = self._scores(evidence)
        check_scores(path, scores)
        return Look(scores, patch_map, evidence)

    def _scores(self, evidence: Evidence) -> NDArray[np.float64]:
        assert self.rule_ is not None
        if not self.method_.off_:
            return self.rule_.scores(evidence)
        n_codes = self.method_.n_codes_
        kept = np.delete(np.arange(n_codes), list(self.method_.off_))
        return self.rule_.in_use(kept, n_codes).scores(evidence.in_use(kept))

    def with_notes(self, notes: AtomNotes) -> Self:
        atoms = self.atoms()
        if notes and atoms is None:
            raise ValueError(self.why_no_atoms())
        for note in notes.notes:
            if atoms is not None and note.atom >= len(atoms.D):
                raise ValueError(f"there is no atom {note.atom}: there are {len(atoms.D)}")
        changed = copy(self)
        changed.notes, changed.method_ = notes, self.method_.without_atoms(notes.off)
        return changed

    def judge(
        self,
        path: ImageFile,
        mpp: float | None = None,
        callback: Callback = ignore,
        within: Drawing | None = None,
    ) -> tuple[PatchMap, Evidence]:
        """The map of an image and what its patches say together; the chunks run in parallel."""
        return self._judge(path, mpp, self.n_jobs, callback, within)

    def judge_all(
        self,
        records: Sequence[Record],
        look: Callable[[int, PatchMap, Evidence], Any],
        callback: Callback = ignore,
        executor: Executor | None = None,
    ) -> list[Any]:
        """look(place, map, evidence) of every image; the images run in parallel."""

        def work(place: int) -> Any:
            record = records[place]
            return look(place, *self._judge(record.path, record.mpp, 1, within=record.within))

        executor = executor or Threads(self.n_jobs)
        n_bytes = [image_bytes(record.path) for record in records]
        return for_every(work, len(records), "rule", callback, executor, n_bytes)

    def _judge(
        self,
        path: ImageFile,
        mpp: float | None,
        n_jobs: int | None,
        callback: Callback = ignore,
        within: Drawing | None = None,
    ) -> tuple[PatchMap, Evidence]:
        method = copy(self.method_).set_params(n_jobs=1)  # the chunks are what runs in parallel
        codes, named = np.zeros(method.n_codes_), self.notes.by_name()
        with open_view(path, mpp, self.recipe, self.mpp_, self.cache, self.origin_, within) as view:
            grid = view.grid()
            winners = np.full((grid.n_rows, grid.n_columns), BLANK, np.int16)
            margins = np.zeros((grid.n_rows, grid.n_columns, len(self.classes)), np.float32)
            concepts = {name: np.zeros(winners.shape, bool) for name in named}
            work = partial(self._judge_chunk, method, view, grid)
            chunks = list(view.chunks(grid))
            results = map_blocks(work, chunks, n_jobs)
            for (rows, columns), tissue, distances, S in report_windows(
                results, chunks, view.size, callback
            ):
                winners[rows, columns][tissue] = distances.argmin(axis=1)
                margins[rows, columns][tissue] = patch_margins(distances)
                codes += np.asarray(abs(S).sum(axis=0), dtype=np.float64).ravel()
                for name, atoms in named.items():
                    used = (S[:, atoms] != 0).sum(axis=1) > 0
                    concepts[name][rows, columns][tissue] = np.asarray(used).ravel()
                if self.codes_to:
                    self.codes_to(np.add(np.argwhere(tissue), (rows.start, columns.start)), S)
        check_scores(path, margins, codes)
        if self.recipe.neighbours:
            margins = mean_of_neighbours(margins, winners != BLANK, self.recipe.neighbours)
            winners = np.where(winners == BLANK, BLANK, margins.argmax(axis=2)).astype(np.int16)
        left_out = None if view.quality is None else view.quality.words()
        known = path, view.mpp, view.offset, left_out, concepts, view.uses_whole_image
        found = PatchMap(grid, winners, margins, tuple(self.classes), *known, view.clip_size)
        return found, Evidence.of_map(winners, margins, codes)

    def _judge_chunk(
        self, method: PatchClassifier, view: View, grid: PatchGrid, chunk: Chunk
    ) -> tuple[Chunk, NDArray[np.bool_], NDArray[np.float64], csr_array]:
        """Where the chunk is, which patches are tissue, their distances and codes."""
        tissue, vectors = view.chunk_vectors(grid, *chunk)
        if len(vectors) == 0:
            nothing = np.empty((0, len(self.classes)))
            return chunk, tissue, nothing, csr_array((0, method.n_codes_), dtype=np.float32)
        S, distances = method.encode(self.project(vectors))
        return chunk, tissue, distances, S

    def _start(self, other: ImageModel) -> PatchModel:
        """The other model, if training can go on from it: a ValueError says why it cannot."""
        known = signature(method_entry(self.recipe.method).load()).parameters
        if "warm_start" not in known:
            raise ValueError(f"the method {self.recipe.method!r} cannot go on from another model")
        if self.recipe != other.recipe:
            raise ValueError(
                "training goes on only from a model with the same settings; these differ: "
                + self.recipe.differences(other.recipe)
            )
        if self.classes != other.classes:
            raise ValueError(
                f"training goes on only with the same classes, not {self.classes} after "
                f"{other.classes}"
            )
        return cast(PatchModel, other)  # the same recipe makes the same kind of model

    def project(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        return self.projection_(vectors) if self.projection_ else vectors

    def atoms(self) -> Atoms | None:
        if not self.method_.has_class_atoms:
            return None
        D, classes = self.method_.labelled_atoms()
        if len(D) != self.method_.n_codes_:
            return None
        side = self.recipe.patch_px
        is_pixels = self.projection_ is None and vectors_named(self.recipe.vectors).are_pictures
        return Atoms(D, classes, side if is_pixels else None, usual_signs(self.typical_, classes))

    def why_no_atoms(self) -> str:
        return (
            f"the method {self.recipe.method!r} has no atoms that belong to classes: dfdl, odl, "
            "fddl, lcksvd and src have"
        )

    # --- for a model file -----------------------------------------------------------------------

    def arrays(self) -> dict[str, NDArray[Any]]:
        found = super().arrays()
        if self.projection_:
            found["projection.mean"] = self.projection_.mean
            found["projection.components"] = self.projection_.components
        if self.rule_:
            found |= {f"rule.{name}": array for name, array in self.rule_.arrays().items()}
        return found | typical_arrays(self.typical_)

    def learnt(self) -> dict[str, Learnt]:
        return arrays_of("use", *["projection"] * bool(self.recipe.components))

    def rule_arrays(self) -> dict[str, Learnt]:
        """What the arrays of the rule must be."""
        name = self.recipe.rule
        return {f"rule.{key}": what for key, what in RULES[name].learnt(name).items()}

    def _sizes(self, method: Any) -> dict[str, int | str]:
        sizes: dict[str, int | str] = {"codes": method.code_length}
        recipe = self.recipe
        length = vectors_named(recipe.vectors).length(recipe.patch_px, recipe.n_channels)
        if length is not None:
            sizes["inputs" if recipe.components else "features"] = length
        return sizes

    def restore(self, content: ModelContent, others: Mapping[str, Learnt] | None = None) -> None:
        super().restore(content, others)
        self.method_.check_features(content.n_features)
        arrays = content.arrays
        self.projection_ = None
        if "projection.mean" in arrays:
            mean, components = arrays["projection.mean"], arrays["projection.components"]
            self.projection_ = Projection(mean, components)
        self.typical_ = read_typical(arrays)
        noted = self.with_notes(AtomNotes.from_list(content.atoms))
        self.notes, self.method_ = noted.notes, noted.method_
        learnt = {k.removeprefix("rule."): v for k, v in arrays.items() if k.startswith("rule.")}
        if learnt:
            name = self.recipe.rule
            self.rule_ = RULES[name](name=name, **learnt)  # type: ignore[call-arg]


def _evidence(place: int, patch_map: PatchMap, evidence: Evidence) -> Evidence:
    return evidence
