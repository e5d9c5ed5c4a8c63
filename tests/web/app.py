"""The web application in this process on a small synthetic set; nothing is trained by default."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

OWN = {"x-histodict": "1"}
ADDRESS = "http://127.0.0.1:8642"
TINY = {"n_atoms": "12", "n_iter": "2", "patches_per_class": "150", "patch_px": "12"}


def open_client(folders: list[Path], workspace: Path, **options: Any) -> Any:
    """Return a client that has followed the link of the first user."""
    from starlette.testclient import TestClient

    from histodict.web.server import make_app

    client = TestClient(make_app(folders, workspace, **options), base_url=ADDRESS)
    sign_in(client, client.app.state.users[0])
    return client


def sign_in(client: Any, user: Any) -> None:
    client.cookies.clear()
    assert client.get(f"/?token={user.token()}").status_code == 200


def open_data(client: Any, inside: str = "tissue") -> str:
    response = client.post(
        "/api/data", json={"folder_index": 0, "relative_path": inside}, headers=OWN
    )
    assert response.status_code == 200, response.text
    found: str = response.json()["id"]
    return found


def start(client: Any, data: str, **requested: Any) -> str:
    body = {"data": data, "preset": "quick", "settings": TINY, "test_folds": 2} | requested
    response = client.post("/api/jobs", json=body, headers=OWN)
    assert response.status_code == 200, response.text
    found: str = response.json()["id"]
    return found


def job_of(client: Any, job: str) -> Any:
    """Return the stored job."""
    from histodict.web.jobs import Job

    (folder,) = client.app.state.context.workspace.glob(f"users/*/jobs/{job}")
    return Job(folder)


def run_job(client: Any, job: str) -> None:
    """Run a job in this process; it must not be in a queue that runs.

    The queue of a client runs between `__enter__` and `__exit__`.
    """
    from histodict.web.jobs import DONE, RUNNING
    from histodict.web.worker import JOB_FUNCTIONS, make_progress_callback

    found = job_of(client, job)
    run = found.state()["run"] + 1
    found.set_state(RUNNING, run)
    JOB_FUNCTIONS[found.request["kind"]](found, make_progress_callback(found))
    found.end_run(run, DONE)


def count_calls(monkeypatch: Any, home: Any, name: str) -> list[Any]:
    """Return a list that grows by one with every call of a function of a module."""
    calls: list[Any] = []
    function = getattr(home, name)

    def counted(*args: Any, **named: Any) -> Any:
        calls.append(args)
        return function(*args, **named)

    monkeypatch.setattr(home, name, counted)
    return calls


def wait_for(client: Any, job: str, *states: str, seconds: float = 300) -> dict[str, Any]:
    """Return the job once it is in one of the states."""
    for _ in range(int(seconds * 20)):
        found: dict[str, Any] = client.get(f"/api/jobs/{job}").json()
        if found["state"] in states:
            return found
        time.sleep(0.05)
    raise AssertionError(f"the job is {found['state']}, not {states}: {found['error']}")
