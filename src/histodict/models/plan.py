"""Training plans (a single model or an ensemble), named presets, and loading of any model."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from ..utils.text_io import read_json, shorten
from ..utils.validation import check_choice, check_setting_names, check_type, check_whole_number
from .ensemble import EnsembleClassifier
from .ensemble_recipes import ensemble_recipes, resolve_ensemble_recipe
from .model_file import load_model_of_kind, validate_header
from .recipe import PRESETS, Recipe, parse_setting, preset, with_method
from .region_detector import RegionDetector
from .tissue_classifier import TissueClassifier

Model = TissueClassifier | RegionDetector | EnsembleClassifier


@dataclass(frozen=True)
class Plan:
    """Training plan: a recipe, and whether to train a single model or a calibrated ensemble.

    Parameters
    ----------
    recipe : Recipe
        Settings of the model; for an ensemble, the settings of its first estimator.
    calibration_folds : int, default=0
        Number of cross-validation folds over the training patients. With 2 or more, weights and
        calibration are fitted to out-of-fold predictions, so that predictions have probabilities.
        Training time is multiplied by about this number. With 0, there is no calibration.
    ensemble : bool, default=False
        Whether to train further models on variations of the recipe and combine their scores.
        Requires `calibration_folds`.

    Attributes
    ----------
    recipes : list of Recipe
        Recipes of all models that are trained.
    is_single_model : bool
        Whether one model is trained without cross-validation.
    """

    recipe: Recipe
    calibration_folds: int = 0
    ensemble: bool = False

    def __post_init__(self) -> None:
        check_whole_number("calibration_folds", self.calibration_folds, 0)
        check_type("ensemble", self.ensemble, "bool")
        if self.ensemble and self.calibration_folds < 2:
            raise ValueError(
                "the weights of an ensemble are fitted on unseen patients: set "
                "calibration_folds to 2 or more"
            )

    @classmethod
    def named(cls, name: str, method: str | None = None, *, regions: bool = False) -> Plan:
        """Return the plan of a named preset, or of a JSON file with settings.

        Parameters
        ----------
        name : name of a preset, or path that ends in ``.json``
        method : name of the method. None uses DFDL for a preset, and the method in a file
        regions : whether the plan is for a `RegionDetector`. This changes single-model presets (see
            `recipe.preset`), and neither ensemble presets nor files

        Returns
        -------
        Plan
        """
        if name in PRESETS:
            return cls(preset(name, method, regions=regions))
        if name in ENSEMBLE_PRESETS:
            return cls(
                resolve_ensemble_recipe(name, method),
                calibration_folds=_DEFAULT_FOLDS,
                ensemble=True,
            )
        if not name.endswith(".json"):
            check_choice("preset", name, {*PRESETS, *ENSEMBLE_PRESETS})
        plan = _read_plan(Path(name))
        if method in (None, plan.recipe.method):
            return plan
        return replace(plan, recipe=with_method(plan.recipe, str(method)))

    @property
    def recipes(self) -> list[Recipe]:
        """Recipes of all models that are trained; the first provides maps and atoms."""
        return ensemble_recipes(self.recipe) if self.ensemble else [self.recipe]

    @property
    def is_single_model(self) -> bool:
        """Whether one model is trained without cross-validation."""
        return self.calibration_folds < 2

    def to_dict(self) -> dict[str, Any]:
        """Return all settings by name, those of the recipe first.

        Returns
        -------
        dict
        """
        return self.recipe.to_dict() | {name: getattr(self, name) for name in _PLAN_SETTINGS}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Plan:
        """Make a plan from settings as returned by `to_dict`.

        Parameters
        ----------
        values : settings by name

        Returns
        -------
        Plan
        """
        check_type("a plan", values, "dict[str, Any]")
        plan_settings = {name: values[name] for name in _PLAN_SETTINGS if name in values}
        recipe_settings = {
            name: value for name, value in values.items() if name not in _PLAN_SETTINGS
        }
        return cls(Recipe.from_dict(recipe_settings), **plan_settings)

    def has_setting(self, setting: str) -> bool:
        """Return whether the plan, its recipe or its method has this setting.

        Parameters
        ----------
        setting : name of a setting

        Returns
        -------
        bool
        """
        return setting in _PLAN_SETTINGS or self.recipe.has_setting(setting)

    def parse_settings(self, settings: dict[str, str]) -> Plan:
        """Return a copy with settings of plan, recipe or method that are parsed from text.

        Parameters
        ----------
        settings : text of each value, by name

        Returns
        -------
        Plan
        """
        check_setting_names(settings, self.recipe.setting_names() | set(_PLAN_SETTINGS))
        recipe_settings = {
            name: text for name, text in settings.items() if name not in _PLAN_SETTINGS
        }
        plan_settings = {
            name: parse_setting(name, text, _PLAN_SETTINGS[name])
            for name, text in settings.items()
            if name in _PLAN_SETTINGS
        }
        return replace(self, recipe=self.recipe.parse_settings(recipe_settings), **plan_settings)

    def build_model(
        self,
        *,
        region: str | None = None,
        random_state: int = 0,
        n_jobs: int | None = None,
        cache: Path | str | None = None,
    ) -> Model:
        """Return the unfitted model of the plan.

        Parameters
        ----------
        region : class that a `RegionDetector` detects; None makes a classifier
        random_state : seed
        n_jobs : number of threads; None uses all cores
        cache : folder that stores costly intermediate results of each image; None stores nothing

        Returns
        -------
        TissueClassifier, EnsembleClassifier or RegionDetector
        """
        common: dict[str, Any] = {"random_state": random_state, "n_jobs": n_jobs, "cache": cache}
        if not region and self.is_single_model:
            return TissueClassifier(self.recipe, **common)
        if not region:
            return EnsembleClassifier(self.recipes, folds=self.calibration_folds, **common)
        if self.ensemble:
            raise ValueError(
                "a region detector cannot be an ensemble or have probabilities: choose one of the "
                f"presets {', '.join(sorted(PRESETS))}"
            )
        if not self.is_single_model:
            raise ValueError("a region detector cannot have probabilities: omit calibration_folds")
        return RegionDetector(self.recipe, region=region, **common)


_PLAN_SETTINGS = {f.name: str(f.type) for f in fields(Plan) if f.name != "recipe"}
# Presets with calibrated probabilities. Their first recipe uses: for "default", an encoder if one
# is installed; for "pixels", dictionaries of pixels; for "features", precomputed features.
ENSEMBLE_PRESETS = {"default", "pixels", "features"}
_DEFAULT_FOLDS = 3


def _read_plan(path: Path) -> Plan:
    """Read a plan from a JSON file: settings, or the output of `histodict info --json`."""
    values = read_json(path, "a recipe file")
    try:
        if isinstance(values, dict) and {"kind", "recipe", "training_info", "estimators"} <= set(
            values
        ):
            validate_header(values)
            folds = values["training_info"].get("folds", 0)
            plan_settings = {"calibration_folds": folds, "ensemble": len(values["estimators"]) > 1}
            values = values["recipe"] | plan_settings
        plan = Plan.from_dict(values)
        plan.recipe.check_method()
    except ValueError as error:
        raise ValueError(f"{path}: not a recipe file ({shorten(error)})") from error
    return plan


_MODEL_CLASSES = {
    kind.kind: kind for kind in (TissueClassifier, RegionDetector, EnsembleClassifier)
}


def save_model(model: Model, path: Path | str) -> Path:
    """Write a fitted model to a file and return its path; same as ``model.save(path)``."""
    return model.save(path)


def load_model(
    path: Path | str, *, n_jobs: int | None = None, trust_weights: bool = False
) -> Model:
    """Read a model of any kind.

    Parameters
    ----------
    path : model file
    n_jobs : number of threads; None uses all cores
    trust_weights : whether to download or open the encoder weights that the file names. Weights
        of installed packages, registered or already loaded weights need no permission. Set it only
        if the source of the file is trusted.

    Returns
    -------
    TissueClassifier, EnsembleClassifier or RegionDetector

    Raises
    ------
    ModelFileError
        If the file is damaged or is not a model file.
    """
    model: Model = load_model_of_kind(_MODEL_CLASSES, Path(path), n_jobs, trust_weights)
    return model
