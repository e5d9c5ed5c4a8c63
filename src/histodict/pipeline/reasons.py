"""An image's answer in concepts: parts that add up to its score, and what would change it.

The score of an image is Σ parts + constant (docs/concepts.md). By itself a part says little: atoms
that all tissue uses have large ones. What speaks for the answer is how it differs from tissue of
the class that came second, as the model's training patches of that class have it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..decisions.image_rules import n_scores
from ..execution.progress import Callback, no_callback
from ..execution.texts import percent
from ..images.annotations.drawing import AnnotationFile
from ..images.in_memory import ImageLike
from ..images.pixel_size import MppLike, PixelSizeOption
from .answers import NO_TISSUE_LABEL, Prediction
from .parts import ConceptContribution, MemberContribution, group_by_concept
from .spoken import ScoreContributions

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
