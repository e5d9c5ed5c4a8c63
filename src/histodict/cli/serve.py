"""Commands `demo` (demonstration page) and `serve` (web app)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..utils.files import check_disk_space, check_writable_folder
from ..utils.progress import Progress
from ..utils.text_io import pluralize
from ..utils.validation import missing_module_message
from .console import progress_bars, report_errors
from .options import ADVANCED, INPUT, OUTPUT, ResultsOutput

_DEMO_BYTES = 20 * 2**20  # approximate size of the files of a demonstration


def demo(
    output: ResultsOutput = Path("histodict-demo"),
    seed: Annotated[
        int, typer.Option(help="Random seed of the images.", rich_help_panel=ADVANCED)
    ] = 0,
    draw: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Only write synthetic images to a new folder, to try the other commands.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
) -> None:
    """Train and test on synthetic tissue, and write an HTML page. Needs no data.

    histodict demo

    histodict demo --draw tissue
    """
    if draw is not None:
        _write_demo_images(draw, seed)
        return
    from ..models import save_model
    from ..synthetic.demo import run_demo, write_demo_page

    page = output / "index.html"
    with report_errors():
        check_writable_folder(output)
        check_disk_space(output, _DEMO_BYTES)
        output.mkdir(parents=True, exist_ok=True)
        with progress_bars() as callback:
            result = run_demo(output, seed=seed, callback=callback)
        write_demo_page(page, result)
        save_model(result.model, output / "demo.histodict")
    typer.echo(
        f"Balanced accuracy on unseen patients: {result.balanced_accuracy:.2f} "
        f"({pluralize(int(result.confusion.sum()), 'image')} of "
        f"{pluralize(result.n_patients, 'patient')}). Open {page}"
    )


def _write_demo_images(folder: Path, seed: int) -> None:
    """Write the images of the demonstration to a new folder, and print the paths of its tables."""
    from ..datasets.manifest import read_manifest
    from ..synthetic.demo import write_demo_images

    with report_errors():
        check_writable_folder(folder)
        check_disk_space(folder, _DEMO_BYTES)
        tables = [parent / "manifest.csv" for parent in (folder, folder / "regions")]
        with progress_bars() as callback:
            callback(Progress("draw", 0, 1))
            write_demo_images(folder, seed=seed)
        images, region_images = (read_manifest(table) for table in tables)
    n_patients = len(set(images.patients))
    names = " / ".join(images.classes)
    typer.echo(f"{len(images.records)} images of {n_patients} patients, {names}: {tables[0]}")
    typer.echo(
        f"{len(region_images.records)} larger images with masks of inflamed regions: {tables[1]}"
    )


def serve(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FOLDERS", help="Folders with images. Default: the current folder."),
    ] = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="Use synthetic tissue.", rich_help_panel=INPUT)
    ] = False,
    workspace: Annotated[
        Path,
        typer.Option(help="Folder for models, results and corrections.", rich_help_panel=OUTPUT),
    ] = Path("histodict-web"),
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on. With an address other than 127.0.0.1, other computers can "
            "reach the page; visitors need the link with the secret token that the command prints.",
            rich_help_panel=ADVANCED,
        ),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", rich_help_panel=ADVANCED)] = 8642,
    user: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Name of a user with a separate link and workspace. Can be repeated.",
            rich_help_panel=ADVANCED,
        ),
    ] = None,
    browser: Annotated[
        bool, typer.Option(help="Open the page in a browser.", rich_help_panel=OUTPUT)
    ] = True,
) -> None:
    """Start a local web page to inspect images, train, correct labels, train again.

        histodict serve tissue/

    The images stay on this computer.
    """
    with report_errors():
        try:
            from ..web.server import serve as serve_app
        except ImportError as error:
            module = error.name or str(error)
            raise ValueError(missing_module_message(module, "web", "the web page")) from error
        serve_app(
            folders or [],
            workspace=workspace,
            host=host,
            port=port,
            users=user or [],
            demo=demo,
            browser=browser,
        )
