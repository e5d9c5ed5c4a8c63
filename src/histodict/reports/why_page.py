"""Why: the answers for a few images in concepts, as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..execution.texts import one_line, percent
from ..images.manifest import Record
from ..images.readers import ImageError
from ..patches.overlay import draw_overlay
from ..patches.patch_map import colour_of, rgb_of
from ..patches.pictures import image_uri, png_uri, vector_picture
from ..pipeline import Model
from ..pipeline.parts import Part
from ..pipeline.reasons import Reasons
from .atom_maps import use_picture
from .pages import write_page


def write_why_page(
    path: Path,
    model: Model,
    found: Sequence[Reasons],
    records: Sequence[Record],
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
        "knows_usual": any(part.usual for each in found for part in each.parts),
        "is_of_regions": model.finds_regions,
    }
    write_page(path, "reports/why.html.j2", content)


def _image(model: Model, why: Reasons, record: Record, n_parts: int) -> dict[str, Any]:
    head = {"name": record.path.name, "words": why.words(), "change": why.change_words()}
    if why.answer.label is None:
        return head | {"rows": [], "views": [], "uri": "", "total": ""}
    shown = why.concepts[:n_parts]
    top = max((abs(why.beyond(part)) for part in shown), default=1.0) or 1.0
    loudest = max((abs(why.lead(vote.adds)) for vote in why.votes), default=1.0) or 1.0
    rest = why.others(n_parts)
    return head | {
        "uri": _picture(why, record),
        "rival": why.classes[why.rival],
        "winner": why.classes[why.winner],
        "colour": colour_of(why.winner),
        "against": colour_of(why.rival),
        "views": [
            {
                "name": f"view {vote.view + 1}: {vote.name}",
                "adds": f"{why.lead(vote.adds):+.3g}",
                "speaks_for": why.lead(vote.adds) > 0,
                "width": f"{50 * abs(why.lead(vote.adds)) / loudest:.1f}",
            }
            for vote in why.votes
        ],
        "rows": [_row(model, why, part, record, top) for part in shown],
        "n_rest": len(rest),
        "rest": f"{sum(why.lead(part.adds) for part in rest):+.3g}",
        "constant": f"{why.lead(why.constant):+.3g}",
        "total": f"{why.lead(why.scores):+.3g}",
    }


def _row(model: Model, why: Reasons, part: Part, record: Record, top: float) -> dict[str, Any]:
    rival, beyond = why.classes[why.rival], why.beyond(part)
    return {
        "name": part.full_name,
        "note": ", ".join(filter(None, [part.group, "artefact" * part.artefact])),
        "use": "" if part.use is None else percent(part.use),
        "usual": part.usual_words(rival),
        "adds": f"{why.lead(part.adds):+.3g}",
        "beyond": f"{beyond:+.3g}",
        "speaks_for": beyond > 0,
        "width": f"{50 * abs(beyond) / top:.1f}",
        "uri": _atom_picture(model, part),
        "map": _map(why, part, record),
    }


def _atom_picture(model: Model, part: Part) -> str:
    """The concept's first atom, as it is used; nothing where atoms are no pictures."""
    own = model.members_[part.view] if part.of_panel else model  # type: ignore[union-attr]
    atoms = own.model_.atoms() if part.atoms else None
    if atoms is None or atoms.patch_px is None:
        return ""
    return png_uri(vector_picture(part.sign * atoms.D[part.atoms[0]], atoms.patch_px))


def _map(why: Reasons, part: Part, record: Record) -> str:
    if part.where is None or why.answer.patch_map is None or part.view:
        return ""
    place = why.classes.index(part.owner) if part.owner else why.winner
    grid = why.answer.patch_map.grid
    return image_uri(use_picture(record.picture, grid, part.where, rgb_of(place)))


def _picture(why: Reasons, record: Record) -> str:
    """The image with its map; nothing where there are no pixels."""
    patch_map = why.answer.patch_map
    if patch_map is None:
        return ""
    try:
        shown = patch_map if record.image is None else patch_map.laid_over(record.image)
        return image_uri(draw_overlay(replace(shown), one_line(why.answer.words())))
    except (ImageError, ValueError, OSError):
        return ""
