"""Import the modules and load the compiled kernels that servers and workers use.

`fork_server` imports this module once, in the process from which it forks.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from histodict.synthetic.dataset import write_synthetic_dataset
from histodict.web import jobs, worker
from tests.web.app import open_client, open_data, start


def train_and_predict(folder: Path) -> None:
    """Run a small training and request its pages, in this process."""
    write_synthetic_dataset(folder / "tissue", 4, 2, size=(96, 72))
    client = open_client([folder], folder / "workspace")  # not entered: the queue does not start
    data = open_data(client)
    job = jobs.Job(folder / "workspace/users/local/jobs" / start(client, data))
    job.set_state(jobs.RUNNING, 1)
    worker.JOB_FUNCTIONS["train"](job, lambda progress: None)
    job.set_state(jobs.DONE, 1)
    image = client.get(f"/api/data/{data}").json()["images"][0]["id"]
    for page in ("model", "report.html", f"look/{data}/{image}", f"look/{data}/{image}/map.png"):
        client.get(f"/api/jobs/{job.id}/{page}")


with TemporaryDirectory() as name:
    train_and_predict(Path(name))
