"""One model of an evaluation, to look at: what has it learnt?"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ..evaluation.splits import Split
from ..execution.work import ExecutionOptions
from ..images.manifest import Manifest
from ..methods.registry import get_method
from ..model_file import SUFFIX, ModelFileError
from ..networks import get_patch_features
from ..pipeline import Model, Plan, load_model, save_model
from ..recipes import Recipe
from .evaluation import Evaluation
from .tasks import EvaluationTask


@dataclass(frozen=True)
class ExampleModel:
    """A model of `method`, trained on one split of the evaluation."""

    method: str
    split: Split
    model: Model

    def bases(self) -> dict[str, NDArray[Any]]:
        """By class, its atoms (n_atoms, n_features): patches, in the sign of their use."""
        atoms = self.model.model_.atoms()
        assert atoms is not None
        names = enumerate(self.model.classes_)
        return {name: atoms.with_usage_sign[atoms.classes == place] for place, name in names}


def train_example(done: Evaluation, folder: Path, work: ExecutionOptions) -> ExampleModel | None:
    """The first method with atoms that are pictures, on the first split of the shown size.

    None if no method has such atoms. What `folder` holds is used if it is that model.
    """
    method = next((name for name in done.methods if has_images(done.plans[name].recipe)), None)
    if method is None:
        return None
    split = next(split for split in done.splits if split.n_per_class == done.shown_size)
    # Of a panel the first member is looked at.
    plan = Plan(done.plans[method].recipe)
    task = EvaluationTask(method, plan, split, done.seeds[0], done.region)
    return ExampleModel(method, split, trained_model(task, done.manifest, folder, work))


def has_images(recipe: Recipe) -> bool:
    """Atoms that are patches of pixels, labelled with a class."""
    on_pixels = get_patch_features(recipe.features).are_images and not recipe.n_components
    method: Any = get_method(recipe.method).load()
    return on_pixels and recipe.is_patch_level and bool(method.has_class_atoms)


def trained_model(
    task: EvaluationTask, manifest: Manifest, folder: Path, work: ExecutionOptions
) -> Model:
    """The model of a task, read from `folder` if it is there, else trained and kept."""
    trial = task.run(manifest, work)
    file = folder / f"{trial.key}{SUFFIX}"
    if file.is_file():
        try:
            return load_model(file, n_jobs=work.n_jobs)
        except ModelFileError as error:
            warnings.warn(f"{error}; it is trained anew", stacklevel=2)
    folder.mkdir(parents=True, exist_ok=True)
    save_model(trial.model.fit(trial.train, callback=work.callback), file)
    # Also what was just trained is read back, so that a second run shows the same.
    return load_model(file, n_jobs=work.n_jobs)
