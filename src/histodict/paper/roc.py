"""Miss against false alarm: over the threshold θ for images, over m for regions.

θ : an image is healthy if its share of healthy patches is at least θ, from 0 to 1
m : a region counts from m connected patches on, from 1 to 20; tissue outside the masks is negative

The models are trained once per split; only θ or m is moved. The lowest curve wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..compare.tasks import Task
from ..decisions.regions import MOST_PATCHES, Findings, SizeCurve
from ..execution.tables import Row
from ..images.manifest import Manifest
from ..pipeline import ImageAnswer, RegionDetector, TissueClassifier
from . import published
from .models import trained_classifiers, trained_detectors
from .outcome import OURS, Outcome
from .published import paper_name
from .setting import LEARNERS, ON_PATCHES, NotPossibleError, Setting

NAME = "roc"
THETAS = np.arange(101) / 100
SIZES = np.arange(1, MOST_PATCHES + 1)
Rates = tuple[NDArray[np.float64], NDArray[np.float64]]


@dataclass(frozen=True, kw_only=True)
class RocOutcome(Outcome):
    """Rows are the curves, `moved` being "θ" or "m"; points the operating points."""

    points: list[Row]


def run(setting: Setting) -> RocOutcome:
    """θ where there are two classes of images, m where there are masks, or both."""
    why = "curves are drawn of methods that judge patches"
    methods = setting.choose(LEARNERS, ON_PATCHES, why)
    rows: list[Row] = []
    points: list[Row] = []
    if setting.dataset.diseased and setting.dataset.images:
        _add(_image_curves(setting, methods), rows, points)
    if setting.regions is not None:
        _add(_region_curves(setting, setting.regions, methods), rows, points)
    if not rows:
        raise NotPossibleError(f"{setting.dataset.name}: curves need two classes, or masks")
    ours = [f"{p['method']} {p['false_alarm']:.2f}/{p['miss']:.2f} ({p['moved']})" for p in points]
    points += [point for data in published.CLASSES for point in _published(data)]
    return RocOutcome(
        name=NAME,
        title="Misses against false alarms",
        note="The lower the curve, the better. Filled points are where the methods work, with θ or "
        "m chosen on training images; open ones are the published confusion matrices. "
        f"{setting.describe(None if setting.dataset.images else setting.regions)}.",
        rows=rows,
        more={"points": points},
        words="false alarm/miss: " + ", ".join(ours),
        points=points,
    )


def _add(made: tuple[list[Row], list[Row]], rows: list[Row], points: list[Row]) -> None:
    rows.extend(made[0])
    points.extend(made[1])


# --- images: θ ----------------------------------------------------------------------------------


def _image_curves(setting: Setting, methods: Sequence[str]) -> tuple[list[Row], list[Row]]:
    rows: list[Row] = []
    points: list[Row] = []
    for method in methods:
        tasks = setting.tasks({method: setting.plan(method)}, setting.splits)
        models = trained_classifiers(setting, tasks)
        shares, diseased, called = _tested(setting, tasks, models)
        curve = theta_rates(shares, diseased, THETAS)
        rows += _curve(setting.dataset.name, method, "θ", THETAS, curve)
        here = (float(np.mean(called[~diseased])), float(np.mean(~called[diseased])))
        chosen = [_theta(model, setting) for model in models]
        points.append(_point(setting.dataset.name, method, "θ", here, float(np.mean(chosen))))
    return rows, points


def _tested(
    setting: Setting, tasks: Sequence[Task], models: Sequence[TissueClassifier]
) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]:
    """Of every tested image: its share of healthy patches, what it is, what it was called."""
    ill = setting.dataset.diseased
    shares, diseased, called = [], [], []
    for task, model in zip(tasks, models, strict=True):
        for record in setting.images.select(task.split.test).records:
            answer = model.predict(record.path, mpp=record.mpp)
            shares.append(_healthy_share(answer, ill))
            diseased.append(record.label == ill)
            called.append(answer.label == ill)
    return np.array(shares), np.array(diseased), np.array(called)


def _healthy_share(answer: ImageAnswer, ill: str | None) -> float:
    """Nothing but glass shows nothing diseased."""
    return 1 - answer.proportions[ill] if ill in answer.proportions else 1.0


def _theta(model: TissueClassifier, setting: Setting) -> float:
    """The threshold on the healthy share; the rule's own is on the second class's."""
    assert model.rule_ is not None
    threshold = model.rule_.threshold
    if threshold is None:  # the training images' shares were all the same
        return np.nan
    return 1 - threshold if model.classes_[1] == setting.dataset.diseased else threshold


def theta_rates(
    healthy_shares: NDArray[np.float64],
    diseased: NDArray[np.bool_],
    thetas: NDArray[np.float64],
) -> Rates:
    """(false alarm, miss) for every θ: an image is called healthy if its share is at least θ."""
    called_healthy = healthy_shares >= thetas[:, None]
    return 1 - called_healthy[:, ~diseased].mean(axis=1), called_healthy[:, diseased].mean(axis=1)


# --- regions: m ---------------------------------------------------------------------------------


def _region_curves(
    setting: Setting, manifest: Manifest, methods: Sequence[str]
) -> tuple[list[Row], list[Row]]:
    data = f"{setting.dataset.name} regions"
    rows: list[Row] = []
    points: list[Row] = []
    splits = setting.split(manifest)
    for method in methods:
        tasks = setting.tasks({method: setting.plan(method)}, splits)
        models = trained_detectors(setting, manifest, tasks)
        findings = [_findings(manifest, *pair) for pair in zip(tasks, models, strict=True)]
        curve = SizeCurve.of([finding for part in findings for finding in part])
        rows += _curve(data, method, "m", SIZES, (curve.alarm, curve.miss))
        sizes = [model.least_patches_ for model in models]
        points.append(_point(data, method, "m", _at(findings, sizes), float(np.mean(sizes))))
    return rows, points


def _findings(manifest: Manifest, task: Task, model: RegionDetector) -> list[Findings]:
    """What the model finds in the split's test images, against their masks."""
    return model.findings(manifest.select(task.split.test))


def _at(findings: Sequence[Sequence[Findings]], sizes: Sequence[int]) -> tuple[float, float]:
    """(false alarm, miss) with every split's own m."""
    pairs = [(f, m) for part, m in zip(findings, sizes, strict=True) for f in part]
    alarms = [f.alarm >= m for f, m in pairs if f.alarm is not None]
    misses = [f.found < m for f, m in pairs if f.found is not None]
    return float(np.mean(alarms)), float(np.mean(misses))


# --- rows ---------------------------------------------------------------------------------------


def _curve(
    data: str, method: str, moved: str, values: NDArray[np.generic], rates: Rates
) -> list[Row]:
    return [
        {
            "data": data,
            "method": paper_name(method),
            "moved": moved,
            "value": float(value),
            "false_alarm": float(alarm),
            "miss": float(miss),
        }
        for value, alarm, miss in zip(values.tolist(), *rates, strict=True)
    ]


def _point(data: str, method: str, moved: str, at: tuple[float, float], value: float) -> Row:
    return {
        "data": data,
        "source": OURS,
        "method": paper_name(method),
        "moved": moved,
        "mean_value": value,
        "false_alarm": at[0],
        "miss": at[1],
    }


def _published(data: str) -> list[Row]:
    moved = "m" if data == "TCGA" else "θ"
    learners = [paper_name(method) for method in LEARNERS]
    return [
        {
            "data": data,
            "source": "published",
            "method": method,
            "moved": moved,
            "false_alarm": alarm,
            "miss": miss,
        }
        for method, (alarm, miss) in published.operating_points(data).items()
        if method in learners
    ]
