"""Training jobs in their own process: completed, cancelled, killed, and over server restarts."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from .conftest import MISSING

pytest.importorskip("starlette.testclient", reason=MISSING)
pytest.importorskip("uvicorn", reason=MISSING)

from histodict.models import recipe as presets
from histodict.web import jobs as queue_module
from histodict.web import worker
from tests.web.app import OWN, open_client, open_data, run_job, start, wait_for


@pytest.fixture
def client(tissue, tmp_path):
    with open_client([tissue], tmp_path) as client:
        yield client


@pytest.fixture
def idle_client(tissue, tmp_path):
    """A client whose queue does not run."""
    return open_client([tissue], tmp_path)


@pytest.fixture
def endless_worker(monkeypatch):
    """Make jobs endless; they report one iteration."""
    root = str(Path(__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr(queue_module, "_WORKER_MODULE", "tests.web.endless_worker")


def test_training_reports_every_stage_and_leaves_results(client):
    job = start(client, open_data(client))
    found = wait_for(client, job, "done", "failed")
    assert found["state"] == "done", found["error"]
    stages = found["progress"]["stages"]
    names = {"read", "patches", "initialise", "train", "decision", "gallery", "predict"}
    assert set(stages) == names
    assert all(done == total for done, total in stages.values())
    assert [len(values) for values in found["progress"]["objective"]] == [2, 2]
    model = client.get(f"/api/jobs/{job}/model").json()
    tested = {row["patient"] for row in model["results"]["images"]}
    assert tested == set(model["test_patients"]) and len(tested) == 2
    assert all(row["label"] in model["classes"] for row in model["results"]["images"])
    report = client.get(f"/api/jobs/{job}/report.html").text
    assert "Atoms of inflamed" in report and '<div class="atom-users"' in report


def test_invalid_training_is_refused_at_once(idle_client):
    client = idle_client
    data = open_data(client)
    for requested, text in (
        ({"settings": {"n_atoms": "many"}}, "n_atoms"),
        ({"settings": {"colour": "red"}}, "unknown setting"),
        ({"test_folds": 7}, "test_folds"),
        ({"regions": "bone"}, "bone"),
        ({"method": "magic"}, "method"),
        ({"preset": "paper", "settings": {"features": "timm:x@/etc/passwd"}}, "command line"),
    ):
        response = client.post("/api/jobs", json={"data": data, **requested}, headers=OWN)
        assert response.status_code == 400 and text in response.json()["error"]


def pid_of(folder) -> int:
    """Return the process that works on a job."""
    return int((folder / "worker.lock").read_text())


def is_running(pid: int) -> bool:
    text = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    state = text.stdout.strip()
    return bool(state) and not state.startswith("Z")  # a zombie has ended


def wait_for_rounds(client, job):
    for _ in range(2400):
        if client.get(f"/api/jobs/{job}").json()["progress"]["objective"]:
            return
        time.sleep(0.05)
    raise AssertionError("learning did not begin")


@pytest.mark.skipif(sys.platform == "win32", reason="signals and ps are not Windows'")
def test_training_is_cancelled_killed_and_resumed(tissue, tmp_path, endless_worker):
    """One long training is killed, resumed, ended with the server, and resumed by the next."""
    with open_client([tissue], tmp_path) as client:
        data = open_data(client)
        job = start(client, data)
        behind = start(client, data, seed=1)
        folder = tmp_path / "users" / "local" / "jobs" / job
        wait_for_rounds(client, job)
        assert client.get(f"/api/jobs/{behind}").json()["ahead"] == 1
        client.post(f"/api/jobs/{behind}/cancel", headers=OWN)

        os.kill(pid_of(folder), signal.SIGKILL)
        found = wait_for(client, job, "failed")
        assert "ended unexpectedly (signal 9" in found["error"]
        assert "All finished steps are stored" in found["error"]
        assert client.get(f"/api/data/{data}").status_code == 200

        client.post(f"/api/jobs/{job}/resume", headers=OWN)
        wait_for(client, job, "running")
        wait_for_rounds(client, job)
        pid = pid_of(folder)
    assert not is_running(pid)

    with open_client([tissue], tmp_path) as client:
        wait_for(client, job, "running")
        wait_for_rounds(client, job)
        assert pid_of(folder) != pid
        pid = pid_of(folder)
        client.post(f"/api/jobs/{job}/cancel", headers=OWN)
        assert client.get(f"/api/jobs/{job}").json()["state"] == "cancelled"
        for _ in range(100):
            if not is_running(pid):
                break
            time.sleep(0.1)
        assert not is_running(pid)
        assert client.get(f"/api/jobs/{behind}").json()["state"] == "cancelled"


def test_cancelling_does_not_wait_for_a_slow_worker(client, monkeypatch, endless_worker):
    """On busy cores a killed process of lowest priority needs a while to end."""
    job = start(client, open_data(client))
    wait_for_rounds(client, job)
    queue = client.app.state.context.queue
    process = queue._processes[job]
    with monkeypatch.context() as slow:
        slow.setattr(process, "poll", lambda: None)
        slow.setattr(process, "wait", lambda: pytest.fail("somebody waits for it"))
        client.post(f"/api/jobs/{job}/cancel", headers=OWN)
        assert client.get(f"/api/jobs/{job}").json()["state"] == "cancelled"
        client.post(f"/api/jobs/{job}/resume", headers=OWN)
        queue._update_jobs()
        assert client.get(f"/api/jobs/{job}").json()["state"] == "waiting"  # one at a time
    wait_for(client, job, "running")
    wait_for_rounds(client, job)
    client.post(f"/api/jobs/{job}/cancel", headers=OWN)


def test_vanished_worker_counts_as_interrupted(tissue, tmp_path, endless_worker):
    """It holds no lock; while a worker of an earlier server holds it, the job waits."""
    from histodict.web.jobs import RUNNING, Job

    client = open_client([tissue], tmp_path)
    data = open_data(client)
    job = start(client, data)
    folder = tmp_path / "users" / "local" / "jobs" / job
    Job(folder).set_state(RUNNING, 3)
    with open_client([tissue], tmp_path) as client:
        with Job(folder).try_lock() as is_free:
            assert is_free
            other = start(client, data, seed=1)
            client.app.state.context.queue._update_jobs()
            states = [client.get(f"/api/jobs/{each}").json()["state"] for each in (job, other)]
            assert states == ["running", "waiting"]
            client.post(f"/api/jobs/{other}/cancel", headers=OWN)
        found = wait_for(client, job, "interrupted", seconds=10)
        assert "interrupted" in found["error"]
        client.post(f"/api/jobs/{job}/resume", headers=OWN)
        wait_for(client, job, "running")
        assert Job(folder).state()["run"] == 4


def test_large_image_is_computed_in_the_background_on_request(idle_client, monkeypatch):
    from histodict.web.api import viewer

    client = idle_client
    data = open_data(client)
    job = start(client, data, test_folds=0)
    run_job(client, job)
    image = client.get(f"/api/data/{data}").json()["images"][0]["id"]
    address = f"/api/jobs/{job}/look/{data}/{image}"
    monkeypatch.setattr(viewer, "_MAX_IMMEDIATE_PIXELS", 0)
    assert client.get(address).json()["state"] == "not_requested"
    assert client.get("/api/jobs").json()["maps"] == []
    first = client.post(address, headers=OWN).json()
    assert first["state"] == "waiting"
    # requested twice, computed once
    assert client.post(address, headers=OWN).json()["job"] == first["job"]
    (listed,) = client.get("/api/jobs").json()["maps"]
    assert [listed[name] for name in ("id", "data", "image", "model")] == [
        first["job"],
        data,
        image,
        job,
    ]
    run_job(client, first["job"])
    assert client.get(address).json()["grid"]["n_rows"] == 10
    found = client.get("/api/jobs").json()
    assert [entry["id"] for entry in found["jobs"]] == [job] and found["maps"] == []
    client.post(f"/api/jobs/{job}/delete", headers=OWN).raise_for_status()
    assert client.get(f"/api/jobs/{first['job']}").status_code == 404  # with the maps of its model


def test_trainings_come_before_maps(tmp_path, monkeypatch):
    """Whatever came first; running jobs are ahead of both."""
    from histodict.web.jobs import RUNNING, JobQueue, new_job
    from histodict.web.workspace import UserWorkspace

    user = UserWorkspace.open(tmp_path, "ann")
    common = {"name": "n", "data": "d", "root": "", "model": "", "folder": ""}
    training = {"recipe": {}, "seed": 0, "n_images": 0, "test_patients": [], "corrections": []}
    training["n_shapes"] = 0
    maps = [
        new_job(user, common | {"kind": "map", "records": [{"path": str(n)}]}) for n in range(2)
    ]
    trainings = [
        new_job(user, common | training | {"kind": "train", "records": [], "regions": None})
        for _ in range(2)
    ]
    queue, launched = JobQueue(), []
    monkeypatch.setattr(queue, "_launch", lambda job: launched.append(job.id))
    for job in (*maps, *trainings):
        queue.add(job)
    queue._update_jobs()
    assert launched == [trainings[0].id]
    assert [queue.count_ahead(job) for job in (*maps, *trainings)] == [2, 3, 0, 1]
    maps[1].set_state(RUNNING, 1)
    assert [queue.count_ahead(job) for job in (*maps, *trainings)] == [3, 0, 1, 2]


def test_default_for_regions_is_reported_with_its_reason(idle_client, monkeypatch):
    client = idle_client
    for missing, preset in ((None, "embeddings"), ("torch", "regions")):
        monkeypatch.setattr(presets, "missing_dependency", lambda name, missing=missing: missing)
        reported = client.get("/api/choices").json()["for_regions"]
        assert reported["preset"] == preset and "installed" in reported["why"]
    monkeypatch.setattr(presets, "missing_dependency", lambda name: None)
    reported = client.get("/api/choices?method=shirc").json()["for_regions"]
    assert reported == {"preset": "regions", "why": "shirc codes colour channels"}
    for more, neighbours in (("", 0), ("&regions=1", 2)):
        found = client.get("/api/choices?preset=embeddings" + more).json()["recipe"]
        assert found["smoothing_radius"] == neighbours


def test_regions_are_trained_on_masks(idle_client):
    client = idle_client
    data = open_data(client, "tissue/regions")
    job = start(client, data, preset="regions", regions="inflamed", test_folds=0)
    run_job(client, job)
    images = client.get(f"/api/data/{data}").json()["images"]
    address = f"/api/jobs/{job}/look/{data}/{images[0]['id']}"
    response = client.get(address).json()
    assert response["state"] == "done" and response["grid"]["n_rows"] > 3
    rings = client.get(f"{address}/outlines?min_patches=1").json()["rings"]
    assert all(ring[:2] == ring[-2:] for ring in rings)
    assert client.get(f"{address}/outlines?class=9").status_code == 404


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("content", [b"", b"{}", b"no JSON"])
def test_damaged_files_of_a_job_stop_nobody(tissue, tmp_path, content):
    """A job with a lost request is skipped; one with a lost state can be resumed."""
    client = open_client([tissue], tmp_path)
    data = open_data(client)
    jobs = [start(client, data, seed=seed) for seed in range(2)]
    for job in jobs:
        client.post(f"/api/jobs/{job}/cancel", headers=OWN)
    folder = tmp_path / "users" / "local" / "jobs"
    (folder / jobs[0] / "job.json").write_bytes(content)
    for name in ("state.json", "model.histodict", "gallery.npz", "results.json"):
        (folder / jobs[1] / name).write_bytes(content)
    with open_client([tissue], tmp_path) as client:
        (found,) = client.get("/api/jobs").json()["jobs"]
        assert (found["id"], found["state"]) == (jobs[1], "failed")
    if content == b"{}":
        client.post(f"/api/jobs/{jobs[1]}/resume", headers=OWN).raise_for_status()
        with pytest.warns(match=r"model\.histodict.* The model is trained again"):
            run_job(client, jobs[1])
        assert client.get(f"/api/jobs/{jobs[1]}").json()["state"] == "done"
        assert client.get(f"/api/jobs/{jobs[1]}/model").json()["results"]["images"]


def test_new_job_is_a_single_file(tmp_path):
    """Each file syncs the disk twice, which delays the response to the user."""
    from histodict.web import jobs
    from histodict.web.workspace import UserWorkspace

    user = UserWorkspace.open(tmp_path, "ann")
    job = jobs.new_job(user, {"kind": "map"})
    assert [path.name for path in job.folder.iterdir()] == ["job.json"]
    assert (job.state()["state"], job.state()["run"], job.state()["error"]) == ("waiting", 0, "")
    job.set_state(jobs.CANCELLED, 0)
    assert job.state()["state"] == jobs.CANCELLED


def test_job_that_could_not_be_written_leaves_nothing(tmp_path, monkeypatch):
    from histodict.web import jobs
    from histodict.web.workspace import UserWorkspace

    write = jobs.write_checked_json

    def full(path, content):
        if path.name == "job.json":
            raise OSError(28, "No space left on device", str(path))
        write(path, content)

    monkeypatch.setattr(jobs, "write_checked_json", full)
    user = UserWorkspace.open(tmp_path, "ann")
    with pytest.raises(OSError, match="No space left"):
        jobs.new_job(user, {})
    assert list((user.folder / "jobs").iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "nice"), reason="Windows has no such priorities")
def test_job_has_a_lower_priority_than_the_server(tmp_path, monkeypatch):
    added = []
    monkeypatch.setattr(os, "nice", added.append)
    monkeypatch.setattr(worker, "make_progress_callback", lambda job: None)
    monkeypatch.setitem(worker.JOB_FUNCTIONS, "empty", lambda job, callback: None)
    job = SimpleNamespace(
        request={"kind": "empty"},
        state=lambda: {"state": "running", "run": 1},
        end_run=lambda *state: None,
    )
    assert worker._run_job(job, 1) == 0 and added == [10]


def test_training_with_a_lost_state_is_not_restarted_automatically(tmp_path):
    from histodict.web.jobs import FAILED, WAITING, Job

    job = Job(tmp_path)
    assert job.state()["state"] == WAITING
    job.model_file.touch()
    found = job.state()
    assert found["state"] == FAILED and "resume the training" in found["error"]


@pytest.mark.parametrize(
    ("name", "value"), [("n_atoms", "9" * 30), ("patches_per_class", "-1e99"), ("n_iter", "1e10")]
)
def test_extreme_numbers_are_refused(idle_client, name, value):
    body = {"data": open_data(idle_client), "preset": "quick", "settings": {name: value}}
    response = idle_client.post("/api/jobs", json=body, headers=OWN)
    assert response.status_code == 400 and name in response.json()["error"]


def test_identical_training_runs_once(idle_client):
    client = idle_client
    data = open_data(client)
    job = start(client, data)
    assert start(client, data) == job
    assert start(client, data, seed=1) != job
    response = client.post(f"/api/jobs/{job}/delete", headers=OWN)
    assert response.status_code == 400 and "cancel it first" in response.json()["error"]
    for entry in client.get("/api/jobs").json()["jobs"]:
        client.post(f"/api/jobs/{entry['id']}/cancel", headers=OWN)
    for name in ("", " \n", "x" * 81, None):
        response = client.post(f"/api/jobs/{job}/rename", json={"name": name}, headers=OWN)
        assert response.status_code == 400
    client.post(f"/api/jobs/{job}/rename", json={"name": " a  b "}, headers=OWN)
    assert client.get(f"/api/jobs/{job}").json()["name"] == "a b"
    # the first one was cancelled: this is a new one
    assert start(client, data) != job
