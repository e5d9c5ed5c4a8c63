"""Training plans: a single model or an ensemble, and named presets.

Models to files and back, whatever their kind.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from ..utils.text_io import read_json, shorten
from ..utils.validation import check_choice, check_kind, check_names, check_whole_number
from .ensemble import EnsembleClassifier
from .model_file import load_model_of_kind, validate_header
from .recipe import (
    PRESETS,
    Recipe,
    ensemble_recipes,
    parse_setting,
    preset,
    resolve_ensemble_recipe,
    with_method,
)
from .region_detector import RegionDetector
from .tissue_classifier import TissueClassifier

Model = TissueClassifier | RegionDetector | EnsembleClassifier


@dataclass(frozen=True)
class Plan:
    """A recipe, and what is made of it.

    Attributes
    ----------
    calibration_folds : with 2 or more, models answer for training patients they have not seen, in
        so many folds: answers come with probabilities, and training takes as many times longer
    ensemble : train further models on variations of the recipe and combine their scores
    """

    recipe: Recipe
    calibration_folds: int = 0
    ensemble: bool = False

    def __post_init__(self) -> None:
        check_whole_number("calibration_folds", self.calibration_folds, 0)
        check_kind("ensemble", self.ensemble, "bool")
        if self.ensemble and self.calibration_folds < 2:
            raise ValueError(
                "the models of an ensemble are weighted on unseen patients: set "
                "calibration_folds, for "
                "example 3"
            )

    @classmethod
    def named(cls, name: str, method: str | None = None, *, regions: bool = False) -> Plan:
        """The plan of a preset, for any method; a name that ends in .json is a file of settings.

        The method of a file is taken where none is named; presets are for DFDL then. `regions`:
        what the preset is when it is to find them; a file is taken by the letter.
        """
        if name in PRESETS:
            return cls(preset(name, method, regions=regions))
        if name in ENSEMBLE_PRESETS:
            return cls(
                resolve_ensemble_recipe(name, method), calibration_folds=_FOLDS, ensemble=True
            )
        if not name.endswith(".json"):
            check_choice("preset", name, {*PRESETS, *ENSEMBLE_PRESETS})
        plan = _read_plan(Path(name))
        if method in (None, plan.recipe.method):
            return plan
        return replace(plan, recipe=with_method(plan.recipe, str(method)))

    @property
    def recipes(self) -> list[Recipe]:
        """Of all models that are trained, the one that is shown first."""
        return ensemble_recipes(self.recipe) if self.ensemble else [self.recipe]

    @property
    def is_single_model(self) -> bool:
        """Whether it is one model, without anything learnt from unseen patients."""
        return self.calibration_folds < 2

    def to_dict(self) -> dict[str, Any]:
        """All settings, those of the recipe first."""
        return self.recipe.to_dict() | {name: getattr(self, name) for name in _OWN}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Plan:
        check_kind("a plan", values, "dict[str, Any]")
        own = {name: values[name] for name in _OWN if name in values}
        rest = {name: value for name, value in values.items() if name not in _OWN}
        return cls(Recipe.from_dict(rest), **own)

    def has_setting(self, setting: str) -> bool:
        return setting in _OWN or self.recipe.has_setting(setting)

    def parse_settings(self, settings: dict[str, str]) -> Plan:
        """A copy with settings given as text: its own, those of the recipe, of the method."""
        check_names(settings, self.recipe.settings() | set(_OWN))
        others = {name: text for name, text in settings.items() if name not in _OWN}
        own = {
            name: parse_setting(name, text, _OWN[name])
            for name, text in settings.items()
            if name in _OWN
        }
        return replace(self, recipe=self.recipe.parse_settings(others), **own)

    def build_model(
        self,
        *,
        region: str | None = None,
        random_state: int = 0,
        n_jobs: int | None = None,
        cache: Path | str | None = None,
    ) -> Model:
        """What will learn by this plan: to tell classes apart or, with `region`, to find it."""
        common: dict[str, Any] = {"random_state": random_state, "n_jobs": n_jobs, "cache": cache}
        if not region and self.is_single_model:
            return TissueClassifier(self.recipe, **common)
        if not region:
            return EnsembleClassifier(self.recipes, folds=self.calibration_folds, **common)
        if not self.is_single_model:
            raise ValueError(
                "answers are calibrated for classes, not for regions: choose another preset than "
                f"{' or '.join(sorted(ENSEMBLE_PRESETS))}, and leave calibration_folds alone"
            )
        return RegionDetector(self.recipe, region=region, **common)


_OWN = {f.name: str(f.type) for f in fields(Plan) if f.name != "recipe"}
# Presets of several views of the tissue that decide together, with probabilities from unseen
# patients: the best there is here, with a network's cells where one is installed; of pixels; and of
# feature files, which offer one view alone.
ENSEMBLE_PRESETS = {"default", "pixels", "features"}
_FOLDS = 3


def _read_plan(path: Path) -> Plan:
    """From a file of settings, or of what `histodict info --json` says of a model."""
    values = read_json(path, "a recipe file")
    try:
        if isinstance(values, dict) and {"kind", "recipe", "training_info", "estimators"} <= set(
            values
        ):
            validate_header(values)
            folds = values["training_info"].get("folds", 0)
            own = {"calibration_folds": folds, "ensemble": len(values["estimators"]) > 1}
            values = values["recipe"] | own
        plan = Plan.from_dict(values)
        plan.recipe.check_method()
    except ValueError as error:
        raise ValueError(f"{path}: not a recipe file ({shorten(error)})") from error
    return plan


_KINDS = {kind.kind: kind for kind in (TissueClassifier, RegionDetector, EnsembleClassifier)}


def save_model(model: Model, path: Path | str) -> Path:
    """`model.save(path)`."""
    return model.save(path)


def load_model(
    path: Path | str, *, n_jobs: int | None = None, trust_weights: bool = False
) -> Model:
    """Read a model; refuses files that are damaged, foreign or of a schema that is not known.

    A model of network vectors names a network, and so what is fetched or opened to use it. Weights
    that an installed package brings, that the program registered, or that are in use here already
    are taken; any others only if you trust where the model is from, and say so.
    """
    model: Model = load_model_of_kind(_KINDS, Path(path), n_jobs, trust_weights)
    return model
