"""The atoms of a model as one self-contained HTML page: each with the real patches that use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..evaluation.confounding import find_confounders
from ..execution.progress import Callback, ignore
from ..execution.texts import counted, percent
from ..images.manifest import Manifest, Record
from ..networks import vectors_named
from ..patches.grid import PatchGrid
from ..patches.patch_map import colour_of, rgb_of
from ..patches.pictures import image_uri, png_uri, vector_picture
from ..pipeline import Model
from ..pipeline.atom_facts import LEAK_CHANCE, LEAK_DOUBT, LEAK_SHARE, AtomFacts
from ..pipeline.atoms import AtomUse, ClassUse
from ..pipeline.spoken import AtomLook
from ..recipes import Recipe
from .atom_maps import maps_of, use_picture
from .atoms_in_use import AtomsInUse, find_atoms, leaks_of_views, plain_facts
from .pages import write_page
from .patch_pictures import patch_pictures

__all__ = [
    "AtomsInUse",
    "atom_rows",
    "find_atoms",
    "leaks_of_views",
    "panel_note",
    "plain_facts",
    "write_atoms_page",
]

_MOST_TOLD = 12  # atoms that look like a leak, one by one


def write_atoms_page(
    path: Path,
    model: Model,
    manifest: Manifest,
    found: AtomsInUse,
    *,
    with_maps: bool = True,
    callback: Callback = ignore,
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
            {"name": "patients", "value": found.facts[0].of_patients},
        ],
        "note": panel_note(model),
        "leak_words": leak_words(found, manifest),
        "confounders": [str(each) for each in find_confounders(manifest)],
        "leak_rule": leak_rule(found),
        "leaks": [_leak_row(fact) for fact in found.leaks[:_MOST_TOLD]],
        "n_more_leaks": max(0, len(found.leaks) - _MOST_TOLD),
        "leak_labels": ",".join(fact.label for fact in found.leaks),
        "flagged": [group | {"words": ""} for group in flagged],
        "stability": found.stability,
        "map_names": [names[each.place] for each in maps],
        "are_pictures": found.atoms.patch_px is not None,
        "is_pair": recipe.context > 1,
        "vectors": recipe.vectors,
        "atom_classes": shown,
        "settings": f"Method {recipe.method}; {_patch_words(recipe)}",
    }
    write_page(path, "reports/atoms.html.j2", content)


def _knows_no_sites(found: AtomsInUse) -> bool:
    return all(np.isnan(fact.site_chance) for fact in found.facts)


def leak_words(found: AtomsInUse, manifest: Manifest) -> str:
    """Describe atoms that differ between sites, or why this cannot be tested."""
    n_sites = len({record.site for record in manifest.records if record.site})
    if n_sites == 0:
        return "Not tested: the table of images has no column site."
    if _knows_no_sites(found):
        return (
            "Not tested: sites are compared within a class, and every class comes from one site."
            if n_sites > 1
            else "Not tested: all images come from one site."
        )
    n = len(found.leaks)
    if not n:
        return "None does."
    return (
        f"{counted(n, 'atom')} {'looks' if n == 1 else 'look'} like a leak: what "
        f"{'it stands' if n == 1 else 'they stand'} for may be where images come from, such as a "
        "scanner, a stain or a pen, and not what the tissue is."
    )


def leak_rule(found: AtomsInUse) -> str:
    """Describe the criterion for site confounding of atoms; empty if it was not tested."""
    if _knows_no_sites(found):
        return ""
    return (
        "The rule: sites are compared among patients of the same class. The largest differences "
        "between them, of all atoms together, would come about by chance in "
        f"{percent(LEAK_CHANCE)} of shufflings or fewer; here in "
        f"{percent(found.facts[0].site_chance)}. Then those atoms are flagged of whose use or "
        f"weight {percent(LEAK_SHARE)} or more of the variance lies between sites, with at most "
        f"{percent(LEAK_DOUBT)} of them expected to be there by chance. What all images of a class "
        "have cannot be found so."
    )


def _of_100(share: float) -> str:
    return f"{100 * share:.0f} of 100"


def _leak_row(fact: AtomFacts) -> dict[str, str]:
    return {
        "label": fact.name or fact.label,
        "words": f"images from {fact.site} use it in {_of_100(fact.site_excess)} patches more than "
        f"others of the same class. Of what patients of a class differ by, "
        f"{percent(fact.site_share)} lies between sites",
    }


@dataclass(frozen=True)
class _Map:
    """Where the atoms of a class are used in one image: the place of its record, and the look."""

    owner: int
    place: int
    look: AtomLook
    grid: PatchGrid


def find_maps(model: Model, found: AtomsInUse, records: Sequence[Record]) -> list[_Map]:
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


def _patch_words(recipe: Recipe) -> str:
    if vectors_named(recipe.vectors).are_given:
        return (
            "vectors of feature files. Patches are shown, outlined, where the image is there; else "
            "where they lie, by their upper left corner in level-0 pixels."
        )
    return (
        f"patches of {recipe.patch_px} x {recipe.patch_px} pixels, outlined; stain correction "
        f"{recipe.stain}. Pictures show the images as they are."
    )


def atom_rows(
    found: AtomsInUse,
    records: Sequence[Record],
    names: Sequence[str],
    *,
    uses: Sequence[ClassUse] | None = None,
    maps: Sequence[_Map] = (),
    n_jobs: int | None = None,
    callback: Callback = ignore,
) -> list[dict[str, Any]]:
    """What `atom_rows.html.j2` shows: per class its most used atoms, each with its patches.

    `names`: of the records, as a reader knows them; `uses`: other atoms than the most used ones.
    """
    uses = found.classes if uses is None else uses
    lines = [line for use in uses for line in use.atoms]
    wanted = [patch for line in lines for patch, _ in line.patches]
    uris = patch_pictures(found.gallery, records, wanted, n_jobs=n_jobs, callback=callback)
    classes = [use.name for use in found.classes]
    labels = [*classes, *sorted(set(found.labels) - set(classes))]
    colours = {name: colour_of(place) for place, name in enumerate(labels)}
    # Bars are drawn up to the largest share on the page: even common atoms serve few patches.
    top = max((share for line in lines for share in line.shares.values()), default=1.0)
    return [
        {
            "name": use.name,
            "colours": colours,
            "top": top,
            "words": _words(use),
            "rows": [
                _row(found, line, uris, names)
                | {"map": _map_uri(maps, classes.index(use.name), line.atom, records)}
                for line in use.atoms
            ],
        }
        for use in uses
    ]


def _map_uri(maps: Sequence[_Map], owner: int, atom: int, records: Sequence[Record]) -> str:
    own = next((each for each in maps if each.owner == owner), None)
    if own is None:
        return ""
    share = np.where(own.look.tissue, own.look.where[atom], np.nan)
    picture = records[own.place].picture
    return image_uri(use_picture(picture, own.grid, share, rgb_of(owner)))


def panel_note(model: Model) -> str:
    """Of a panel: whose atoms these are; else nothing."""
    if model.n_members == 1:
        return ""
    return (
        f"This model is a panel of {model.n_members} that decide together: these are the atoms of "
        "its first member."
    )


def _words(use: ClassUse) -> str:
    (first, value), *others = use.per_patch.items()
    means = f"a patch of {first} uses {value:.1f} of them"
    means += "".join(f", one of {name} {value:.1f}" for name, value in others)
    left = use.n_atoms - use.n_used
    unused = f" No patch looked at uses {left} of them." if left else ""
    return f"{use.n_atoms} atoms. On average {means}.{unused}"


def _row(
    found: AtomsInUse, line: AtomUse, uris: Mapping[int, str], names: Sequence[str]
) -> dict[str, Any]:
    side, fact = found.atoms.patch_px, found.facts[line.atom]
    sign, atom = float(found.atoms.signs[line.atom]), found.atoms.as_used[line.atom]
    return {
        "label": fact.label,
        "name": fact.name,
        "marks": [word for word in ("artefact", "off") if getattr(fact, word)],
        "facts": fact_words(fact),
        "is_leak": fact.is_leak,
        "uri": png_uri(vector_picture(atom, side)) if side else "",
        "shares": line.shares,
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


def fact_words(fact: AtomFacts) -> list[str]:
    """What is known of an atom, in a few words each."""
    words = [f"in {fact.n_patients} of {counted(fact.of_patients, 'patient')}"]
    if not np.isnan(fact.auc):
        ends = f" ({fact.auc_low:.2f} to {fact.auc_high:.2f})" * (not np.isnan(fact.auc_low))
        words.append(f"AUC {fact.auc:.2f}{ends}")
    if not np.isnan(fact.seeds):
        words.append(f"found again {fact.seeds:.2f}, by half the patients {fact.halves:.2f}")
    for level, (value, low, high) in fact.leak.items():
        if low > 0:
            words.append(f"tells {level}s apart: {value:.2f} ({low:.2f} to {high:.2f})")
    if fact.is_leak:
        words.append(f"looks like a leak of {fact.site}")
    return words
