"""Command `features`: write patch feature vectors for this and other tools."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..utils.files import check_writable_folder
from ..utils.text_io import pluralize, printable
from .console import end_with_files, failure_rows, print_json, report_errors, set_resume_hint
from .image_options import PixelInputOptions, parse_pairs
from .options import ExecutionCliOptions, FolderOutput, JsonOption, SettingOption

if TYPE_CHECKING:
    from ..models.feature_extraction import ExtractionResult


def features(
    *,
    output: FolderOutput,
    vectors: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="What stands for a patch: a network such as efficientnet-lite0 or timm:NAME@FILE, "
            "or rgb, centred, channel-centred.",
        ),
    ] = "efficientnet-lite0",
    setting: SettingOption = None,
    images: PixelInputOptions,
    work: ExecutionCliOptions,
    as_json: JsonOption = False,
) -> None:
    """Write the vectors of images' patches into feature files, one .h5 per image.

    They are as TRIDENT writes them (features, coords and their attributes), for other tools and for
    `--features` of train, predict, evaluate and atoms. Files that are there, made with the same
    settings, are not made again. Bad images are listed at the end and in failures.csv, and make the
    exit status 1:

        histodict features slides/ --vectors efficientnet-lite0 --output features/
    """
    from ..models.feature_extraction import extract_features, extraction_recipe

    with report_errors():
        check_writable_folder(output)
        recipe = extraction_recipe(vectors, parse_pairs("--set", setting))
        records = images.find()
        set_resume_hint()
        with work.begin() as execution:
            result = extract_features(
                recipe,
                records,
                output,
                mpp=images.size,
                n_jobs=work.jobs,
                callback=execution.callback,
                executor=execution.executor,
            )
    _print_result(result, output, as_json)


def _print_result(result: ExtractionResult, output: Path, as_json: bool) -> None:
    if as_json:
        failures = failure_rows(result.failures)
        files = [printable(str(file)) for file in result.files]
        print_json({"files": files, "n_skipped": result.n_skipped, "failures": failures})
    else:
        skipped = f" ({result.n_skipped} were there)" if result.n_skipped else ""
        where = f" in {result.files[0].parent}" if result.files else ""
        typer.echo(f"{pluralize(len(result.files), 'feature file')}{where}{skipped}")
    end_with_files(result.failures, output)
