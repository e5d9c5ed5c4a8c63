"""The atoms of a model as one self-contained HTML page: each with the real patches that use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..execution.array_cache import ArrayCache
from ..execution.progress import Callback, ignore
from ..images.manifest import Manifest, Record
from ..networks import vectors_named
from ..parameters import check_whole_number
from ..patches.patch_map import colour_of
from ..patches.pictures import png_uri, vector_picture
from ..pipeline import Model
from ..pipeline.atoms import AtomUse, ClassUse, most_used, patch_labels
from ..pipeline.gallery import Gallery
from ..pipeline.image_model import Atoms
from ..recipes import Recipe
from .pages import write_page
from .patch_pictures import patch_pictures


@dataclass(frozen=True)
class AtomsInUse:
    """The atoms of a model's classes, and the patches that show how they are used."""

    atoms: Atoms
    gallery: Gallery
    labels: list[str]
    classes: list[ClassUse]

    @classmethod
    def of(
        cls, model: Model, gallery: Gallery, records: Sequence[Record], n_atoms: int
    ) -> AtomsInUse:
        atoms, labels = _atoms(model), patch_labels(model, gallery, records)
        classes = most_used(atoms, gallery, labels, model.classes_, n_atoms)
        return cls(atoms, gallery, labels, classes)


def find_atoms(
    model: Model,
    manifest: Manifest,
    *,
    n_atoms: int = 24,
    cache: Path | None = None,
    callback: Callback = ignore,
) -> AtomsInUse:
    """The most used atoms of every class, by patches of these images.

    `cache`: the folder of a training, which may know the cells of a network.
    """
    check_whole_number("atoms", n_atoms, 1)
    _atoms(model)
    patches = copy(model.model_)
    patches.cache = ArrayCache(cache) if cache else model.model_.cache
    gallery = Gallery.of(patches, manifest.records, model.random_state, callback)
    return AtomsInUse.of(model, gallery, manifest.records, n_atoms)


def write_atoms_page(
    path: Path, model: Model, manifest: Manifest, found: AtomsInUse, callback: Callback = ignore
) -> None:
    """Everything in one file: no scripts, nothing fetched."""
    names = [manifest.name(record) for record in manifest.records]
    shown = atom_rows(found, manifest.records, names, n_jobs=model.n_jobs, callback=callback)
    recipe = model.recipe
    content = {
        "title": f"Atoms of {' / '.join(model.classes_)}",
        "facts": [
            {"name": f"atoms of {len(model.classes_)} classes", "value": len(found.atoms.D)},
            {"name": "patches looked at", "value": len(found.labels)},
            {"name": "images they come from", "value": len(set(found.gallery.images.tolist()))},
        ],
        "note": panel_note(model),
        "are_pictures": found.atoms.patch_px is not None,
        "is_pair": recipe.context > 1,
        "vectors": recipe.vectors,
        "atom_classes": shown,
        "settings": f"Method {recipe.method}; {_patch_words(recipe)}",
    }
    write_page(path, "reports/atoms.html.j2", content)


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
    n_jobs: int | None = None,
    callback: Callback = ignore,
) -> list[dict[str, Any]]:
    """What `atom_rows.html.j2` shows: per class its most used atoms, each with its patches.

    `names`: of the records, as a reader knows them.
    """
    lines = [line for use in found.classes for line in use.atoms]
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
            "rows": [_row(found, line, uris, names) for line in use.atoms],
        }
        for use in found.classes
    ]


def panel_note(model: Model) -> str:
    """Of a panel: whose atoms these are; else nothing."""
    if model.n_members == 1:
        return ""
    return (
        f"This model is a panel of {model.n_members} that decide together: these are the atoms of "
        "its first member."
    )


def plain_facts(found: AtomsInUse, names: Sequence[str]) -> dict[str, Any]:
    """What was found, for programs; an atom goes by its place in the codes."""
    gallery = found.gallery

    def place(patch: int, weight: float) -> dict[str, Any]:
        x, y = gallery.corners[patch].tolist()
        image = names[int(gallery.images[patch])]
        side = float(gallery.side[patch])
        return {"image": image, "x": x, "y": y, "side": side, "weight": weight}

    classes = [asdict(use) for use in found.classes]
    for line in (line for use in classes for line in use["atoms"]):
        line["patches"] = [place(*patch) for patch in line["patches"]]
    return {"n_patches": len(found.labels), "classes": classes}


def _atoms(model: Model) -> Atoms:
    """The model's atoms; a ValueError says why there are none."""
    atoms = model.model_.atoms()
    if atoms is None:
        raise ValueError(model.model_.why_no_atoms())
    return atoms


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
    side = found.atoms.patch_px
    return {
        "number": line.atom + 1,
        "uri": png_uri(vector_picture(found.atoms.D[line.atom], side)) if side else "",
        "shares": line.shares,
        "patches": [
            {
                "uri": uris[patch],
                **dict(zip("xy", found.gallery.corners[patch].tolist(), strict=True)),
                "image": names[int(found.gallery.images[patch])],
                "label": found.labels[patch],
                "weight": weight,
            }
            for patch, weight in line.patches
        ],
    }
