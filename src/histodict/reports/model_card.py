"""Model cards of saved models and of evaluated methods, and a TRIPOD+AI checklist.

The items of the checklist are those of TRIPOD+AI, paraphrased: Collins et al., BMJ 385 (2024)
e078378.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
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

RESEARCH = "research. It is not a medical device: no diagnosis may rest on it."


# --- a model in a file --------------------------------------------------------------------------


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
    """Return the model card of a saved model, as headings and texts.

    With the model at hand, `model.describe_decision()` may replace "Decision": it knows the
    threshold.

    Parameters
    ----------
    header : header of the model file, from `model_file.read_header`
    """
    recipe, training = Recipe.from_dict(header["recipe"]), header["training_info"]
    parameters = tables.join_names(recipe.method_parameters)
    is_precomputed = get_patch_features(recipe.features).is_precomputed
    rows = [
        ("Kind", header["kind"]),
        ("What it does", _purpose_text(header)),
        ("Meant for", RESEARCH),
        ("Learnt from", _training_text(training)),
        ("Left out", _excluded_text(training)),
        ("Confounding", ". ".join(training.get("confounders", []))),
        ("Method", f"{recipe.method} ({parameters})" if parameters else recipe.method),
        ("Vectors", _source_text(header)),
        ("Scale", "" if is_precomputed else tables.pixel_size_text(recipe)),
        ("Patches", "" if is_precomputed else _patch_text(recipe)),
        ("Stain correction", "" if is_precomputed else recipe.stain),
        ("Decision", _decision_text(header, recipe)),
        ("Atoms", _annotation_text(header)),
        ("Changed after training", describe_tuning(training)),
        ("Pixel size", "" if is_precomputed else _size_text(header["mpp"])),
        ("Seed", str(training["random_state"])),
        ("Made with", tables.join_names(header["versions"])),
        ("Images (digest)", training["manifest_digest"][:16]),
    ]
    return [(heading, text) for heading, text in rows if text]


def describe_members(header: Mapping[str, Any]) -> list[SummaryRow]:
    """Return score and description of each base model of an ensemble.

    The score is the mean of balanced accuracy and AUC on unseen patients, or dashes without
    out-of-fold predictions. The description gives the weight and the settings that differ from the
    first base model.
    """
    members = []
    for member in header["training_info"].get("estimators", []):
        text = _differences(header["recipe"], member["recipe"])
        value = "-----" if member.get("unseen") is None else f"{member['unseen']:.3f}"
        if "failure" in member:
            text += f"; left out: {member['failure']}"
        else:
            text = f"{member['weight']:4.0%}  {text}"
        members.append((value, text))
    return members


def _annotation_text(header: Mapping[str, Any]) -> str:
    """Count the annotations of the atoms of all base models."""
    notes = [
        note for model in (header, *header["estimators"]) for note in model["atom_annotations"]
    ]
    counts = {
        "named": sum(bool(note["name"]) for note in notes),
        "marked as artefacts": sum(note["artefact"] for note in notes),
        "switched off": sum(note["disabled"] for note in notes),
    }
    return ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)


def _size_text(mpp: float | None) -> str:
    return f"{mpp:g} µm" if mpp else "not known"


def _source_text(header: Mapping[str, Any]) -> str:
    """Describe the encoder of the feature files, as far as it is recorded."""
    headers = [header, *header["estimators"]]
    stored = next(
        (h["training_info"]["vectors"] for h in headers if "vectors" in h["training_info"]), None
    )
    if not stored:
        return ""
    metadata = FeatureMetadata.from_dict(stored)
    parts = [
        f"of feature files, of length {metadata.length}",
        f"encoder {metadata.encoder or 'not named'}",
    ]
    parts += [f"patches of {metadata.patch_px} pixels"] if metadata.patch_px else []
    parts += [f"magnification {metadata.magnification:g}"] if metadata.magnification else []
    return ", ".join(parts)


def _purpose_text(header: Mapping[str, Any]) -> str:
    if header["kind"] == "region-detector":
        return f"finds regions of {header['classes'][1]}"
    return f"tells apart {', '.join(header['classes'])}"


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
    note = ", going on from the dictionaries of another model"
    return (
        f"{pluralize(training['n_images'], 'image')} of {patients}"
        f"{note * ('started_from' in training)}"
    )


def _patch_text(recipe: Recipe) -> str:
    if not recipe.is_patch_level:
        return ""
    text = f"{recipe.patch_px} x {recipe.patch_px} pixels, vectors {recipe.features}"
    if recipe.context_scale > 1:
        text += f", seen with {recipe.context_scale} times as wide surroundings"
    if recipe.quality_filters != "none":
        text += f", without {recipe.quality_filters.replace(',', ', ')}"
    return text


def _decision_text(header: Mapping[str, Any], recipe: Recipe) -> str:
    if "min_patches" in header["decision_parameters"]:
        return describe_min_size(header["decision_parameters"]["min_patches"])
    if len(header["estimators"]) > 1:
        n = len(header["estimators"])
        return f"by an ensemble of {n}; maps and atoms are those of the first model"
    if not recipe.is_patch_level:
        return "from the image as a whole"
    return f"from the {recipe.aggregation} of its patches"


def _differences(recipe: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Return the settings of a recipe that differ from those of the first."""
    hidden = {"method_parameters"}
    if not get_method(other["method"]).is_patch_level:
        hidden.update(_PATCH_SETTINGS)
    settings = {name: other[name] for name in recipe if name in other and name not in hidden}
    settings |= other["method_parameters"]
    own = {**recipe, **recipe["method_parameters"]}
    changed = [f"{name}={value}" for name, value in settings.items() if value != own.get(name)]
    return ", ".join(changed) or "as above"


# --- a method of an evaluation ------------------------------------------------------------------


def model_card(done: Evaluation) -> list[SummaryRow]:
    """Return the model card of the first method in the tables, as headings and texts."""
    method = done.methods[0]
    plan = done.plans[method]
    n_sites = len({record.site for record in done.manifest.records if record.site})
    return [
        ("What it is", f"{method}: {get_method(plan.recipe.method).summary}"),
        ("What it does", _task_text(done)),
        ("Settings", tables.describe_plan(plan)),
        ("Learnt from", f"{tables.side_text(done, 'train')}, see Protocol"),
        ("How well", _performance(done, method)),
        ("Meant for", RESEARCH),
        ("Limits", " ".join(limitations(done, n_sites))),
    ]


def _task_text(done: Evaluation) -> str:
    if done.region:
        return f"finds regions of {done.region}"
    return f"tells apart images of {' / '.join(done.classes)}"


def limitations(done: Evaluation, n_sites: int) -> list[str]:
    """Return the limitations of the evaluation, one sentence each."""
    n_patients = len(tables.tested_patients(done))
    sentences = [
        f"Tested on {pluralize(n_patients, 'patient')}: the intervals say how much that leaves "
        "open.",
        "In tissue of another kind than these regions are found all the same."
        if done.region
        else "An image of another kind than these is put into one of the classes all the same.",
    ]
    if tables.split_by_image(done):
        sentences.insert(0, "Split by image: all figures are too good.")
    if n_sites < 2:
        sentences.append("How it does on slides of another laboratory was not tested.")
    elif done.splits.protocol.get("kind") != "leave one site out":
        sentences.append("Sites were not kept apart: a new laboratory may do worse.")
    sentences += [f"{confounder}." for confounder in done.confounders]
    if not all(record.has_patient for record in done.manifest.records):
        sentences.append(
            "Patients are not known for all images: some may be on both sides of a split."
        )
    return sentences


def _performance(done: Evaluation, method: str) -> str:
    values = [
        f"{row['metric']} {tables.format_interval(row)}"
        for row in done.values
        if row["method"] == method and row["n_per_class"] == done.shown_size
    ]
    caveat = "" if not tables.split_by_image(done) else ", on patients that it may have learnt from"
    return "; ".join(values) + caveat


with Path(__file__).with_name("checklist.csv").open(encoding="utf-8", newline="") as _file:
    ITEMS = [(row["item"], row["asked"]) for row in csv.DictReader(_file)]


def checklist(done: Evaluation) -> list[tuple[str, str, str]]:
    """Return the checklist as (item, question, answer)."""
    entries = _of_data(done) | _of_methods(done) | _of_results(done)
    return [(item, question, entries.get(item, tables.NOT_RECORDED)) for item, question in ITEMS]


def _of_data(done: Evaluation) -> dict[str, str]:
    data = dict(tables.data_summary(done))
    patients = pluralize(len(set(done.manifest.patients)), "patient")
    return {
        "5a": f"{data['Images']} images of {patients}; where they come from is "
        f"{tables.NOT_RECORDED}",
        "6a": data["Sites"],
        "8a": f"{_ground_truth_text(done)}; who set it is {tables.NOT_RECORDED}",
        "9a": _training_overlap_text(done, data["Pixel size"]),
        "10": "all images that the list names; no calculation beforehand is known",
        "20a": f"{data['Images']} images, of which {len(tables.tested_images(done))} were tested",
    }


def _of_methods(done: Evaluation) -> dict[str, str]:
    protocol = dict(tables.protocol_summary(done))
    classes = ", ".join(f"{row['name']} {row['images']}" for row in tables.class_rows(done))
    measures = ", ".join(done.measures)
    return {
        "4": f"compare {pluralize(len(done.methods), 'method')} at {_checklist_task_text(done)}",
        "7": tables.describe_plan(done.plans[done.methods[0]]),
        "11": "an image without tissue has no patches to count"
        if done.region
        else "an image without tissue counts as a wrong answer, its score as on the border",
        "12a": f"{protocol['Protocol']}. Kept apart: {protocol['Kept apart']}",
        "12c": "see Methods; all settings are in provenance.json",
        "12e": f"{measures}; 95 % intervals from draws of patients; paired comparisons, corrected "
        "after Holm",
        "13": f"images per class: {classes}"
        + ("" if done.region else "; balanced accuracy counts all classes alike"),
        "15": "regions with outlines, and a call for every image"
        if done.region
        else "a class for every image, and a score",
        "16": f"trained on {protocol['Trained on']}, tested on {protocol['Tested on']}",
        "21": protocol["Trained on"],
    }


def _checklist_task_text(done: Evaluation) -> str:
    if done.region:
        return f"finding regions of {done.region}"
    return f"telling apart {' / '.join(done.classes)}"


def _training_overlap_text(done: Evaluation, pixel_size: str) -> str:
    if get_patch_features(done.plans[done.methods[0]].recipe.features).is_precomputed:
        return "vectors of patches that an encoder computed before, from feature files"
    return f"the pixels of the image; pixel size {pixel_size}"


def _ground_truth_text(done: Evaluation) -> str:
    if done.region:
        return f"patches of {done.region} by the image's mask or, without one, its label"
    return f"the label of the image: {', '.join(done.classes)}"


def _of_results(done: Evaluation) -> dict[str, str]:
    card = dict(model_card(done))
    return {
        "18e": "the splits, with the names of the images, are in splits.json",
        "18f": "histodict, BSD-3-Clause; versions under Provenance",
        "22": "the folder models, if there, holds one of the trained models",
        "23a": card["How well"],
        "25": "see Compared with each other, and What went wrong",
        "26": card["Limits"],
        "27a": "an image that cannot be read, or without tissue, gets no answer",
    }
