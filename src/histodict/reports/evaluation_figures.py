"""The figures of an evaluation's page; each is a file of its own, too."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ..compare.evaluation import Evaluation
from ..compare.example import ExampleModel
from ..compare.patch_measures import patch_roc
from ..evaluation import metrics
from ..execution.files import atomic_write
from ..execution.tables import Row
from ..patches.pictures import atom_mosaic, jpeg_data_uri
from .charts import ChartEstimate, calibration_svg, intervals_svg, roc_curves_svg, sizes_svg
from .evaluation_errors import ImageResult


class Figures:
    """Draws what was measured; `folder` gets a file of every figure.

    Where training sizes were compared, all but `sizes` show the largest.
    """

    def __init__(self, done: Evaluation, images: Sequence[ImageResult], folder: Path) -> None:
        self.done = done
        self.images = images
        self.folder = folder

    def intervals(self) -> list[str]:
        """A chart per measure."""
        chance = {"balanced accuracy": 1 / len(self.done.classes), "AUC": 0.5}
        size, charts = self.done.shown_size, []
        for metric in self.done.measures:
            values = {name: self.done.value(name, metric, size) for name in self.done.methods}
            rows = [_estimate(row, name) for name, row in values.items()]
            line = (chance[metric], "chance") if metric in chance else None
            charts.append(
                self._rendered(intervals_svg, _slug(metric), rows, metric, (0.5, 1.0), line)
            )
        return charts

    def differences(self) -> str | None:
        rows = [r for r in self.done.comparisons if r["n_per_class"] == self.done.shown_size]
        if not rows:
            return None
        estimates = [
            ChartEstimate(r["against"], r["difference"], r["low"], r["high"]) for r in rows
        ]
        label = f"{self.done.main_measure} of {rows[0]['method']} less that of …"
        ends, line = (-0.1, 0.1), (0.0, "equal")
        return self._rendered(intervals_svg, "differences", estimates, label, ends, line, 1)

    def sizes(self) -> str | None:
        """The first measure against training images per class, where these were varied."""
        sizes = self.done.sizes()
        if len(sizes) < 2:
            return None
        curves = {}
        for method in self.done.methods:
            rows = [self.done.value(method, self.done.main_measure, size) for size in sizes]
            curves[method] = [_estimate(row, str(row["n_per_class"])) for row in rows]
        labels = self.done.main_measure, "training images per class"
        return self._rendered(sizes_svg, "training-size", curves, *labels)

    def roc(self) -> str | None:
        """Of two classes, or of patches; the answers of all repeats and seeds together."""
        if len(self.done.classes) != 2:
            return None
        curves = {}
        for method in self.done.methods:
            curves[method] = self._patch_roc(method) if self.done.region else self._roc(method)
        return self._rendered(roc_curves_svg, "roc", curves)

    def _roc(self, method: str) -> metrics.RocCurve:
        repeats = self.done.repeats(method, self.done.shown_size, "scores")
        labels = np.concatenate([repeat.labels for repeat in repeats])
        scores = np.concatenate([repeat.predictions for repeat in repeats])
        return metrics.roc_curve(labels, scores, positive=self.done.classes[1])

    def _patch_roc(self, method: str) -> metrics.RocCurve:
        """Of the first repeat and seed: each has bins of its own."""
        first, *_ = self.done.repeats(method, self.done.shown_size, "counts")
        return patch_roc(first.predictions)

    def calibration(self) -> dict[str, Any] | None:
        """Of the methods whose models give probabilities."""
        rows, curves = [], {}
        for method in self.done.methods:
            own = [
                (said.record.label, chances, said.result.predicted.prediction_sets[said.i])
                for said in self.images
                if said.method == method
                and (chances := said.result.predicted.probabilities[said.i])
            ]
            if not own:
                continue
            labels, p = [label for label, _, _ in own], np.array([chances for _, chances, _ in own])
            two = len(self.done.classes) == 2
            p, positive = (p[:, 1], self.done.classes[1]) if two else (p, None)
            curves[method] = metrics.calibration_curve(labels, p, positive=positive)
            figures = {
                "brier": metrics.brier_score(labels, p, positive=positive),
                "gap": metrics.expected_calibration_error(labels, p, positive=positive),
                # How often the true class is not ruled out, and how often only one is left.
                "held": np.mean([label in left for label, _, left in own]),
                "single": np.mean([len(left) == 1 for _, _, left in own]),
            }
            rows.append({"method": method} | {k: f"{v:.3f}" for k, v in figures.items()})
        if not rows:
            return None
        return {"rows": rows, "svg": self._rendered(calibration_svg, "calibration", curves)}

    def bases(self, example: ExampleModel) -> list[dict[str, str]]:
        """Per class the atoms as a sheet of pictures."""
        sheets = []
        for i, (name, D) in enumerate(example.bases().items(), start=1):
            pixels = atom_mosaic(D, example.model.recipe.patch_px)
            with atomic_write(self.folder / f"bases-{i}-{_slug(name)}.png") as partial:
                Image.fromarray(pixels).save(partial, format="PNG")
            sheets.append({"name": name, "uri": jpeg_data_uri(pixels, quality=92)})
        return sheets

    def _rendered(self, draw: Callable[..., str], name: str, *given: Any) -> str:
        text = draw(name, *given)
        with atomic_write(self.folder / f"{name}.svg") as partial:
            partial.write_text(text, encoding="utf-8")
        return text


def _estimate(row: Row, name: str) -> ChartEstimate:
    return ChartEstimate(name, row["value"], row["low"], row["high"])


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
