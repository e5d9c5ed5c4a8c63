"""What there is to know of a model before it is used."""

from __future__ import annotations

from ..compare.evaluation import Evaluation
from ..methods.registry import method_entry
from .evaluation_facts import (
    Fact,
    counted,
    figure_words,
    plan_words,
    side_words,
    split_by_image,
    tested_patients,
)


def model_card(done: Evaluation) -> list[Fact]:
    """Of the first method in the tables."""
    method = done.methods[0]
    plan = done.plans[method]
    n_sites = len({record.site for record in done.manifest.records if record.site})
    return [
        ("What it is", f"{method}: {method_entry(plan.recipe.method).summary}"),
        ("What it does", f"tells apart images of {' / '.join(done.classes)}"),
        ("Settings", plan_words(plan)),
        ("Learnt from", f"{side_words(done, 'train')}, see Protocol"),
        ("How well", _performance(done, method)),
        ("Meant for", "research. It is not a medical device: no diagnosis may rest on it."),
        ("Limits", " ".join(limits(done, n_sites))),
    ]


def limits(done: Evaluation, n_sites: int) -> list[str]:
    n_patients = len(tested_patients(done))
    said = [
        f"Tested on {counted(n_patients, 'patient')}: the intervals say how much that leaves open.",
        "An image of another kind than these is put into one of the classes all the same.",
    ]
    if split_by_image(done):
        said.insert(0, "Split by image: all figures are too good.")
    if n_sites < 2:
        said.append("How it does on slides of another laboratory was not tested.")
    elif done.splits.protocol.get("kind") != "leave one site out":
        said.append("Sites were not kept apart: a new laboratory may do worse.")
    if any("NO PATIENT" in warning for warning in done.manifest.warnings):
        said.append("Patients are not known for all images: some may be on both sides of a split.")
    return said


def _performance(done: Evaluation, method: str) -> str:
    own = [
        f"{row['metric']} {figure_words(row)}"
        for row in done.values
        if row["method"] == method and row["n_per_class"] == done.shown_size
    ]
    seen = "" if not split_by_image(done) else ", on patients that it may have learnt from"
    return "; ".join(own) + seen
