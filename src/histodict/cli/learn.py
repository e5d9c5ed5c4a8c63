"""Models from images: `train` from labelled ones, `adapt` with the help of others."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..execution.progress import Progress
from .console import plain_errors, print_json, progress_bars, warn
from .options import (
    CacheOption,
    ImageOptions,
    JobsOption,
    JsonOption,
    ModelOptions,
    ModelOutput,
    PartOptions,
    PositiveOption,
    SettingOption,
    TrustOption,
    WorkOptions,
    check_folder,
    pairs,
    with_positive,
)

if TYPE_CHECKING:
    from ..decisions.unlabelled import Adaptation
    from ..images.manifest import Record
    from ..pipeline import Model


@dataclass(frozen=True)
class LearnOptions:
    """What decides a model, beside the images."""

    preset: Annotated[
        str | None,
        typer.Option(
            help="Settings to start from: default, paper, auto, embeddings, regions, or a .json "
            "file of settings."
        ),
    ] = None
    method: Annotated[
        str | None,
        typer.Option(
            help="How to learn: see `histodict methods`. A file of settings brings its own; else "
            "dfdl."
        ),
    ] = None
    regions: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Learn to find regions of this name: the class of the crops that show it, or "
            "what the masks (column mask) outline.",
        ),
    ] = None
    setting: SettingOption = None
    start_from: Annotated[
        Path | None,
        typer.Option(
            metavar="MODEL",
            help="Go on from the dictionaries of this model, made with the same settings: quicker "
            "after a few labels have changed.",
        ),
    ] = None
    trust_weights: TrustOption = False
    seed: Annotated[int, typer.Option(help="The same seed gives the same model.")] = 0

    def model(self, jobs: int | None, cache: Path | None) -> Model:
        """What is to learn."""
        from ..pipeline import Plan

        name = self.preset or ("regions" if self.regions else "default")
        plan = Plan.named(name, self.method, regions=self.regions is not None)
        plan = plan.with_settings(pairs("--set", self.setting))
        return plan.model(region=self.regions, random_state=self.seed, n_jobs=jobs, cache=cache)

    def start(self, model: Model) -> Any:
        """What it goes on from, which must be of the same kind; None: nothing."""
        from ..pipeline import load_model

        if self.start_from is None:
            return None
        start = load_model(self.start_from, trust_weights=self.trust_weights)
        if start.kind != model.kind:
            raise ValueError(
                f"{self.start_from}: is a {start.kind}, and a {model.kind} cannot go on from it"
            )
        return start


def train(
    *,
    output: ModelOutput,
    learning: LearnOptions,
    data: PartOptions,
    positive: PositiveOption = None,
    cache: CacheOption = None,
    work: WorkOptions,
    as_json: JsonOption = False,
) -> None:
    """Learn a model from labelled images.

    DATA is a folder with one sub-folder per class, or a CSV with the columns path and label, and
    best also patient, slide, site, mpp, split:

        histodict train tissue/ --output tissue.histodict

    To learn where something is instead, outline it in masks (a column mask in the CSV) or cut it
    out (one sub-folder of crops), and give it a name:

        histodict train tiles.csv --regions tumour --output tumour.histodict
    """
    from ..pipeline import save_model

    with plain_errors():
        started = time.perf_counter()
        manifest = data.read(whole_paths=work.cluster is not None)
        if learning.regions is None:
            manifest = with_positive(manifest, positive)
        elif positive is not None:
            raise ValueError("--positive: leave it out, as --regions names what is to be found")
        model = learning.model(work.jobs, cache)
        check_folder(output)
        start = learning.start(model)
        with work.begin() as begun:
            model.fit(manifest, callback=begun.callback, executor=begun.executor, start_from=start)
        save_model(model, output)
    _tell_learnt(model, output, time.perf_counter() - started, as_json)


def _tell_learnt(model: Model, output: Path, seconds: float, as_json: bool) -> None:
    n_images, heard = model.training_["n_images"], model.training_.get("members", [])
    left_out = [member["failure"] for member in heard if "failure" in member]
    for failure in left_out:
        warn(f"a view was left out: {failure}")
    if not as_json:
        names = " / ".join(model.classes_)
        typer.echo(f"Learnt {names} from {n_images} images in {seconds:.0f} s: {output}")
        return
    facts = {
        "model": str(output),
        "classes": model.classes_,
        "n_images": n_images,
        "seconds": round(seconds, 1),
    }
    print_json(facts | ({"views_left_out": left_out} if heard else {}) | _threshold(model))


def _threshold(model: Model) -> dict[str, Any]:
    """The number that decides, by its name: m of regions, θ of patches."""
    if model.finds_regions:
        return {"least_patches": model.least_patches_}
    return {"threshold": model.threshold} if model.recipe.on_patches else {}


def adapt(
    *,
    used: ModelOptions,
    output: ModelOutput,
    images: ImageOptions,
    jobs: JobsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move a model's threshold with the help of images without labels.

    For a model learnt from a handful of images, or used on another hospital's: the scores of other
    patients lie higher or lower together. Give it at least 10 images, of both classes and about as
    many of each, such as those to be answered. Only the threshold changes:

        histodict adapt tissue.histodict new/ --output adapted.histodict

        histodict predict adapted.histodict new/ --output results/
    """
    from ..decisions.unlabelled import Adaptation
    from ..pipeline import save_model

    with plain_errors():
        check_folder(output)
        trained = used.load(jobs)
        if trained.finds_regions:
            raise ValueError(
                f"{used.model}: finds regions; only a model of two classes can be adapted"
            )
        found = images.find()
        scores = _scores(trained, found, images.mpp)
        adapted = trained.adapted_to(scores)
        save_model(adapted, output)
    moved = Adaptation.of(scores, adapted.training_["adapted"]["threshold"])
    _tell_adapted(moved, len(found), output, as_json)


def _tell_adapted(moved: Adaptation, n_images: int, output: Path, as_json: bool) -> None:
    if moved.one_is_small:
        warn(
            "one group is small: if nearly all images are of one class, the model as it was is the "
            "better one"
        )
    if as_json:
        print_json({"model": str(output), "n_images": n_images} | asdict(moved))
        return
    low, high = moved.groups
    typer.echo(
        f"Groups of {low} and {high} images; {moved.n_moved} of {n_images} get another answer than "
        f"before: {output}"
    )


def _scores(model: Model, images: list[Record], mpp: float | None) -> list[float]:
    scores: list[float] = []
    with progress_bars() as callback:
        for image in images:
            scores.append(model.answer(image.path, mpp=image.mpp or mpp).score)
            callback(Progress("answer", len(scores), len(images)))
    return scores
