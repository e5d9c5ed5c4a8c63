"""HTML page that explains predictions of a few images by concept contributions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..datasets.manifest import ImageRecord
from ..explain.concept_contribution import ConceptContribution
from ..explain.explanation import Explanation
from ..images.source import ImageError
from ..models import Model
from ..patches.patch_map import class_css_colour, class_rgb
from ..patches.rendering import draw_overlay, jpeg_data_uri, png_data_uri, render_vector
from ..utils.text_io import percent, shorten
from .atoms_page import usage_image
from .html import write_page


def write_explanation_page(
    path: Path,
    model: Model,
    explanations: Sequence[Explanation],
    records: Sequence[ImageRecord],
    *,
    n_parts: int = 8,
) -> None:
    """Write the page as one self-contained file without scripts.

    Parameters
    ----------
    path : file to write
    model : trained model
    explanations : one explanation per image
    records : images
    n_parts : number of concepts shown per image
    """
    content = {
        "title": f"Why: {' / '.join(model.classes_)}",
        "images": [
            _image(model, explanation, record, n_parts)
            for explanation, record in zip(explanations, records, strict=True)
        ],
        "knows_usual": any(
            part.reference_contribution
            for explanation in explanations
            for part in explanation.parts
        ),
        "is_of_regions": model.finds_regions,
    }
    write_page(path, "reports/explanation.html.j2", content)


def _image(
    model: Model, explanation: Explanation, record: ImageRecord, n_parts: int
) -> dict[str, Any]:
    head = {
        "name": record.path.name,
        "words": explanation.summary(),
        "change": explanation.describe_change(),
    }
    if explanation.prediction.label is None:
        return head | {"rows": [], "views": [], "uri": "", "total": ""}
    shown = explanation.concepts[:n_parts]
    max_excess = (
        max((abs(explanation.excess_over_reference(part)) for part in shown), default=1.0) or 1.0
    )
    max_vote = (
        max(
            (abs(explanation.margin_to_runner_up(vote.adds)) for vote in explanation.votes),
            default=1.0,
        )
        or 1.0
    )
    rest = explanation.others(n_parts)
    return head | {
        "uri": _map_image(explanation, record),
        "rival": explanation.classes[explanation.rival],
        "winner": explanation.classes[explanation.predicted_class],
        "colour": class_css_colour(explanation.predicted_class),
        "against": class_css_colour(explanation.rival),
        "views": [
            {
                "name": f"view {vote.member + 1}: {vote.name}",
                "adds": f"{explanation.margin_to_runner_up(vote.adds):+.3g}",
                "speaks_for": explanation.margin_to_runner_up(vote.adds) > 0,
                "width": f"{50 * abs(explanation.margin_to_runner_up(vote.adds)) / max_vote:.1f}",
            }
            for vote in explanation.votes
        ],
        "rows": [_row(model, explanation, part, record, max_excess) for part in shown],
        "n_rest": len(rest),
        "rest": f"{sum(explanation.margin_to_runner_up(part.adds) for part in rest):+.3g}",
        "constant": f"{explanation.margin_to_runner_up(explanation.constant):+.3g}",
        "total": f"{explanation.margin_to_runner_up(explanation.scores):+.3g}",
    }


def _row(
    model: Model,
    explanation: Explanation,
    part: ConceptContribution,
    record: ImageRecord,
    max_excess: float,
) -> dict[str, Any]:
    rival, excess = explanation.classes[explanation.rival], explanation.excess_over_reference(part)
    return {
        "name": part.full_name,
        "note": ", ".join(filter(None, [part.group, "artefact" * part.artefact])),
        "use": "" if part.usage is None else percent(part.usage),
        "usual": part.describe_reference(rival),
        "adds": f"{explanation.margin_to_runner_up(part.adds):+.3g}",
        "beyond": f"{excess:+.3g}",
        "speaks_for": excess > 0,
        "width": f"{50 * abs(excess) / max_excess:.1f}",
        "uri": _atom_image(model, part),
        "map": _map(explanation, part, record),
    }


def _atom_image(model: Model, part: ConceptContribution) -> str:
    """Return the first atom of a concept as an image; empty if atoms are no image patches."""
    base_model = model.estimators_[part.member] if part.of_ensemble else model  # type: ignore[union-attr]
    atoms = base_model.model_.atoms() if part.atoms else None
    if atoms is None or atoms.patch_px is None:
        return ""
    return png_data_uri(render_vector(part.sign * atoms.D[part.atoms[0]], atoms.patch_px))


def _map(explanation: Explanation, part: ConceptContribution, record: ImageRecord) -> str:
    if part.positions is None or explanation.prediction.patch_map is None or part.member:
        return ""
    class_index = (
        explanation.classes.index(part.class_name)
        if part.class_name
        else explanation.predicted_class
    )
    grid = explanation.prediction.patch_map.grid
    return jpeg_data_uri(
        usage_image(record.display_image, grid, part.positions, class_rgb(class_index))
    )


def _map_image(explanation: Explanation, record: ImageRecord) -> str:
    """Return the image with its patch map; empty if the pixels are not available."""
    patch_map = explanation.prediction.patch_map
    if patch_map is None:
        return ""
    try:
        shown = patch_map if record.image is None else patch_map.align_to_image(record.image)
        return jpeg_data_uri(
            draw_overlay(replace(shown), shorten(explanation.prediction.summary()))
        )
    except (ImageError, ValueError, OSError):
        return ""
