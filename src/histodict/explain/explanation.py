"""An image's answer in concepts: parts that add up to its score, and what would change it.

The score of an image is Σ parts + constant (docs/concepts.md). By itself a part says little: atoms
that all tissue uses have large ones. What speaks for the answer is how it differs from tissue of
the class that came second, as the model's training patches of that class have it.

What a model says of an image, in parts of its atoms: a second look, patch by patch.

The parts of an answer: what each concept, and each view of a panel, has to do with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from ..annotations.annotation_file import AnnotationFile
from ..decision.aggregation import n_scores
from ..decision.atom_annotations import AtomAccumulator, AtomReference, atom_labels, patch_weights
from ..images.memory_image import ImageLike
from ..images.pixel_size import MppLike, PixelSizeOption
from ..images.source import ImageError
from ..models.image_pipeline import ImagePipeline
from ..models.predictions import NO_TISSUE_LABEL, Prediction
from ..models.prepared_image import open_prepared_image
from ..patches.patch_map import NO_TISSUE, PatchMap
from ..utils.parallel import map_blocks
from ..utils.progress import Callback, no_callback
from ..utils.text_io import percent

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


@dataclass(frozen=True)
class ConceptContribution:
    """What one concept has to do with an answer.

    name : as people named it, else CLASS:NUMBER
    owner : the class whose atoms these are; empty where it is no concept, but a view as a whole
    use : share of the image's patches that use it; None of a view as a whole
    usual_use : by class, the same of its training patches
    adds : (n_scores,), its part of the scores
    usual : by class, its part in what its training patches say
    where : (rows, columns), share of the patches there that use it, NaN on glass
    atoms : their places, the one most used first; sign : in which that one is usually used
    view : of a panel, the place of the member; of_panel : whether it is of one
    why_whole_image : of a view as a whole, why it has no concepts
    """

    name: str
    class_name: str
    adds: NDArray[np.float64]
    usage: float | None = None
    reference_usage: dict[str, float] = field(default_factory=dict)
    reference_contribution: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    positions: NDArray[np.float32] | None = None
    group: str = ""
    artefact: bool = False
    is_named: bool = False
    atoms: tuple[int, ...] = ()
    sign: float = 1.0
    member: int = 0
    of_ensemble: bool = False
    why_whole_image: str = ""

    @property
    def full_name(self) -> str:
        """With the number of its view, as names of different views may be the same."""
        whole = ", as a whole" * (self.usage is None)
        return f"view {self.member + 1}: {self.name}{whole}" if self.of_ensemble else self.name

    @property
    def quoted(self) -> str:
        """In a sentence."""
        name = f"“{self.name}”" if self.is_named else self.name
        return f"{name} of view {self.member + 1}" if self.of_ensemble else name

    def describe_reference(self, name: str) -> str:
        """What is usual in a class: of several atoms their sum, and so at most that; or nothing."""
        if name not in self.reference_usage:
            return ""
        return "at most " * (len(self.atoms) > 1) + percent(self.reference_usage[name])


@dataclass(frozen=True)
class MemberContribution:
    """What a view of a panel says: its place, how it looks, and its part of the scores."""

    member: int
    name: str
    adds: NDArray[np.float64]


def group_by_concept(
    own: ScoreContributions, classes: Sequence[str], of_panel: bool
) -> list[ConceptContribution]:
    """What a view says, concept by concept; as one part where it has no atoms."""
    atoms = own.model.atoms()
    if atoms is None or own.parts is None or own.activity is None:
        name, adds = own.model.recipe.method, own.factor * own.scores
        whole = own.model.no_atoms_reason()
        return [
            ConceptContribution(
                name, "", adds, member=own.member, of_ensemble=of_panel, why_whole_image=whole
            )
        ]
    labels, evidence = atom_labels(atoms.classes, classes), own.activity.patch_statistics
    found = []
    for concept in own.model.atom_annotations.concepts(labels):
        places = [a for a in concept.atoms if a not in own.model.method_.disabled_atoms_]
        if not places:
            continue
        places.sort(key=lambda a: -evidence.usage[a])
        owners = {classes[int(atoms.classes[a])] for a in places}
        found.append(
            ConceptContribution(
                concept.name,
                owners.pop() if len(owners) == 1 else "",
                own.factor * own.parts[:, places].sum(axis=1),
                *_usage(own, places, classes),
                _positions(own, places),
                concept.group,
                concept.artefact,
                concept.is_named,
                tuple(places),
                float(atoms.signs[places[0]]),
                own.member,
                of_panel,
            )
        )
    return [
        part
        for part in found
        if part.usage or any(map(np.any, part.reference_contribution.values()))
    ]


def _usage(
    own: ScoreContributions, places: list[int], classes: Sequence[str]
) -> tuple[float, dict[str, float], dict[str, NDArray[np.float64]]]:
    """Use of a concept, and what is usual, by class: of several atoms, at most their sum."""
    assert own.activity is not None
    alone = float(own.activity.patch_statistics.usage[places].max())
    use = own.activity.total.get(tuple(sorted(places)), alone)
    usual_use = {
        name: min(1.0, float(of_class.usage[places].sum()))
        for name, of_class in zip(classes, own.model.class_reference_, strict=True)
    }
    usual = {
        name: own.factor * parts[:, places].sum(axis=1)
        for name, parts in zip(classes, own.reference, strict=True)
    }
    return use, usual_use, usual


def _positions(own: ScoreContributions, places: list[int]) -> NDArray[np.float32]:
    assert own.activity is not None
    share = own.activity.positions[places].max(axis=0)
    found: NDArray[np.float32] = np.where(own.activity.tissue, share, np.nan).astype(np.float32)
    return found


_NUMBER_WORDS = 3
_MAX_NAMED = 4  # of what would have to change


@dataclass(frozen=True)
class Explanation:
    """An answer and its parts: scores = constant + Σ adds, for every score.

    scores : (n_scores,), what is explained: those of the answer; of regions, by how much the mean
        margin of the patches that are called so is beyond the cut
    votes : of a panel, what its views say; empty of a single model
    """

    prediction: Prediction
    classes: tuple[str, ...]
    scores: NDArray[np.float64]
    constant: NDArray[np.float64]
    parts: list[ConceptContribution]
    is_of_regions: bool = False
    votes: list[MemberContribution] = field(default_factory=list)

    @property
    def label(self) -> str:
        return self.prediction.label or NO_TISSUE_LABEL

    @cached_property
    def predicted_class(self) -> int:
        """The place of the class that the scores speak for."""
        return int(self.scores[0] > 0) if len(self.scores) == 1 else int(self.scores.argmax())

    @cached_property
    def rival(self) -> int:
        """The place of the class that came second."""
        if len(self.scores) == 1:
            return 1 - self.predicted_class
        return int(np.argsort(-self.scores, kind="stable")[1])

    def margin_to_runner_up(self, values: NDArray[np.float64]) -> float:
        """By how much scores, or parts of them, speak for the winner and against the rival."""
        if len(values) == 1:
            return float(values[0] if self.predicted_class else -values[0])
        return float(values[self.predicted_class] - values[self.rival])

    def excess_over_reference(self, part: ConceptContribution) -> float:
        """How much more a part speaks for the answer than it usually does in the rival's tissue."""
        usual = part.reference_contribution.get(self.classes[self.rival])
        return self.margin_to_runner_up(part.adds) - (
            0.0 if usual is None else self.margin_to_runner_up(usual)
        )

    @cached_property
    def ordered(self) -> list[ConceptContribution]:
        """The parts, what speaks most for the answer or against it first."""
        return sorted(self.parts, key=lambda part: -abs(self.excess_over_reference(part)))

    @property
    def concepts(self) -> list[ConceptContribution]:
        """Those of them that are worth a row of their own; views as a whole are in `votes`."""
        return [part for part in self.ordered if part.usage is not None or not self.votes]

    def others(self, n_shown: int) -> list[ConceptContribution]:
        """All parts but so many concepts."""
        shown = {id(part) for part in self.concepts[:n_shown]}
        return [part for part in self.parts if id(part) not in shown]

    @cached_property
    def changes(self) -> list[ConceptContribution] | None:
        """The fewest concepts that, were they as usual in the rival's tissue, would change the
        answer; None if all together would not.
        """
        left, found = self.scores.copy(), []
        for part in sorted(self.parts, key=lambda part: -self.excess_over_reference(part)):
            if self.excess_over_reference(part) <= 0:
                break
            found.append(part)
            left -= part.adds - part.reference_contribution.get(self.classes[self.rival], 0.0)
            if self._is_called(self.rival, left):
                return found
        return None

    def _is_called(self, place: int, scores: NDArray[np.float64]) -> bool:
        if len(scores) == 1:
            return bool(scores[0] > 0 if place else scores[0] < 0)
        return int(np.argmax(scores)) == place

    @property
    def is_too_few(self) -> bool:
        """Patches are called the region, but no piece of them is large enough to be one."""
        return (
            self.is_of_regions
            and self.predicted_class == 1
            and self.prediction.label != self.classes[1]
        )

    # --- in words -------------------------------------------------------------------------------

    def summary(self) -> str:
        """One sentence: what the answer is, and because of what."""
        if self.prediction.label is None:
            return self.label
        called = f"{self._called()}{self._agreed()}"
        grounds = [
            p for p in self.ordered if self.excess_over_reference(p) > 0 and p.usage is not None
        ]
        told = ", and ".join(self._ground(part) for part in grounds[:_NUMBER_WORDS])
        if told:
            return f"{called}, because {told}."
        whole = [part.why_whole_image for part in self.parts if part.why_whole_image]
        if self.votes or not whole:
            return f"{called}."
        return f"{called}; because of what is not known: {whole[0]}."

    def _agreed(self) -> str:
        """How many views of a panel say so."""
        if not self.votes:
            return ""
        n, n_agree = len(self.votes), sum(self.agrees(vote) for vote in self.votes)
        silent = getattr(self.prediction, "n_abstaining", None)
        without = f" ({silent} could not judge it)" if silent else ""
        if not n_agree:
            views = "its one view does" if n == 1 else f"its {n} views do"
            return f", though {views} not say so{without}"
        if n == 1:
            return f", as its one view says{without}"
        return f", as {'all' if n_agree == n else f'{n_agree} of'} {n} views say{without}"

    def agrees(self, vote: MemberContribution) -> bool:
        """Whether a view, by itself, gives the same answer."""
        if len(vote.adds) == 1:
            return self.margin_to_runner_up(vote.adds) > 0
        return int(vote.adds.argmax()) == self.predicted_class

    def _called(self) -> str:
        if not self.is_of_regions:
            return self.label
        score = getattr(self.prediction, "score", 0)
        if self.is_too_few:
            few = f"{score} patches in one piece are called {self.classes[1]}, too few for a region"
            return f"{self.label} ({few}); these are called so"
        return f"{self.classes[self.predicted_class]} ({score} patches in one piece)"

    def _ground(self, part: ConceptContribution) -> str:
        rival = self.classes[self.rival]
        assert part.usage is not None
        share = f"{percent(part.usage)} of its tissue is {part.quoted}"
        only = "only " * (part.usage < part.reference_usage[rival] and len(part.atoms) == 1)
        return f"{only}{share} ({rival} {part.describe_reference(rival)})"

    def describe_change(self) -> str:
        """What would have to change for another answer."""
        if self.prediction.label is None or all(part.usage is None for part in self.parts):
            return ""
        rival = self.classes[self.rival]
        if self.is_too_few:
            return f"It would be called {self.classes[1]} if a piece of such patches were larger."
        if self.changes is None:
            return f"It would not be called {rival}, whatever atoms were used as usual there."
        views = sorted(part.member + 1 for part in self.changes if part.usage is None)
        atoms = [part for part in self.changes if part.usage is not None]
        conditions = []
        if views:
            names = " and ".join(f"view {number}" for number in views)
            conditions.append(f"{names} {'was' if len(views) == 1 else 'were'} undecided")
        if atoms:
            names = " and ".join(part.quoted for part in atoms)
            if len(atoms) > _MAX_NAMED:
                names = (
                    f"the {len(atoms)} atoms that speak most for "
                    f"{self.classes[self.predicted_class]}"
                )
            conditions.append(f"{names} {'was' if len(atoms) == 1 else 'were'} as usual in {rival}")
        return f"It would be called {rival} if {' and '.join(conditions)}."

    # --- for programs ---------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Numbers are those of the scores; `beyond` is what speaks for the answer."""
        return {
            "path": str(self.prediction.path),
            "label": self.label,
            "scores": _numbers(self.scores),
            "constant": _numbers(self.constant),
            "words": self.summary(),
            "other_answer": self.describe_change(),
            "views": [
                {"view": vote.member + 1, "name": vote.name, "adds": vote.adds.tolist()}
                for vote in self.votes
            ],
            "parts": [self._row(part) for part in self.ordered],
        }

    def _row(self, part: ConceptContribution) -> dict[str, Any]:
        return {
            "name": part.full_name,
            "class": part.class_name,
            "group": part.group,
            "artefact": part.artefact,
            "use": part.usage,
            "usual_use": part.reference_usage,
            "adds": part.adds.tolist(),
            "beyond": self.excess_over_reference(part),
        }


def _numbers(values: NDArray[np.float64]) -> list[float] | None:
    """None: there is nothing to be said of glass."""
    return None if np.isnan(values).any() else values.tolist()


# --- from what the views say --------------------------------------------------------------------


def explain(
    model: Any,
    image: ImageLike | str,
    *,
    mpp: MppLike = None,
    within: AnnotationFile | None = None,
    callback: Callback = no_callback,
) -> Explanation:
    """The answer of any kind of model, in parts."""
    path = Path(image) if isinstance(image, str) else image
    answer = model.predict_one(path, mpp=mpp, callback=callback, within=within)
    classes, n = tuple(model.classes_), n_scores(len(model.classes_))
    size = PixelSizeOption.of(mpp).at(path).is_user_given
    told: list[ScoreContributions] = model.score_contributions(path, size, callback, within)
    if answer.label is None or not told:
        nothing = np.full(n, np.nan)
        return Explanation(answer, classes, nothing, nothing, [], model.finds_regions)
    scores = told[0].scores if model.finds_regions else np.array(answer.scores)
    of_panel = model.n_estimators_ > 1
    parts = [part for own in told for part in group_by_concept(own, classes, of_panel)]
    constant = scores - np.sum([part.adds for part in parts], axis=0)
    votes = [
        MemberContribution(own.member, own.name, own.factor * own.scores)
        for own in told
        if of_panel
    ]
    return Explanation(answer, classes, scores, constant, parts, model.finds_regions, votes)
