"""Command `features`: write patch feature vectors for this and other tools."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..utils.files import check_writable_folder
from ..utils.text_io import pluralize, printable
from ..utils.validation import import_optional
from .console import (
    failure_rows,
    print_json,
    report_errors,
    set_resume_hint,
    write_failures_and_exit,
)
from .image_options import PixelInputOptions, parse_pairs
from .options import MODEL, ExecutionCliOptions, JsonOption, ResultsOutput

if TYPE_CHECKING:
    from ..models.feature_extraction import ExtractionResult


def features(
    *,
    output: ResultsOutput,
    encoder: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Encoder, such as efficientnet-lite0 or timm:NAME@FILE (model NAME of the library "
            "timm, with weights in FILE). Or, instead of an encoder, pixel values: rgb (as they "
            "are), centred (minus the mean of the patch) or channel-centred (minus the mean of "
            "each colour channel).",
            rich_help_panel=MODEL,
        ),
    ] = "efficientnet-lite0",
    setting_overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Change a setting of the patches, such as stain=macenko, downsample=2 or "
            "patch_px=64. Can be repeated.",
            rich_help_panel=MODEL,
        ),
    ] = None,
    images: PixelInputOptions,
    execution: ExecutionCliOptions,
    as_json: JsonOption = False,
) -> None:
    """Write one feature file (.h5) per image, as the program TRIDENT does.

        histodict features slides/ --output features/

    Other commands read these files with --features. The layout of the HDF5 files is that of
    TRIDENT (https://github.com/mahmoodlab/TRIDENT). If a run was interrupted, run the same
    command again: finished files are skipped. Images that cannot be read are listed in
    failures.csv; the exit status is then 1.
    """
    from ..encoders import check_installed
    from ..models.feature_extraction import extract_features, extraction_recipe

    with report_errors():
        import_optional("h5py", "features", "writing feature files")
        check_installed(encoder)
        check_writable_folder(output)
        recipe = extraction_recipe(encoder, parse_pairs("--set", setting_overrides))
        records = images.list_images()
        set_resume_hint("finished files")
        with execution.start() as resources:
            result = extract_features(
                recipe,
                records,
                output,
                mpp=images.pixel_size,
                n_jobs=execution.jobs,
                callback=resources.callback,
                executor=resources.executor,
            )
    _print_result(result, output, as_json)


def _print_result(result: ExtractionResult, output: Path, as_json: bool) -> None:
    if as_json:
        failures = failure_rows(result.failures)
        files = [printable(str(file)) for file in result.files]
        print_json({"files": files, "n_skipped": result.n_skipped, "failures": failures})
    else:
        skipped = f" ({result.n_skipped} already finished)" if result.n_skipped else ""
        where = f" in {result.files[0].parent}" if result.files else ""
        typer.echo(f"{pluralize(len(result.files), 'feature file')}{where}{skipped}")
    write_failures_and_exit(result.failures, output)
