"""What a study of a prediction model should say, filled in with what the data and the run tell.

The items are those of TRIPOD+AI, in our words: Collins et al., BMJ 385 (2024) e078378.
"""

from __future__ import annotations

from ..compare.evaluation import Evaluation
from ..compare.measures import metrics_for
from .evaluation_facts import (
    NOT_RECORDED,
    class_rows,
    counted,
    data_facts,
    plan_words,
    protocol_facts,
    tested_images,
)
from .model_card import model_card

ITEMS: tuple[tuple[str, str], ...] = (
    ("1", "Title: a prediction model, its population and outcome"),
    ("2", "Abstract"),
    ("3a", "The medical question, and why a model"),
    ("3b", "Who it is for: patients, users, place in care"),
    ("3c", "Known inequalities in health care"),
    ("4", "Objectives"),
    ("5a", "Sources of the data, and whom they represent"),
    ("5b", "Dates of collection"),
    ("6a", "Setting and centres"),
    ("6b", "Who was included"),
    ("6c", "Treatments"),
    ("7", "Preparation of the data"),
    ("8a", "Outcome, and how it was found"),
    ("8b", "Who judged it"),
    ("8c", "Blinding of those who judged it"),
    ("9a", "Predictors"),
    ("9b", "How they were measured"),
    ("9c", "Who measured them"),
    ("10", "Sample size"),
    ("11", "Missing data"),
    ("12a", "Use of the data: development and evaluation"),
    ("12b", "Handling of predictors"),
    ("12c", "Kind of model, and how it was built"),
    ("12d", "Differences between groups of data"),
    ("12e", "Measures of performance"),
    ("12f", "Updating of the model"),
    ("12g", "How predictions were made for the evaluation"),
    ("13", "Imbalance of the classes"),
    ("14", "Fairness"),
    ("15", "What the model says"),
    ("16", "Differences between training and evaluation data"),
    ("17", "Ethical approval"),
    ("18a", "Funding"),
    ("18b", "Conflicts of interest"),
    ("18c", "Protocol of the study"),
    ("18d", "Registration"),
    ("18e", "Where the data are"),
    ("18f", "Where the code is"),
    ("19", "Involvement of patients and public"),
    ("20a", "Flow of participants"),
    ("20b", "Who they were"),
    ("20c", "Comparison with the development data"),
    ("21", "Numbers in each analysis"),
    ("22", "The whole model, to use it"),
    ("23a", "Performance, with intervals"),
    ("23b", "Performance by group of data"),
    ("24", "Results of updating"),
    ("25", "Interpretation"),
    ("26", "Limitations"),
    ("27a", "Bad input in use"),
    ("27b", "Skill that use needs"),
    ("27c", "Next steps"),
)


def checklist(done: Evaluation) -> list[tuple[str, str, str]]:
    """(item, what is asked, what is known)."""
    known = _of_data(done) | _of_methods(done) | _of_results(done)
    return [(item, asked, known.get(item, NOT_RECORDED)) for item, asked in ITEMS]


def _of_data(done: Evaluation) -> dict[str, str]:
    data = dict(data_facts(done))
    n_patients = len(set(done.manifest.patients))
    return {
        "5a": f"{data['Images']} images of {counted(n_patients, 'patient')}; where they come from "
        f"is {NOT_RECORDED}",
        "6a": data["Sites"],
        "8a": f"the label of the image: {data['Classes']}; who set it is {NOT_RECORDED}",
        "9a": f"the pixels of the image; pixel size {data['Pixel size']}",
        "10": "all images that the list names; no calculation beforehand is known",
        "20a": f"{data['Images']} images, of which {len(tested_images(done))} were tested",
    }


def _of_methods(done: Evaluation) -> dict[str, str]:
    protocol = dict(protocol_facts(done))
    classes = ", ".join(f"{row['name']} {row['images']}" for row in class_rows(done))
    measures = ", ".join(metrics_for(done.classes))
    return {
        "4": f"compare {counted(len(done.methods), 'method')} at telling apart "
        f"{' / '.join(done.classes)}",
        "7": plan_words(done.plans[done.methods[0]]),
        "11": "an image without tissue counts as a wrong answer, its score as on the border",
        "12a": f"{protocol['Protocol']}. Kept apart: {protocol['Kept apart']}",
        "12c": "see Methods; all settings are in provenance.json",
        "12e": f"{measures}; 95 % intervals from draws of patients; paired comparisons, corrected "
        "after Holm",
        "13": f"images per class: {classes}; balanced accuracy counts all classes alike",
        "15": "a class for every image, and a score",
        "16": f"trained on {protocol['Trained on']}, tested on {protocol['Tested on']}",
        "21": protocol["Trained on"],
    }


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
