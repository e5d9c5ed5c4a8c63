"""Aggregators: classifiers of images by patch statistics and a linear SVM.

| aggregator | feature of an image |
|---|---|
| proportion | fraction of the patches predicted as each class, as in the paper, with threshold θ |
| margin | mean residual margin of each class, which also reflects the certainty of predictions |
| codes | mean |code| of every atom |
| margin-and-codes | margins and square roots of the mean |codes|, with one SVM for each |

For two classes, "proportion" and "margin" use only the value of the second class, and the SVM is a
threshold. The score of "margin-and-codes" is the mean of the scores of its two SVMs, each divided
by its root mean square on the training images.

An aggregator also provides the contribution of each patch to the scores (`patch_score_map`) and a
description of the decision (`describe_decision`), so that maps agree with the predictions.
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
from .atom_annotations import AtomMeans


class ScoreError(ValueError):
    """Exception raised for an image with a score that is not finite."""


def check_scores(path: ImageLike, *scores: NDArray[Any]) -> None:
    """Raise ScoreError, naming the image at `path`, unless all scores are finite."""
    if not all(np.isfinite(values).all() for values in scores):
        raise ScoreError(
            f"{path}: the scores of this image contain NaN or infinity; it has no prediction"
        )


@dataclass(frozen=True)
class PatchStatistics:
    """Statistics of the patches of an image.

    Attributes
    ----------
    n_patches : number of patches on tissue
    class_counts : (n_classes,), number of patches predicted as each class
    margins : (n_classes,), sum of the residual margins over the patches
    codes : (n_codes,), sum of the |codes| over the patches
    """

    n_patches: int
    class_counts: NDArray[np.int64]
    margins: NDArray[np.float64]
    codes: NDArray[np.float64]

    @classmethod
    def from_map(
        cls,
        predicted_classes: NDArray[np.int16],
        margins: NDArray[np.float32],
        code_sums: NDArray[np.float64],
    ) -> PatchStatistics:
        """Return the statistics of an image from the maps of its patches.

        Parameters
        ----------
        predicted_classes : (rows, columns), class indices; negative on background
        margins : (rows, columns, n_classes), residual margins
        code_sums : (n_codes,), sum of the |codes| over the patches
        """
        tissue = predicted_classes >= 0
        class_counts = np.bincount(predicted_classes[tissue], minlength=margins.shape[-1])
        sums = margins[tissue].sum(axis=0, dtype=np.float64)
        return cls(int(tissue.sum()), class_counts, sums, code_sums)

    @property
    def proportions(self) -> NDArray[np.float64]:
        """Fraction of the patches predicted as each class."""
        return self.class_counts / max(self.n_patches, 1)

    def select_atoms(self, indices: NDArray[np.int64]) -> PatchStatistics:
        """Return the statistics with the codes of the atoms at these indices only."""
        return PatchStatistics(self.n_patches, self.class_counts, self.margins, self.codes[indices])


def patch_margins(residuals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the margins (n, n_classes) of patches from residuals (n, n_classes).

    The margin of a class is the mean residual of the other classes minus the residual of the class.
    It is positive for the class with the smallest residual.
    """
    n_classes = residuals.shape[1]
    others = (residuals.sum(axis=1, keepdims=True) - residuals) / (n_classes - 1)
    return others - residuals


def smooth_margins(
    margins: NDArray[np.float32], tissue: NDArray[np.bool_], n_steps: int
) -> NDArray[np.float32]:
    """Return margins (rows, columns, n_classes), averaged over the neighbourhood of each patch.

    The mean is over the tissue patches in a square whose side is 2·n_steps + 1 patches, centred at
    the patch. It is 0 on background.
    """
    width = 2 * n_steps + 1
    weights = uniform_filter(tissue.astype(np.float64), width, mode="constant")
    present = margins.astype(np.float64) * tissue[..., None]
    sums = uniform_filter(present, (width, width, 1), mode="constant")
    means = sums / np.maximum(weights, 1e-12)[..., None]
    return np.where(tissue[..., None], means, 0).astype(np.float32)


def _proportion_feature(statistics: PatchStatistics) -> NDArray[np.float64]:
    return _second_class_if_binary(statistics.proportions)


def _margin_feature(statistics: PatchStatistics) -> NDArray[np.float64]:
    return _second_class_if_binary(statistics.margins / max(statistics.n_patches, 1))


def _code_feature(statistics: PatchStatistics) -> NDArray[np.float64]:
    return statistics.codes / max(statistics.n_patches, 1)


def _root_code_feature(statistics: PatchStatistics) -> NDArray[np.float64]:
    """Return the square roots of the mean |codes|, which increase the weight of rare atoms."""
    return np.sqrt(_code_feature(statistics))


def _second_class_if_binary(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values[1:] if len(values) == 2 else values


Feature = Callable[[PatchStatistics], NDArray[np.float64]]
_FEATURES: dict[str, tuple[Feature, ...]] = {
    "proportion": (_proportion_feature,),
    "margin": (_margin_feature,),
    "codes": (_code_feature,),
    "margin-and-codes": (_margin_feature, _root_code_feature),
}
# Dimension of each feature in the array schema.
_FEATURE_DIMENSIONS: dict[Feature, str] = {
    _proportion_feature: "scores",
    _margin_feature: "scores",
    _code_feature: "codes",
    _root_code_feature: "codes",
}
# Contributions of atoms (n_scores, n_codes) from the weights (n_scores, length) of each feature.
_CONTRIBUTIONS: dict[Feature, Callable[[NDArray[Any], AtomMeans], NDArray[np.float64]]] = {
    _proportion_feature: lambda weights, atoms: (
        weights @ _second_class_if_binary(atoms.class_votes)
    ),
    _margin_feature: lambda weights, atoms: weights @ _second_class_if_binary(atoms.margins),
    _code_feature: lambda weights, atoms: weights * atoms.codes,
    _root_code_feature: lambda weights, atoms: weights * np.sqrt(atoms.codes),
}
# Descriptions of aggregators whose decision the colours of the map do not show.
_DESCRIPTIONS = {
    "proportion": "aggregated from the fractions of patches of all classes",
    "codes": "aggregated from the usage of atoms, independent of the colours of the patches",
}


class Aggregator(ABC):
    """Base class of fitted aggregators, which compute image scores from patch statistics.

    Subclasses are dataclasses whose fields are the name and the fitted arrays.

    Attributes
    ----------
    name : key of AGGREGATORS
    threshold : feature value at which the prediction changes; None unless there is one feature
    higher_is_positive : whether larger feature values favour the second class
    """

    name: str
    threshold: float | None = None
    higher_is_positive: bool = True

    @classmethod
    @abstractmethod
    def fit(
        cls, name: str, statistics: list[PatchStatistics], labels: NDArray[np.int64]
    ) -> Aggregator:
        """Fit the aggregator to training images with class indices `labels`."""

    @abstractmethod
    def scores(self, statistics: PatchStatistics) -> NDArray[np.float64]:
        """Return the scores of an image, (n_scores,).

        Two classes have one score, positive for the second; more classes have one score each.
        """

    @classmethod
    @abstractmethod
    def array_schema(cls, name: str) -> Mapping[str, ArraySpec]:
        """Return the schemas of the fitted arrays of the aggregator `name`, by attribute name."""

    @abstractmethod
    def atom_contributions(self, atoms: AtomMeans) -> NDArray[np.float64]:
        """Return the contributions (n_scores, n_codes) of atoms to the scores."""

    @abstractmethod
    def select_atoms(self, indices: NDArray[np.int64], n_codes: int) -> Aggregator:
        """Return the aggregator restricted to the atoms at these indices, without refitting.

        `n_codes` is the number of atoms before the selection.
        """

    def feature_value_at(self, score: float) -> float:
        """Return the value of the single feature at which the score equals `score`."""
        raise NotImplementedError

    def patch_score_map(self, margins: NDArray[np.float32]) -> NDArray[np.float64] | None:
        """Return the contribution of each patch to the scores, up to a constant, (..., n_scores).

        `margins` (..., n_classes) are the margins of the patches. Return None if the scores are not
        means over patches; maps then show the predicted classes.
        """
        return None

    def describe_decision(
        self, classes: Sequence[str], operating_point: tuple[float, float] | None
    ) -> str:
        """Describe how the prediction follows from the patches; "" if a score map shows it.

        Parameters
        ----------
        classes : class names
        operating_point : feature value of the image, and threshold; None unless there is a single
            feature
        """
        return ""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the fitted arrays by name."""
        return {name: array for name, array in vars(self).items() if name != "name"}


@dataclass(frozen=True)
class LinearAggregator(Aggregator):
    """Linear aggregator: scores = weights (n_scores, n_features) · features + bias (n_scores,)."""

    name: str
    weights: NDArray[np.float64]
    bias: NDArray[np.float64]

    @classmethod
    def fit(
        cls, name: str, statistics: list[PatchStatistics], labels: NDArray[np.int64]
    ) -> LinearAggregator:
        """Fit linear SVMs to the standardised features, with balanced class weights."""
        features = [np.stack([feature(e) for e in statistics]) for feature in _FEATURES[name]]
        svms = [_fit_svm(X, labels) for X in features]
        if len(svms) == 1:
            return cls(name, *svms[0])
        scales = [
            (np.sqrt(np.mean((X @ weights.T + bias) ** 2)) or 1.0) * len(svms)
            for X, (weights, bias) in zip(features, svms, strict=True)
        ]
        scaled = [(w / s, b / s) for (w, b), s in zip(svms, scales, strict=True)]
        bias: NDArray[np.float64] = np.sum([b for _, b in scaled], axis=0)
        return cls(name, np.hstack([w for w, _ in scaled]), bias)

    @classmethod
    def array_schema(cls, name: str) -> Mapping[str, ArraySpec]:
        """Return the schemas of `weights` and `bias` of the aggregator `name`."""
        width = "+".join(_FEATURE_DIMENSIONS[feature] for feature in _FEATURES[name])
        return {"weights": ArraySpec(f"scores, {width}"), "bias": ArraySpec("scores")}

    @property
    def threshold(self) -> float | None:  # type: ignore[override]
        """Feature value with score 0; None if there are several features or the weight is 0."""
        if self.weights.shape != (1, 1) or self.weights[0, 0] == 0:
            return None
        return self.feature_value_at(0.0)

    @property
    def higher_is_positive(self) -> bool:  # type: ignore[override]
        """Whether higher values of the first feature favour the second class."""
        return bool(self.weights[0, 0] > 0)

    def scores(self, statistics: PatchStatistics) -> NDArray[np.float64]:
        """Return the scores of an image."""
        features = np.concatenate([feature(statistics) for feature in _FEATURES[self.name]])
        values: NDArray[Any] = self.weights @ features + self.bias
        return values

    def atom_contributions(self, atoms: AtomMeans) -> NDArray[np.float64]:
        """Return the contributions (n_scores, n_codes) of atoms to the scores."""
        contributions = np.zeros((len(self.weights), len(atoms.codes)))
        for feature, columns in self._feature_columns(len(atoms.codes)):
            contributions += _CONTRIBUTIONS[feature](self.weights[:, columns], atoms)
        return contributions

    def select_atoms(self, indices: NDArray[np.int64], n_codes: int) -> LinearAggregator:
        """Return the aggregator restricted to the atoms at these indices."""
        selected = [
            columns[indices] if _FEATURE_DIMENSIONS[feature] == "codes" else columns
            for feature, columns in self._feature_columns(n_codes)
        ]
        weights = np.ascontiguousarray(self.weights[:, np.concatenate(selected)])
        return LinearAggregator(self.name, weights, self.bias)

    def _feature_columns(self, n_codes: int) -> Iterator[tuple[Feature, NDArray[np.int64]]]:
        """Yield each feature, and the indices of its columns in `weights`, for `n_codes` atoms."""
        sizes, start = {"scores": len(self.weights), "codes": n_codes}, 0
        for feature in _FEATURES[self.name]:
            stop = start + sizes[_FEATURE_DIMENSIONS[feature]]
            yield feature, np.arange(start, stop)
            start = stop

    def feature_value_at(self, score: float) -> float:
        """Return the value of the single feature at which the score equals `score`."""
        return float((score - self.bias[0]) / self.weights[0, 0])

    def patch_score_map(self, margins: NDArray[np.float32]) -> NDArray[np.float64] | None:
        """Return the weighted margins (..., n_scores); None if the margins are not a feature."""
        if _margin_feature not in _FEATURES[self.name]:
            return None
        used = margins[..., 1:] if margins.shape[-1] == 2 else margins
        # If there are several features, the weights of the margins come first.
        scores: NDArray[np.float64] = used.astype(np.float64) @ self.weights[:, : used.shape[-1]].T
        return scores

    def describe_decision(
        self, classes: Sequence[str], operating_point: tuple[float, float] | None
    ) -> str:
        """Describe how the prediction follows from the patches."""
        description = _DESCRIPTIONS.get(self.name, "")
        if self.name != "proportion" or operating_point is None:
            return description
        value, threshold = (f"{100 * fraction:.0f} %" for fraction in operating_point)
        side = f"≥ {threshold}" if self.higher_is_positive else f"< {threshold}"
        return f"{value} of the patches; {classes[1]} if {side}"


AGGREGATORS: dict[str, type[Aggregator]] = {**dict.fromkeys(_FEATURES, LinearAggregator)}


def _fit_svm(
    X: NDArray[np.float64], labels: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Fit linear SVMs; return weights (n_scores, n_features) and biases for unscaled features."""
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


def count_scores(n_classes: int) -> int:
    """Return the number of scores of an image: one for two classes, one per class for more."""
    return 1 if n_classes == 2 else n_classes


def score_columns(classes: Sequence[str], scores: Sequence[float]) -> dict[str, float]:
    """Return the scores of an image by table column.

    "score" is the only or highest score; with several scores, "score_CLASS" is that of a class.
    """
    if len(scores) == 1:
        return {"score": scores[0]}
    each = {f"score_{name}": score for name, score in zip(classes, scores, strict=True)}
    return {"score": max(scores)} | each


def predicted_class(scores: NDArray[np.float64]) -> int:
    """Return the index of the predicted class from the scores (n_scores,) of an image."""
    return int(scores[0] > 0) if len(scores) == 1 else int(scores.argmax())
