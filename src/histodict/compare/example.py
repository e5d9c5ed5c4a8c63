"""One model of an evaluation, to look at: what has it learnt?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ..evaluation.splits import Split
from ..execution.progress import Callback, ignore
from ..methods.registry import method_entry
from ..model_file import ModelFileError, load_model, read_header, save_model
from ..patches.vectors import VECTORS
from ..pipeline import TissueClassifier
from ..recipes import Recipe
from .evaluation import Evaluation


@dataclass(frozen=True)
class Example:
    """A model of `method`, trained on one split of the evaluation."""

    method: str
    split: Split
    model: TissueClassifier

    def bases(self) -> dict[str, NDArray[Any]]:
        """By class, its atoms (n_atoms, n_features), which are patches."""
        D, classes = self.model.model_.method_.labelled_atoms()
        return {name: D[classes == i] for i, name in enumerate(self.model.classes_)}


def train_example(
    done: Evaluation, path: Path, *, n_jobs: int | None = None, callback: Callback = ignore
) -> Example | None:
    """The first method with atoms that are pictures, on the first split of the shown size.

    None if no method has such atoms. What `path` holds is used if it is that model, else replaced.
    """
    method = next((name for name in done.methods if _has_pictures(done.recipes[name])), None)
    if method is None:
        return None
    split = next(split for split in done.splits if split.n_per_class == done.shown_size)
    train = done.manifest.select(split.train)
    # Of a panel the first member is looked at.
    recipe = replace(done.recipes[method], panel=False, calibration_folds=0)
    model = TissueClassifier(recipe, random_state=done.seeds[0], n_jobs=n_jobs)
    if not _is_there(path, model.recipe, done.seeds[0], train.digest()):
        model.fit(train, callback=callback)
        save_model(model, path)
    loaded = load_model(path, n_jobs=n_jobs)
    assert isinstance(loaded, TissueClassifier)
    return Example(method, split, loaded)


def _has_pictures(recipe: Recipe) -> bool:
    """Atoms that are patches of pixels, labelled with a class."""
    entry = method_entry(recipe.method)
    on_pixels = entry.features is None and recipe.vectors in VECTORS and not recipe.components
    return on_pixels and hasattr(entry.load(), "labelled_atoms")


def _is_there(path: Path, recipe: Recipe, seed: int, digest: str) -> bool:
    try:
        header = read_header(path)
    except ModelFileError:
        return False
    training = header["training"]
    return bool(
        header["recipe"] == recipe.to_dict()
        and training["random_state"] == seed
        and training["manifest_digest"] == digest
    )
