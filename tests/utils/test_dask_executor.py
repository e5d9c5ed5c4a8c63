"""Tests of work on a Dask cluster: same bits as with threads, even if workers are killed."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from typer.testing import CliRunner

from histodict.batch import predict_images
from histodict.cli import app
from histodict.datasets.manifest import ImageRecord, read_manifest
from histodict.evaluation import run_evaluation
from histodict.methods import class_dictionaries as labelled_blocks
from histodict.methods.dfdl import DFDL
from histodict.models import Plan, TissueClassifier
from histodict.models.recipe import Recipe, preset
from histodict.synthetic.dataset import write_synthetic_dataset
from histodict.utils import dask_executor as cluster_module
from histodict.utils.dask_executor import ClusterExecutor, open_cluster
from histodict.utils.parallel import ClusterError, ExecutionOptions

FAST = Recipe(
    method_parameters={"n_atoms": 8, "n_iter": 2, "tol": 0.0},
    patch_px=16,
    patches_per_class=300,
    features="centred",
    aggregation="margin",
)
needs_dask = pytest.mark.skipif(
    importlib.util.find_spec("distributed") is None,
    reason="distributed is not installed: pip install '.[cluster]'",
)


@pytest.fixture(scope="module")
def cluster():
    import dask
    import distributed  # noqa: F401 (its defaults must be there before one is set)

    # By default an item is suspended only after it has ended four workers, which takes a while.
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        open_cluster("local:2") as cluster,
    ):
        yield cluster


@pytest.fixture(scope="module")
def tissue(tmp_path_factory):
    return write_synthetic_dataset(tmp_path_factory.mktemp("set") / "tissue", 3, 2, size=(160, 120))


@pytest.fixture(scope="module")
def model(tissue):
    return TissueClassifier(FAST, random_state=1).fit(read_manifest(tissue))


def _nanny_status(dask_worker) -> str:
    """Return the status of the process that starts and restarts a worker."""
    return dask_worker.status.name


def kill_a_worker(cluster: ClusterExecutor) -> None:
    # A worker that has just replaced a killed one must be ready: a worker that ends while it starts
    # is not restarted.
    cluster.client.wait_for_workers(2, timeout=60)
    deadline = time.monotonic() + 60
    while set(cluster.client.run(_nanny_status, nanny=True).values()) != {"running"}:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    pid = next(iter(cluster.client.run(os.getpid).values()))
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 20
    while len(cluster.client.nthreads()) == 2 and time.monotonic() < deadline:
        time.sleep(0.01)  # until the scheduler has removed the worker or has its replacement


def files_of(folder):
    return sorted(
        p.relative_to(folder)
        for p in folder.rglob("*")
        if p.is_file() and p.parent.name != "done" and not p.name.startswith(".")
    )


def assert_same_files(one, two):
    assert files_of(one) == files_of(two)
    for name in files_of(one):
        if name.suffix == ".npz":
            with np.load(one / name) as a, np.load(two / name) as b:
                assert all(np.array_equal(a[key], b[key]) for key in (*a, *b))
        else:
            assert (one / name).read_bytes() == (two / name).read_bytes(), name


def two_classes(rng, n=1300, d=20):
    X = rng.standard_normal((n, d)).astype(np.float32)
    y = rng.integers(0, 2, n)
    X[y == 1, : d // 2] *= 3
    return X / np.linalg.norm(X, axis=1, keepdims=True), y


# ---------------------------------------------------------------- map


@needs_dask
def test_slowly_restarting_worker_keeps_its_place():
    import dask
    import distributed  # noqa: F401 (its defaults must be there before one is set)

    with (
        dask.config.set({"distributed.deploy.lost-worker-timeout": "1ms"}),
        open_cluster("local:1") as cluster,
    ):
        (pid,) = cluster.client.run(os.getpid).values()
        os.kill(pid, signal.SIGKILL)
        assert list(cluster.map(lambda _: os.getpid(), range(3))) != [pid] * 3


@needs_dask
def test_results_are_ordered_and_errors_are_raised(cluster):
    def work(x):
        time.sleep(0.05 if x == 0 else 0)
        if x == 29:
            raise KeyError("item 29")
        return x * x

    assert list(cluster.map(work, range(20))) == [x * x for x in range(20)]
    results = cluster.map(work, range(15, 40))
    assert [next(results) for _ in range(14)] == [x * x for x in range(15, 29)]
    with pytest.raises(KeyError, match="item 29"):
        next(results)


@needs_dask
def test_items_are_consumed_only_as_needed(cluster):
    taken = 0

    def items():
        nonlocal taken
        for x in range(200):
            taken += 1
            yield x

    results = cluster.map(lambda x: x, items())
    next(results)
    assert taken <= 8 * 2 + 1
    results.close()


@needs_dask
def test_dying_worker_only_repeats_its_own_items(cluster, tmp_path):
    def work(x):
        with (tmp_path / f"{x}").open("a") as file:
            file.write("x")
        if x == 3 and (tmp_path / "3").read_text() == "x":
            os.kill(os.getpid(), signal.SIGKILL)
        return x

    assert list(cluster.map(work, range(12))) == list(range(12))
    runs = [len((tmp_path / f"{x}").read_text()) for x in range(12)]
    assert runs[3] == 2
    assert sum(runs) <= 12 + 8  # plus the results of that worker that were not yet collected


@needs_dask
def test_item_that_always_kills_its_worker_is_reported(cluster):
    def work(x):
        if x == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return str(x)

    results = list(cluster.map(work, range(4), on_worker_death=lambda error: f"lost: {error}"))
    assert results[:1] + results[2:] == ["0", "2", "3"]
    assert "the worker process ended each time" in results[1]
    with pytest.raises(ClusterError, match="more memory"):
        list(cluster.map(work, range(1, 4)))


# ---------------------------------------------------------------- security


def listening_ports(pids):
    """Return the TCP ports on which these processes listen."""
    lines = [
        line.split()
        for kind in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]
    ]
    ports = {line[9]: int(line[1].split(":")[1], 16) for line in lines if line[3] == "0A"}
    opened = []
    for file in (file for pid in pids for file in Path(f"/proc/{pid}/fd").iterdir()):
        with suppress(FileNotFoundError):  # the connection was closed in the meantime
            opened.append(os.readlink(file))
    return {ports[name[8:-1]] for name in opened if name[8:-1] in ports}


@needs_dask
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_local_cluster_refuses_foreign_clients():
    """Clients without a certificate, or with another one, are refused at every open port."""
    import distributed
    from distributed.security import Security

    before = listening_ports([os.getpid()])
    with open_cluster("local:1") as cluster:
        workers = cluster.client.scheduler_info()["workers"]
        pids = cluster.client.run(os.getpid).values()
        ports = listening_ports([os.getpid(), *pids]) - before
        addresses = [
            cluster.client.scheduler.address,
            *workers,
            *(w["nanny"] for w in workers.values()),
        ]
        assert ports == {int(address.rpartition(":")[2]) for address in addresses}
        for port in ports:
            for kind, security in (("tcp", None), ("tls", Security.temporary())):
                with (
                    pytest.raises(OSError),
                    distributed.Client(f"{kind}://127.0.0.1:{port}", security=security, timeout=1),
                ):
                    pass
            plain = ssl.create_default_context()
            plain.check_hostname, plain.verify_mode = False, ssl.CERT_NONE
            with (
                # the server receives no certificate and closes the connection
                pytest.raises(OSError),
                socket.create_connection(("127.0.0.1", port), timeout=5) as connection,
                plain.wrap_socket(connection) as secured,
            ):
                assert secured.recv(1) == b"", "it speaks to anybody"
                raise ConnectionError
        assert list(cluster.map(str, [1])) == ["1"]


@needs_dask
def test_worker_that_ends_during_start_is_reported(monkeypatch):
    import distributed

    class NoNanny(distributed.Nanny):
        async def start_unsafe(self):
            raise OSError("killed")

    monkeypatch.setattr(distributed, "Nanny", NoNanny)
    with pytest.raises(ClusterError, match="ended during startup"), open_cluster("local:1"):
        pass


# ---------------------------------------------------------------- training


@needs_dask
@pytest.mark.parametrize("most_units", [256, 2])
def test_training_gives_the_same_bits(cluster, rng, monkeypatch, most_units):
    monkeypatch.setattr(labelled_blocks, "_MAX_GROUPS", most_units)
    monkeypatch.setattr(labelled_blocks, "BLOCK_ROWS", 128)
    X, y = two_classes(rng)
    blocks = [(X[i : i + 128], y[i : i + 128]) for i in range(0, len(X), 128)]

    def new():
        return DFDL(6, n_iter=2, random_state=0)

    expected = new().fit_blocks(blocks)
    found = new().fit_blocks(blocks, executor=cluster)
    np.testing.assert_array_equal(found.dictionaries_, expected.dictionaries_)
    np.testing.assert_array_equal(found.objective_, expected.objective_)
    expected_ports = new().fit(X, y, executor=cluster)
    np.testing.assert_array_equal(expected_ports.dictionaries_, new().fit(X, y).dictionaries_)


@needs_dask
def test_killed_worker_does_not_change_training(cluster, rng):
    X, y = two_classes(rng)
    options = {"n_iter": 5, "tol": 0.0, "random_state": 0}
    expected = DFDL(8, **options).fit(X, y)
    reported = []

    def kill_after_the_second(progress):
        if progress.stage == "train":
            reported.append(progress.done)
            if progress.done == 2:
                kill_a_worker(cluster)

    found = DFDL(8, **options).fit(X, y, callback=kill_after_the_second, executor=cluster)
    assert reported == [0, 1, 2, 3, 4, 5]
    np.testing.assert_array_equal(found.dictionaries_, expected.dictionaries_)
    np.testing.assert_array_equal(found.objective_, expected.objective_)


@needs_dask
def test_killed_worker_does_not_change_image_reading(cluster, tissue, model):
    stages = []

    def kill_at_first(progress):
        if (progress.stage, progress.done) == ("patches", 1):
            kill_a_worker(cluster)
        stages.append(progress.stage)

    found = TissueClassifier(FAST, random_state=1)
    found.fit(read_manifest(tissue), callback=kill_at_first, executor=cluster)
    assert list(dict.fromkeys(stages)) == ["read", "patches", "initialise", "train", "decision"]
    np.testing.assert_array_equal(
        found.model_.classifier_.dictionaries_, model.model_.classifier_.dictionaries_
    )
    np.testing.assert_array_equal(found.aggregator_.weights, model.aggregator_.weights)


# ---------------------------------------------------------------- prediction and evaluation


@needs_dask
def test_killed_worker_does_not_change_predictions(cluster, tissue, model, tmp_path):
    images = [*read_manifest(tissue).records, ImageRecord(tmp_path / "none.png", "", "")]
    expected = predict_images(model, "m", images, tmp_path / "threads")
    reported = []

    def kill_at_first(progress):
        reported.append(progress.done)
        if progress.done == 1:
            kill_a_worker(cluster)

    folder = tmp_path / "cluster"
    found = predict_images(model, "m", images, folder, callback=kill_at_first, executor=cluster)
    assert reported == list(range(len(images) + 1))
    assert found == expected
    assert [path for path, _ in found.failures] == [tmp_path / "none.png"]
    assert_same_files(tmp_path / "threads", folder)


@pytest.fixture
def certified(cluster, tmp_path):
    """The address of the cluster; Dask is configured with its certificate files."""
    import dask

    security, files = cluster.client.security, {}
    for name in ("tls_ca_file", "tls_client_cert", "tls_client_key"):
        files[name] = str(tmp_path / name)
        (tmp_path / name).touch(mode=0o600)
        (tmp_path / name).write_text(getattr(security, name))
    tls = "distributed.comm.tls"
    with dask.config.set(
        {
            f"{tls}.ca-file": files["tls_ca_file"],
            f"{tls}.client.cert": files["tls_client_cert"],
            f"{tls}.client.key": files["tls_client_key"],
        }
    ):
        yield cluster.client.scheduler.address


@needs_dask
def test_train_and_predict_from_the_command_line(certified, tissue, tmp_path, monkeypatch):
    monkeypatch.chdir(tissue.parent)  # relative paths must work although the workers run elsewhere
    address = certified
    assert address.startswith("tls://")
    settings = ["patch_px=16", "n_atoms=8", "n_iter=2", "patches_per_class=200"]
    for name, options in (("threads", []), ("cluster", ["--cluster", address])):
        file = tmp_path / f"{name}.histodict"
        train = ["train", "tissue", "-o", str(file), "--regions", "inflamed", *options]
        for setting in settings:
            train += ["--set", setting]
        images = ["tissue/healthy", "tissue/inflamed"]
        detect = ["predict", str(file), *images, "-o", str(tmp_path / name), *options]
        for arguments in (train, detect):
            result = CliRunner().invoke(app, arguments)
            assert result.exit_code == 0, result.output
    one, two = (tmp_path / f"{name}.histodict" for name in ("threads", "cluster"))
    assert one.read_bytes() == two.read_bytes()
    assert_same_files(tmp_path / "threads", tmp_path / "cluster")


@needs_dask
def test_evaluation_gives_the_same_predictions(cluster, tissue, tmp_path):
    from histodict.model_selection.protocols import k_folds

    manifest = read_manifest(tissue)
    splits = k_folds(manifest, 2, random_state=0)
    plans = {"dfdl": Plan(FAST), "lbp": Plan(preset("fast", "lbp-colour"))}
    here, there = (
        run_evaluation(manifest, plans, splits, tmp_path / name, [0], work)
        for name, work in (
            ("here", ExecutionOptions(n_jobs=1)),
            ("there", ExecutionOptions(executor=cluster)),
        )
    )
    assert [r.predictions.scores for r in there] == [r.predictions.scores for r in here]
    assert [r.predictions.labels for r in there] == [r.predictions.labels for r in here]


@needs_dask
def test_map_without_workers_times_out(monkeypatch):
    import dask
    from distributed import Client, LocalCluster

    monkeypatch.setattr(cluster_module, "_MAX_WITHOUT_WORKERS_S", 1.0)
    monkeypatch.setattr(cluster_module, "_WARN_WITHOUT_WORKERS_S", 0.2)
    monkeypatch.setattr(cluster_module, "_COUNT_INTERVAL_S", 0.1)
    quiet = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": None}
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        LocalCluster(processes=False, **quiet) as local,
        Client(local, set_as_default=False) as client,
    ):
        results = ClusterExecutor(client).map(lambda x: time.sleep(x) or x, [0.0, 1.5, 0.0])
        assert next(results) == 0.0
        local.scale(0)
        with (
            pytest.warns(UserWarning, match="no worker is connected; waiting"),
            pytest.raises(ClusterError, match="no worker was connected for 1 seconds"),
        ):
            list(results)


@needs_dask
def test_lost_scheduler_is_reported():
    from distributed.client import FutureCancelledError
    from distributed.comm import CommClosedError

    class LostClient:
        status = "closed"

        def submit(self, *work, **options):
            raise self.error

        scatter = wait_for_workers = submit

        def cancel(self, futures):
            pass

    client = LostClient()
    for client.error in (
        CommClosedError("pool"),
        FutureCancelledError("a", "lost"),
        RuntimeError(),
    ):
        for use in (lambda c: list(c.map(str, [1])), lambda c: c.broadcast(lambda: iter([1]))):
            with pytest.raises(ClusterError, match="lost the connection to the Dask scheduler"):
                use(ClusterExecutor(client))
        client.status = "running"  # Dask has not yet noticed, or it is another error
        text = "lost the connection" if isinstance(client.error, CommClosedError) else None
        with pytest.raises(ClusterError if text else type(client.error), match=text):
            list(ClusterExecutor(client).map(str, [1]))
        client.status = "closed"


# ---------------------------------------------------------------- cluster options


@needs_dask
def test_invalid_cluster_is_refused_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster_module, "_CONNECT_SECONDS", 0.3)
    settings = tmp_path / "slurm.yaml"
    settings.write_text("cores: 8\n")
    for text, message in (
        ("somewhere", "tcp://HOST:PORT"),
        ("local:", "local:N"),
        ("local:0", "at least 1"),
        ("tcp://127.0.0.1:9", "cannot connect to a Dask scheduler"),
        (str(settings), "'system', 'jobs' and 'options'"),
        (str(tmp_path / "none.yaml"), "none.yaml"),
    ):
        with pytest.raises((ValueError, OSError), match=message), open_cluster(text):
            pass


@needs_dask
def test_different_versions_on_workers_are_refused(certified, monkeypatch):
    address = certified
    monkeypatch.setattr(cluster_module, "version", lambda name: "0.0")
    with (
        pytest.raises(ClusterError, match=r"numpy [1-9].* but this machine has .*numpy 0\.0"),
        open_cluster(address),
    ):
        pass


@needs_dask
def test_batch_system_gets_the_options_of_the_file(cluster, tmp_path, monkeypatch):
    requested = []

    class SLURMCluster:
        scheduler_address = cluster.client.scheduler.address

        def __init__(self, cores, memory):
            requested.append((cores, memory))

        def __enter__(self):
            return self

        def __exit__(self, *error):
            requested.append("ended")

        def scale(self, jobs):
            requested.append(jobs)

    file = tmp_path / "slurm.yaml"
    file.write_text("jobs: 3\noptions: {cores: 8, memory: 32GB}\n")
    monkeypatch.setitem(sys.modules, "dask_jobqueue", None)
    with pytest.raises(ImportError, match=r'pip install "\.\[jobqueue\]"'), open_cluster(str(file)):
        pass
    fake = ModuleType("dask_jobqueue")
    fake.SLURMCluster = SLURMCluster
    monkeypatch.setitem(sys.modules, "dask_jobqueue", fake)
    with cluster_module._start_cluster(str(file)) as started:
        assert started.scheduler_address == SLURMCluster.scheduler_address
    assert requested == [(8, "32GB"), 3, "ended"]
    file.write_text("system: ABACUS\n")
    with pytest.raises(ValueError, match="one of \\['SLURM'\\]"), open_cluster(str(file)):
        pass
    file.write_text("options: {colour: red}\n")
    with pytest.raises(ValueError, match="invalid 'options'"), open_cluster(str(file)):
        pass


_WITHOUT = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "triton", "distributed", "dask", "dask_jobqueue"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden())
import numpy as np
from typer.testing import CliRunner
from histodict.cli import app
from histodict.methods.dfdl import DFDL
X = np.random.default_rng(0).standard_normal((60, 8))
y = np.arange(60) % 2
assert DFDL(4, n_iter=1).fit(X, y).predict(X).shape == (60,)
data, model = sys.argv[1:]
for options in (["--cluster", "local:2"], ["--set", "backend=cuda"]):
    result = CliRunner().invoke(app, ["train", data, "-o", model, *options])
    print(result.exit_code, result.output.splitlines()[-1])
"""


def test_missing_dask_and_torch_are_reported_only_when_needed(tissue, tmp_path):
    run = subprocess.run(
        [sys.executable, "-c", _WITHOUT, str(tissue), str(tmp_path / "m.histodict")],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    cluster, cuda = run.stdout.splitlines()
    assert cluster.startswith("2 Error:") and 'pip install ".[cluster]"' in cluster
    assert cuda.startswith("2 Error:") and 'pip install ".[torch]"' in cuda
