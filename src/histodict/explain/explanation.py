"""Explanation of a prediction as a sum of concept contributions.

The score of an image is constant + Σ contributions (docs/concepts.md). Atoms that all tissue uses
have large contributions, so a contribution is compared with its reference: the mean over the
model's training patches of the runner-up class. The difference is called the excess.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..annotations.annotation_file import AnnotationFile
from ..decision.aggregation import count_scores
from ..decision.atom_annotations import atom_labels
from ..images.memory_image import ImageLike
from ..images.pixel_size import MppLike
from ..models.predictions import NO_TISSUE_LABEL, Prediction, describe_label
from ..patches.patch_map import PatchMap
from ..utils.progress import Callback, no_callback
from ..utils.text_io import percent, pluralize
from .concept_contribution import (
    ActivityRecorder,
    ConceptContribution,
    MemberContribution,
    ScoreContributions,
    tissue_mask,
)


def _classifier_contributions(
    model: Any, recorders: Sequence[ActivityRecorder]
) -> list[ScoreContributions]:
    """Return the contributions of all estimators of a classifier that do not abstain."""
    estimators = getattr(model, "estimators_", [model])
    contributions = {}
    for index, (estimator, recorder) in enumerate(zip(estimators, recorders, strict=True)):
        scored, aggregator = recorder.image_scores, estimator.aggregator_
        if scored is not None and scored.scores is not None:
            compute = aggregator.atom_contributions if aggregator else attrgetter("margins")
            contributions[index] = recorder.contributions(scored.scores, compute)
    if estimators == [model]:
        return list(contributions.values())
    abstaining = np.full(count_scores(len(model.class_names_)), np.nan)
    scores = [
        contributions[index].scores if index in contributions else abstaining
        for index in range(len(estimators))
    ]
    factors = model.combination_.member_factors(np.array(scores))
    return [
        replace(each, factor=factors[index], member=index) for index, each in contributions.items()
    ]


def _select_regions(threshold: float, patch_map: PatchMap) -> NDArray[np.bool_]:
    """Return the mask (rows, columns) of patches above the threshold, or of all tissue if none is.

    The minimum size of a region does not matter.
    """
    is_region = patch_map.threshold(threshold).predicted_classes == 1
    return is_region if is_region.any() else tissue_mask(patch_map)


def _region_contributions(detector: Any, recorder: ActivityRecorder) -> list[ScoreContributions]:
    """Return the contributions to the score of a `RegionDetector`.

    The score is the mean margin of the patches above the margin threshold (all tissue patches, if
    there are none) minus this threshold.
    """
    scored = recorder.image_scores
    if scored is None or scored.patch_map is None or not scored.patch_map.n_patches:
        return []
    threshold, margins = detector.margin_threshold_, scored.patch_map.margins[..., 1]
    selected = _select_regions(threshold, scored.patch_map)
    scores = np.array([float(margins[selected].mean(dtype=np.float64)) - threshold])
    return [recorder.contributions(scores, lambda reference: reference.margins[1:])]


def group_by_concept(
    source: ScoreContributions, classes: Sequence[str], is_ensemble: bool
) -> list[ConceptContribution]:
    """Group the contributions of a model by concept; a model without atoms is one contribution.

    Parameters
    ----------
    source : scores of the model and contributions of its atoms
    classes : class names
    is_ensemble : whether the model is a member of an ensemble
    """
    model, factor, member = source.model, source.factor, source.member
    atoms = model.atoms()
    if atoms is None or source.by_atom is None or source.activity is None:
        return [
            ConceptContribution(
                model.recipe.method,
                "",
                factor * source.scores,
                member=member,
                is_ensemble_member=is_ensemble,
                no_atoms_reason=model.no_atoms_reason(),
            )
        ]
    labels, statistics = atom_labels(atoms.classes, classes), source.activity.patch_statistics
    contributions = []
    for concept in model.atom_annotations.concepts(labels):
        indices = [a for a in concept.atoms if a not in model.classifier_.disabled_atoms_]
        if not indices:
            continue
        indices.sort(key=lambda a: -statistics.usage[a])
        class_names = {classes[int(atoms.classes[a])] for a in indices}
        usage, reference_usage, reference = source.usage_and_reference(indices, classes)
        contributions.append(
            ConceptContribution(
                name=concept.name,
                class_name=class_names.pop() if len(class_names) == 1 else "",
                contribution=factor * source.by_atom[:, indices].sum(axis=1),
                usage=usage,
                reference_usage=reference_usage,
                reference_contribution=reference,
                usage_map=source.usage_map(indices),
                group=concept.group,
                artefact=concept.artefact,
                is_named=concept.is_named,
                atoms=tuple(indices),
                sign=float(atoms.signs[indices[0]]),
                member=member,
                is_ensemble_member=is_ensemble,
            )
        )
    return [
        part
        for part in contributions
        if part.usage or any(map(np.any, part.reference_contribution.values()))
    ]


_MAX_REASONS = 3
_MAX_NAMED = 4  # atoms listed by `describe_change`
_MIN_SHARE = 0.5  # minimum explained share of the score for which the summary says "because"


@dataclass(frozen=True)
class Explanation:
    """Prediction and its contributions: scores = constant + Σ contribution.

    Attributes
    ----------
    prediction : prediction of the image
    classes : class names
    scores : (n_scores,), explained scores; for a `RegionDetector`, the mean margin of the patches
        above the margin threshold (all tissue patches, if there are none) minus this threshold
    constant : (n_scores,), scores minus the sum of the contributions
    contributions : contribution of each concept; for a model without atoms, that of the model
    is_of_regions : whether the model is a `RegionDetector`
    member_contributions : contributions of the ensemble members; empty for a single model
    """

    prediction: Prediction
    classes: tuple[str, ...]
    scores: NDArray[np.float64]
    constant: NDArray[np.float64]
    contributions: list[ConceptContribution]
    is_of_regions: bool = False
    member_contributions: list[MemberContribution] = field(default_factory=list)

    @property
    def label(self) -> str:
        """Predicted label, or the label of images without tissue."""
        return self.prediction.label or NO_TISSUE_LABEL

    @cached_property
    def predicted_class(self) -> int:
        """Index of the class with the highest score."""
        return int(self.scores[0] > 0) if len(self.scores) == 1 else int(self.scores.argmax())

    @cached_property
    def runner_up(self) -> int:
        """Index of the runner-up class, which has the second highest score."""
        if len(self.scores) == 1:
            return 1 - self.predicted_class
        return int(np.argsort(-self.scores, kind="stable")[1])

    def margin_to_runner_up(self, values: NDArray[np.float64]) -> float:
        """Return the value for the predicted class minus that for the runner-up class.

        Parameters
        ----------
        values : (n_scores,), scores or contributions to these

        Returns
        -------
        float
        """
        if len(values) == 1:
            return float(values[0] if self.predicted_class else -values[0])
        return float(values[self.predicted_class] - values[self.runner_up])

    def excess_over_reference(self, part: ConceptContribution) -> float:
        """Return the difference between a contribution and its reference.

        Both are margins of the predicted class over the runner-up class. The reference is the mean
        over the training patches of the runner-up class.

        Parameters
        ----------
        part : one of the contributions

        Returns
        -------
        float
        """
        reference = part.reference_contribution.get(self.classes[self.runner_up])
        return self.margin_to_runner_up(part.contribution) - (
            0.0 if reference is None else self.margin_to_runner_up(reference)
        )

    @cached_property
    def sorted_contributions(self) -> list[ConceptContribution]:
        """Contributions, by decreasing absolute excess over the reference."""
        return sorted(self.contributions, key=lambda part: -abs(self.excess_over_reference(part)))

    @cached_property
    def total_excess(self) -> float:
        """Sum of the excess over the reference over all contributions."""
        return float(sum(self.excess_over_reference(part) for part in self.contributions))

    def explained_share(self, contributions: Sequence[ConceptContribution]) -> float:
        """Return the share of these contributions in `total_excess`.

        Parameters
        ----------
        contributions : some of the contributions

        Returns
        -------
        float
            0 if the total excess is not positive.
        """
        total = self.total_excess
        excess = sum(self.excess_over_reference(part) for part in contributions)
        return float(excess / total) if total > 0 else 0.0

    @property
    def member_constant(self) -> float:
        """Part of the score that belongs to no ensemble member: the score minus their sum."""
        contributions = [vote.contribution for vote in self.member_contributions]
        return self.margin_to_runner_up(self.scores - np.sum(contributions, axis=0))

    @property
    def concepts(self) -> list[ConceptContribution]:
        """Contributions of concepts, by decreasing absolute `excess_over_reference`.

        Contributions of ensemble members that are not divided into concepts are omitted.
        """
        keeps_all, ordered = not self.member_contributions, self.sorted_contributions
        return [part for part in ordered if keeps_all or part.usage is not None]

    def sum_rows(self, n_shown: int) -> list[tuple[str, float, float, float]]:
        """Return rows (name, contribution, reference, difference) that add up to the score.

        Parameters
        ----------
        n_shown : number of concepts that are summed separately from the others

        Returns
        -------
        list of tuple
            Sums over the shown concepts and over the others, the constant, and the score.
        """
        shown, others = self.concepts[:n_shown], self.others(n_shown)
        constant = self.margin_to_runner_up(self.constant)
        rows = [
            (f"{name}, sum", *self._sum_contributions(parts))
            for name, parts in (
                (f"{pluralize(len(shown), 'concept')} shown", shown),
                (f"{pluralize(len(others), 'other concept')}", others),
            )
            if parts
        ]
        score, difference = self.margin_to_runner_up(self.scores), self.total_excess
        rows.append(("constant", constant, constant, 0.0))
        return [*rows, ("score", score, score - difference, difference)]

    def _sum_contributions(
        self, parts: Sequence[ConceptContribution]
    ) -> tuple[float, float, float]:
        contribution = float(sum(self.margin_to_runner_up(part.contribution) for part in parts))
        excess = float(sum(self.excess_over_reference(part) for part in parts))
        return contribution, contribution - excess, excess

    def others(self, n_shown: int) -> list[ConceptContribution]:
        """Return all contributions except the first `n_shown` of `concepts`.

        Parameters
        ----------
        n_shown : number of concepts to leave out

        Returns
        -------
        list of ConceptContribution
        """
        shown = {id(part) for part in self.concepts[:n_shown]}
        return [part for part in self.contributions if id(part) not in shown]

    @cached_property
    def counterfactual(self) -> list[ConceptContribution] | None:
        """Smallest set of contributions that, if set to their references, change the prediction.

        None if there is no such set.
        """
        scores, replaced = self.scores.copy(), []
        for part in sorted(self.contributions, key=lambda part: -self.excess_over_reference(part)):
            if self.excess_over_reference(part) <= 0:
                break
            replaced.append(part)
            scores -= part.contribution - part.reference_contribution.get(
                self.classes[self.runner_up], 0.0
            )
            if self._is_predicted(self.runner_up, scores):
                return replaced
        return None

    def _is_predicted(self, index: int, scores: NDArray[np.float64]) -> bool:
        if len(scores) == 1:
            return bool(scores[0] > 0 if index else scores[0] < 0)
        return int(np.argmax(scores)) == index

    @property
    def has_too_few_patches(self) -> bool:
        """Whether patches are predicted as region, but too few are connected to form a region."""
        return (
            self.is_of_regions
            and self.predicted_class == 1
            and self.prediction.top_label != self.classes[1]
        )

    # --- text -----------------------------------------------------------------------------------

    def summary(self) -> str:
        """Describe the prediction, the largest contributions, and the share that they explain.

        Returns
        -------
        str
        """
        if self.prediction.top_label is None:
            return self.label
        text = f"{self._describe_prediction()}{self._describe_agreement()}"
        concepts = [part for part in self.sorted_contributions if part.usage is not None]
        reasons = [c for c in concepts if self.excess_over_reference(c) > 0][:_MAX_REASONS]
        if not reasons:
            limitations = [c.no_atoms_reason for c in self.contributions if c.no_atoms_reason]
            text = f"{text}."
            return f"{text} No concepts: {limitations[0]}." if limitations else text
        described = "; ".join(self._describe_reason(part) for part in reasons)
        share = self.explained_share(reasons)
        if share >= _MIN_SHARE:
            return f"{text}, because {described}. {self.describe_share(reasons)}"
        rival = self.classes[self.runner_up]
        name = self.classes[self.predicted_class]
        heading = f"Largest differences from '{rival}' training patches in favour of '{name}'"
        return f"{text}. {heading}: {described}. {self.describe_share(reasons)}"

    def describe_share(self, contributions: Sequence[ConceptContribution]) -> str:
        """Describe the share of `total_excess` that some contributions account for, as a sentence.

        Parameters
        ----------
        contributions : some of the contributions

        Returns
        -------
        str
        """
        n = len(contributions)
        concepts = "This concept" if n == 1 else f"These {n} concepts"
        rival, share = self.classes[self.runner_up], self.explained_share(contributions)
        if share > 1:
            return (
                f"{concepts} {_conjugate_verb('differs', n)} more from '{rival}' training "
                "patches than the score does; other concepts have the opposite effect."
            )
        only = "" if share >= _MIN_SHARE else "only "
        return (
            f"{concepts} {_conjugate_verb('accounts', n)} for {only}{percent(max(0.0, share))} "
            f"of the difference between this score and the mean score of '{rival}' training "
            "patches."
        )

    def _describe_agreement(self) -> str:
        members = self.member_contributions
        if not members:
            return ""
        n, n_agree = len(members), sum(map(self.agrees, members))
        n_abstaining = getattr(self.prediction, "n_abstaining", None)
        note = f"; {n_abstaining} without a score" if n_abstaining else ""
        return f" ({n_agree} of {n} base models agree{note})"

    def agrees(self, vote: MemberContribution) -> bool:
        """Return whether an ensemble member predicts the same class as the ensemble.

        Parameters
        ----------
        vote : contribution of an ensemble member

        Returns
        -------
        bool
        """
        if len(vote.contribution) == 1:
            return self.margin_to_runner_up(vote.contribution) > 0
        return int(vote.contribution.argmax()) == self.predicted_class

    def _describe_prediction(self) -> str:
        name = self.classes[self.predicted_class]
        score = getattr(self.prediction, "score", 0)
        if self.has_too_few_patches:
            return (
                f"{self.label} ({score} connected patches are classified as '{name}', too few for "
                f"a region). These patches are classified as '{name}'"
            )
        if self.is_of_regions:
            return f"{name} ({score} connected patches)"
        return describe_label(name, self.label != self.prediction.top_label)

    def _describe_reason(self, part: ConceptContribution) -> str:
        rival = self.classes[self.runner_up]
        assert part.usage is not None
        is_less = part.usage < part.reference_usage[rival] and len(part.atoms) == 1
        return (
            f"{part.quoted} is used by {'only ' * is_less}{percent(part.usage)} of patches "
            f"('{rival}' training patches: {part.describe_reference(rival)})"
        )

    def describe_change(self) -> str:
        """Describe which changes of concepts would change the prediction to the runner-up class.

        Returns
        -------
        str
            Empty without concepts.
        """
        has_concepts = any(part.usage is not None for part in self.contributions)
        if self.prediction.top_label is None or not has_concepts:
            return ""
        rival = self.classes[self.runner_up]
        if self.has_too_few_patches:
            return f"A larger group of such patches would be a region of '{self.classes[1]}'."
        if self.counterfactual is None:
            return (
                f"No set of concepts changes the prediction to '{rival}' if its contributions have "
                f"their mean values in '{rival}' training patches."
            )
        members = sorted(part.member + 1 for part in self.counterfactual if part.usage is None)
        atoms = [part for part in self.counterfactual if part.usage is not None]
        changed = []
        if members:
            prefix = "base model" if len(members) == 1 else "base models"
            changed.append(f"{prefix} {' and '.join(map(str, members))} had a score of 0")
        if atoms:
            names = ", ".join(part.quoted for part in atoms)
            if len(atoms) > _MAX_NAMED:
                predicted = self.classes[self.predicted_class]
                names = (
                    f"the {len(atoms)} concepts with the largest differences in favour of "
                    f"'{predicted}'"
                )
            contributions, had = (
                ("the contributions", "had their mean values")
                if len(atoms) > 1
                else ("the contribution", "had its mean value")
            )
            changed.append(f"{contributions} of {names} {had} in '{rival}' training patches")
        return f"The prediction would be '{rival}' if {' and '.join(changed)}."

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as a JSON-serialisable dictionary.

        Entries of `concepts` have a `difference`, the excess over the reference; the sum of the
        differences is `difference_from_reference`.

        Returns
        -------
        dict
        """
        return {
            "path": str(self.prediction.path),
            "label": self.label,
            "top_label": self.prediction.top_label or NO_TISSUE_LABEL,
            "runner_up": self.classes[self.runner_up] if self.contributions else None,
            "scores": _list_without_nan(self.scores),
            "constant": _list_without_nan(self.constant),
            "difference_from_reference": self.total_excess if self.contributions else None,
            "summary": self.summary(),
            "change": self.describe_change(),
            "base_models": [
                {
                    "member": vote.member + 1,
                    "name": vote.name,
                    "contribution": vote.contribution.tolist(),
                }
                for vote in self.member_contributions
            ],
            "concepts": [self._row(part) for part in self.sorted_contributions],
        }

    def _row(self, part: ConceptContribution) -> dict[str, Any]:
        return {
            "name": part.full_name,
            "class": part.class_name,
            "group": part.group,
            "artefact": part.artefact,
            "usage": part.usage,
            "reference_usage": part.reference_usage,
            "contribution": part.contribution.tolist(),
            "difference": self.excess_over_reference(part),
        }


def _conjugate_verb(verb: str, n: int) -> str:
    return verb if n == 1 else verb.removesuffix("s")


def _list_without_nan(values: NDArray[np.float64]) -> list[float] | None:
    """Return the values as a list; None if any value is NaN."""
    return None if np.isnan(values).any() else values.tolist()


def explain(
    model: Any,
    image: ImageLike | str,
    *,
    mpp: MppLike = None,
    region_of_interest: AnnotationFile | None = None,
    callback: Callback = no_callback,
) -> Explanation:
    """Explain the prediction of any model for one image.

    Parameters
    ----------
    model : fitted classifier, ensemble or region detector
    image : image, or its path
    mpp : pixel size in µm if the file states none, or a `PixelSizeOption`
    region_of_interest : outlines; patches outside of these are ignored. None uses the whole image
    callback : receives the progress

    Returns
    -------
    Explanation
    """
    path = Path(image) if isinstance(image, str) else image
    select = partial(_select_regions, model.margin_threshold_) if model.finds_regions else None
    pipelines = [estimator.model_ for estimator in getattr(model, "estimators_", [model])]
    recorders = [ActivityRecorder(pipeline, select) for pipeline in pipelines]
    prediction = model.with_recorders(recorders).predict_one(
        path, mpp=mpp, callback=callback, region_of_interest=region_of_interest
    )
    classes, n = tuple(model.class_names_), count_scores(len(model.class_names_))
    if model.finds_regions:
        contributions = _region_contributions(model, recorders[0])
    else:
        contributions = _classifier_contributions(model, recorders)
    if prediction.top_label is None or not contributions:
        undefined = np.full(n, np.nan)
        return Explanation(prediction, classes, undefined, undefined, [], model.finds_regions)
    scores = contributions[0].scores if model.finds_regions else np.array(prediction.scores)
    is_ensemble = model.n_estimators_ > 1
    parts = [
        part for each in contributions for part in group_by_concept(each, classes, is_ensemble)
    ]
    constant = scores - np.sum([part.contribution for part in parts], axis=0)
    votes = [
        MemberContribution(each.member, each.name, each.factor * each.scores)
        for each in contributions
        if is_ensemble
    ]
    return Explanation(prediction, classes, scores, constant, parts, model.finds_regions, votes)
