"""What models say of training patients that they were not trained on: by inner folds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..decisions.image_rules import winner
from ..evaluation.metrics import auc, balanced_accuracy
from ..evaluation.splits import Split
from ..execution.array_cache import file_key
from ..execution.executor import Executor
from ..execution.files import written_whole
from ..images.manifest import Manifest
from ..methods.registry import method_entry
from ..networks import is_network, open_network
from ..recipes import Recipe

NOTHING = ""  # the answer for an image of glass


def unseen_scores(
    manifest: Manifest,
    split: Split,
    recipe: Recipe,
    random_state: int,
    n_jobs: int | None,
    cache: Path | None,
    executor: Executor | None = None,
) -> NDArray[np.float64]:
    """Train on one side, answer for the other: (n_test_images, n_scores), NaN on glass.

    With a cache, scores that were found before are read: a run that was stopped goes on.
    """
    from .tissue_classifier import TissueClassifier  # which asks for such scores itself

    train, test = manifest.select(split.train), manifest.select(split.test)
    key = _key(train, test, recipe, random_state)
    file = cache / "unseen" / f"{key}.json" if cache else None
    if file and file.is_file():
        return np.array(json.loads(file.read_text(encoding="utf-8")), dtype=np.float64)
    model = TissueClassifier(recipe, random_state=random_state, n_jobs=n_jobs, cache=cache)
    patches = method_entry(recipe.method).features is None
    model.fit(train, executor=executor if patches else None)
    answers = [model.predict(record.path, mpp=record.mpp) for record in test.records]
    scores = np.array([answer.scores for answer in answers], dtype=np.float64)
    if file:
        with written_whole(file) as partial:
            partial.write_text(json.dumps(scores.tolist()), encoding="utf-8")
    return scores


def _key(train: Manifest, test: Manifest, recipe: Recipe, random_state: int) -> str:
    """A name for scores that changes with all that decides them, the order of the images too."""
    sides = [
        [[*file_key(r.path), r.label, r.patient, r.mpp] for r in side.records]
        for side in (train, test)
    ]
    parameters = method_entry(recipe.method).make(recipe.method_parameters).get_params()
    weights = open_network(recipe.vectors).digest if is_network(recipe.vectors) else ""
    decided_by = [sides, recipe.to_dict(), parameters, random_state, weights, version("histodict")]
    text = json.dumps(decided_by, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def how_good(scores: NDArray[np.float64], labels: Sequence[str], classes: Sequence[str]) -> float:
    """The mean of balanced accuracy and, where there are all classes, AUC.

    On few images either alone is coarse: one counts right answers, the other the right order.
    """
    answers = [NOTHING if np.isnan(row).any() else classes[winner(row)] for row in scores]
    value = balanced_accuracy(np.array(labels), np.array(answers))
    if len(set(labels)) == len(classes):
        known = np.nan_to_num(scores)
        value = (value + auc(labels, known[:, 0] if known.shape[1] == 1 else known)) / 2
    return value
