"""The figures of an evaluation's page; each is a file of its own, too."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..compare.evaluation import Evaluation
from ..compare.example import Example
from ..compare.measures import metrics_for
from ..evaluation import metrics
from ..execution.files import written_whole
from ..execution.tables import Row
from .charts import Estimate, calibration_svg, intervals_svg, roc_curves_svg, sizes_svg
from .evaluation_errors import shown_results
from .pictures import atom_sheet, image_uri


class Figures:
    """Draws what was measured; `folder` gets a file of every figure.

    Where training sizes were compared, all but `sizes` show the largest.
    """

    def __init__(self, done: Evaluation, folder: Path) -> None:
        self.done = done
        self.folder = folder

    def intervals(self) -> list[str]:
        """A chart per metric."""
        chance = {"balanced accuracy": 1 / len(self.done.classes), "AUC": 0.5}
        charts = []
        for metric in metrics_for(self.done.classes):
            rows = [self._estimate(method, metric) for method in self.done.methods]
            line = (chance[metric], "chance") if metric in chance else None
            chart = intervals_svg(_slug(metric), rows, metric, (0.5, 1.0), line)
            charts.append(self._svg(_slug(metric), chart))
        return charts

    def differences(self) -> str | None:
        rows = [r for r in self.done.comparisons if r["n_per_class"] == self.done.shown_size]
        if not rows:
            return None
        estimates = [Estimate(r["against"], r["difference"], r["low"], r["high"]) for r in rows]
        label = f"balanced accuracy of {rows[0]['method']} less that of …"
        ends, line = (-0.1, 0.1), (0.0, "equal")
        chart = intervals_svg("differences", estimates, label, ends, line, first_style=1)
        return self._svg("differences", chart)

    def sizes(self) -> str | None:
        """Balanced accuracy against training images per class, where these were varied."""
        sizes = self.done.sizes()
        if len(sizes) < 2:
            return None
        curves = {}
        for method in self.done.methods:
            rows = [self.done.value(method, "balanced accuracy", size) for size in sizes]
            curves[method] = [_estimate(row, str(row["n_per_class"])) for row in rows]
        chart = sizes_svg("training-size", curves, "balanced accuracy", "training images per class")
        return self._svg("training-size", chart)

    def roc(self) -> str | None:
        """Of two classes; the answers of all repeats and seeds together."""
        if len(self.done.classes) != 2:
            return None
        curves = {}
        for method in self.done.methods:
            repeats = self.done.repeats(method, self.done.shown_size, "scores")
            labels = np.concatenate([repeat.labels for repeat in repeats])
            scores = np.concatenate([repeat.answers for repeat in repeats])
            curves[method] = metrics.roc_curve(labels, scores, positive=self.done.classes[1])
        return self._svg("roc", roc_curves_svg("roc", curves))

    def calibration(self) -> dict[str, Any] | None:
        """Of the methods whose models give probabilities."""
        rows, curves = [], {}
        for method in self.done.methods:
            labels, p = self._probabilities(method)
            if not labels:
                continue
            curves[method] = metrics.calibration_curve(labels, p)
            brier = metrics.brier_score(labels, p)
            gap = metrics.expected_calibration_error(labels, p)
            rows.append(
                {"method": method, "brier": f"{brier:.3f}", "gap": f"{gap:.3f}"}
                | self._coverage(method)
            )
        if not rows:
            return None
        return {
            "rows": rows,
            "svg": self._svg("calibration", calibration_svg("calibration", curves)),
        }

    def _coverage(self, method: str) -> dict[str, str]:
        """How often the true class is among those not ruled out, and how often only one is left."""
        held, single = [], []
        for result in (r for r in shown_results(self.done) if r.task.method == method):
            truth = self.done.manifest.select(result.task.split.test).labels
            said = result.answered
            for label, p, left in zip(truth, said.probabilities, said.candidates, strict=True):
                if p:
                    held.append(label in left)
                    single.append(len(left) == 1)
        return {"held": f"{np.mean(held):.3f}", "single": f"{np.mean(single):.3f}"}

    def bases(self, example: Example) -> list[dict[str, str]]:
        """Per class the atoms as a sheet of pictures."""
        sheets = []
        for i, (name, D) in enumerate(example.bases().items(), start=1):
            pixels = atom_sheet(D, example.model.recipe.patch_px)
            with written_whole(self.folder / f"bases-{i}-{_slug(name)}.png") as partial:
                Image.fromarray(pixels).save(partial, format="PNG")
            sheets.append({"name": name, "uri": image_uri(pixels, quality=92)})
        return sheets

    def _svg(self, name: str, text: str) -> str:
        with written_whole(self.folder / f"{name}.svg") as partial:
            partial.write_text(text, encoding="utf-8")
        return text

    def _estimate(self, method: str, metric: str) -> Estimate:
        return _estimate(self.done.value(method, metric, self.done.shown_size), method)

    def _probabilities(self, method: str) -> tuple[list[str], NDArray[np.float64]]:
        """Labels and probabilities of all images that have these; of two classes, the second's."""
        labels: list[str] = []
        chances: list[list[float]] = []
        for result in (r for r in shown_results(self.done) if r.task.method == method):
            truth = self.done.manifest.select(result.task.split.test).labels
            said = result.answered
            for label, p in zip(truth, said.probabilities, strict=True):
                if p:
                    labels.append(label)
                    chances.append(p)
        values = np.array(chances)
        return labels, values[:, 1] if labels and len(self.done.classes) == 2 else values


def _estimate(row: Row, name: str) -> Estimate:
    return Estimate(name, row["value"], row["low"], row["high"])


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
