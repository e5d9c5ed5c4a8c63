"""The evaluation as one self-contained HTML page, with its figures as files beside it.

FOLDER/figures/*.svg, *.png     what the page shows, each in a file of its own
FOLDER/confusion.csv, .parquet  answers by true class, per method
FOLDER/errors.csv, .parquet     which images each method got wrong, how often

The figures of an evaluation's page; each is a file of its own, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ..evaluation import Evaluation, ExampleModel, provenance
from ..evaluation.measures import patch_roc
from ..methods.registry import get_method
from ..metrics import scores as metrics
from ..patches.rendering import atom_mosaic, jpeg_data_uri
from ..utils.files import atomic_write
from ..utils.text_io import Row, pluralize, write_table
from . import evaluation_tables as errors
from . import evaluation_tables as facts
from . import evaluation_tables as regions
from .evaluation_tables import ImageResult
from .html import (
    ChartEstimate,
    calibration_svg,
    intervals_svg,
    roc_curves_svg,
    sizes_svg,
    write_page,
)
from .model_card import checklist, model_card


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


_ERROR_COLUMNS = "patient", "image", "truth", "method"


def write_evaluation_page(path: Path, evaluation: Evaluation, example: ExampleModel | None) -> None:
    """Everything in one file: no scripts, nothing fetched. Files above go to the page's folder.

    `example`: one of the models, to show what it has learnt.
    """
    folder = path.parent
    content = _about(evaluation)
    if evaluation.methods:
        shown = errors.displayed_rows(evaluation)
        content |= _results(evaluation)
        write_errors = _region_errors if evaluation.region else _errors
        content |= write_errors(evaluation, shown, folder)
        content |= _images(Figures(evaluation, shown, folder / "figures"), example)
    write_page(path, "reports/evaluation.html.j2", content)


# --- what is known before any result ------------------------------------------------------------


def _about(done: Evaluation) -> dict[str, Any]:
    made = provenance(done)
    return {
        "title": f"Evaluation: {_subject(done)}",
        "methods": done.methods,
        "classes": done.classes,
        "region": done.region,
        "by_image": facts.split_by_image(done),
        "n_shared": facts.n_shared_patients(done),
        "warnings": [*done.manifest.warnings, *map(str, done.confounders)],
        "failures": made["failures"],
        "data": facts.data_summary(done),
        "class_rows": facts.class_rows(done),
        "protocol": facts.protocol_summary(done),
        "recipes": [
            {
                "name": name,
                "summary": get_method(plan.recipe.method).summary,
                "settings": facts.describe_plan(plan),
            }
            for name, plan in done.plans.items()
        ],
        "provenance": [
            ("Images and labels", made["manifest_digest"]),
            ("Splits", made["splits_digest"]),
            ("Seeds", ", ".join(str(seed) for seed in made["seeds"])),
            ("Versions", facts.join_names(made["versions"])),
            ("Python, machine", f"{made['python']}, {made['machine']}"),
        ],
    }


def _subject(done: Evaluation) -> str:
    return f"regions of {done.region}" if done.region else " / ".join(done.classes)


# --- results ------------------------------------------------------------------------------------


def _results(done: Evaluation) -> dict[str, Any]:
    return {
        "facts": _headline(done),
        "sizes": done.sizes(),
        "shown_size": done.shown_size,
        "metrics": list(done.measures),
        "main_measure": done.main_measure,
        "values": [
            [done.value(method, metric, size) for metric in done.measures]
            for size in done.sizes()
            for method in done.methods
        ],
        "figure_words": facts.format_interval,
        "selection": facts.selection_text(done),
        "no_error": any(row["low"] == row["high"] for row in done.values),
        "cross_validated": done.gathered.cross_validated,
        "n_draws": provenance(done)["draws_of_patients"],
        "n_patients": max(row["n_patients"] for row in done.values),
        "comparisons": done.comparisons,
        "timing": _timing(done),
        "card": model_card(done),
        "checklist": checklist(done),
        "not_recorded": facts.NOT_RECORDED,
    }


def _errors(done: Evaluation, shown: Sequence[errors.ImageResult], folder: Path) -> dict[str, Any]:
    """What went wrong, for the page and in the tables of the folder."""
    confusions = errors.confusions(done, shown)
    write_table(folder / "confusion", errors.confusion_rows(done, confusions))
    write_table(folder / "errors", errors.error_rows(done, shown), _ERROR_COLUMNS)
    return {
        "confusions": confusions,
        "patients": errors.patient_errors(done, shown),
        "n_tested_patients": len(facts.tested_patients(done)),
        "n_wrong_images": len({said.position for said in shown if said.is_wrong}),
    }


def _region_errors(
    done: Evaluation, shown: Sequence[errors.ImageResult], folder: Path
) -> dict[str, Any]:
    answers = regions.region_results(shown)
    confusions = regions.patch_confusions(done, answers)
    write_table(folder / "confusion", errors.confusion_rows(done, confusions))
    write_table(folder / "errors", regions.patch_error_rows(done, answers), _ERROR_COLUMNS)
    return {"confusions": confusions, "images": regions.image_errors(done, answers)}


def _images(figures: Figures, example: ExampleModel | None) -> dict[str, Any]:
    return {
        "interval_charts": figures.intervals(),
        "difference_chart": figures.differences(),
        "size_chart": figures.sizes(),
        "roc": figures.roc(),
        "calibration": figures.calibration(),
        "example": example,
        "bases": figures.bases(example) if example else [],
    }


def _headline(done: Evaluation) -> list[dict[str, str]]:
    first = done.methods[0]
    value = facts.format_interval(done.value(first, done.main_measure, done.shown_size))
    measure = f"{done.main_measure}{' of the patches' if done.region else ''}"
    images, patients = len(facts.tested_images(done)), len(facts.tested_patients(done))
    return [
        {"value": value, "name": f"{measure} of {first}, with 95 % interval"},
        {"value": str(len(done.methods)), "name": "methods" if len(done.methods) > 1 else "method"},
        {"value": str(images), "name": f"images tested, {pluralize(patients, 'patient')}"},
    ]


def _timing(done: Evaluation) -> list[dict[str, Any]]:
    rows = []
    for method in done.methods:
        own = [row for row in done.timing if row["method"] == method]
        train = [row["train_seconds"] for row in own]
        per_image = sum(r["test_seconds"] for r in own) / sum(r["n_test"] for r in own)
        peaks = [row["peak_mib"] for row in own if row["peak_mib"] is not None]
        rows.append(
            {
                "method": method,
                "n": len(own),
                "train": f"{np.mean(train):.1f}",
                "longest": f"{max(train):.1f}",
                "per_image": f"{per_image:.2f}",
                "peak": f"{max(peaks):.0f}" if peaks else facts.NOT_RECORDED,
            }
        )
    return rows
