"""Model cards of saved models and of evaluated methods, and a TRIPOD+AI checklist.

The items of the checklist are those of TRIPOD+AI, paraphrased: Collins et al., BMJ 385 (2024)
e078378.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..decision.threshold import describe_min_size, describe_tuning
from ..encoders import get_patch_features
from ..evaluation import Evaluation
from ..methods.registry import get_method
from ..models.recipe import Recipe
from ..precomputed.feature_file import FeatureMetadata
from ..utils.text_io import pluralize, truncated_list
from . import evaluation_tables as tables
from .evaluation_tables import SummaryRow

_INTENDED_USE = "research only. Not a medical device: do not use it for diagnoses."


# --- a model in a file --------------------------------------------------------------------------


_AGGREGATION_DESCRIPTIONS = {
    "proportion": "by the fractions of the patches predicted as each class",
    "margin": (
        "by the mean margin of the patches: how much better a class fits a patch than the others"
    ),
    "codes": "by the mean absolute code of each atom",
    "margin-and-codes": (
        "by the mean margin of the patches and the square root of the mean absolute code of each "
        "atom"
    ),
}
_FEATURE_DESCRIPTIONS = {
    "rgb": "pixel values",
    "centred": "pixel values minus the mean of the patch",
    "channel-centred": "pixel values minus the mean of each colour channel",
}
# Settings without effect on whole-image methods.
_PATCH_SETTINGS = (
    "patch_px",
    "features",
    "aggregation",
    "n_components",
    "whiten",
    "context_scale",
    "border_mode",
)


def describe_model(header: Mapping[str, Any]) -> list[SummaryRow]:
    """Return the model card of a saved model, as (heading, text) rows.

    The header does not contain the decision threshold. If the model is loaded,
    `model.describe_decision()` may replace the text of "Decision".

    Parameters
    ----------
    header : header of the model file, from `model_file.read_header`
    """
    recipe, training = Recipe.from_dict(header["recipe"]), header["training_info"]
    is_precomputed = get_patch_features(recipe.features).is_precomputed
    rows = [
        ("Kind", header["kind"]),
        ("Task", _purpose_text(header)),
        ("Intended use", _INTENDED_USE),
        ("Training data", _training_text(training)),
        ("Excluded", _excluded_text(training)),
        ("Confounding", ". ".join(training.get("confounders", []))),
        *describe_settings(recipe, header["mpp"]),
        ("Vectors", _feature_source_text(header)),
        ("Decision", _decision_text(header, recipe)),
        ("Atoms", _annotation_text(header)),
        ("Changed after training", describe_tuning(training)),
        ("Pixel size", "" if is_precomputed else _pixel_size_text(header["mpp"])),
        ("Seed", str(training["random_state"])),
        ("Software", tables.join_items(header["versions"])),
        ("Checksum of images and labels", training["manifest_digest"][:16]),
    ]
    return [(heading, text) for heading, text in rows if text]


def describe_settings(recipe: Recipe, mpp: float | None) -> list[SummaryRow]:
    """Return the settings of a model, as (heading, text) rows.

    Parameters
    ----------
    recipe : recipe of the model
    mpp : pixel size of the training images in µm; None if unknown
    """
    parameters = tables.join_items(recipe.method_parameters)
    rows = [("Method", f"{recipe.method} ({parameters})" if parameters else recipe.method)]
    if get_patch_features(recipe.features).is_precomputed:
        return rows
    scale = tables.describe_scale(recipe)
    if mpp and not recipe.mpp and recipe.downsample > 1:
        scale += f" ({mpp * recipe.downsample:g} µm per pixel)"
    rows += [("Scale", scale), ("Patches", _patch_text(recipe)), ("Stain correction", recipe.stain)]
    return rows


def describe_members(header: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return (number, score, description) of each base model of an ensemble, as texts.

    The number is the value of the option `--member`, or "-" for an excluded base model. The score
    is the mean of balanced accuracy and AUC on unseen patients, or dashes without out-of-fold
    predictions. The description gives the weight and the settings that differ from the first base
    model.
    """
    members: list[tuple[str, str, str]] = []
    n_used = 0
    for member in header["training_info"].get("estimators", []):
        text = _describe_differences(header["recipe"], member["recipe"])
        value = "-----" if member.get("unseen") is None else f"{member['unseen']:.3f}"
        if "failure" in member:
            members.append(("-", value, f"{text}; excluded: {member['failure']}"))
        else:
            n_used += 1
            members.append((str(n_used), value, f"{member['weight']:4.0%}  {text}"))
    return members


def _annotation_text(header: Mapping[str, Any]) -> str:
    """Return the numbers of named atoms, artefacts and disabled atoms of all base models."""
    notes = [
        note for model in (header, *header["estimators"]) for note in model["atom_annotations"]
    ]
    counts = {
        "named": sum(bool(note["name"]) for note in notes),
        "labelled as artefacts": sum(note["artefact"] for note in notes),
        "disabled": sum(note["disabled"] for note in notes),
    }
    return ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)


def _classification_text(classes: Sequence[str]) -> str:
    return f"classify images as {', '.join(classes[:-1])} or {classes[-1]}"


def _pixel_size_text(mpp: float | None) -> str:
    return f"{mpp:g} µm, of the training images" if mpp else "unknown"


def _feature_source_text(header: Mapping[str, Any]) -> str:
    """Describe the encoder of the feature files; empty if it is not recorded in the header."""
    headers = [header, *header["estimators"]]
    stored = next(
        (h["training_info"]["vectors"] for h in headers if "vectors" in h["training_info"]), None
    )
    if not stored:
        return ""
    metadata = FeatureMetadata.from_dict(stored)
    parts = [
        f"from feature files, length {metadata.length}",
        f"encoder {metadata.encoder or 'unknown'}",
    ]
    parts += [f"patches of {metadata.patch_px} pixels"] if metadata.patch_px else []
    parts += [f"magnification {metadata.magnification:g}"] if metadata.magnification else []
    return ", ".join(parts)


def _purpose_text(header: Mapping[str, Any]) -> str:
    if header["kind"] == "region-detector":
        return f"detect regions of class {header['classes'][1]!r}"
    return _classification_text(header["classes"])


def _excluded_text(training: Mapping[str, Any]) -> str:
    names = training.get("left_out", [])
    return (
        f"{pluralize(len(names), 'image')} that could not be read: {truncated_list(names)}"
        * bool(names)
    )


def _training_text(training: Mapping[str, Any]) -> str:
    patients = "unknown patients"
    if training.get("has_patients", True):
        patients = pluralize(training["n_patients"], "patient")
    note = ", resumed from the dictionaries of another model"
    return (
        f"{pluralize(training['n_images'], 'image')} of {patients}"
        f"{note * ('started_from' in training)}"
    )


def _patch_text(recipe: Recipe) -> str:
    if not recipe.is_patch_level:
        return ""
    text = f"{recipe.patch_px} x {recipe.patch_px} pixels"
    if recipe.context_scale > 1:
        side = recipe.patch_px * recipe.context_scale
        text += f" and the area of {side} x {side} pixels around them"
    text += f"; features: {recipe.features}"
    if recipe.features in _FEATURE_DESCRIPTIONS:
        text += f" ({_FEATURE_DESCRIPTIONS[recipe.features]})"
    if recipe.quality_filters != "none":
        text += f", without {recipe.quality_filters.replace(',', ', ')}"
    return text


def _decision_text(header: Mapping[str, Any], recipe: Recipe) -> str:
    if "min_patches" in header["decision_parameters"]:
        return describe_min_size(header["decision_parameters"]["min_patches"])
    if len(header["estimators"]) > 1:
        n = len(header["estimators"])
        *first, last = [heading for heading, text in describe_settings(recipe, None) if text]
        which = f"{', '.join(first)} and {last} above are those" if first else f"{last} is that"
        return (
            f"combined from {n} base models; {which} of base model 1, as are maps "
            "and the page of atoms"
        )
    if not recipe.is_patch_level:
        return "from the whole image"
    name = recipe.aggregation
    description = _AGGREGATION_DESCRIPTIONS.get(name, "from statistics of the patches")
    return f"{description} (aggregation={name})"


def _describe_differences(first: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Format the settings of the recipe `other` that differ from the recipe `first`."""
    hidden = {"method_parameters"}
    if not get_method(other["method"]).is_patch_level:
        hidden.update(_PATCH_SETTINGS)
    settings = {name: other[name] for name in first if name in other and name not in hidden}
    settings |= other["method_parameters"]
    first_settings = {**first, **first["method_parameters"]}
    changed = [
        f"{name}={value}" for name, value in settings.items() if value != first_settings.get(name)
    ]
    return ", ".join(changed) or "as above"


# --- a method of an evaluation ------------------------------------------------------------------


def model_card(evaluation: Evaluation) -> list[SummaryRow]:
    """Return the model card of the first method of an evaluation, as (heading, text) rows."""
    method = evaluation.methods[0]
    plan = evaluation.plans[method]
    n_sites = len({record.site for record in evaluation.manifest.records if record.site})
    return [
        ("Method", f"{method}: {get_method(plan.recipe.method).summary}"),
        ("Task", _task_text(evaluation)),
        ("Settings", tables.describe_plan(plan)),
        ("Training data", f"{tables.describe_set_sizes(evaluation, 'train')}, see Protocol"),
        ("Performance", _performance_text(evaluation, method)),
        ("Intended use", _INTENDED_USE),
        ("Limits", " ".join(limitations(evaluation, n_sites))),
    ]


def _task_text(evaluation: Evaluation) -> str:
    if evaluation.region:
        return f"detect regions of class {evaluation.region!r}"
    return _classification_text(evaluation.classes)


def limitations(evaluation: Evaluation, n_sites: int) -> list[str]:
    """Return the limitations of an evaluation, one sentence each.

    `n_sites` is the number of sites of all images.
    """
    sentences = [
        f"Tested on {tables.describe_tested_patients(evaluation)}; see the intervals for the "
        "uncertainty.",
        "The model also reports regions in other kinds of tissue; these are not valid."
        if evaluation.region
        else "The model assigns one of these classes also to images of other kinds of tissue.",
    ]
    if tables.is_split_by_image(evaluation):
        sentences.insert(0, "Split by image: all scores are too optimistic.")
    if n_sites == 0:
        sentences.append(
            "No site is recorded, so it is unknown whether slides of another laboratory were "
            "tested."
        )
    elif n_sites == 1:
        sentences.append("Slides of another laboratory were not tested.")
    elif evaluation.splits.protocol.get("kind") != "leave-one-site-out":
        sentences.append(
            "Splits do not separate sites: scores may be lower on slides of a new laboratory."
        )
    sentences += [f"{confounder}." for confounder in evaluation.confounders]
    if tables.has_unknown_patients(evaluation):
        sentences.append(
            "Some images have no patient: their patients may be in both training and test set."
        )
    return sentences


def _performance_text(evaluation: Evaluation, method: str) -> str:
    values = [
        f"{row['metric']} {tables.format_interval(row)}"
        for row in evaluation.metric_rows
        if row["method"] == method and row["n_per_class"] == evaluation.shown_size
    ]
    caveat = (
        ""
        if not tables.is_split_by_image(evaluation)
        else ", possibly on patients of the training set"
    )
    return "; ".join(values) + caveat


with Path(__file__).with_name("checklist.csv").open(encoding="utf-8", newline="") as _file:
    CHECKLIST_ITEMS = [(row["item"], row["asked"]) for row in csv.DictReader(_file)]


def checklist(evaluation: Evaluation) -> list[tuple[str, str, str]]:
    """Return the TRIPOD+AI checklist of an evaluation as (item, question, answer)."""
    entries = (
        _checklist_data_items(evaluation)
        | _checklist_method_items(evaluation)
        | _checklist_result_items(evaluation)
    )
    return [
        (item, question, entries.get(item, tables.NOT_RECORDED))
        for item, question in CHECKLIST_ITEMS
    ]


def _checklist_data_items(evaluation: Evaluation) -> dict[str, str]:
    data = dict(tables.data_summary(evaluation))
    n_patients = pluralize(len(set(evaluation.manifest.patients)), "patient")
    patients = "unknown patients" if tables.has_unknown_patients(evaluation) else n_patients
    n_tested = len(tables.tested_images(evaluation))
    return {
        "5a": f"{data['Images']} images of {patients}; source {tables.NOT_RECORDED}",
        "6a": data["Sites"],
        "8a": f"{_ground_truth_text(evaluation)}; annotators {tables.NOT_RECORDED}",
        "9a": _input_text(evaluation, data["Pixel size"]),
        "10": "all images of the list; no sample size calculation recorded",
        "20a": f"{data['Images']} images, of which {n_tested} were tested",
    }


def _checklist_method_items(evaluation: Evaluation) -> dict[str, str]:
    protocol = dict(tables.protocol_summary(evaluation))
    classes = ", ".join(f"{row['name']} {row['images']}" for row in tables.class_rows(evaluation))
    metrics = ", ".join(evaluation.metrics)
    n_methods = pluralize(len(evaluation.methods), "method")
    return {
        "4": f"compare {n_methods} for {_checklist_task_text(evaluation)}",
        "7": tables.describe_plan(evaluation.plans[evaluation.methods[0]]),
        "11": "images without tissue have no patches and are not counted"
        if evaluation.region
        else "in this evaluation, an image without tissue counts as a wrong prediction, with the "
        "score at the threshold",
        "12a": f"{protocol['Protocol']}. Split by: {protocol['Split by']}",
        "12c": "see Methods; all settings are in provenance.json",
        "12e": f"{metrics}; 95 % bootstrap intervals over patients; paired comparisons with Holm "
        "correction",
        "13": f"images per class: {classes}"
        + ("" if evaluation.region else "; balanced accuracy gives all classes equal weight"),
        "15": "regions with outlines, and a prediction per image"
        if evaluation.region
        else "a class and a score per image",
        "16": f"training sets {protocol['Training sets']}; test sets {protocol['Test sets']}",
        "21": protocol["Training sets"],
    }


def _checklist_task_text(evaluation: Evaluation) -> str:
    if evaluation.region:
        return f"detection of regions of {evaluation.region}"
    return f"classification of {' / '.join(evaluation.classes)}"


def _input_text(evaluation: Evaluation, pixel_size: str) -> str:
    if get_patch_features(evaluation.plans[evaluation.methods[0]].recipe.features).is_precomputed:
        return "vectors of patches from feature files of an encoder"
    return f"the pixels of the image; pixel size {pixel_size}"


def _ground_truth_text(evaluation: Evaluation) -> str:
    if evaluation.region:
        return (
            f"patches of {evaluation.region} by the mask of the image or, without a mask, its label"
        )
    return f"the label of the image: {', '.join(evaluation.classes)}"


def _checklist_result_items(evaluation: Evaluation) -> dict[str, str]:
    card = dict(model_card(evaluation))
    return {
        "18e": "splits with the image names are in splits.json",
        "18f": "histodict, BSD-3-Clause; versions under Provenance",
        "22": "folder 'models', if present: one of the trained models",
        "23a": card["Performance"],
        "25": "see Comparisons and Errors",
        "26": card["Limits"],
        "27a": "in use, images that cannot be read or have no tissue get no prediction",
    }
