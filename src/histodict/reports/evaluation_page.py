"""The evaluation as one self-contained HTML page, with its figures as files beside it.

FOLDER/figures/*.svg, *.png     what the page shows, each in a file of its own
FOLDER/confusion.csv, .parquet  answers by true class, per method
FOLDER/errors.csv, .parquet     which images each method got wrong, how often
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..compare.evaluation import Evaluation, provenance
from ..compare.example import ExampleModel
from ..execution.tables import write_table
from ..execution.texts import pluralize
from ..methods.registry import get_method
from . import evaluation_errors as errors
from . import evaluation_facts as facts
from . import evaluation_regions as regions
from .checklist import checklist
from .evaluation_figures import Figures
from .model_card import model_card
from .pages import write_page

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
