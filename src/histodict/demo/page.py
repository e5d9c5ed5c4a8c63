"""The demonstration as one self-contained HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import binary_erosion

from ..evaluation.metrics import RocCurve, roc_curve
from ..images.manifest import ImageRecord
from ..images.masks import RegionMask
from ..images.readers import open_image
from ..patches.overlay import draw_overlay
from ..patches.pictures import atom_mosaics, jpeg_data_uri
from ..pipeline import ImagePrediction, RegionPrediction
from ..pipeline.answers import region_rings
from ..reports.charts import roc_curves_svg
from ..reports.pages import write_page
from .run import DemoResult

_N_IMAGES = 6
_DISPLAY_WIDTH = 640


def write_demo_page(path: Path, result: DemoResult) -> None:
    """Everything in one file: no scripts, nothing fetched."""
    write_page(path, "demo/page.html.j2", _content(result))


def _content(result: DemoResult) -> dict[str, Any]:
    model, counts = result.model, result.confusion
    atoms = model.model_.atoms()
    assert atoms is not None
    bases = {
        n: atoms.with_usage_sign[atoms.classes == place] for place, n in enumerate(model.classes_)
    }
    n_patches = sum(answer.n_patches for answer in result.predictions)
    return {
        "title": "histodict demonstration",
        "lead": "Made-up tissue: healthy, and inflamed with many small dark cells. The model "
        "learnt from some patients and answers for others, whose slides are stained differently.",
        "facts": [
            {"name": "balanced accuracy", "value": f"{result.balanced_accuracy:.2f}"},
            {"name": "images of unseen patients", "value": int(counts.sum())},
            {"name": "images to learn from", "value": model.training_info_["n_images"]},
        ],
        "classes": model.classes_,
        "confusion": counts.tolist(),
        "roc": roc_curves_svg("roc", {"the model": _roc(result)}),
        "images": [_image(result, place) for place in _examples(result)],
        "regions": [_regions(result, place) for place in range(len(result.findings))],
        "min_patches": result.detector.min_patches_,
        "atoms": atom_mosaics(bases, model.recipe.patch_px),
        "timing": [
            {"name": stage, "seconds": f"{seconds:.1f}"}
            for stage, seconds in result.seconds.items()
        ],
        "data": f"{n_patches} patches were classified. No patient is in both training and test.",
        "settings": f"Recipe: {model.recipe}. Seed {model.random_state}.",
    }


def _roc(result: DemoResult) -> RocCurve:
    truth, answers = result.predicted
    scores = [answer.score for answer in answers]
    return roc_curve(truth, scores, positive=result.model.classes_[1])


def _examples(result: DemoResult) -> list[int]:
    """Some images of each class in turn, wrong answers first."""
    truth = result.test.labels
    right = [answer.label == label for answer, label in zip(result.predictions, truth, strict=True)]
    by_class: dict[str, list[int]] = {}
    for place in sorted(range(len(right)), key=right.__getitem__):
        by_class.setdefault(truth[place], []).append(place)
    per_class = _N_IMAGES // len(by_class)
    return [place for places in by_class.values() for place in places[:per_class]]


def _image(result: DemoResult, place: int) -> dict[str, Any]:
    record, answer = result.test.records[place], result.predictions[place]
    assert answer.patch_map is not None
    share = round(100 * answer.proportions.get(result.model.classes_[-1], 0.0))
    picture = draw_overlay(answer.patch_map, answer.summary())
    return _display_image(picture, record, answer) | {"share": share}


def _regions(result: DemoResult, place: int) -> dict[str, Any]:
    """An image with what was found in it, and beside it what was planted."""
    record, answer = result.regions.records[place], result.findings[place]
    assert record.mask is not None
    rings = region_rings(answer)
    with open_image(record.path) as source:
        pixels = source.thumbnail(max(source.size))
        mask = RegionMask.read(record.mask, source.size).region
    border = mask & ~binary_erosion(mask, iterations=3)
    planted = np.where(border[..., None], np.uint8(0), pixels)
    found = draw_overlay(answer.patch_map, answer.summary(), rings)
    below = found.shape[0] - planted.shape[0]  # the legend
    planted = np.pad(planted, ((0, below), (0, 0), (0, 0)), constant_values=255)
    area = sum(region.area_um2 or 0 for region in answer.regions) / 1e6
    counted = f"{len(answer.regions)} region{'' if len(answer.regions) == 1 else 's'}"
    words = f"{counted}, {area:.3f} mm²" if rings else "no region"
    return _display_image(np.concatenate([planted, found], axis=1), record, answer) | {
        "found": words
    }


def _display_image(
    pixels: NDArray[np.uint8], record: ImageRecord, answer: ImagePrediction | RegionPrediction
) -> dict[str, Any]:
    """A picture at the page's width, and whether its answer is right."""
    height = round(pixels.shape[0] * _DISPLAY_WIDTH / pixels.shape[1])
    return {
        "uri": jpeg_data_uri(np.asarray(Image.fromarray(pixels).resize((_DISPLAY_WIDTH, height)))),
        "name": record.path.stem,
        "truth": record.label,
        "answer": answer.label or "no tissue",
        "right": answer.label == record.label,
    }
