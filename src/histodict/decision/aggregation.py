"""From the patches of an image to its class: a feature of the image, and a linear SVM on it.

| rule | feature of an image |
|---|---|
| proportion | share of its patches that each class won; the paper's, with threshold θ |
| margin | mean residual margin of each class: how clearly, not only how often, it won |
| codes | mean |code| of every atom |
| margin-and-codes | both the margin and the roots of the mean |codes|, an SVM for each of them |

With two classes the first two are one number, that of the second class, and the SVM is a threshold.
The last is the mean of its SVMs' scores, each over its root mean square on the training images.

A rule declares how a score lies over the patches (`spread`) and how it came about (`grounds`), so
that the map that is shown agrees with the answer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import uniform_filter
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from ..images.memory_image import ImageLike
from ..utils.array_schema import ArraySpec
from .atom_annotations import AtomReference


class ScoreError(ValueError):
    """An image got a score that is not a finite number, and so no answer."""


def check_scores(path: ImageLike, *scores: NDArray[Any]) -> None:
    """Refuses scores that are not finite: compared with anything, they would pick a class."""
    if not all(np.isfinite(values).all() for values in scores):
        raise ScoreError(
            f"{path}: the model's scores of this image are not finite numbers: it gets no answer"
        )


@dataclass(frozen=True)
class PatchStatistics:
    """What the patches of an image said, added up: residual margins and |codes| are sums."""

    n_patches: int
    class_counts: NDArray[np.int64]
    margins: NDArray[np.float64]
    codes: NDArray[np.float64]

    @classmethod
    def of_map(
        cls,
        winners: NDArray[np.int16],
        margins: NDArray[np.float32],
        code_sums: NDArray[np.float64],
    ) -> PatchStatistics:
        """From a map's winners (negative on glass) and margins (..., n_classes)."""
        tissue = winners >= 0
        wins = np.bincount(winners[tissue], minlength=margins.shape[-1])
        sums = margins[tissue].sum(axis=0, dtype=np.float64)
        return cls(int(tissue.sum()), wins, sums, code_sums)

    @property
    def proportions(self) -> NDArray[np.float64]:
        return self.class_counts / max(self.n_patches, 1)

    def select_atoms(self, kept: NDArray[np.int64]) -> PatchStatistics:
        """As of a model that has only the atoms at these places."""
        return PatchStatistics(self.n_patches, self.class_counts, self.margins, self.codes[kept])


def patch_margins(residuals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean residual of the other classes less that of the class: positive where it is closest."""
    n_classes = residuals.shape[1]
    others = (residuals.sum(axis=1, keepdims=True) - residuals) / (n_classes - 1)
    return others - residuals


def smooth_margins(
    margins: NDArray[np.float32], tissue: NDArray[np.bool_], n_steps: int
) -> NDArray[np.float32]:
    """Margins (rows, columns, n_classes) averaged over the patches up to n_steps away on tissue."""
    width = 2 * n_steps + 1
    weights = uniform_filter(tissue.astype(np.float64), width, mode="constant")
    present = margins.astype(np.float64) * tissue[..., None]
    sums = uniform_filter(present, (width, width, 1), mode="constant")
    means = sums / np.maximum(weights, 1e-12)[..., None]
    return np.where(tissue[..., None], means, 0).astype(np.float32)


def _proportion(evidence: PatchStatistics) -> NDArray[np.float64]:
    return _of_second(evidence.proportions)


def _margin(evidence: PatchStatistics) -> NDArray[np.float64]:
    return _of_second(evidence.margins / max(evidence.n_patches, 1))


def _codes(evidence: PatchStatistics) -> NDArray[np.float64]:
    return evidence.codes / max(evidence.n_patches, 1)


def _root_codes(evidence: PatchStatistics) -> NDArray[np.float64]:
    """Roots make the rare atoms count beside the common ones, as Hellinger's distance does."""
    return np.sqrt(_codes(evidence))


def _of_second(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values[1:] if len(values) == 2 else values


Feature = Callable[[PatchStatistics], NDArray[np.float64]]
_FEATURES: dict[str, tuple[Feature, ...]] = {
    "proportion": (_proportion,),
    "margin": (_margin,),
    "codes": (_codes,),
    "margin-and-codes": (_margin, _root_codes),
}
# How long they are, in the words of `learnt_arrays`.
_LENGTHS: dict[Feature, str] = {
    _proportion: "scores",
    _margin: "scores",
    _codes: "codes",
    _root_codes: "codes",
}
# An atom's part in them: from weights (n_scores, length) to parts (n_scores, n_codes).
_PARTS: dict[Feature, Callable[[NDArray[Any], AtomReference], NDArray[np.float64]]] = {
    _proportion: lambda weights, atoms: weights @ _of_second(atoms.class_votes),
    _margin: lambda weights, atoms: weights @ _of_second(atoms.margins),
    _codes: lambda weights, atoms: weights * atoms.codes,
    _root_codes: lambda weights, atoms: weights * np.sqrt(atoms.codes),
}
# How they decide, where the patches' colours are not what decides.
_GROUNDS = {
    "proportion": "decided by the shares of the patches of all classes",
    "codes": "decided by which atoms are used, not by the patches' colours",
}


class Aggregator(ABC):
    """A fitted rule; a dataclass of its name and its arrays, which are all that was learnt.

    threshold : θ, where one number of the image decides: the value at which the answer changes
    rises : whether larger values of that number speak for the second class
    """

    name: str
    threshold: float | None = None
    higher_is_positive: bool = True

    @classmethod
    @abstractmethod
    def fit(
        cls, name: str, evidence: list[PatchStatistics], labels: NDArray[np.int64]
    ) -> Aggregator:
        """From the evidence of training images and the places of their classes, from 0."""

    @abstractmethod
    def scores(self, evidence: PatchStatistics) -> NDArray[np.float64]:
        """One number for two classes, positive beyond the border; else one per class."""

    @classmethod
    @abstractmethod
    def array_schema(cls, name: str) -> Mapping[str, ArraySpec]:
        """What the arrays of the rule of this name must be."""

    @abstractmethod
    def parts(self, atoms: AtomReference) -> NDArray[np.float64]:
        """(n_scores, n_codes): what every atom adds to the scores."""

    @abstractmethod
    def select_atoms(self, kept: NDArray[np.int64], n_codes: int) -> Aggregator:
        """The rule of a model that has only the atoms at these places; nothing is learnt again."""

    def value_at(self, score: float) -> float:
        """Where there is θ: the number that has this score."""
        raise NotImplementedError

    def patch_score_map(self, margins: NDArray[np.float32]) -> NDArray[np.float64] | None:
        """What each patch adds to the scores, up to a constant: (..., n_scores).

        From margins (..., n_classes). None where the score is no mean over the patches: their
        winners are then shown as they are.
        """
        return None

    def describe(self, classes: Sequence[str], at: tuple[float, float] | None) -> str:
        """How the answer came about, where the map alone does not tell; `at`: the value and θ."""
        return ""

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {name: array for name, array in vars(self).items() if name != "name"}


@dataclass(frozen=True)
class LinearAggregator(Aggregator):
    """scores = features · weights + bias, (n_classes,) or one for two classes."""

    name: str
    weights: NDArray[np.float64]
    bias: NDArray[np.float64]

    @classmethod
    def fit(
        cls, name: str, evidence: list[PatchStatistics], labels: NDArray[np.int64]
    ) -> LinearAggregator:
        """Linear SVMs on the standardised features, classes weighted equally."""
        features = [np.stack([feature(e) for e in evidence]) for feature in _FEATURES[name]]
        fitted = [_fit_svm(X, labels) for X in features]
        if len(fitted) == 1:
            return cls(name, *fitted[0])
        scales = [
            (np.sqrt(np.mean((X @ weights.T + bias) ** 2)) or 1.0) * len(fitted)
            for X, (weights, bias) in zip(features, fitted, strict=True)
        ]
        parts = [(w / s, b / s) for (w, b), s in zip(fitted, scales, strict=True)]
        bias: NDArray[np.float64] = np.sum([b for _, b in parts], axis=0)
        return cls(name, np.hstack([w for w, _ in parts]), bias)

    @classmethod
    def array_schema(cls, name: str) -> Mapping[str, ArraySpec]:
        width = "+".join(_LENGTHS[feature] for feature in _FEATURES[name])
        return {"weights": ArraySpec(f"scores, {width}"), "bias": ArraySpec("scores")}

    @property
    def threshold(self) -> float | None:  # type: ignore[override]
        if self.weights.shape != (1, 1) or self.weights[0, 0] == 0:
            return None
        return self.value_at(0.0)

    @property
    def higher_is_positive(self) -> bool:  # type: ignore[override]
        return bool(self.weights[0, 0] > 0)

    def scores(self, evidence: PatchStatistics) -> NDArray[np.float64]:
        features = np.concatenate([feature(evidence) for feature in _FEATURES[self.name]])
        values: NDArray[Any] = self.weights @ features + self.bias
        return values

    def parts(self, atoms: AtomReference) -> NDArray[np.float64]:
        found = np.zeros((len(self.weights), len(atoms.codes)))
        for feature, columns in self._columns(len(atoms.codes)):
            found += _PARTS[feature](self.weights[:, columns], atoms)
        return found

    def select_atoms(self, kept: NDArray[np.int64], n_codes: int) -> LinearAggregator:
        places = [
            columns[kept] if _LENGTHS[feature] == "codes" else columns
            for feature, columns in self._columns(n_codes)
        ]
        weights = np.ascontiguousarray(self.weights[:, np.concatenate(places)])
        return LinearAggregator(self.name, weights, self.bias)

    def _columns(self, n_codes: int) -> Iterator[tuple[Feature, NDArray[np.int64]]]:
        """Of the weights, by feature."""
        sizes, start = {"scores": len(self.weights), "codes": n_codes}, 0
        for feature in _FEATURES[self.name]:
            stop = start + sizes[_LENGTHS[feature]]
            yield feature, np.arange(start, stop)
            start = stop

    def value_at(self, score: float) -> float:
        return float((score - self.bias[0]) / self.weights[0, 0])

    def patch_score_map(self, margins: NDArray[np.float32]) -> NDArray[np.float64] | None:
        """The margins are averaged over the patches, so each patch has its part in that mean."""
        if _margin not in _FEATURES[self.name]:
            return None
        own = margins[..., 1:] if margins.shape[-1] == 2 else margins
        # Where there are several features the margins come first.
        parts: NDArray[np.float64] = own.astype(np.float64) @ self.weights[:, : own.shape[-1]].T
        return parts

    def describe(self, classes: Sequence[str], at: tuple[float, float] | None) -> str:
        words = _GROUNDS.get(self.name, "")
        if self.name != "proportion" or at is None:
            return words
        share, theta = (f"{100 * number:.0f} %" for number in at)
        side = f"from {theta} on" if self.higher_is_positive else f"below {theta}"
        return f"{share} of the patches; {classes[1]} {side}"


AGGREGATORS: dict[str, type[Aggregator]] = {
    **dict.fromkeys(_FEATURES, LinearAggregator),
}


def _fit_svm(
    X: NDArray[np.float64], labels: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Weights (n_scores, n_features) and biases (n_scores,) for the features as they are."""
    scaler = StandardScaler().fit(X)
    n_classes = int(labels.max()) + 1
    weights, bias = [], []
    for i in [1] if n_classes == 2 else range(n_classes):
        svm = SVC(kernel="linear", class_weight="balanced")
        svm.fit(scaler.transform(X), labels == i)
        raw = svm.coef_[0] / scaler.scale_
        weights.append(raw)
        bias.append(svm.intercept_[0] - raw @ scaler.mean_)
    return np.array(weights), np.array(bias)


def n_scores(n_classes: int) -> int:
    """How many scores an image has: with two classes one says it all."""
    return 1 if n_classes == 2 else n_classes


def predicted_class(scores: NDArray[np.float64]) -> int:
    """The place of the class that the scores of a rule or a method decide for."""
    return int(scores[0] > 0) if len(scores) == 1 else int(scores.argmax())
