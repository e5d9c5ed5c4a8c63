"""A handful of labels on top of concepts: a linear head on usage, whose score is a sum over them.

    score = bias + Σ_k c_k      c_k = what the weights of concept k, of both signs, add

Usage is centred and scaled by the labelled images together, not feature by feature: a deviation
from six images is mostly chance. Logistic regression with a ridge, classes weighted equally.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from ..execution.tables import Row
from .concepts import Usage

_STRENGTH = 100.0  # C of the ridge
_NAMED = 3  # concepts named in an answer


@dataclass(frozen=True)
class ConceptHead:
    """classes : the second scores above 0; weights (2·n_atoms,) on `Usage.weights`"""

    classes: tuple[str, str]
    centre: NDArray[np.float64]
    weights: NDArray[np.float64]
    bias: float

    @classmethod
    def fit(cls, features: NDArray[np.float64], labels: Sequence[str]) -> ConceptHead:
        """From the images that have labels."""
        names = sorted(set(labels))
        if len(names) != 2:
            raise ValueError(
                f"labels must be of two classes, not {len(names)}: {', '.join(names[:5])}"
            )
        centre = features.mean(axis=0)
        size = np.sqrt(((features - centre) ** 2).sum(axis=1).mean()) or 1.0
        options: dict[str, Any] = {"class_weight": "balanced", "solver": "liblinear", "dual": True}
        model = LogisticRegression(C=_STRENGTH, max_iter=10_000, random_state=0, **options)
        model.fit((features - centre) / size, np.array(labels) == names[1])
        weights = model.coef_[0] / size
        return cls((names[0], names[1]), centre, weights, float(model.intercept_[0]))

    def contributions(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """(n_images, n_atoms): with the bias they add up to the scores."""
        parts = (features - self.centre) * self.weights
        n_atoms = parts.shape[1] // 2
        return parts[:, :n_atoms] + parts[:, n_atoms:]

    def scores(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        scores: NDArray[np.float64] = self.bias + self.contributions(features).sum(axis=1)
        return scores


def unseen_right(usage: Usage, labels: Sequence[str], patients: Sequence[str]) -> tuple[int, int]:
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
        head = ConceptHead.fit(F[~out], y[~out].tolist())
        answers = np.where(head.scores(F[out]) > 0, head.classes[1], head.classes[0])
        n_right += int((answers == y[out]).sum())
        n_asked += int(out.sum())
    return n_right, n_asked


def answer_rows(
    usage: Usage, labels: Sequence[str], images: Sequence[str], names: Sequence[str]
) -> tuple[ConceptHead, list[Row]]:
    """The head that the labelled images give, and an answer for every image."""
    own = np.array([bool(label) for label in labels])
    known = [label for label in labels if label]
    for name, count in Counter(known).items():
        if count < 2:
            raise ValueError(f"only one image has the label {name!r}: give two or more")
    head = ConceptHead.fit(usage.weights[own], known)
    parts, scores = head.contributions(usage.weights), head.scores(usage.weights)
    usual = {name: usage.shares[np.array(labels) == name].mean(axis=0) for name in head.classes}
    rows = []
    for place, image in enumerate(images):
        answer = head.classes[int(scores[place] > 0)]
        sign = 1 if scores[place] > 0 else -1
        most = np.argsort(-sign * parts[place], kind="stable")[:_NAMED].tolist()
        because = [
            _words(names[k], usage.shares[place, k], {n: s[k] for n, s in usual.items()})
            for k in most
            if sign * parts[place, k] > 0
        ]
        rows.append(
            {
                "image": image,
                "label": labels[place],
                "answer": answer,
                "score": round(float(scores[place]), 6),
                "because": "; ".join(because),
            }
        )
    return head, rows


def _words(name: str, share: float, usual: dict[str, float]) -> str:
    beside = ", ".join(f"{label} {value:.0%}" for label, value in usual.items())
    return f"{share:.0%} of its patches use '{name}' (labelled {beside})"
