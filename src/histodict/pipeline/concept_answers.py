"""A handful of labels on top of concepts: linear heads on usage, whose scores are sums over them.

    score = bias + Σ_k c_k      c_k = what the weights of concept k, of both signs, add

Usage is centred and scaled by the labelled images together, not feature by feature: a deviation
from six images is mostly chance. Logistic regression with a ridge, classes weighted equally. Of two
classes there is one score, above 0 for the second; of more, one per class against all others, and
the highest wins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from ..decisions.image_rules import n_scores
from ..execution.tables import Row
from .concepts import ConceptUsage

_STRENGTH = 100.0  # C of the ridge
_NAMED = 3  # concepts named in an answer


@dataclass(frozen=True)
class ConceptClassifier:
    """weights (n_scores, 2·n_atoms) on `ConceptUsage.weights`, bias (n_scores,)"""

    classes: tuple[str, ...]
    centre: NDArray[np.float64]
    weights: NDArray[np.float64]
    bias: NDArray[np.float64]

    @classmethod
    def fit(cls, features: NDArray[np.float64], labels: Sequence[str]) -> ConceptClassifier:
        """From the images that have labels."""
        names = sorted(set(labels))
        if len(names) < 2:
            raise ValueError(f"labels must be of two classes or more, not of {names[0]} alone")
        centre = features.mean(axis=0)
        size = np.sqrt(((features - centre) ** 2).sum(axis=1).mean()) or 1.0
        scaled, known = (features - centre) / size, np.array(labels)
        heads = [_fitted(scaled, known == name) for name in names[-n_scores(len(names)) :]]
        weights = np.concatenate([head.coef_ for head in heads]) / size
        return cls(tuple(names), centre, weights, np.concatenate([h.intercept_ for h in heads]))

    def contributions(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """(n_images, n_scores, n_atoms): with the bias they add up to the scores."""
        parts = (features - self.centre)[:, None] * self.weights
        n_atoms = parts.shape[2] // 2
        return parts[..., :n_atoms] + parts[..., n_atoms:]

    def scores(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """(n_images, n_scores)"""
        scores: NDArray[np.float64] = self.bias + self.contributions(features).sum(axis=2)
        return scores

    def order(self, scores: NDArray[np.float64]) -> tuple[int, int]:
        """The places of the class that won, and of the one that came second."""
        if len(scores) == 1:
            won = int(scores[0] > 0)
            return won, 1 - won
        first, second = np.argsort(-scores, kind="stable")[:2].tolist()
        return first, second

    def margin(self, values: NDArray[np.float64], won: int, second: int) -> NDArray[np.float64]:
        """Of scores, or parts of them (n_scores, …): how much they speak for who won."""
        if len(values) == 1:
            return values[0] if won else -values[0]
        found: NDArray[np.float64] = values[won] - values[second]
        return found

    def predict(self, features: NDArray[np.float64]) -> list[str]:
        return [self.classes[self.order(scores)[0]] for scores in self.scores(features)]


def _fitted(features: NDArray[np.float64], positive: NDArray[np.bool_]) -> Any:
    options: dict[str, Any] = {"class_weight": "balanced", "solver": "liblinear", "dual": True}
    model = LogisticRegression(C=_STRENGTH, max_iter=10_000, random_state=0, **options)
    return model.fit(features, positive)


def leave_one_patient_out_accuracy(
    usage: ConceptUsage, labels: Sequence[str], patients: Sequence[str]
) -> tuple[int, int]:
    """Of the labelled images: how many are answered right by a head that lacks their patient, and
    how many could be asked. A patient without whom a class has no image cannot.
    """
    own = np.array([bool(label) for label in labels])
    F, y, whose = usage.weights[own], np.array(labels)[own], np.array(patients)[own]
    n_right = n_asked = 0
    for patient in np.unique(whose):
        out = whose == patient
        if len(set(y[~out])) < len(set(y)):
            continue
        head = ConceptClassifier.fit(F[~out], y[~out].tolist())
        n_right += int((np.array(head.predict(F[out])) == y[out]).sum())
        n_asked += int(out.sum())
    return n_right, n_asked


def concept_prediction_rows(
    usage: ConceptUsage, labels: Sequence[str], images: Sequence[str], names: Sequence[str]
) -> tuple[ConceptClassifier, list[Row]]:
    """The head that the labelled images give, and an answer for every image."""
    own = np.array([bool(label) for label in labels])
    known = [label for label in labels if label]
    for name, count in Counter(known).items():
        if count < 2:
            raise ValueError(f"only one image has the label {name!r}: give two or more")
    head = ConceptClassifier.fit(usage.weights[own], known)
    parts, scores = head.contributions(usage.weights), head.scores(usage.weights)
    usual = {name: usage.fractions[np.array(labels) == name].mean(axis=0) for name in head.classes}
    rows = []
    for place, image in enumerate(images):
        won, second = head.order(scores[place])
        lead = head.margin(parts[place], won, second)
        shown = {head.classes[n]: usual[head.classes[n]] for n in sorted((won, second))}
        because = [
            _describe(names[k], usage.fractions[place, k], {n: s[k] for n, s in shown.items()})
            for k in np.argsort(-lead, kind="stable")[:_NAMED].tolist()
            if lead[k] > 0
        ]
        row = {"image": image, "label": labels[place], "answer": head.classes[won]}
        row |= _score_columns(head.classes, scores[place])
        rows.append(row | {"because": "; ".join(because)})
    return head, rows


def _score_columns(classes: Sequence[str], scores: NDArray[np.float64]) -> Row:
    """The highest; of more than two classes, that of each, too."""
    values = np.round(scores, 6).tolist()
    if len(values) == 1:
        return {"score": values[0]}
    each = {f"score_{name}": value for name, value in zip(classes, values, strict=True)}
    return {"score": max(values)} | each


def _describe(name: str, share: float, usual: dict[str, float]) -> str:
    beside = ", ".join(f"{label} {value:.0%}" for label, value in usual.items())
    return f"{share:.0%} of its patches use '{name}' (labelled {beside})"
