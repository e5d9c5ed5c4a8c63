"""The evaluation as one self-contained HTML page, with its figures as files beside it.

FOLDER/figures/*.svg, *.png     what the page shows, each in a file of its own
FOLDER/confusion.csv, .parquet  answers by true class, per method
FOLDER/errors.csv, .parquet     which images each method got wrong, how often
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..compare.evaluation import Evaluation, provenance
from ..compare.example import Example
from ..compare.measures import metrics_for
from ..execution.tables import Row, write_table
from ..methods.registry import method_entry
from .checklist import checklist
from .evaluation_errors import (
    confusion_rows,
    confusions,
    error_rows,
    image_errors,
    patient_errors,
)
from .evaluation_facts import (
    NOT_RECORDED,
    class_rows,
    counted,
    data_facts,
    figure_words,
    n_shared_patients,
    plan_words,
    protocol_facts,
    split_by_image,
    tested_images,
    tested_patients,
)
from .evaluation_figures import Figures
from .model_card import model_card
from .pages import write_page

_LEVEL = 0.05  # of p-values, for the words


def write_evaluation_page(path: Path, evaluation: Evaluation, example: Example | None) -> None:
    """Everything in one file: no scripts, nothing fetched. Files above go to the page's folder.

    `example`: one of the models, to show what it has learnt.
    """
    folder = path.parent
    content = _about(evaluation)
    if evaluation.methods:
        content |= _results(evaluation) | _errors(evaluation)
        content |= _pictures(Figures(evaluation, folder / "figures"), example)
        write_table(folder / "confusion", confusion_rows(evaluation))
        rows = error_rows(evaluation, image_errors(evaluation))
        write_table(folder / "errors", rows, ("patient", "image", "truth", "method"))
    write_page(path, "reports/evaluation.html.j2", content)


# --- what is known before any result ------------------------------------------------------------


def _about(done: Evaluation) -> dict[str, Any]:
    made = provenance(done)
    return {
        "title": f"Evaluation: {' / '.join(done.classes)}",
        "methods": done.methods,
        "classes": done.classes,
        "by_image": split_by_image(done),
        "n_shared": n_shared_patients(done),
        "warnings": done.manifest.warnings,
        "failures": made["failures"],
        "data": data_facts(done),
        "class_rows": class_rows(done),
        "protocol": protocol_facts(done),
        "recipes": [
            {
                "name": name,
                "summary": method_entry(plan.recipe.method).summary,
                "settings": plan_words(plan),
            }
            for name, plan in done.plans.items()
        ],
        "provenance": [
            ("Images and labels", made["manifest_digest"]),
            ("Splits", made["splits_digest"]),
            ("Seeds", ", ".join(str(seed) for seed in made["seeds"])),
            ("Versions", ", ".join(f"{name} {v}" for name, v in made["versions"].items())),
            ("Python, machine", f"{made['python']}, {made['machine']}"),
        ],
    }


# --- results ------------------------------------------------------------------------------------


def _results(done: Evaluation) -> dict[str, Any]:
    return {
        "facts": _headline(done),
        "sizes": done.sizes(),
        "shown_size": done.shown_size,
        "metrics": list(metrics_for(done.classes)),
        "values": _value_rows(done),
        "no_error": any(row["low"] == row["high"] for row in done.values),
        "n_draws": provenance(done)["draws_of_patients"],
        "n_patients": max(row["n_patients"] for row in done.values),
        "comparisons": [_comparison(row) for row in done.comparisons],
        "confusions": confusions(done),
        "timing": _timing(done),
        "card": model_card(done),
        "checklist": checklist(done),
        "not_recorded": NOT_RECORDED,
    }


def _errors(done: Evaluation) -> dict[str, Any]:
    images = image_errors(done)
    return {
        "patients": patient_errors(done, images),
        "n_tested_patients": len(tested_patients(done)),
        "n_wrong_images": sum(errors.n_wrong > 0 for errors in images),
    }


def _pictures(figures: Figures, example: Example | None) -> dict[str, Any]:
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
    value = figure_words(done.value(first, "balanced accuracy", done.shown_size))
    images, patients = len(tested_images(done)), len(tested_patients(done))
    return [
        {"value": value, "name": f"balanced accuracy of {first}, with 95 % interval"},
        {"value": str(len(done.methods)), "name": "methods" if len(done.methods) > 1 else "method"},
        {"value": str(images), "name": f"images tested, {counted(patients, 'patient')}"},
    ]


def _value_rows(done: Evaluation) -> list[dict[str, Any]]:
    """A row per training size and method: every metric with its interval."""
    rows = []
    for size in done.sizes():
        for method in done.methods:
            own = [done.value(method, metric, size) for metric in metrics_for(done.classes)]
            rows.append(
                {
                    "method": method,
                    "size": size,
                    "figures": [figure_words(row) for row in own],
                    "spread": _spread_words(own[0]),
                    "n_repeats": own[0]["n_repeats"],
                }
            )
    return rows


def _spread_words(row: Row) -> str:
    return f"{row['spread_of_repeats']:.3f}" if row["n_repeats"] > 1 else "not known"


def _comparison(row: Row) -> dict[str, Any]:
    if row["p_holm"] >= _LEVEL:
        words = "no difference shown"
    else:
        words = "better" if row["difference"] > 0 else "worse"
    return {
        "size": row["n_per_class"],
        "methods": f"{row['method']} less {row['against']}",
        "difference": f"{row['difference']:+.3f}",
        "interval": f"{row['low']:+.3f} to {row['high']:+.3f}",
        "p": _p_words(row["p_value"]),
        "p_holm": _p_words(row["p_holm"]),
        "words": words,
    }


def _p_words(p: float) -> str:
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"


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
                "peak": f"{max(peaks):.0f}" if peaks else NOT_RECORDED,
            }
        )
    return rows
