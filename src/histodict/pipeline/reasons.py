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
from ..execution.progress import Callback, ignore
from ..execution.texts import percent
from ..images.annotations.drawing import Drawing
from ..images.in_memory import ImageFile
from ..images.pixel_size import GivenSize, Mpp
from .answers import NO_TISSUE, Answer
from .parts import Part, Vote, parts_of
from .spoken import Spoken

_IN_WORDS = 3
_MOST_NAMED = 4  # of what would have to change


@dataclass(frozen=True)
class Reasons:
    """An answer and its parts: scores = constant + Σ adds, for every score.

    scores : (n_scores,), what is explained: those of the answer; of regions, by how much the mean
        margin of the patches that are called so is beyond the cut
    votes : of a panel, what its views say; empty of a single model
    """

    answer: Answer
    classes: tuple[str, ...]
    scores: NDArray[np.float64]
    constant: NDArray[np.float64]
    parts: list[Part]
    is_of_regions: bool = False
    votes: list[Vote] = field(default_factory=list)

    @property
    def label(self) -> str:
        return self.answer.label or NO_TISSUE

    @cached_property
    def winner(self) -> int:
        """The place of the class that the scores speak for."""
        return int(self.scores[0] > 0) if len(self.scores) == 1 else int(self.scores.argmax())

    @cached_property
    def rival(self) -> int:
        """The place of the class that came second."""
        if len(self.scores) == 1:
            return 1 - self.winner
        return int(np.argsort(-self.scores, kind="stable")[1])

    def lead(self, values: NDArray[np.float64]) -> float:
        """By how much scores, or parts of them, speak for the winner and against the rival."""
        if len(values) == 1:
            return float(values[0] if self.winner else -values[0])
        return float(values[self.winner] - values[self.rival])

    def beyond(self, part: Part) -> float:
        """How much more a part speaks for the answer than it usually does in the rival's tissue."""
        usual = part.usual.get(self.classes[self.rival])
        return self.lead(part.adds) - (0.0 if usual is None else self.lead(usual))

    @cached_property
    def ordered(self) -> list[Part]:
        """The parts, what speaks most for the answer or against it first."""
        return sorted(self.parts, key=lambda part: -abs(self.beyond(part)))

    @property
    def concepts(self) -> list[Part]:
        """Those of them that are worth a row of their own; views as a whole are in `votes`."""
        return [part for part in self.ordered if part.use is not None or not self.votes]

    def others(self, n_shown: int) -> list[Part]:
        """All parts but so many concepts."""
        shown = {id(part) for part in self.concepts[:n_shown]}
        return [part for part in self.parts if id(part) not in shown]

    @cached_property
    def changes(self) -> list[Part] | None:
        """The fewest concepts that, were they as usual in the rival's tissue, would change the
        answer; None if all together would not.
        """
        left, found = self.scores.copy(), []
        for part in sorted(self.parts, key=lambda part: -self.beyond(part)):
            if self.beyond(part) <= 0:
                break
            found.append(part)
            left -= part.adds - part.usual.get(self.classes[self.rival], 0.0)
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
        return self.is_of_regions and self.winner == 1 and self.answer.label != self.classes[1]

    # --- in words -------------------------------------------------------------------------------

    def words(self) -> str:
        """One sentence: what the answer is, and because of what."""
        if self.answer.label is None:
            return self.label
        called = f"{self._called()}{self._agreed()}"
        grounds = [p for p in self.ordered if self.beyond(p) > 0 and p.use is not None]
        told = ", and ".join(self._ground(part) for part in grounds[:_IN_WORDS])
        if told:
            return f"{called}, because {told}."
        whole = [part.why_whole for part in self.parts if part.why_whole]
        if self.votes or not whole:
            return f"{called}."
        return f"{called}; because of what is not known: {whole[0]}."

    def _agreed(self) -> str:
        """How many views of a panel say so."""
        if not self.votes:
            return ""
        n, n_agree = len(self.votes), sum(self.agrees(vote) for vote in self.votes)
        silent = getattr(self.answer, "n_silent", None)
        without = f" ({silent} could not judge it)" if silent else ""
        if not n_agree:
            views = "its one view does" if n == 1 else f"its {n} views do"
            return f", though {views} not say so{without}"
        if n == 1:
            return f", as its one view says{without}"
        return f", as {'all' if n_agree == n else f'{n_agree} of'} {n} views say{without}"

    def agrees(self, vote: Vote) -> bool:
        """Whether a view, by itself, gives the same answer."""
        if len(vote.adds) == 1:
            return self.lead(vote.adds) > 0
        return int(vote.adds.argmax()) == self.winner

    def _called(self) -> str:
        if not self.is_of_regions:
            return self.label
        score = getattr(self.answer, "score", 0)
        if self.is_too_few:
            few = f"{score} patches in one piece are called {self.classes[1]}, too few for a region"
            return f"{self.label} ({few}); these are called so"
        return f"{self.classes[self.winner]} ({score} patches in one piece)"

    def _ground(self, part: Part) -> str:
        rival = self.classes[self.rival]
        assert part.use is not None
        share = f"{percent(part.use)} of its tissue is {part.quoted}"
        only = "only " * (part.use < part.usual_use[rival] and len(part.atoms) == 1)
        return f"{only}{share} ({rival} {part.usual_words(rival)})"

    def change_words(self) -> str:
        """What would have to change for another answer."""
        if self.answer.label is None or all(part.use is None for part in self.parts):
            return ""
        rival = self.classes[self.rival]
        if self.is_too_few:
            return f"It would be called {self.classes[1]} if a piece of such patches were larger."
        if self.changes is None:
            return f"It would not be called {rival}, whatever atoms were used as usual there."
        views = sorted(part.view + 1 for part in self.changes if part.use is None)
        atoms = [part for part in self.changes if part.use is not None]
        conditions = []
        if views:
            names = " and ".join(f"view {number}" for number in views)
            conditions.append(f"{names} {'was' if len(views) == 1 else 'were'} undecided")
        if atoms:
            names = " and ".join(part.quoted for part in atoms)
            if len(atoms) > _MOST_NAMED:
                names = f"the {len(atoms)} atoms that speak most for {self.classes[self.winner]}"
            conditions.append(f"{names} {'was' if len(atoms) == 1 else 'were'} as usual in {rival}")
        return f"It would be called {rival} if {' and '.join(conditions)}."

    # --- for programs ---------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Numbers are those of the scores; `beyond` is what speaks for the answer."""
        return {
            "path": str(self.answer.path),
            "label": self.label,
            "scores": _numbers(self.scores),
            "constant": _numbers(self.constant),
            "words": self.words(),
            "other_answer": self.change_words(),
            "views": [
                {"view": vote.view + 1, "name": vote.name, "adds": vote.adds.tolist()}
                for vote in self.votes
            ],
            "parts": [self._row(part) for part in self.ordered],
        }

    def _row(self, part: Part) -> dict[str, Any]:
        return {
            "name": part.full_name,
            "class": part.owner,
            "group": part.group,
            "artefact": part.artefact,
            "use": part.use,
            "usual_use": part.usual_use,
            "adds": part.adds.tolist(),
            "beyond": self.beyond(part),
        }


def _numbers(values: NDArray[np.float64]) -> list[float] | None:
    """None: there is nothing to be said of glass."""
    return None if np.isnan(values).any() else values.tolist()


# --- from what the views say --------------------------------------------------------------------


def reasons(
    model: Any,
    image: ImageFile | str,
    *,
    mpp: Mpp = None,
    within: Drawing | None = None,
    callback: Callback = ignore,
) -> Reasons:
    """The answer of any kind of model, in parts."""
    path = Path(image) if isinstance(image, str) else image
    answer = model.answer(path, mpp=mpp, callback=callback, within=within)
    classes, n = tuple(model.classes_), n_scores(len(model.classes_))
    size = GivenSize.of(mpp).at(path).from_outside
    told: list[Spoken] = model.spoken(path, size, callback, within)
    if answer.label is None or not told:
        nothing = np.full(n, np.nan)
        return Reasons(answer, classes, nothing, nothing, [], model.finds_regions)
    scores = told[0].scores if model.finds_regions else np.array(answer.scores)
    of_panel = model.n_members > 1
    parts = [part for own in told for part in parts_of(own, classes, of_panel)]
    constant = scores - np.sum([part.adds for part in parts], axis=0)
    votes = [Vote(own.view, own.name, own.factor * own.scores) for own in told if of_panel]
    return Reasons(answer, classes, scores, constant, parts, model.finds_regions, votes)
