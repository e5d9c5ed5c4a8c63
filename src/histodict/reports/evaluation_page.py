"""Evaluation report: one self-contained HTML page, with its figures and tables as files.

FOLDER/figures/*.svg, *.png     figures of the page
FOLDER/confusion.csv, .parquet  predictions by true class, per method
FOLDER/errors.csv, .parquet     images that each method classified wrongly, with counts
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
from ..utils.text_io import Row, write_table
from . import evaluation_tables as tables
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
    """Figures of an evaluation, returned as SVG text and also written to files in `folder`.

    `predictions` come from `select_displayed_results`. If several training set sizes were compared,
    all figures except `draw_sizes` show the largest.
    """

    def __init__(
        self, evaluation: Evaluation, predictions: Sequence[ImageResult], folder: Path
    ) -> None:
        self.evaluation = evaluation
        self.predictions = predictions
        self.folder = folder

    def draw_intervals(self) -> list[str]:
        """Draw a chart per metric with the estimates and intervals of all methods."""
        chance_level = {"balanced accuracy": 1 / len(self.evaluation.classes), "AUC": 0.5}
        size, charts = self.evaluation.shown_size, []
        for metric in self.evaluation.metrics:
            values = {
                name: self.evaluation.metric_row(name, metric, size)
                for name in self.evaluation.methods
            }
            rows = [_estimate(row, name) for name, row in values.items()]
            reference = (chance_level[metric], "chance") if metric in chance_level else None
            charts.append(
                self._draw_and_save(
                    intervals_svg, _to_file_name(metric), rows, metric, (0.5, 1.0), reference
                )
            )
        return charts

    def draw_differences(self) -> str | None:
        """Draw the paired differences from the first method; return None without comparisons."""
        rows = [
            r for r in self.evaluation.comparisons if r["n_per_class"] == self.evaluation.shown_size
        ]
        if not rows:
            return None
        estimates = [
            ChartEstimate(r["against"], r["difference"], r["low"], r["high"]) for r in rows
        ]
        label = f"difference in {self.evaluation.main_metric}"
        limits, reference = (-0.1, 0.1), (0.0, "equal")
        return self._draw_and_save(
            intervals_svg, "differences", estimates, label, limits, reference, 1
        )

    def draw_sizes(self) -> str | None:
        """Draw the main metric against the training set size; return None for a single size."""
        sizes = self.evaluation.sizes()
        if len(sizes) < 2:
            return None
        curves = {}
        for method in self.evaluation.methods:
            rows = [
                self.evaluation.metric_row(method, self.evaluation.main_metric, size)
                for size in sizes
            ]
            curves[method] = [_estimate(row, str(row["n_per_class"])) for row in rows]
        labels = self.evaluation.main_metric, "training images per class"
        return self._draw_and_save(sizes_svg, "training-size", curves, *labels)

    def draw_roc(self) -> str | None:
        """Draw the ROC curve of each method; return None for more than two classes.

        Curves of images are pooled over repeats and seeds; for regions, see `_patch_roc`.
        """
        if len(self.evaluation.classes) != 2:
            return None
        curves = {}
        for method in self.evaluation.methods:
            curves[method] = (
                self._patch_roc(method) if self.evaluation.region else self._roc(method)
            )
        return self._draw_and_save(roc_curves_svg, "roc", curves)

    def _roc(self, method: str) -> metrics.RocCurve:
        repeats = self.evaluation.repeats(method, self.evaluation.shown_size, "scores")
        labels = np.concatenate([repeat.labels for repeat in repeats])
        scores = np.concatenate([repeat.predictions for repeat in repeats])
        return metrics.roc_curve(labels, scores, positive=self.evaluation.classes[1])

    def _patch_roc(self, method: str) -> metrics.RocCurve:
        """Return the ROC curve of patches for the first repeat and seed.

        Repeats cannot be pooled, because their margins are counted in different bins.
        """
        first, *_ = self.evaluation.repeats(method, self.evaluation.shown_size, "counts")
        return patch_roc(first.predictions)

    def draw_calibration(self) -> dict[str, Any] | None:
        """Draw calibration curves; return {"rows": scores by method, "svg": curves}.

        Methods without probabilities are omitted. Return None if no method has probabilities.
        """
        rows, curves = [], {}
        for method in self.evaluation.methods:
            predictions = [
                (image.record.label, probabilities, run.prediction_sets[image.run_index])
                for image, run in ((image, image.result.predictions) for image in self.predictions)
                if image.method == method and (probabilities := run.probabilities[image.run_index])
            ]
            if not predictions:
                continue
            labels, p = (
                [label for label, _, _ in predictions],
                np.array([probabilities for _, probabilities, _ in predictions]),
            )
            is_binary = len(self.evaluation.classes) == 2
            p, positive = (p[:, 1], self.evaluation.classes[1]) if is_binary else (p, None)
            curves[method] = metrics.calibration_curve(labels, p, positive=positive)
            figures = {
                "brier": metrics.brier_score(labels, p, positive=positive),
                "gap": metrics.expected_calibration_error(labels, p, positive=positive),
                # Coverage of the prediction sets, and fraction of sets with one class.
                "held": np.mean(
                    [label in prediction_set for label, _, prediction_set in predictions]
                ),
                "single": np.mean(
                    [len(prediction_set) == 1 for _, _, prediction_set in predictions]
                ),
            }
            rows.append({"method": method} | {k: f"{v:.3f}" for k, v in figures.items()})
        if not rows:
            return None
        return {"rows": rows, "svg": self._draw_and_save(calibration_svg, "calibration", curves)}

    def write_atom_mosaics(self, example: ExampleModel) -> list[dict[str, str]]:
        """Write a PNG mosaic of the atoms of each class.

        Return a dict per class with the class name, "name", and the mosaic as a data URI, "uri".
        """
        mosaics = []
        for i, (name, D) in enumerate(example.atoms_by_class().items(), start=1):
            pixels = atom_mosaic(D, example.model.recipe.patch_px)
            with atomic_write(self.folder / f"bases-{i}-{_to_file_name(name)}.png") as partial:
                Image.fromarray(pixels).save(partial, format="PNG")
            mosaics.append({"name": name, "uri": jpeg_data_uri(pixels, quality=92)})
        return mosaics

    def _draw_and_save(self, draw: Callable[..., str], name: str, *arguments: Any) -> str:
        text = draw(name, *arguments)
        with atomic_write(self.folder / f"{name}.svg") as partial:
            partial.write_text(text, encoding="utf-8")
        return text


def _estimate(row: Row, name: str) -> ChartEstimate:
    return ChartEstimate(name, row["value"], row["low"], row["high"])


def _to_file_name(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


_ERROR_COLUMNS = "patient", "image", "truth", "method"


def write_evaluation_page(path: Path, evaluation: Evaluation, example: ExampleModel | None) -> None:
    """Write an evaluation as one self-contained HTML page, and its figures and tables as files.

    Parameters
    ----------
    path : HTML file to write; other files are written to its folder
    evaluation : evaluation to report
    example : one of the trained models, whose atoms are shown; None to show no atoms
    """
    folder = path.parent
    content = _overview_values(evaluation)
    if evaluation.methods:
        predictions = tables.select_displayed_results(evaluation)
        content |= _result_values(evaluation)
        write_error_tables = _write_region_errors if evaluation.region else _write_errors
        content |= write_error_tables(evaluation, predictions, folder)
        content |= _draw_figures(Figures(evaluation, predictions, folder / "figures"), example)
    content["files"] = _list_files(folder)
    write_page(path, "reports/evaluation.html.j2", content)


_TABLES = "results", "comparisons", "predictions", "confusion", "errors", "timing"


def _list_files(folder: Path) -> str:
    """List the files and folders of the evaluation that exist in `folder`."""
    written = [f"{name}.csv" for name in _TABLES if (folder / f"{name}.csv").is_file()]
    items = [f"{', '.join(written)} (tables; also as .parquet)"] if written else []
    descriptions = {
        "splits.json": "splits.json (to repeat the test on the same images)",
        "provenance.json": "provenance.json (all settings)",
        "figures": "figures/",
        "models": "models/",
    }
    items += [text for name, text in descriptions.items() if (folder / name).exists()]
    return ", ".join(items)


# --- data, protocol and provenance ----------------------------------------------------------------


def _overview_values(evaluation: Evaluation) -> dict[str, Any]:
    origin = provenance(evaluation)
    return {
        "title": f"Evaluation: {_describe_task(evaluation)}",
        "methods": evaluation.methods,
        "classes": evaluation.classes,
        "region": evaluation.region,
        "by_image": tables.is_split_by_image(evaluation),
        "has_unknown_patients": tables.has_unknown_patients(evaluation),
        "n_shared": tables.count_shared_patients(evaluation),
        "warnings": [*evaluation.manifest.warnings, *map(str, evaluation.confounders)],
        "failures": origin["failures"],
        "data": tables.data_summary(evaluation),
        "class_rows": tables.class_rows(evaluation),
        "protocol": tables.protocol_summary(evaluation),
        "recipes": [
            {
                "name": name,
                "summary": get_method(plan.recipe.method).summary,
                "settings": tables.describe_plan(plan),
            }
            for name, plan in evaluation.plans.items()
        ],
        "provenance": [
            ("Checksum of images and labels", origin["manifest_digest"]),
            ("Checksum of the splits", origin["splits_digest"]),
            ("Seeds", ", ".join(str(seed) for seed in origin["seeds"])),
            ("Versions", tables.join_items(origin["versions"])),
            ("Python, machine", f"{origin['python']}, {origin['machine']}"),
        ],
    }


def _describe_task(evaluation: Evaluation) -> str:
    return (
        f"regions of {evaluation.region}" if evaluation.region else " / ".join(evaluation.classes)
    )


# --- results ------------------------------------------------------------------------------------


def _result_values(evaluation: Evaluation) -> dict[str, Any]:
    zero_width = [row for row in evaluation.metric_rows if row["low"] == row["high"]]
    return {
        "facts": _headline_values(evaluation),
        "sizes": evaluation.sizes(),
        "shown_size": evaluation.shown_size,
        "metrics": list(evaluation.metrics),
        "main_metric": evaluation.main_metric,
        "values": [
            [evaluation.metric_row(method, metric, size) for metric in evaluation.metrics]
            for size in evaluation.sizes()
            for method in evaluation.methods
        ],
        "format_interval": tables.format_interval,
        "selection": [*evaluation.interval_warnings, *tables.selection_warnings(evaluation)],
        "has_zero_width": bool(zero_width),
        "has_perfect_value": any(row["value"] == 1 for row in zero_width),
        "cross_validated": evaluation.all_repeats.cross_validated,
        "n_draws": provenance(evaluation)["draws_of_patients"],
        "n_patients": max(row["n_patients"] for row in evaluation.metric_rows),
        "comparisons": evaluation.comparisons,
        "timing": _timing_rows(evaluation),
        "card": model_card(evaluation),
        "checklist": checklist(evaluation),
        "not_recorded": tables.NOT_RECORDED,
    }


def _write_errors(
    evaluation: Evaluation, predictions: Sequence[ImageResult], folder: Path
) -> dict[str, Any]:
    """Write tables of confusion matrices and errors; return template values of both."""
    matrices = tables.confusion_matrices(evaluation, predictions)
    write_table(folder / "confusion", tables.confusion_rows(evaluation, matrices))
    write_table(folder / "errors", tables.error_rows(evaluation, predictions), _ERROR_COLUMNS)
    return {
        "confusion_matrices": matrices,
        "patients": tables.patient_errors(evaluation, predictions),
        "n_tested_patients": len(tables.tested_patients(evaluation)),
        "n_wrong_images": len({result.position for result in predictions if result.is_wrong}),
    }


def _write_region_errors(
    evaluation: Evaluation, predictions: Sequence[ImageResult], folder: Path
) -> dict[str, Any]:
    results = tables.region_results(predictions)
    matrices = tables.patch_confusion_matrices(evaluation, results)
    write_table(folder / "confusion", tables.confusion_rows(evaluation, matrices))
    write_table(folder / "errors", tables.patch_error_rows(evaluation, results), _ERROR_COLUMNS)
    return {"confusion_matrices": matrices, "images": tables.image_errors(evaluation, results)}


def _draw_figures(figures: Figures, example: ExampleModel | None) -> dict[str, Any]:
    plans, splits = figures.evaluation.plans, figures.evaluation.splits
    return {
        "interval_charts": figures.draw_intervals(),
        "difference_chart": figures.draw_differences(),
        "size_chart": figures.draw_sizes(),
        "roc": figures.draw_roc(),
        "calibration": figures.draw_calibration(),
        "example": example,
        "is_ensemble_example": example is not None and len(plans[example.method].recipes) > 1,
        "is_k_fold": splits.protocol.get("kind") == "k-fold",
        "bases": figures.write_atom_mosaics(example) if example else [],
    }


def _headline_values(evaluation: Evaluation) -> list[dict[str, str]]:
    first = evaluation.methods[0]
    value = tables.format_interval(
        evaluation.metric_row(first, evaluation.main_metric, evaluation.shown_size)
    )
    measure = f"{evaluation.main_metric}{' of the patches' if evaluation.region else ''}"
    n_images = len(tables.tested_images(evaluation))
    patients = tables.describe_tested_patients(evaluation)
    return [
        {"value": value, "name": f"{measure} of {first}, with 95 % interval"},
        {
            "value": str(len(evaluation.methods)),
            "name": "methods" if len(evaluation.methods) > 1 else "method",
        },
        {
            "value": str(n_images),
            "name": f"{'image' if n_images == 1 else 'images'} tested, {patients}",
        },
    ]


def _timing_rows(evaluation: Evaluation) -> list[dict[str, Any]]:
    rows = []
    for method in evaluation.methods:
        rows_of_method = [row for row in evaluation.timing if row["method"] == method]
        train = [row["train_seconds"] for row in rows_of_method]
        per_image = sum(r["test_seconds"] for r in rows_of_method) / sum(
            r["n_test"] for r in rows_of_method
        )
        peaks = [row["peak_mib"] for row in rows_of_method if row["peak_mib"] is not None]
        rows.append(
            {
                "method": method,
                "n": len(rows_of_method),
                "train": f"{np.mean(train):.1f}",
                "longest": f"{max(train):.1f}",
                "per_image": f"{per_image:.2f}",
                "peak": f"{max(peaks):.0f}" if peaks else tables.NOT_RECORDED,
            }
        )
    return rows
