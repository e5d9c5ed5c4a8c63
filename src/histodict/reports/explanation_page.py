"""Why: the answers for a few images in concepts, as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..datasets.manifest import ImageRecord
from ..explain.explanation import ConceptContribution, Explanation
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
    found: Sequence[Explanation],
    records: Sequence[ImageRecord],
    *,
    n_parts: int = 8,
) -> None:
    """Everything in one file: no scripts, nothing fetched."""
    content = {
        "title": f"Why: {' / '.join(model.classes_)}",
        "images": [
            _image(model, each, record, n_parts)
            for each, record in zip(found, records, strict=True)
        ],
        "knows_usual": any(part.reference_contribution for each in found for part in each.parts),
        "is_of_regions": model.finds_regions,
    }
    write_page(path, "reports/explanation.html.j2", content)


def _image(model: Model, why: Explanation, record: ImageRecord, n_parts: int) -> dict[str, Any]:
    head = {"name": record.path.name, "words": why.summary(), "change": why.describe_change()}
    if why.prediction.label is None:
        return head | {"rows": [], "views": [], "uri": "", "total": ""}
    shown = why.concepts[:n_parts]
    top = max((abs(why.excess_over_reference(part)) for part in shown), default=1.0) or 1.0
    loudest = (
        max((abs(why.margin_to_runner_up(vote.adds)) for vote in why.votes), default=1.0) or 1.0
    )
    rest = why.others(n_parts)
    return head | {
        "uri": _map_image(why, record),
        "rival": why.classes[why.rival],
        "winner": why.classes[why.predicted_class],
        "colour": class_css_colour(why.predicted_class),
        "against": class_css_colour(why.rival),
        "views": [
            {
                "name": f"view {vote.member + 1}: {vote.name}",
                "adds": f"{why.margin_to_runner_up(vote.adds):+.3g}",
                "speaks_for": why.margin_to_runner_up(vote.adds) > 0,
                "width": f"{50 * abs(why.margin_to_runner_up(vote.adds)) / loudest:.1f}",
            }
            for vote in why.votes
        ],
        "rows": [_row(model, why, part, record, top) for part in shown],
        "n_rest": len(rest),
        "rest": f"{sum(why.margin_to_runner_up(part.adds) for part in rest):+.3g}",
        "constant": f"{why.margin_to_runner_up(why.constant):+.3g}",
        "total": f"{why.margin_to_runner_up(why.scores):+.3g}",
    }


def _row(
    model: Model, why: Explanation, part: ConceptContribution, record: ImageRecord, top: float
) -> dict[str, Any]:
    rival, beyond = why.classes[why.rival], why.excess_over_reference(part)
    return {
        "name": part.full_name,
        "note": ", ".join(filter(None, [part.group, "artefact" * part.artefact])),
        "use": "" if part.usage is None else percent(part.usage),
        "usual": part.describe_reference(rival),
        "adds": f"{why.margin_to_runner_up(part.adds):+.3g}",
        "beyond": f"{beyond:+.3g}",
        "speaks_for": beyond > 0,
        "width": f"{50 * abs(beyond) / top:.1f}",
        "uri": _atom_image(model, part),
        "map": _map(why, part, record),
    }


def _atom_image(model: Model, part: ConceptContribution) -> str:
    """The concept's first atom, as it is used; nothing where atoms are no pictures."""
    own = model.estimators_[part.member] if part.of_ensemble else model  # type: ignore[union-attr]
    atoms = own.model_.atoms() if part.atoms else None
    if atoms is None or atoms.patch_px is None:
        return ""
    return png_data_uri(render_vector(part.sign * atoms.D[part.atoms[0]], atoms.patch_px))


def _map(why: Explanation, part: ConceptContribution, record: ImageRecord) -> str:
    if part.positions is None or why.prediction.patch_map is None or part.member:
        return ""
    place = why.classes.index(part.class_name) if part.class_name else why.predicted_class
    grid = why.prediction.patch_map.grid
    return jpeg_data_uri(usage_image(record.display_image, grid, part.positions, class_rgb(place)))


def _map_image(why: Explanation, record: ImageRecord) -> str:
    """The image with its map; nothing where there are no pixels."""
    patch_map = why.prediction.patch_map
    if patch_map is None:
        return ""
    try:
        shown = patch_map if record.image is None else patch_map.align_to_image(record.image)
        return jpeg_data_uri(draw_overlay(replace(shown), shorten(why.prediction.summary())))
    except (ImageError, ValueError, OSError):
        return ""
