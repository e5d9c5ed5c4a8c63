"""What a study of a prediction model should say, filled in with what the data and the run tell.

The items are those of TRIPOD+AI, in our words: Collins et al., BMJ 385 (2024) e078378.
"""

from __future__ import annotations

import csv
from pathlib import Path

from ..compare.evaluation import Evaluation
from ..execution.texts import pluralize
from ..networks import get_patch_features
from . import evaluation_facts as facts
from .model_card import model_card

with Path(__file__).with_name("checklist.csv").open(encoding="utf-8", newline="") as _file:
    ITEMS = [(row["item"], row["asked"]) for row in csv.DictReader(_file)]


def checklist(done: Evaluation) -> list[tuple[str, str, str]]:
    """(item, what is asked, what is known)."""
    known = _of_data(done) | _of_methods(done) | _of_results(done)
    return [(item, asked, known.get(item, facts.NOT_RECORDED)) for item, asked in ITEMS]


def _of_data(done: Evaluation) -> dict[str, str]:
    data = dict(facts.data_summary(done))
    patients = pluralize(len(set(done.manifest.patients)), "patient")
    return {
        "5a": f"{data['Images']} images of {patients}; where they come from is "
        f"{facts.NOT_RECORDED}",
        "6a": data["Sites"],
        "8a": f"{_ground_truth_text(done)}; who set it is {facts.NOT_RECORDED}",
        "9a": _training_overlap_text(done, data["Pixel size"]),
        "10": "all images that the list names; no calculation beforehand is known",
        "20a": f"{data['Images']} images, of which {len(facts.tested_images(done))} were tested",
    }


def _of_methods(done: Evaluation) -> dict[str, str]:
    protocol = dict(facts.protocol_summary(done))
    classes = ", ".join(f"{row['name']} {row['images']}" for row in facts.class_rows(done))
    measures = ", ".join(done.measures)
    return {
        "4": f"compare {pluralize(len(done.methods), 'method')} at {_checklist_task_text(done)}",
        "7": facts.describe_plan(done.plans[done.methods[0]]),
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
