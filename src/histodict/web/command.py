"""What `histodict serve` runs; says what to install where the web app's packages are missing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def serve_app(
    folders: Sequence[Path],
    *,
    workspace: Path,
    host: str,
    port: int,
    users: Sequence[str],
    demo: bool,
    browser: bool,
) -> None:
    """Serve the app over these data folders until it is interrupted; see `server.serve`."""
    try:
        from .server import serve
    except ImportError as error:
        raise ValueError(
            f"the web app needs a package that is not installed ({error.name}): "
            "pip install 'histodict[web]'"
        ) from error
    serve(
        folders,
        workspace=workspace,
        host=host,
        port=port,
        users=users,
        demo=demo,
        browser=browser,
    )
