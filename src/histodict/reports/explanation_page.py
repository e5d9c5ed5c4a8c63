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
from ..models import ImagePrediction, Model
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
    n_concepts: int = 8,
) -> None:
    """Write explanations of images as one self-contained HTML page without scripts.

    Parameters
    ----------
    path : file to write
    model : trained model
    explanations : one explanation per image
    records : explained images, in the same order
    n_concepts : number of concepts shown per image
    """
    content = {
        "title": f"Explanation: {' / '.join(model.class_names_)}",
        "images": [
            _image_values(model, explanation, record, n_concepts)
            for explanation, record in zip(explanations, records, strict=True)
        ],
        "has_reference": any(
            concept.reference_contribution
            for explanation in explanations
            for concept in explanation.contributions
        ),
        "is_of_regions": model.finds_regions,
    }
    write_page(path, "reports/explanation.html.j2", content)


def _image_values(
    model: Model, explanation: Explanation, record: ImageRecord, n_concepts: int
) -> dict[str, Any]:
    head = {
        "name": record.path.name,
        "summary": explanation.summary(),
        "change": explanation.describe_change(),
    }
    if explanation.prediction.top_label is None:
        return head | {"rows": [], "members": [], "uri": "", "sums": []}
    shown = explanation.concepts[:n_concepts]
    max_excess = max((abs(explanation.excess_over_reference(c)) for c in shown), default=0.0)
    votes = [
        explanation.margin_to_runner_up(vote.contribution)
        for vote in explanation.member_contributions
    ]
    max_vote = max(map(abs, votes), default=0.0)
    return head | {
        "uri": _map_image(explanation, record),
        "runner_up": explanation.classes[explanation.runner_up],
        "predicted": explanation.classes[explanation.predicted_class],
        "colour": class_css_colour(explanation.predicted_class),
        "against": class_css_colour(explanation.runner_up),
        "members": [
            {"name": f"base model {vote.member + 1}: {vote.name}"} | _bar_values(value, max_vote)
            for vote, value in zip(explanation.member_contributions, votes, strict=True)
        ],
        "member_constant": f"{explanation.member_constant:+.3g}" if votes else "",
        "rows": [_concept_values(model, explanation, c, record, max_excess) for c in shown],
        "sums": explanation.sum_rows(n_concepts),
    }


def _bar_values(value: float, max_value: float) -> dict[str, Any]:
    """Return template values of a bar: value as text, sign, and width (50 % for `max_value`)."""
    width = f"{50 * abs(value) / (max_value or 1.0):.1f}"
    return {"value": f"{value:+.3g}", "is_positive": value > 0, "width": width}


def _concept_values(
    model: Model,
    explanation: Explanation,
    concept: ConceptContribution,
    record: ImageRecord,
    max_excess: float,
) -> dict[str, Any]:
    rival = explanation.classes[explanation.runner_up]
    contribution = explanation.margin_to_runner_up(concept.contribution) + 0.0  # +0 instead of -0
    return {
        "name": concept.full_name,
        "note": ", ".join(filter(None, [concept.group, "artefact" * concept.artefact])),
        "usage": "" if concept.usage is None else percent(concept.usage),
        "reference": concept.describe_reference(rival),
        "contribution": f"{contribution:+.3g}",
        "uri": _atom_image(model, concept),
        "map": _usage_map_uri(explanation, concept, record),
    } | _bar_values(explanation.excess_over_reference(concept), max_excess)


def _atom_image(model: Model, concept: ConceptContribution) -> str:
    """Return the first atom of a concept as a data URI; empty if atoms are not image patches."""
    base_model = model.estimators_[concept.member] if concept.is_ensemble_member else model  # type: ignore[union-attr]
    atoms = base_model.model_.atoms() if concept.atoms else None
    if atoms is None or atoms.patch_px is None:
        return ""
    return png_data_uri(render_vector(concept.sign * atoms.D[concept.atoms[0]], atoms.patch_px))


def _usage_map_uri(
    explanation: Explanation, concept: ConceptContribution, record: ImageRecord
) -> str:
    if concept.usage_map is None or explanation.prediction.patch_map is None or concept.member:
        return ""
    class_index = (
        explanation.classes.index(concept.class_name)
        if concept.class_name
        else explanation.predicted_class
    )
    grid = explanation.prediction.patch_map.grid
    return jpeg_data_uri(
        usage_image(record.display_image, grid, concept.usage_map, class_rgb(class_index))
    )


def _map_image(explanation: Explanation, record: ImageRecord) -> str:
    """Return the image with its patch map as a data URI; empty if its pixels are not available."""
    patch_map = explanation.prediction.patch_map
    if patch_map is None:
        return ""
    try:
        shown = patch_map if record.image is None else patch_map.align_to_image(record.image)
        # The page has scores of the predicted class; the score of the prediction may have the
        # opposite sign.
        prediction = explanation.prediction
        summary = (
            prediction.summary(with_score=False)
            if isinstance(prediction, ImagePrediction)
            else prediction.summary()
        )
        return jpeg_data_uri(draw_overlay(replace(shown), shorten(summary)))
    except (ImageError, ValueError, OSError):
        return ""
