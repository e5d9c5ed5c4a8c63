"""A server in a thread of this process, which starts in a tenth of the time of a process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.web.browser import Server


@contextmanager
def serve_in_thread(
    workspace: Path, folders: list[Path], keep_alive: int = 5, demo: bool = False, **names: Any
) -> Iterator[Server]:
    """Run `serve` in a thread.

    Parameters
    ----------
    keep_alive : seconds until a connection without requests is closed
    demo : whether to offer the synthetic data set
    **names : values of names of the module `server` while it runs
    """
    import uvicorn

    from histodict.web import server

    found = Server(workspace, folders)  # sends requests; its process is not started
    running: list[Any] = []

    class Recorded(server._Server):
        def __init__(self, config: Any) -> None:
            config.timeout_keep_alive = keep_alive
            super().__init__(config)
            running.append(self)

        async def shutdown(self, sockets: Any = None) -> None:
            await uvicorn.Server.shutdown(self, sockets)  # which does not end the process

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "_Server", Recorded)
        patch.setattr(server, "_configure_process", lambda: None)  # they would remain limited
        for name, value in names.items():
            patch.setattr(server, name, value)
        options = {"workspace": workspace, "port": found.port, "browser": False, "demo": demo}
        thread = threading.Thread(target=server.serve, args=[folders], kwargs=options, daemon=True)
        thread.start()
        while not (running and running[0].started):
            assert thread.is_alive(), "the server ended at once"
            time.sleep(0.01)
        try:
            yield found
        finally:
            running[0].should_exit = True
            thread.join(60)
    assert not thread.is_alive()
