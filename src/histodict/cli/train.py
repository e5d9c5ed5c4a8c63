"""Command `train`: fit a model to labelled images."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..utils.files import check_disk_space, check_writable_file
from ..utils.text_io import pluralize
from .console import print_json, report_errors, set_resume_hint, warn
from .image_options import (
    RegionTrainingOptions,
    chosen_preset,
    in_split,
    one_region,
    parse_pairs,
    set_positive_class,
    warn_of_confounders,
    warn_of_masks,
)
from .options import (
    CacheOption,
    ExecutionCliOptions,
    JsonOption,
    ModelOutput,
    PositiveOption,
    SettingOption,
    SplitOption,
    TrustOption,
)

if TYPE_CHECKING:
    from ..datasets.manifest import Manifest
    from ..models import Model, Plan
    from ..models.recipe import Recipe


_MANY_ATOMS, _MANY_VALUES = 1000, 1280  # assumed if the settings give no number


@dataclass(frozen=True)
class ModelSettingsOptions:
    """Options that define the model, apart from the images."""

    preset: Annotated[
        str | None,
        typer.Option(
            help="Settings to start from. default: a panel of a pretrained network's cells, "
            "pixels and textures, and without the network where none is installed, as pixels is; "
            "fast: one dictionary of pixels; embeddings: one of a network's cells; "
            "paper: as published; or a .json file of settings. With --regions: embeddings where a "
            "network is installed, else regions, which is of pixels. With --features: features, "
            "a calibrated model of the files' vectors; precomputed: the same without calibration."
        ),
    ] = None
    method: Annotated[
        str | None,
        typer.Option(
            help="How to learn: see `histodict methods`. A file of settings brings its own; else "
            "dfdl. Who names a method and no preset gets one model, by the preset fast."
        ),
    ] = None
    setting: SettingOption = None
    start_from: Annotated[
        Path | None,
        typer.Option(
            metavar="MODEL",
            help="Go on from the dictionaries of this model, with its settings where no others are "
            "named: quicker after a few labels have changed.",
        ),
    ] = None
    trust_weights: TrustOption = False
    seed: Annotated[
        int, typer.Option(help="The same seed and images, in any order, give the same model.")
    ] = 0

    def model(
        self,
        jobs: int | None,
        cache: Path | None,
        regions: str | None = None,
        features: Path | None = None,
    ) -> Model:
        """Return the untrained model.

        Parameters
        ----------
        jobs : number of threads
        cache : folder for expensive intermediate results
        regions : value of --regions; None to classify images
        features : folder of feature files
        """
        settings = parse_pairs("--set", self.setting)
        plan = self._plan(settings, regions is not None, features).parse_settings(settings)
        region = one_region(regions)
        return plan.build_model(region=region, random_state=self.seed, n_jobs=jobs, cache=cache)

    def _plan(self, settings: dict[str, str], regions: bool, features: Path | None) -> Plan:
        from ..models import Plan, load_model

        if self.start_from is not None and self.preset is None and self.method is None:
            start = load_model(self.start_from, trust_weights=self.trust_weights)
            if len(start.recipes) > 1:
                raise ValueError(
                    f"{self.start_from}: is a panel, which starts afresh: only a single model can "
                    "be gone on from"
                )
            return Plan(start.recipe, calibration_folds=start.training_info_.get("folds", 0))
        methods = [self.method or ""]
        name = chosen_preset(self.preset, settings, methods, regions=regions, features=features)
        return Plan.named(name, self.method, regions=regions)

    def start(self, model: Model) -> Any:
        """Return the model to resume from, of the same kind; None if there is none."""
        from ..models import load_model

        if self.start_from is None:
            return None
        start = load_model(self.start_from, trust_weights=self.trust_weights)
        if start.kind != model.kind:
            raise ValueError(
                f"{self.start_from}: is a {start.kind}, and a {model.kind} cannot go on from it"
            )
        return start


@dataclass(frozen=True)
class TrainOptions(RegionTrainingOptions):
    """Training images, or those of one split."""

    split: SplitOption = None

    def choose(self, manifest: Manifest) -> Manifest:
        """Select the images of the split, then annotated parts."""
        return self.split_by_annotation(in_split(manifest, self.data, self.split))


def train(
    *,
    output: ModelOutput,
    learning: ModelSettingsOptions,
    data: TrainOptions,
    positive: PositiveOption = None,
    cache: CacheOption = None,
    work: ExecutionCliOptions,
    as_json: JsonOption = False,
) -> None:
    """Learn a model from labelled images.

    DATA is a folder with one sub-folder per class, or a CSV with the columns path and label, and
    best also patient, slide, site, mpp, split:

        histodict train tissue/ --output tissue.histodict

    To learn where something is instead, outline it in masks (a column mask in the CSV) or cut it
    out (one sub-folder of crops), and give it a name:

        histodict train tiles.csv --regions tumour --output tumour.histodict

    From vectors that an encoder computed before, no image is needed:

        histodict train slides.csv --features features_uni_v1/ --output slides.histodict

    Outlines drawn in QuPath, ASAP or ImageScope do as well, of one class or of several:

        histodict train slides/ --annotations geojson/ --regions tumour,stroma -o tissue.histodict
    """
    from ..models import save_model

    with report_errors():
        started = time.perf_counter()
        check_writable_file(output)
        model = learning.model(work.jobs, cache, data.regions, data.features)
        manifest = data.read(whole_paths=work.cluster is not None)
        if one_region(data.regions) is None:
            warn_of_masks(manifest)
            manifest = set_positive_class(manifest, positive)
            warn_of_confounders(manifest)
        elif positive is not None:
            raise ValueError("--positive: leave it out, as --regions names what is to be found")
        check_disk_space(output, _model_bytes(model, len(manifest.classes)))
        start = learning.start(model)
        if cache is not None:
            set_resume_hint(f"what {cache} holds")
        with work.begin(weights=_stages(model)) as execution:
            model.fit(
                manifest, callback=execution.callback, executor=execution.executor, start_from=start
            )
        save_model(model, output)
    _print_trained(model, output, time.perf_counter() - started, as_json)


def _stages(model: Model) -> dict[str, float] | None:
    """Return the stages of training with their weights; None if they are not known."""
    from ..utils.progress import ENSEMBLE_STAGES, PATCH_STAGES

    if len(model.recipes) > 1:
        return ENSEMBLE_STAGES
    if model.recipe.method != "dfdl":
        return None
    return {name: PATCH_STAGES[name] for name in ("patches", "initialise", "train", "decision")}


def _print_trained(model: Model, output: Path, seconds: float, as_json: bool) -> None:
    from ..encoders import get_patch_features

    n_images, members = model.training_info_["n_images"], model.training_info_.get("estimators", [])
    failures = [member["failure"] for member in members if "failure" in member]
    for failure in failures:
        warn(f"a view was left out: {failure}")
    if "unheard" in model.training_info_:
        warn(
            "how sure the answers are is not known, and all views have the same say: no patients "
            f"are left to try them on ({model.training_info_['unheard']})"
        )
    if model.model_.mpp_ is None and not get_patch_features(model.recipe.features).is_precomputed:
        warn(
            "the pixel size of these images is not known: images of another magnification will get "
            "answers that nobody can notice to be wrong. Give --mpp, or a column mpp",
            "Note",
        )
    if not as_json:
        names = " / ".join(model.class_names_)
        subject = f"to find {model.class_names_[1]}" if model.finds_regions else names
        n_parts = model.training_info_.get("n_parts")
        origin = f"{pluralize(n_parts, 'outlined part')} of " if n_parts else ""
        images = pluralize(n_images, "image")
        typer.echo(f"Learnt {subject} from {origin}{images} in {seconds:.0f} s: {output}")
        return
    content = {
        "model": str(output),
        "classes": model.class_names_,
        "n_images": n_images,
        "seconds": round(seconds, 1),
    }
    print_json(content | ({"views_left_out": failures} if members else {}) | _threshold(model))


def _threshold(model: Model) -> dict[str, Any]:
    """Return the decision parameter by name: min_patches of regions, threshold of patches."""
    if model.finds_regions:
        return {"min_patches": model.min_patches_}
    return {"threshold": model.threshold} if model.recipe.is_patch_level else {}


def _model_bytes(model: Model, n_classes: int) -> int:
    """Estimate the size of the model file: the atoms of every member, in two arrays."""
    from ..methods.registry import get_method

    def of_one(recipe: Recipe) -> int:
        method = get_method(recipe.method).make_estimator(recipe.method_parameters)
        n_atoms = method.get_params().get("n_atoms") or _MANY_ATOMS
        n_values = max(3 * recipe.patch_px**2, _MANY_VALUES)
        return 2 * 4 * n_atoms * max(2, n_classes) * n_values

    return 2**20 + sum(of_one(recipe) for recipe in model.recipes)
