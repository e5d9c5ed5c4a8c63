"""Command `adapt`: fit the decision threshold of a model to unlabelled images."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..utils.files import check_disk_space, check_writable_file
from ..utils.progress import Progress, cumulative_shares
from ..utils.text_io import pluralize
from .console import note_replaced, print_json, progress_bars, report_errors, warn
from .image_options import ImageOptions, warn_of_sizes, warn_of_skipped
from .options import (
    ADVANCED,
    JobsOption,
    JsonOption,
    ModelOptions,
    ModelOutput,
    SkipUnreadableOption,
)

if TYPE_CHECKING:
    from ..datasets.record import ImageRecord
    from ..decision.threshold import ThresholdAdaptation
    from ..images.pixel_size import PixelSizeOption
    from ..models import Model

_N_CLASSES = 2


def adapt(
    *,
    used: ModelOptions,
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
    """Adapt the threshold of a two-class model to unlabelled images of another hospital.

        histodict adapt tissue.histodict new/ --output adapted.histodict

    The scores of another hospital's images may all be higher or lower. The threshold moves half
    way to the midpoint between the two groups of scores. Use at least 10 images, about equally
    many of each class. If the scores do not form two groups, nothing is written.
    """
    from ..decision.threshold import ThresholdAdaptation
    from ..models import save_model

    with report_errors():
        check_writable_file(output)
        check_disk_space(output, used.model.stat().st_size if used.model.is_file() else 0)
        model = used.load(jobs)
        if model.finds_regions:
            raise ValueError(f"{used.model}: a region detector cannot be adapted; use a classifier")
        if len(model.class_names_) != _N_CLASSES:
            raise ValueError(
                f"{used.model}: has {len(model.class_names_)} classes; only models of two classes "
                "can be adapted"
            )
        note_replaced(output)
        records = images.find()
        scored_paths, scores, failures = _scores(model, records, images.size, skip_unreadable)
        warn_of_skipped(failures, len(records))
        adapted = model.adapt_threshold(scores, force=force).tuned_on(scored_paths)
        change = adapted.training_info_["tuning"][-1]
        if failures:
            change["left_out"] = failures
        save_model(adapted, output)
    adaptation = ThresholdAdaptation.of(scores, change["shift"])
    _print_adapted(adaptation, len(scores), output, as_json)


def _print_adapted(
    adaptation: ThresholdAdaptation, n_images: int, output: Path, as_json: bool
) -> None:
    if adaptation.one_is_small:
        warn(
            "one group of scores is small. If nearly all images are of one class, use the model "
            "without adaptation"
        )
    if as_json:
        print_json({"model": str(output), "n_images": n_images} | asdict(adaptation))
        return
    low, high = adaptation.groups
    typer.echo(
        f"Two groups of scores: {low} and {pluralize(high, 'image')}. The new threshold changes "
        f"the predicted class of {adaptation.n_moved} of {n_images}: {output}"
    )


def _scores(
    model: Model, images: list[ImageRecord], size: PixelSizeOption, skip_unreadable: bool
) -> tuple[list[Path], list[float], list[str]]:
    """Return the scored images, their scores and the reasons of skipped images."""
    from ..datasets.survey import ReadabilityReport, check_readable
    from ..images.file_types import ImageError
    from ..images.memory_image import estimated_bytes

    predictions, failures = [], []
    with progress_bars() as callback:
        report = check_readable(images, model.n_jobs, callback)
        if not skip_unreadable:
            report.check()
        reasons = {record.path: reason for record, reason in report.bad}
        fractions = cumulative_shares([estimated_bytes(image.path) for image in images])
        callback(Progress("predict", 0, len(images), work=fractions[0]))
        for index, image in enumerate(images):
            try:
                if image.path in reasons:
                    raise ImageError(reasons[image.path])
                mpp = size.with_table(image.mpp)
                predictions.append(model.predict_one(image.path, mpp=mpp, callback=callback))
            except ImageError as error:
                failures.append((image, str(error)))
            callback(Progress("predict", index + 1, len(images), work=fractions[index + 1]))
    if not skip_unreadable:
        ReadabilityReport(len(images), failures).check()
    warn_of_sizes(model, [prediction.size for prediction in predictions])
    scored = {prediction.path for prediction in predictions if prediction.top_label is not None}
    paths = [image.path for image in images if image.path in scored]
    return (
        paths,
        [prediction.score for prediction in predictions],
        [reason for _, reason in failures],
    )
