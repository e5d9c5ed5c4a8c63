"""An image's answer in concepts: parts that add up to its score, and what would change it.

The score of an image is Σ parts + constant (docs/concepts.md). By itself a part says little: atoms
that all tissue uses have large ones. What speaks for the answer is how it differs from tissue of
the class that came second, as the model's training patches of that class have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..decisions.atom_evidence import signs_of
from ..decisions.atom_notes import atom_labels
from ..decisions.image_rules import n_scores
from ..execution.progress import Callback, ignore
from ..images.annotations.drawing import Drawing
from ..images.in_memory import ImageFile
from ..images.pixel_size import GivenSize, Mpp
from .answers import NO_TISSUE, Answer
from .spoken import Spoken

_IN_WORDS = 3
_MOST_NAMED = 4  # of what would have to change


@dataclass(frozen=True)
class Part:
    """What one concept has to do with an answer.

    name : as people named it, else CLASS:NUMBER; of a panel's other views, with their number
    owner : the class whose atoms these are; empty where it is no concept, but a view as a whole
    use : share of the image's patches that use it; None of a view as a whole
    usual_use : by class, the same of its training patches
    adds : (n_scores,), its part of the scores
    usual : by class, its part in what its training patches say
    where : (rows, columns), share of the patches there that use it, NaN on glass
    atoms : their places, the one most used first; sign : in which that one is usually used
    view : of a panel, the place of the member
    """

    name: str
    owner: str
    adds: NDArray[np.float64]
    use: float | None = None
    usual_use: dict[str, float] = field(default_factory=dict)
    usual: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    where: NDArray[np.float32] | None = None
    group: str = ""
    artefact: bool = False
    is_named: bool = False
    atoms: tuple[int, ...] = ()
    sign: float = 1.0
    view: int = 0

    def usual_words(self, name: str) -> str:
        """What is usual in a class: of several atoms their sum, and so at most that; or nothing."""
        if name not in self.usual_use:
            return ""
        return "at most " * (len(self.atoms) > 1) + percent(self.usual_use[name])


@dataclass(frozen=True)
class Reasons:
    """An answer and its parts: scores = constant + Σ adds, for every score.

    scores : (n_scores,), what is explained: those of the answer; of regions, by how much the mean
        margin of the patches that are called so is beyond the cut
    others : the class that is held against the answer
    """

    answer: Answer
    classes: tuple[str, ...]
    scores: NDArray[np.float64]
    constant: NDArray[np.float64]
    parts: list[Part]
    is_of_regions: bool = False

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
        grounds = [p for p in self.ordered if self.beyond(p) > 0][:_IN_WORDS]
        told = ", and ".join(self._ground(part) for part in grounds)
        return f"{self._called()}, because {told}." if told else f"{self._called()}."

    def _called(self) -> str:
        if not self.is_of_regions:
            return self.label
        score = getattr(self.answer, "score", 0)
        if self.is_too_few:
            few = f"{score} patches in one piece are called {self.classes[1]}, too few for a region"
            return f"{self.label} ({few}); these are called so"
        return f"{self.classes[self.winner]} ({score} patches in one piece)"

    def _ground(self, part: Part) -> str:
        if part.use is None:
            return f"{part.name} says so"
        rival = self.classes[self.rival]
        usual = part.usual_use.get(rival)
        name = f"“{part.name}”" if part.is_named else part.name
        share = f"{percent(part.use)} of its tissue is {name}"
        if usual is None:
            return share
        only = "only " * (part.use < usual and len(part.atoms) == 1)
        return f"{only}{share} ({rival} {part.usual_words(rival)})"

    def change_words(self) -> str:
        """What would have to change for another answer."""
        if self.answer.label is None:
            return ""
        rival = self.classes[self.rival]
        if self.is_too_few:
            return f"It would be called {self.classes[1]} if a piece of such patches were larger."
        if self.changes is None:
            return f"It would not be called {rival}, whatever atoms were used as usual there."
        n = len(self.changes)
        names = " and ".join(_quoted(part) for part in self.changes)
        if n > _MOST_NAMED:
            names = f"the {n} atoms that speak most for {self.classes[self.winner]}"
        as_usual = f"as usual in {rival}" if self.changes[0].usual else "not there"
        return f"It would be called {rival} if {names} {'was' if n == 1 else 'were'} {as_usual}."

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
            "parts": [self._row(part) for part in self.ordered],
        }

    def _row(self, part: Part) -> dict[str, Any]:
        return {
            "name": part.name,
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


def percent(share: float) -> str:
    """Of small shares more places: 0 % is none at all."""
    value = 100 * share
    return f"{value:.0f} %" if value >= 1 or value == 0 else f"{value:.1g} %"


def _quoted(part: Part) -> str:
    return f"“{part.name}”" if part.is_named else part.name


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
    parts = [part for own in told for part in _parts_of(own, classes)]
    constant = scores - np.sum([part.adds for part in parts], axis=0)
    return Reasons(answer, classes, scores, constant, parts, model.finds_regions)


def _parts_of(own: Spoken, classes: Sequence[str]) -> list[Part]:
    atoms, before = own.model.atoms(), f"view {own.view + 1}: " if own.view else ""
    if atoms is None or own.parts is None or own.look is None:
        name = f"{before or 'the image, to '}{own.model.recipe.method}, as a whole"
        return [Part(name, "", own.factor * own.scores)]
    labels, evidence = atom_labels(atoms.classes, classes), own.look.evidence
    signs = signs_of(evidence.leaning) if atoms.signs is None else atoms.signs
    found = []
    for concept in own.model.notes.concepts(labels):
        places = [a for a in concept.atoms if a not in own.model.method_.off_]
        if not places:
            continue
        places.sort(key=lambda a: -evidence.shares[a])
        owners = {classes[int(atoms.classes[a])] for a in places}
        found.append(
            Part(
                before + concept.name,
                owners.pop() if len(owners) == 1 else "",
                own.factor * own.parts[:, places].sum(axis=1),
                *_use(own, places, classes),
                _where(own, places),
                concept.group,
                concept.artefact,
                concept.is_named,
                tuple(places),
                float(signs[places[0]]),
                own.view,
            )
        )
    return [part for part in found if part.use or any(map(np.any, part.usual.values()))]


def _use(
    own: Spoken, places: list[int], classes: Sequence[str]
) -> tuple[float, dict[str, float], dict[str, NDArray[np.float64]]]:
    """Use of a concept, and what is usual, by class: of several atoms, at most their sum."""
    assert own.look is not None
    typical = own.model.typical_ or []
    alone = float(own.look.evidence.shares[places].max())
    use = own.look.together.get(tuple(sorted(places)), alone)
    usual_use = {
        name: min(1.0, float(of_class.shares[places].sum()))
        for name, of_class in zip(classes, typical, strict=False)
    }
    usual = {
        name: own.factor * parts[:, places].sum(axis=1)
        for name, parts in zip(classes, own.usual or [], strict=False)
    }
    return use, usual_use, usual


def _where(own: Spoken, places: list[int]) -> NDArray[np.float32]:
    assert own.look is not None
    share = own.look.where[places].max(axis=0)
    found: NDArray[np.float32] = np.where(own.look.tissue, share, np.nan).astype(np.float32)
    return found
