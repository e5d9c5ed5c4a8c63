"""Commands `train`, which fits a model, and `adapt`, which refits a threshold without labels."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..utils.files import check_disk_space, check_writable_file
from ..utils.progress import Progress, cumulative_shares
from ..utils.text_io import pluralize, truncated_list
from .console import note_overwrite, print_json, progress_bars, report_errors, set_resume_hint, warn
from .image_options import (
    ImageOptions,
    RegionTrainingOptions,
    choose_preset,
    parse_pairs,
    parse_single_region,
    select_split,
    set_positive_class,
    warn_ignored_masks,
    warn_of_confounders,
    warn_of_skipped_images,
    warn_of_unknown_pixel_sizes,
)
from .options import (
    ADVANCED,
    MODEL,
    CacheOption,
    ExecutionCliOptions,
    JobsOption,
    JsonOption,
    ModelOptions,
    ModelOutput,
    PositiveOption,
    SeedOption,
    SetOption,
    SkipUnreadableOption,
    SplitOption,
    TrustOption,
)

if TYPE_CHECKING:
    from ..datasets.manifest import Manifest
    from ..models import Model, Plan
    from ..models.recipe import Recipe


# Atoms per class, and minimum length of an atom, to estimate the size of a model file.
_ASSUMED_ATOMS, _MIN_ATOM_LENGTH = 1000, 1280


@dataclass(frozen=True)
class ModelSettingsOptions:
    """Options of the model to train: preset, method, settings, start model and seed."""

    preset: Annotated[
        str | None,
        typer.Option(
            help="Named settings, or a .json file: default (ensemble; the most accurate), pixels "
            "(ensemble without an encoder), fast (one model), embeddings (one model on encoder "
            "features), regions (one model of pixels and their surroundings), features (one model "
            "of feature files, with probabilities), precomputed (the same without probabilities), "
            "paper (settings of Vu 2016). Without --preset: 'default' ('pixels' if no "
            "encoder is installed). With --regions: 'embeddings' ('regions' if none is installed). "
            "With --features: 'features'. With --features and --method or --regions: "
            "'precomputed'.",
            rich_help_panel=MODEL,
        ),
    ] = None
    method: Annotated[
        str | None,
        typer.Option(
            help="Method, from `histodict info --methods`. With --method but no --preset, trains "
            "one model with preset fast (with --features: precomputed; with --regions: see the "
            "default of --preset).",
            rich_help_panel=MODEL,
        ),
    ] = None
    setting_overrides: SetOption = None
    start_from: Annotated[
        Path | None,
        typer.Option(
            metavar="MODEL",
            help="Continue from an earlier model (not an ensemble): reuse its dictionaries and "
            "settings. Training is then faster, for example after you corrected a few labels.",
            rich_help_panel=ADVANCED,
        ),
    ] = None
    trust_weights: TrustOption = False
    seed: SeedOption = 0

    def build_model(
        self,
        jobs: int | None,
        cache: Path | None,
        regions: str | None = None,
        features: Path | None = None,
    ) -> Model:
        """Return the untrained model.

        Parameters
        ----------
        jobs : number of threads; None for all cores
        cache : folder for expensive intermediate results; None to store none
        regions : value of --regions; None to classify images
        features : folder of feature files that replace the images; None for images
        """
        from ..encoders import check_installed

        settings = parse_pairs("--set", self.setting_overrides)
        plan = self._choose_plan(settings, regions is not None, features).parse_settings(settings)
        for recipe in plan.recipes:
            check_installed(recipe.features)
        region = parse_single_region(regions)
        return plan.build_model(region=region, random_state=self.seed, n_jobs=jobs, cache=cache)

    def _choose_plan(
        self, settings: dict[str, str], finds_regions: bool, features: Path | None
    ) -> Plan:
        from ..models import Plan, load_model

        if self.start_from is not None and self.preset is None and self.method is None:
            start = load_model(self.start_from, trust_weights=self.trust_weights)
            if len(start.recipes) > 1:
                raise ValueError(
                    f"{self.start_from}: training can only be resumed from a single model, not "
                    "from an ensemble. Leave out --start-from, or train a single model with "
                    "--preset fast"
                )
            return Plan(start.recipe, calibration_folds=start.training_info_.get("folds", 0))
        methods = [self.method or ""]
        name = choose_preset(
            self.preset, settings, methods, finds_regions=finds_regions, features=features
        )
        return Plan.named(name, self.method, regions=finds_regions)

    def load_start_model(self, model: Model) -> Any:
        """Load the model of --start-from, if set; it must be of the same kind as `model`."""
        from ..models import load_model

        if self.start_from is None:
            return None
        start = load_model(self.start_from, trust_weights=self.trust_weights)
        if start.kind != model.kind:
            raise ValueError(
                f"{self.start_from}: a {start.kind} cannot be the start of a {model.kind}"
            )
        return start


@dataclass(frozen=True)
class TrainOptions(RegionTrainingOptions):
    """Options that name training images, the region classes to learn, and a split."""

    split: SplitOption = None

    def select(self, manifest: Manifest) -> Manifest:
        """Return the images of --split.

        If --regions names several classes, annotated images are split into one record per class.
        """
        return self.split_by_annotation(select_split(manifest, self.data, self.split))


def train(
    *,
    output: ModelOutput,
    model_settings: ModelSettingsOptions,
    data: TrainOptions,
    positive: PositiveOption = None,
    cache: CacheOption = None,
    execution: ExecutionCliOptions,
    as_json: JsonOption = False,
) -> None:
    """Train a model on labelled images, masks, annotations or feature files.

        histodict train tissue/ --output tissue.histodict

    A folder has one sub-folder per class, with images (CLASS/IMAGE) or with one sub-folder per
    patient (CLASS/PATIENT/IMAGE); if it contains a table manifest.csv, the table is used instead.
    A CSV file has the columns path and label, and optionally patient, slide, site, mpp, split and
    mask. Some other names are accepted, such as class for label and group for patient; the
    command prints which columns it reads. If you know the patient of each image, fill in the
    column patient: accuracy is then measured on unseen patients.

    Train a region detector from masks:

        histodict train tiles.csv --regions tumour --output tumour.histodict

    Train a region detector from annotated slides:

        histodict train slides/ --annotations xml/ --regions tumour -o tumour.histodict

    Train a classifier from feature files:

        histodict train slides.csv --features uni_v1/ -o slides.histodict
    """
    from ..models import save_model

    with report_errors():
        started = time.perf_counter()
        check_writable_file(output)
        model = model_settings.build_model(execution.jobs, cache, data.regions, data.features)
        manifest = data.read(model.recipes, absolute_paths=execution.cluster is not None)
        region = parse_single_region(data.regions)
        if region is not None:
            _note_mask_class(manifest, region)
        if region is None:
            warn_ignored_masks(manifest)
            manifest = set_positive_class(manifest, positive)
            warn_of_confounders(manifest)
        elif positive is not None:
            raise ValueError("--positive cannot be combined with --regions, which names the class")
        check_disk_space(output, _estimate_model_bytes(model, len(manifest.classes)))
        start = model_settings.load_start_model(model)
        if cache is not None:
            set_resume_hint(f"the intermediate results in {cache}")
        note_overwrite(output)
        with execution.start(weights=_stage_weights(model)) as resources:
            model.fit(
                manifest, callback=resources.callback, executor=resources.executor, start_from=start
            )
        save_model(model, output)
    _print_training_result(model, output, time.perf_counter() - started, as_json)


def _note_mask_class(manifest: Manifest, region: str) -> None:
    """Print a note that masks are taken as the class `region`, if no image has this label."""
    labels = sorted({record.label for record in manifest.records if record.label})
    if labels and region not in labels and any(record.mask for record in manifest.records):
        warn(
            f"no image has the label {region!r} (labels: {truncated_list(labels)}); the masks are "
            f"taken as {region!r}",
            "Note",
        )


def _stage_weights(model: Model) -> dict[str, float] | None:
    """Return the relative duration of each training stage by its name; None if unknown."""
    from ..utils.progress import ENSEMBLE_STAGES, PATCH_STAGES

    if len(model.recipes) > 1:
        return ENSEMBLE_STAGES
    if model.recipe.method != "dfdl":
        return None
    return {name: PATCH_STAGES[name] for name in ("patches", "initialise", "train", "decision")}


def _print_training_result(model: Model, output: Path, seconds: float, as_json: bool) -> None:
    from ..encoders import get_patch_features

    n_images, members = model.training_info_["n_images"], model.training_info_.get("estimators", [])
    failures = [member["failure"] for member in members if "failure" in member]
    for failure in failures:
        warn(f"a base model was left out of the ensemble: {failure}")
    if "uncalibrated_reason" in model.training_info_:
        warn(
            "predictions of this model have no probabilities, and its threshold and ensemble "
            "weights are not fitted on unseen patients. Reason: "
            f"{model.training_info_['uncalibrated_reason']}"
        )
    if model.model_.mpp_ is None and not get_patch_features(model.recipe.features).is_precomputed:
        warn(
            "the pixel size of the training images is unknown. The model cannot check whether "
            "other images have the same magnification; if they do not, its predictions are wrong. "
            "Give --mpp or a column 'mpp'"
        )
    if not as_json:
        names = " / ".join(model.class_names_)
        region = f"region detector for class {model.class_names_[-1]!r}"
        subject = region if model.finds_regions else names
        n_parts = model.training_info_.get("n_parts")
        origin = f"{pluralize(n_parts, 'annotated part')} of " if n_parts else ""
        images = pluralize(n_images, "image")
        typer.echo(f"Trained on {origin}{images} in {seconds:.0f} s ({subject}): {output}")
        return
    content = {
        "model": str(output),
        "classes": model.class_names_,
        "n_images": n_images,
        "seconds": round(seconds, 1),
    }
    failed = {"failed_base_models": failures} if members else {}
    print_json(content | failed | _decision_parameters(model))


def _decision_parameters(model: Model) -> dict[str, Any]:
    """Return `min_patches` of a region detector or `threshold` of a classifier, by name."""
    if model.finds_regions:
        return {"min_patches": model.min_patches_}
    return {"threshold": model.threshold} if model.recipe.is_patch_level else {}


def _estimate_model_bytes(model: Model, n_classes: int) -> int:
    """Estimate the size of the model file in bytes, assuming two arrays of atoms per base model."""
    from ..methods.registry import get_method

    def recipe_bytes(recipe: Recipe) -> int:
        method = get_method(recipe.method).make_estimator(recipe.method_parameters)
        n_atoms = method.get_params().get("n_atoms") or _ASSUMED_ATOMS
        n_values = max(3 * recipe.patch_px**2, _MIN_ATOM_LENGTH)
        return 2 * 4 * n_atoms * max(2, n_classes) * n_values

    return 2**20 + sum(recipe_bytes(recipe) for recipe in model.recipes)


if TYPE_CHECKING:
    from ..datasets.record import ImageRecord
    from ..decision.threshold import ThresholdAdaptation
    from ..images.pixel_size import PixelSizeOption
    from ..models import Model

_N_ADAPTABLE_CLASSES = 2


def adapt(
    *,
    model_options: ModelOptions,
    output: ModelOutput,
    images: ImageOptions,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Move the threshold even if the scores do not form two groups.",
            rich_help_panel=ADVANCED,
        ),
    ] = False,
    skip_unreadable: SkipUnreadableOption = False,
    jobs: JobsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Adapt the threshold of a model to unlabelled images of another hospital.

        histodict adapt tissue.histodict new/ --output adapted.histodict

    The scores of images from another hospital can all be shifted up, or all down. The command
    divides the scores of the new images into two groups, computes the midpoint between the
    groups, and moves the threshold half of the way from its old value to this midpoint, as a
    cautious correction. Use at least 10 images, about equally many of each class. If the scores
    do not form two groups, no model is written.
    """
    from ..decision.threshold import ThresholdAdaptation
    from ..models import save_model

    with report_errors():
        check_writable_file(output)
        check_disk_space(
            output, model_options.model.stat().st_size if model_options.model.is_file() else 0
        )
        model = model_options.load(jobs)
        if model.finds_regions:
            raise ValueError(
                f"{model_options.model}: a region detector cannot be adapted; use a classifier"
            )
        if len(model.class_names_) != _N_ADAPTABLE_CLASSES:
            raise ValueError(
                f"{model_options.model}: has {len(model.class_names_)} classes; only models of two "
                "classes can be adapted"
            )
        records = images.list_images()
        scored_paths, scores, failures = _score_images(
            model, records, images.pixel_size, skip_unreadable
        )
        warn_of_skipped_images(failures, len(records))
        adapted = model.adapt_threshold(scores, force=force).with_tuning_images(scored_paths)
        change = adapted.training_info_["tuning"][-1]
        if failures:
            change["left_out"] = failures
        note_overwrite(output)
        save_model(adapted, output)
    adaptation = ThresholdAdaptation.from_scores(scores, change["shift"])
    _print_adaptation(adaptation, change, len(scores), output, as_json)


def _print_adaptation(
    adaptation: ThresholdAdaptation,
    change: Mapping[str, Any],
    n_images: int,
    output: Path,
    as_json: bool,
) -> None:
    """Print the groups of scores, and the effect of the new threshold.

    `change` is the entry about the adaptation in the training information of the model.
    """
    from ..decision.threshold import describe_shift

    if adaptation.has_small_group:
        warn(
            "one group of scores is small. If nearly all images are of one class, use the model "
            "without adaptation"
        )
    if as_json:
        print_json({"model": str(output), "n_images": n_images} | asdict(adaptation))
        return
    low, high = adaptation.groups
    groups = (
        "The scores form no clear groups; --force divides them into"
        if not change.get("two_groups", True)
        else "Two groups of scores:"
    )
    typer.echo(
        f"{groups} {low} and {pluralize(high, 'image')}. The new threshold "
        f"{describe_shift(change['shift'])}; the predicted class of {adaptation.n_moved} of "
        f"{pluralize(n_images, 'image')} changes. Wrote {output}"
    )


def _score_images(
    model: Model, images: list[ImageRecord], size_option: PixelSizeOption, skip_unreadable: bool
) -> tuple[list[Path], list[float], list[str]]:
    """Return paths of images with tissue, scores of images, error messages of skipped images."""
    from ..datasets.survey import ReadabilityReport, check_readable
    from ..images.file_types import ImageError
    from ..images.memory_image import estimated_bytes

    predictions, failures = [], []
    with progress_bars() as callback:
        report = check_readable(images, model.n_jobs, callback)
        if not skip_unreadable:
            report.raise_if_unusable()
        reasons = {record.path: reason for record, reason in report.unusable}
        fractions = cumulative_shares([estimated_bytes(image.path) for image in images])
        callback(Progress("predict", 0, len(images), work=fractions[0]))
        for index, image in enumerate(images):
            try:
                if image.path in reasons:
                    raise ImageError(reasons[image.path])
                mpp = size_option.with_table_mpp(image.mpp)
                predictions.append(model.predict_one(image.path, mpp=mpp, callback=callback))
            except ImageError as error:
                failures.append((image, str(error)))
            callback(Progress("predict", index + 1, len(images), work=fractions[index + 1]))
    if not skip_unreadable:
        ReadabilityReport(len(images), failures).raise_if_unusable()
    warn_of_unknown_pixel_sizes(model, [prediction.size for prediction in predictions])
    scored = {prediction.path for prediction in predictions if prediction.top_label is not None}
    paths = [image.path for image in images if image.path in scored]
    return (
        paths,
        [prediction.score for prediction in predictions],
        [reason for _, reason in failures],
    )
