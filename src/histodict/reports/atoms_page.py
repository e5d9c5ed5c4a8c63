"""The atoms of a model as one self-contained HTML page: each with the real patches that use it.

Where in an image atoms are used, as small pictures: the image in grey, the use in colour.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..datasets.manifest import ImageRecord, Manifest
from ..encoders import get_patch_features
from ..explain.atom_statistics import (
    MAX_ATOM_P_VALUE,
    MAX_SITE_P_VALUE,
    MIN_SITE_VARIANCE_SHARE,
    AtomReportData,
    AtomStatistics,
    collect_atom_report,
    confounded_atoms_of_members,
    to_json_dict,
)
from ..explain.explanation import AtomActivity, atom_activity
from ..explain.patch_sample import AtomUsage, ClassAtomUsage
from ..images.source import open_image
from ..metrics.confounding import find_confounders
from ..models import Model
from ..models.recipe import Recipe
from ..patches.grid import PatchGrid
from ..patches.patch_map import NO_TISSUE, class_css_colour, class_rgb
from ..patches.rendering import jpeg_data_uri, png_data_uri, render_vector
from ..utils.progress import Callback, no_callback
from ..utils.text_io import percent, pluralize
from .html import patch_images, write_page

__all__ = [
    "AtomReportData",
    "atom_rows",
    "collect_atom_report",
    "confounded_atoms_of_members",
    "ensemble_note",
    "maps_of",
    "to_json_dict",
    "usage_image",
    "write_atoms_page",
]

_SIDE_PX = 150
_MAX_PATCHES = 60_000  # of an image: a slide with more takes too long for a page
_PAPER = 244


def maps_of(model: Model, record: ImageRecord) -> tuple[AtomActivity, PatchGrid] | None:
    """A second look at an image; None where it is too large, or shows only glass."""
    if not hasattr(model.model_, "predict_patches"):
        return None
    image = record.path, record.mpp
    patch_map, evidence = model.model_.predict_patches(*image, within=record.region_of_interest)
    if not 0 < evidence.n_patches <= _MAX_PATCHES:
        return None
    chosen = patch_map.predicted_classes != NO_TISSUE
    look = atom_activity(model.model_, patch_map, chosen, *image, record.region_of_interest)
    return look, patch_map.grid


def usage_image(
    picture: Path | None,
    grid: PatchGrid,
    share: NDArray[Any],
    colour: NDArray[Any] | tuple[int, ...],
) -> NDArray[np.uint8]:
    """Share of the patches (rows, columns) of a coarse grid over the patches' grid, NaN on glass.

    The strongest colour is the largest share. Without a picture it lies on plain paper.
    """
    step = grid.step * max(1, -(-max(grid.n_rows, grid.n_columns) // max(share.shape)))
    width, height = share.shape[1] * step + grid.left, share.shape[0] * step + grid.top
    below, scale = _background(picture, width, height)
    rows, columns = (
        np.clip(((np.arange(n) + 0.5) / scale - start) // step, -1, size).astype(int)
        for n, start, size in (
            (below.shape[0], grid.top, share.shape[0]),
            (below.shape[1], grid.left, share.shape[1]),
        )
    )
    padded = np.pad(np.nan_to_num(share), 1)
    top = max(float(np.nanmax(share, initial=0)), 1e-12)
    strength = (0.85 * padded[np.ix_(rows + 1, columns + 1)] / top)[..., None]
    mixed = (1 - strength) * below + strength * np.asarray(colour, np.float64)
    return np.clip(mixed, 0, 255).astype(np.uint8)


def _background(
    picture: Path | None, width: float, height: float
) -> tuple[NDArray[np.float64], float]:
    """The image, small and in light grey, and its pixels per level-0 pixel."""
    if picture is not None:
        try:
            with open_image(picture) as source:
                small, size = source.thumbnail(_SIDE_PX), source.size
        except (ValueError, OSError):
            return _background(None, width, height)
        grey = np.asarray(Image.fromarray(small).convert("L"), np.float64)
        light = 255 - 0.55 * (255 - grey)
        return np.repeat(light[..., None], 3, axis=2), max(small.shape[:2]) / max(size)
    scale = _SIDE_PX / max(width, height)
    shape = max(1, round(height * scale)), max(1, round(width * scale)), 3
    return np.full(shape, _PAPER, np.float64), scale


_MAX_LISTED = 12  # atoms that look like a leak, one by one


def write_atoms_page(
    path: Path,
    model: Model,
    manifest: Manifest,
    found: AtomReportData,
    *,
    with_maps: bool = True,
    callback: Callback = no_callback,
) -> None:
    """Everything in one file: no scripts, nothing fetched."""
    names = [manifest.name(record) for record in manifest.records]
    maps = find_maps(model, found, manifest.records) if with_maps else []
    options: dict[str, Any] = {"maps": maps, "n_jobs": model.n_jobs, "callback": callback}
    shown = atom_rows(found, manifest.records, names, **options)
    flagged = atom_rows(found, manifest.records, names, uses=found.flagged, **options)
    recipe = model.recipe
    content = {
        "title": f"Atoms of {' / '.join(model.classes_)}",
        "facts": [
            {"name": f"atoms of {len(model.classes_)} classes", "value": len(found.atoms.D)},
            {"name": "patches looked at", "value": len(found.labels)},
            {"name": "images they come from", "value": len(set(found.gallery.images.tolist()))},
            {"name": "patients", "value": found.statistics[0].of_patients},
        ],
        "note": ensemble_note(model),
        "confounding_summary": confounding_summary(found, manifest),
        "confounders": [str(each) for each in find_confounders(manifest)],
        "confounding_rule": confounding_rule(found),
        "leaks": [_confounding_row(fact) for fact in found.confounding[:_MAX_LISTED]],
        "n_more_leaks": max(0, len(found.confounding) - _MAX_LISTED),
        "leak_labels": ",".join(fact.label for fact in found.confounding),
        "flagged": [group | {"words": ""} for group in flagged],
        "stability": found.stability,
        "map_names": [names[each.position] for each in maps],
        "are_pictures": found.atoms.patch_px is not None,
        "is_pair": recipe.context_scale > 1,
        "features": recipe.features,
        "atom_classes": shown,
        "settings": f"Method {recipe.method}; {_patch_text(recipe)}",
    }
    write_page(path, "reports/atoms.html.j2", content)


def _has_no_sites(found: AtomReportData) -> bool:
    return all(np.isnan(fact.site_p_value) for fact in found.statistics)


def confounding_summary(found: AtomReportData, manifest: Manifest) -> str:
    """Describe atoms that differ between sites, or why this cannot be tested."""
    n_sites = len({record.site for record in manifest.records if record.site})
    if n_sites == 0:
        return "Not tested: the table of images has no column site."
    if _has_no_sites(found):
        return (
            "Not tested: sites are compared within a class, and every class comes from one site."
            if n_sites > 1
            else "Not tested: all images come from one site."
        )
    n = len(found.confounding)
    if not n:
        return "None does."
    return (
        f"{pluralize(n, 'atom')} {'looks' if n == 1 else 'look'} like a leak: what "
        f"{'it stands' if n == 1 else 'they stand'} for may be where images come from, such as a "
        "scanner, a stain or a pen, and not what the tissue is."
    )


def confounding_rule(found: AtomReportData) -> str:
    """Describe the criterion for site confounding of atoms; empty if it was not tested."""
    if _has_no_sites(found):
        return ""
    return (
        "The rule: sites are compared among patients of the same class. The largest differences "
        "between them, of all atoms together, would come about by chance in "
        f"{percent(MAX_SITE_P_VALUE)} of shufflings or fewer; here in "
        f"{percent(found.statistics[0].site_p_value)}. Then those atoms are flagged of whose use "
        "or "
        f"weight {percent(MIN_SITE_VARIANCE_SHARE)} or more of the variance lies between sites, "
        "with at most "
        f"{percent(MAX_ATOM_P_VALUE)} of them expected to be there by chance. What all images of "
        "a class "
        "have cannot be found so."
    )


def _of_100(share: float) -> str:
    return f"{100 * share:.0f} of 100"


def _confounding_row(fact: AtomStatistics) -> dict[str, str]:
    return {
        "label": fact.name or fact.label,
        "words": f"images from {fact.site} use it in {_of_100(fact.site_excess)} patches more than "
        f"others of the same class. Of what patients of a class differ by, "
        f"{percent(fact.site_variance_fraction)} lies between sites",
    }


@dataclass(frozen=True)
class _Map:
    """Where the atoms of a class are used in one image: the place of its record, and the look."""

    class_name: int
    position: int
    style: AtomActivity
    grid: PatchGrid


def find_maps(model: Model, found: AtomReportData, records: Sequence[ImageRecord]) -> list[_Map]:
    """Per class, of the image whose patches use its shown atoms most, where they are used."""
    maps = []
    for owner, use in enumerate(found.classes):
        atoms = [line.atom for line in use.atoms]
        if not atoms:
            continue
        counts = (found.gallery.codes[:, atoms] != 0).sum(axis=1)
        totals = np.bincount(found.gallery.images, np.asarray(counts).ravel(), len(records))
        shown = maps_of(model, records[int(totals.argmax())])
        if shown is not None:
            maps.append(_Map(owner, int(totals.argmax()), *shown))
    return maps


def _patch_text(recipe: Recipe) -> str:
    if get_patch_features(recipe.features).is_precomputed:
        return (
            "vectors of feature files. Patches are shown, outlined, where the image is there; else "
            "where they lie, by their upper left corner in level-0 pixels."
        )
    return (
        f"patches of {recipe.patch_px} x {recipe.patch_px} pixels, outlined; stain correction "
        f"{recipe.stain}. Pictures show the images as they are."
    )


def atom_rows(
    found: AtomReportData,
    records: Sequence[ImageRecord],
    names: Sequence[str],
    *,
    uses: Sequence[ClassAtomUsage] | None = None,
    maps: Sequence[_Map] = (),
    n_jobs: int | None = None,
    callback: Callback = no_callback,
) -> list[dict[str, Any]]:
    """What `atom_rows.html.j2` shows: per class its most used atoms, each with its patches.

    `names`: of the records, as a reader knows them; `uses`: other atoms than the most used ones.
    """
    uses = found.classes if uses is None else uses
    lines = [line for use in uses for line in use.atoms]
    wanted = [patch for line in lines for patch, _ in line.patches]
    uris = patch_images(found.gallery, records, wanted, n_jobs=n_jobs, callback=callback)
    classes = [use.name for use in found.classes]
    labels = [*classes, *sorted(set(found.labels) - set(classes))]
    colours = {name: class_css_colour(place) for place, name in enumerate(labels)}
    # Bars are drawn up to the largest share on the page: even common atoms serve few patches.
    top = max((share for line in lines for share in line.fractions.values()), default=1.0)
    return [
        {
            "name": use.name,
            "colours": colours,
            "top": top,
            "words": _text(use),
            "rows": [
                _row(found, line, uris, names)
                | {"map": _map_uri(maps, classes.index(use.name), line.atom, records)}
                for line in use.atoms
            ],
        }
        for use in uses
    ]


def _map_uri(maps: Sequence[_Map], owner: int, atom: int, records: Sequence[ImageRecord]) -> str:
    own = next((each for each in maps if each.class_name == owner), None)
    if own is None:
        return ""
    share = np.where(own.style.tissue, own.style.positions[atom], np.nan)
    picture = records[own.position].display_image
    return jpeg_data_uri(usage_image(picture, own.grid, share, class_rgb(owner)))


def ensemble_note(model: Model) -> str:
    """Of a panel: whose atoms these are; else nothing."""
    if model.n_estimators_ == 1:
        return ""
    return (
        f"This model is a panel of {model.n_estimators_} that decide together: these are the "
        "atoms of "
        "its first member."
    )


def _text(use: ClassAtomUsage) -> str:
    (first, value), *others = use.per_patch.items()
    means = f"a patch of {first} uses {value:.1f} of them"
    means += "".join(f", one of {name} {value:.1f}" for name, value in others)
    left = use.n_atoms - use.n_active
    unused = f" No patch looked at uses {left} of them." if left else ""
    return f"{use.n_atoms} atoms. On average {means}.{unused}"


def _row(
    found: AtomReportData, line: AtomUsage, uris: Mapping[int, str], names: Sequence[str]
) -> dict[str, Any]:
    side, fact = found.atoms.patch_px, found.statistics[line.atom]
    sign, atom = float(found.atoms.signs[line.atom]), found.atoms.with_usage_sign[line.atom]
    return {
        "label": fact.label,
        "name": fact.name,
        "marks": [word for word in ("artefact", "disabled") if getattr(fact, word)],
        "facts": format_statistics(fact),
        "is_site_confounded": fact.is_site_confounded,
        "uri": png_data_uri(render_vector(atom, side)) if side else "",
        "shares": line.fractions,
        "patches": [
            {
                "uri": uris[patch],
                **dict(zip("xy", found.gallery.corners[patch].tolist(), strict=True)),
                "image": names[int(found.gallery.images[patch])],
                "label": found.labels[patch],
                "weight": sign * weight,
            }
            for patch, weight in line.patches
        ],
    }


def format_statistics(fact: AtomStatistics) -> list[str]:
    """What is known of an atom, in a few words each."""
    words = [f"in {fact.n_patients} of {pluralize(fact.of_patients, 'patient')}"]
    if not np.isnan(fact.auc):
        ends = f" ({fact.auc_low:.2f} to {fact.auc_high:.2f})" * (not np.isnan(fact.auc_low))
        words.append(f"AUC {fact.auc:.2f}{ends}")
    if not np.isnan(fact.seeds):
        words.append(f"found again {fact.seeds:.2f}, by half the patients {fact.halves:.2f}")
    for level, (value, low, high) in fact.group_variance_share.items():
        if low > 0:
            words.append(f"tells {level}s apart: {value:.2f} ({low:.2f} to {high:.2f})")
    if fact.is_site_confounded:
        words.append(f"looks like a leak of {fact.site}")
    return words
