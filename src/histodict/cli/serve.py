"""Commands `demo` (demonstration page) and `serve` (web app)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..utils.files import check_disk_space, check_writable_folder
from ..utils.progress import Progress
from .console import progress_bars, report_errors
from .options import FolderOutput

_DEMO_BYTES = 20 * 2**20


def demo(
    output: FolderOutput = Path("histodict-demo"),
    seed: Annotated[int, typer.Option(help="Draw another set of patients.")] = 0,
    draw: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Draw tissue into a new folder, to try the other commands with, and no more.",
        ),
    ] = None,
) -> None:
    """Draw tissue, learn from some patients, answer for others, and make a page of it.

    Needs no data and no network.
    """
    if draw is not None:
        _draw(draw, seed)
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
        f"({int(result.confusion.sum())} images). Open {page}"
    )


def _draw(folder: Path, seed: int) -> None:
    """Draw the images of the demonstration into a folder."""
    from ..datasets.manifest import read_manifest
    from ..synthetic.demo import draw_demo

    with report_errors():
        check_writable_folder(folder)
        check_disk_space(folder, _DEMO_BYTES)
        tables = [parent / "manifest.csv" for parent in (folder, folder / "regions")]
        with progress_bars() as callback:
            callback(Progress("draw", 0, 1))
            draw_demo(folder, seed=seed)
        images, region_images = (read_manifest(table) for table in tables)
    n_patients = len(set(images.patients))
    names = " / ".join(images.classes)
    typer.echo(f"{len(images.records)} images of {n_patients} patients, {names}: {tables[0]}")
    typer.echo(
        f"{len(region_images.records)} larger ones with masks of what is inflamed: {tables[1]}"
    )


def serve(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(help="Folders whose images may be read; the current one if none."),
    ] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Drawn tissue; needs no data.")] = False,
    workspace: Annotated[
        Path, typer.Option(help="Folder for models, results and corrections.")
    ] = Path("histodict-web"),
    host: Annotated[
        str, typer.Option(help="Another address than this machine's own asks for a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen at.")] = 8642,
    user: Annotated[
        list[str] | None,
        typer.Option(help="A user with a link and space of their own. May be repeated."),
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open the page at once.")] = True,
) -> None:
    """Open the local web app: look, train, correct, retrain."""
    with report_errors():
        try:
            from ..web.server import serve as serve_app
        except ImportError as error:
            raise ValueError(
                f"the web app needs a package that is not installed ({error.name}): "
                "pip install 'histodict[web]'"
            ) from error
        serve_app(
            folders or [],
            workspace=workspace,
            host=host,
            port=port,
            users=user or [],
            demo=demo,
            browser=browser,
        )
