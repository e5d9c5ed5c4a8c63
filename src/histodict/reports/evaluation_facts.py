"""What was tested and how, in words, from what an evaluation knows of its data and splits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..compare.evaluation import Evaluation
from ..compare.tasks import UNLABELLED
from ..evaluation.splits import shared_patients
from ..execution.tables import Row
from ..execution.texts import pluralize
from ..images.manifest import ImageRecord
from ..images.pixel_size import PixelSizeOption
from ..networks import get_patch_features
from ..pipeline import Plan
from ..recipes import Recipe

NOT_RECORDED = "not recorded"
SummaryRow = tuple[str, str]


# --- phrases ------------------------------------------------------------------------------------


def span(values: Iterable[int]) -> str:
    low, *_, high = sorted([*values] * 2)
    return str(low) if low == high else f"{low} to {high}"


def join_names(named: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in named.items())


def format_interval(row: Row) -> str:
    """A value with its interval, as everywhere in the report."""
    return f"{row['value']:.3f} ({row['low']:.3f} to {row['high']:.3f})"


def describe_plan(plan: Plan) -> str:
    """A plan's settings on one line."""
    words = recipe_text(plan.recipe)
    others = plan.recipes[1:]
    if others:
        views = [f"{o.method} ({o.stain}, {pixel_size_text(o)})" for o in others]
        words += f"; decides together with {len(others)} other views: {', '.join(views)}"
    return words


def recipe_text(recipe: Recipe) -> str:
    """A recipe's settings on one line; those of the patches only where there are patches."""
    parameters = join_names(recipe.method_parameters)
    parts = [
        parameters or "no parameters",
        pixel_size_text(recipe),
        f"stain correction {recipe.stain}",
    ]
    if get_patch_features(recipe.features).is_precomputed:
        parts[1:] = ["vectors of feature files"]
        parts += [f"rule {recipe.aggregation}"] if recipe.is_patch_level else []
    elif recipe.is_patch_level:
        patches = f"patches of {recipe.patch_px} px every {recipe.grid_stride_px} px"
        if recipe.context_scale > 1:
            patches += f" with {recipe.context_scale} times as wide surroundings"
        if recipe.quality_filters != "none":
            patches += f" without {recipe.quality_filters.replace(',', ', ')}"
        if recipe.smoothing_radius:
            patches += (
                f", each judged with those {pluralize(recipe.smoothing_radius, 'step')} around"
            )
        parts += [patches, f"vectors {recipe.features}", f"rule {recipe.aggregation}"]
        parts += [f"{recipe.patches_per_class} patches per class"]
    return "; ".join(parts)


def pixel_size_text(recipe: Recipe) -> str:
    """The size at which images are looked at."""
    if recipe.mpp:
        return f"{recipe.mpp:g} µm per pixel"
    return f"reduced {recipe.downsample:g} times" if recipe.downsample > 1 else "full size"


def selection_text(done: Evaluation) -> list[str]:
    """Return warnings about optimistic scores of methods tested on the same images."""
    found = []
    n_methods = len(done.methods)
    if n_methods > 1:
        found.append(
            f"The score of the best of these {n_methods} methods is too optimistic if these scores "
            "are used to choose it: test the chosen method on further patients."
        )
    adapted = [name for name in done.methods if name.endswith(UNLABELLED)]
    if adapted:
        found.append(
            f"The threshold of {' and '.join(adapted)} was adapted to the test images, without "
            "their labels: it needs that many unlabelled images of every new hospital."
        )
    return found


# --- data and protocol --------------------------------------------------------------------------


def data_summary(done: Evaluation) -> list[SummaryRow]:
    records = done.manifest.records
    per_patient = [done.manifest.patients.count(name) for name in set(done.manifest.patients)]
    sites = sorted({record.site for record in records if record.site})
    found = [PixelSizeOption(table=record.mpp).at(record.path).mpp for record in records]
    scales = sorted({mpp for mpp in found if mpp})
    n_unscaled = found.count(None)
    sizes = ", ".join(f"{mpp:g} µm" for mpp in scales)
    if n_unscaled and scales:
        sizes += f"; {NOT_RECORDED} for {pluralize(n_unscaled, 'image')}"
    return [
        ("Images", f"{len(records)}"),
        ("Patients", f"{len(per_patient)}, with {span(per_patient)} images each"),
        ("Classes", ", ".join(done.classes)),
        *([("Class to be found", done.classes[1])] if len(done.classes) == 2 else []),
        ("Sites", f"{len(sites)}: {', '.join(sites)}" if sites else NOT_RECORDED),
        ("Pixel size", sizes or NOT_RECORDED),
    ]


def class_rows(done: Evaluation) -> list[dict[str, Any]]:
    """Images, patients and sites of each class."""
    rows = []
    for name in done.classes:
        own = [record for record in done.manifest.records if record.label == name]
        sites = {record.site for record in own if record.site}
        patients = {record.patient for record in own}
        rows.append(
            {"name": name, "images": len(own), "patients": len(patients), "sites": len(sites)}
        )
    return rows


def tested_images(done: Evaluation) -> list[ImageRecord]:
    places = sorted({place for split in done.splits for place in split.test})
    return [done.manifest.records[place] for place in places]


def tested_patients(done: Evaluation) -> set[str]:
    return {record.patient for record in tested_images(done)}


def split_by_image(done: Evaluation) -> bool:
    return any(split.by == "image" for split in done.splits)


def n_shared_patients(done: Evaluation) -> int:
    """Patients that were trained on and tested in one and the same split."""
    shared = (shared_patients(done.manifest, split) for split in done.splits)
    return len(set().union(*shared))


def protocol_summary(done: Evaluation) -> list[SummaryRow]:
    apart = "patients: no patient is on both sides of a split"
    n_splits, n_seeds, n_methods = len(done.splits), len(done.seeds), len(done.plans)
    return [
        ("Kept apart", "images only, NOT patients" if split_by_image(done) else apart),
        ("Protocol", _protocol_text(done)),
        ("Trained on", f"{side_text(done, 'train')} each time"),
        ("Tested on", f"{side_text(done, 'test')} each time"),
        (
            "Trainings",
            f"{n_splits * n_seeds * n_methods}: {pluralize(n_splits, 'split')}, "
            f"{pluralize(n_seeds, 'seed')}, {pluralize(n_methods, 'method')}",
        ),
    ]


def _protocol_text(done: Evaluation) -> str:
    protocol = done.splits.protocol
    repeats = pluralize(len({split.repeat for split in done.splits}), "repeat")
    sizes = ", ".join(str(size) for size in done.sizes())
    words = {
        "k-fold": f"{protocol.get('n_folds')} folds, so that every image is tested once; {repeats}",
        "hold-out": f"one half to test on, {sizes} images per class of the other to learn from; "
        f"{repeats}",
        "leave one site out": "one site to test on, all others to learn from, each in turn",
        "predefined": "the split that came with the data",
    }
    kind = str(protocol.get("kind", NOT_RECORDED))
    return f"{kind}: {words[kind]}" if kind in words else kind


def side_text(done: Evaluation, side: str) -> str:
    """Of "train" or "test"."""
    places = [split.train if side == "train" else split.test for split in done.splits]
    n_patients = [len({done.manifest.records[i].patient for i in own}) for own in places]
    return f"{span(map(len, places))} images of {span(n_patients)} patients"
