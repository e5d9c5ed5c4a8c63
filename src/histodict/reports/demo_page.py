"""The demonstration as one self-contained HTML page."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment
from PIL import Image

from ..execution.files import written_whole
from ..experiments.demo import DemoResult
from .overlay import COLOURS, draw_overlay
from .pictures import atom_sheet, image_uri, roc_svg

_N_IMAGES = 6
_SHOWN_WIDTH = 640


def write_demo_page(path: Path, result: DemoResult) -> None:
    """Everything in one file: no scripts, nothing fetched."""
    template = files(__package__).joinpath("page.html.j2").read_text(encoding="utf-8")
    page = Environment(autoescape=True).from_string(template).render(**_content(result))
    with written_whole(path) as partial:
        partial.write_text(page, encoding="utf-8")


def _content(result: DemoResult) -> dict[str, Any]:
    model, counts = result.model, result.confusion
    scores = np.array([answer.score for answer in result.answers])
    truth = np.array([record.label == model.classes_[1] for record in result.test.records])
    n_patches = sum(answer.n_patches for answer in result.answers)
    return {
        "title": "histodict demonstration",
        "lead": "Made-up tissue: healthy, and inflamed with many small dark cells. The model "
        "learnt from some patients and answers for others, whose slides are stained differently.",
        "facts": [
            {"name": "balanced accuracy", "value": f"{result.balanced_accuracy:.2f}"},
            {"name": "images of unseen patients", "value": int(counts.sum())},
            {"name": "images to learn from", "value": model.training_["n_images"]},
        ],
        "classes": model.classes_,
        "colours": [f"rgb({r:.0f}, {g:.0f}, {b:.0f})" for r, g, b in COLOURS],
        "confusion": counts.tolist(),
        "roc": roc_svg(scores, truth, 0.0),
        "images": [_image(result, place) for place in _examples(result)],
        "atoms": [
            {"name": name, "uri": image_uri(atom_sheet(D, model.recipe.patch_px), quality=92)}
            for name, D in zip(model.classes_, model.model_.method_.dictionaries_, strict=True)
        ],
        "timing": [
            {"name": stage, "seconds": f"{seconds:.1f}"}
            for stage, seconds in result.seconds.items()
        ],
        "data": f"{n_patches} patches were classified. No patient is in both training and test.",
        "settings": f"Recipe: {model.recipe}. Seed {model.random_state}.",
    }


def _examples(result: DemoResult) -> list[int]:
    """Some images of each class in turn, wrong answers first."""
    by_class: dict[str, list[int]] = {}
    wrong_first = sorted(
        range(len(result.answers)),
        key=lambda i: result.answers[i].label == result.test.records[i].label,
    )
    for place in wrong_first:
        by_class.setdefault(result.test.records[place].label, []).append(place)
    per_class = _N_IMAGES // len(by_class)
    return [place for places in by_class.values() for place in places[:per_class]]


def _image(result: DemoResult, place: int) -> dict[str, Any]:
    record, answer = result.test.records[place], result.answers[place]
    assert answer.patch_map is not None
    pixels = draw_overlay(record.path, answer.patch_map)
    height = round(pixels.shape[0] * _SHOWN_WIDTH / pixels.shape[1])
    shown = np.asarray(Image.fromarray(pixels).resize((_SHOWN_WIDTH, height)))
    return {
        "uri": image_uri(shown),
        "name": record.path.stem,
        "truth": record.label,
        "answer": answer.label or "no tissue",
        "right": answer.label == record.label,
        "share": round(100 * answer.proportions.get(result.model.classes_[-1], 0.0)),
    }
