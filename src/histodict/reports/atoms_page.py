"""HTML page of the atoms of a model, each with the patches that use it most.

Small maps show where in an image the atoms of a class are used: the image in grey, the use in
colour.
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
from ..explain.concept_contribution import ActivityRecorder, AtomActivity
from ..explain.patch_sample import AtomUsage, ClassAtomUsage
from ..images.source import open_image
from ..metrics.confounding import find_confounders
from ..models import Model
from ..models.recipe import Recipe
from ..patches.grid import PatchGrid
from ..patches.patch_map import class_css_colour, class_rgb
from ..patches.rendering import jpeg_data_uri, png_data_uri, render_vector
from ..utils.progress import Callback, no_callback
from ..utils.text_io import percent, pluralize
from .html import patch_images, write_page

__all__ = [
    "AtomReportData",
    "atom_rows",
    "collect_atom_report",
    "compute_image_activity",
    "confounded_atoms_of_members",
    "ensemble_note",
    "to_json_dict",
    "usage_image",
    "write_atoms_page",
]

_THUMBNAIL_PX = 150
_MAX_PATCHES = 60_000  # per image; drawing maps of larger slides takes too long
_BLANK_GREY = 244  # grey level of the background if the image cannot be read


def compute_image_activity(
    model: Model, record: ImageRecord
) -> tuple[AtomActivity, PatchGrid] | None:
    """Return the activity of the atoms in an image, and its patch grid.

    Return None if the image has too many patches or only background.
    """
    pipeline, recorder = model.model_, ActivityRecorder(model.model_)
    scored = pipeline.with_recorder(recorder).score_image(
        record.path, record.mpp, region_of_interest=record.region_of_interest
    )
    patch_map, activity = scored.patch_map, recorder.activity
    if patch_map is None or activity is None or patch_map.n_patches > _MAX_PATCHES:
        return None
    return activity, patch_map.grid


def usage_image(
    image_path: Path | None,
    grid: PatchGrid,
    fractions: NDArray[Any],
    colour: NDArray[Any] | tuple[int, ...],
) -> NDArray[np.uint8]:
    """Return a small grey image, coloured by the fraction of patches that use an atom.

    The strongest colour marks the largest fraction.

    Parameters
    ----------
    image_path : path of the image; None for a blank background
    grid : grid of the patches
    fractions : fractions (rows, columns) on a coarser grid than the patches; NaN on background
    colour : RGB colour of the class
    """
    step = grid.step * max(1, -(-max(grid.n_rows, grid.n_columns) // max(fractions.shape)))
    width, height = fractions.shape[1] * step + grid.left, fractions.shape[0] * step + grid.top
    background, scale = _background(image_path, width, height)
    rows, columns = (
        np.clip(((np.arange(n) + 0.5) / scale - start) // step, -1, size).astype(int)
        for n, start, size in (
            (background.shape[0], grid.top, fractions.shape[0]),
            (background.shape[1], grid.left, fractions.shape[1]),
        )
    )
    padded = np.pad(np.nan_to_num(fractions), 1)
    max_fraction = max(float(np.nanmax(fractions, initial=0)), 1e-12)
    strength = (0.85 * padded[np.ix_(rows + 1, columns + 1)] / max_fraction)[..., None]
    mixed = (1 - strength) * background + strength * np.asarray(colour, np.float64)
    return np.clip(mixed, 0, 255).astype(np.uint8)


def _background(
    path: Path | None, width: float, height: float
) -> tuple[NDArray[np.float64], float]:
    """Return a light grey thumbnail, and its scale (thumbnail pixels per level-0 pixel).

    If the image cannot be read, return a blank thumbnail for `width` x `height` level-0 pixels.
    """
    if path is not None:
        try:
            with open_image(path) as source:
                thumbnail, size = source.thumbnail(_THUMBNAIL_PX), source.size
        except (ValueError, OSError):
            return _background(None, width, height)
        grey = np.asarray(Image.fromarray(thumbnail).convert("L"), np.float64)
        light = 255 - 0.55 * (255 - grey)
        return np.repeat(light[..., None], 3, axis=2), max(thumbnail.shape[:2]) / max(size)
    scale = _THUMBNAIL_PX / max(width, height)
    shape = max(1, round(height * scale)), max(1, round(width * scale)), 3
    return np.full(shape, _BLANK_GREY, np.float64), scale


_MAX_LISTED_ATOMS = 12  # number of confounded atoms described individually


def write_atoms_page(
    path: Path,
    model: Model,
    manifest: Manifest,
    report: AtomReportData,
    *,
    with_maps: bool = True,
    callback: Callback = no_callback,
) -> None:
    """Write the atoms of a model as one self-contained HTML page without scripts.

    Parameters
    ----------
    path : file to write
    model : trained model
    manifest : images that the patches are taken from
    report : statistics and patches of the atoms
    with_maps : whether to show where in an image the atoms of each class are used
    callback : receives the progress
    """
    names = [manifest.name(record) for record in manifest.records]
    maps = select_usage_maps(model, report, manifest.records) if with_maps else []
    options: dict[str, Any] = {"maps": maps, "n_jobs": model.n_jobs, "callback": callback}
    shown = atom_rows(report, manifest.records, names, **options)
    flagged = atom_rows(report, manifest.records, names, class_usages=report.flagged, **options)
    max_fraction = max((group["top"] for group in [*shown, *flagged]), default=1.0)
    recipe = model.recipe
    content = {
        "title": f"Atoms of {' / '.join(model.class_names_)}",
        "facts": [
            {"name": f"atoms of {len(model.class_names_)} classes", "value": len(report.atoms.D)},
            {"name": "patches analysed", "value": len(report.labels)},
            {"name": "images analysed", "value": len(set(report.sample.images.tolist()))},
            {"name": "patients", "value": report.statistics[0].of_patients},
        ],
        "note": ensemble_note(model),
        "confounding_summary": confounding_summary(report, manifest),
        "confounders": [str(each) for each in find_confounders(manifest)],
        "confounding_rule": confounding_rule(report),
        "confounded": [
            _confounding_row(atom) for atom in report.confounded_atoms[:_MAX_LISTED_ATOMS]
        ],
        "n_more_confounded": max(0, len(report.confounded_atoms) - _MAX_LISTED_ATOMS),
        "confounded_labels": ",".join(atom.label for atom in report.confounded_atoms),
        "flagged": [group | {"text": "", "top": max_fraction} for group in flagged],
        "stability": report.stability,
        "map_names": [
            (report.classes[each.class_index].name, Path(names[each.record_index]).name)
            for each in maps
        ],
        "are_pictures": report.atoms.patch_px is not None,
        "is_pair": recipe.context_scale > 1,
        "features": recipe.features,
        "atom_classes": [group | {"top": max_fraction} for group in shown],
        "settings": f"Method {recipe.method}; {_patch_text(recipe)}",
    }
    write_page(path, "reports/atoms.html.j2", content)


def _is_confounding_untested(report: AtomReportData) -> bool:
    return all(np.isnan(atom.site_p_value) for atom in report.statistics)


def confounding_summary(report: AtomReportData, manifest: Manifest) -> str:
    """Describe how many atoms are confounded with the site, or why this cannot be tested."""
    n_sites = len({record.site for record in manifest.records if record.site})
    if n_sites == 0:
        return "Not tested: the image table has no column 'site'."
    if _is_confounding_untested(report):
        return (
            "Not tested: sites are compared within a class, and every class comes from one site."
            if n_sites > 1
            else "Not tested: all images come from one site."
        )
    n = len(report.confounded_atoms)
    if not n:
        return "No atom is confounded with the site."
    return (
        f"{pluralize(n, 'atom')} {'is' if n == 1 else 'are'} probably confounded with the site: "
        f"{'it' if n == 1 else 'they'} may represent a scanner, a stain or a pen mark instead of "
        "the tissue."
    )


def confounding_rule(report: AtomReportData) -> str:
    """Describe the criterion for site confounding of atoms; empty if it was not tested."""
    if _is_confounding_untested(report):
        return ""
    return (
        "Criterion: sites are compared among patients of the same class. The p-value of the "
        f"largest difference over all atoms is at most {percent(MAX_SITE_P_VALUE)} in a "
        f"permutation test; here it is {percent(report.statistics[0].site_p_value)}. An atom is "
        f"flagged if {percent(MIN_SITE_VARIANCE_SHARE)} or more of the variance of its use or "
        f"weight lies between sites. At most {percent(MAX_ATOM_P_VALUE)} of the flagged atoms "
        "are expected to be false positives. Confounding that affects all images of a class "
        "cannot be detected."
    )


def _confounding_row(atom: AtomStatistics) -> dict[str, str]:
    return {
        "label": atom.name or atom.label,
        "text": f"images from {atom.site} use it in {percent(atom.site_excess)} more of their "
        f"patches than other images of the same class; {percent(atom.site_variance_fraction)} of "
        "variance between patients of a class lies between sites",
    }


@dataclass(frozen=True)
class _UsageMap:
    """Usage maps of the atoms of a class in one image.

    Attributes
    ----------
    class_index : index of the class
    record_index : index of the image in the records
    activity : activity of all atoms in the image
    grid : grid of the patches
    """

    class_index: int
    record_index: int
    activity: AtomActivity
    grid: PatchGrid


def select_usage_maps(
    model: Model, report: AtomReportData, records: Sequence[ImageRecord]
) -> list[_UsageMap]:
    """Return the usage maps of each class, in the image that uses its displayed atoms most."""
    maps = []
    for class_index, class_usage in enumerate(report.classes):
        atoms = [usage.atom for usage in class_usage.atoms]
        if not atoms:
            continue
        counts = (report.sample.codes[:, atoms] != 0).sum(axis=1)
        totals = np.bincount(report.sample.images, np.asarray(counts).ravel(), len(records))
        activity_and_grid = compute_image_activity(model, records[int(totals.argmax())])
        if activity_and_grid is not None:
            maps.append(_UsageMap(class_index, int(totals.argmax()), *activity_and_grid))
    return maps


def _patch_text(recipe: Recipe) -> str:
    if get_patch_features(recipe.features).is_precomputed:
        return (
            "vectors of feature files. Patches are outlined in the image if it is available; "
            "otherwise the level-0 coordinates of their upper left corner are shown."
        )
    return (
        f"patches of {recipe.patch_px} x {recipe.patch_px} pixels, outlined; stain correction "
        f"{recipe.stain}. Pictures show the images without stain correction."
    )


def atom_rows(
    report: AtomReportData,
    records: Sequence[ImageRecord],
    names: Sequence[str],
    *,
    class_usages: Sequence[ClassAtomUsage] | None = None,
    maps: Sequence[_UsageMap] = (),
    n_jobs: int | None = None,
    callback: Callback = no_callback,
) -> list[dict[str, Any]]:
    """Return template values for `atom_rows.html.j2`: atoms per class, each with its patches.

    Parameters
    ----------
    report : statistics and patches of the atoms
    records : images that the patches are taken from
    names : names of the images as displayed
    class_usages : atoms to show, per class; None for the most used atoms
    maps : usage maps of the classes, from `select_usage_maps`
    n_jobs : number of threads
    callback : receives the progress
    """
    class_usages = report.classes if class_usages is None else class_usages
    usages = [usage for class_usage in class_usages for usage in class_usage.atoms]
    wanted = [patch for usage in usages for patch, _ in usage.patches]
    uris = patch_images(report.sample, records, wanted, n_jobs=n_jobs, callback=callback)
    classes = [class_usage.name for class_usage in report.classes]
    labels = [*classes, *sorted(set(report.labels) - set(classes))]
    colours = {name: class_css_colour(index) for index, name in enumerate(labels)}
    # Bars are scaled to the largest fraction on the page, as few patches use even common atoms.
    max_fraction = max(
        (fraction for usage in usages for fraction in usage.fractions.values()), default=1.0
    )
    return [
        {
            "name": class_usage.name,
            "colours": colours,
            "top": max_fraction,
            "text": _describe_usage(class_usage),
            "rows": [
                _atom_values(report, usage, uris, names)
                | {"map": _map_uri(maps, classes.index(class_usage.name), usage.atom, records)}
                for usage in class_usage.atoms
            ],
        }
        for class_usage in class_usages
    ]


def _map_uri(
    maps: Sequence[_UsageMap], class_index: int, atom: int, records: Sequence[ImageRecord]
) -> str:
    class_map = next((each for each in maps if each.class_index == class_index), None)
    if class_map is None:
        return ""
    fractions = np.where(class_map.activity.tissue, class_map.activity.usage_map[atom], np.nan)
    path = records[class_map.record_index].display_image
    return jpeg_data_uri(usage_image(path, class_map.grid, fractions, class_rgb(class_index)))


def ensemble_note(model: Model) -> str:
    """Return a note that the atoms belong to the first base model; empty for a single model."""
    if model.n_estimators_ == 1:
        return ""
    return (
        f"This model is an ensemble of {model.n_estimators_} base models. The page shows the "
        "atoms of base model 1 (`--member` chooses another)."
    )


def _describe_usage(class_usage: ClassAtomUsage) -> str:
    counts = ", ".join(f"{name} {value:.1f}" for name, value in class_usage.per_patch.items())
    n_unused = class_usage.n_atoms - class_usage.n_active
    verb = "is" if n_unused == 1 else "are"
    unused = f" {pluralize(n_unused, 'atom')} {verb} not used by any of these patches."
    unused *= n_unused > 0
    n_atoms = pluralize(class_usage.n_atoms, "atom")
    return f"{n_atoms}. Average number used per patch: {counts}.{unused}"


def _atom_values(
    report: AtomReportData, usage: AtomUsage, uris: Mapping[int, str], names: Sequence[str]
) -> dict[str, Any]:
    patch_px, statistics = report.atoms.patch_px, report.statistics[usage.atom]
    sign, atom = float(report.atoms.signs[usage.atom]), report.atoms.signed_atoms[usage.atom]
    return {
        "label": statistics.label,
        "name": statistics.name,
        "marks": [flag for flag in ("artefact", "disabled") if getattr(statistics, flag)],
        "facts": format_statistics(statistics),
        "is_site_confounded": statistics.is_site_confounded,
        "uri": png_data_uri(render_vector(atom, patch_px)) if patch_px else "",
        "shares": usage.fractions,
        "patches": [
            {
                "uri": uris[patch],
                **dict(zip("xy", report.sample.corners[patch].tolist(), strict=True)),
                "image": names[int(report.sample.images[patch])],
                "label": report.labels[patch],
                "weight": sign * weight,
            }
            for patch, weight in usage.patches
        ],
    }


def format_statistics(statistics: AtomStatistics) -> list[str]:
    """Describe the statistics of an atom in short phrases."""
    phrases = [f"in {statistics.n_patients} of {pluralize(statistics.of_patients, 'patient')}"]
    if not np.isnan(statistics.auc):
        interval = f" ({statistics.auc_low:.2f} to {statistics.auc_high:.2f})" * (
            not np.isnan(statistics.auc_low)
        )
        phrases.append(f"AUC {statistics.auc:.2f}{interval}")
    if not np.isnan(statistics.similarity_other_seeds):
        phrases.append(
            f"similarity to atoms of other seeds {statistics.similarity_other_seeds:.2f}, "
            f"of half of the patients {statistics.similarity_half_of_patients:.2f}"
        )
    for level, (value, low, high) in statistics.group_variance_share.items():
        if low > 0:
            phrases.append(f"variance between {level}s: {value:.2f} ({low:.2f} to {high:.2f})")
    if statistics.is_site_confounded:
        phrases.append(f"confounded with site {statistics.site}")
    return phrases
