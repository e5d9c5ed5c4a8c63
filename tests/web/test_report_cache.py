"""A report is written once, and again if anything in it changes.

Cached reports are compared with those of a newly started server.
"""

import os

import numpy as np
import pytest
from PIL import Image

from .conftest import MISSING

pytest.importorskip("starlette.testclient", reason=MISSING)
pytest.importorskip("uvicorn", reason=MISSING)

from histodict.datasets.manifest import ImageRecord
from histodict.models import load_model, save_model
from histodict.synthetic.dataset import write_synthetic_dataset
from histodict.utils.cache import LRUCache
from histodict.utils.progress import no_callback
from histodict.utils.text_io import write_checked_json
from histodict.web.api import model as api_model
from histodict.web.dataset_checks import exclude_unreadable_images
from histodict.web.jobs import Job
from histodict.web.training import split_training_and_test
from histodict.web.worker import train
from histodict.web.workspace import read_json
from tests.web.app import count_calls, open_client, open_data, start


class Reports:
    """A finished training for regions, and a server with its report."""

    def __init__(self, base):
        write_synthetic_dataset(base / "folder" / "tissue", 4, 2, size=(160, 120))
        self.base = base
        self.client = self.fresh_client()
        data = open_data(self.client, "tissue/regions")
        job = start(self.client, data, preset="regions", regions="inflamed")
        (folder,) = (base / "workspace").glob(f"users/*/jobs/{job}")
        self.job = Job(folder)
        train(self.job, no_callback)

    def fresh_client(self):
        return open_client([self.base / "folder"], self.base / "workspace")

    def fetch(self, query="", client=None):
        response = (client or self.client).get(f"/api/jobs/{self.job.id}/report.html{query}")
        response.raise_for_status()
        return response.content

    def records(self) -> list[tuple[ImageRecord, ...]]:
        """Return the training and the test records."""
        return [manifest.records for manifest in split_training_and_test(self.job.request)]

    def rewrite(self, name, change):
        """Change a JSON file of the job."""
        content = read_json(self.job.folder / name)
        change(content)
        write_checked_json(self.job.folder / name, content)


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    return Reports(tmp_path_factory.mktemp("reports"))


def turn_over(path):
    """Replace an image by another one with equal file size and times."""
    state = path.stat()
    pixels = np.asarray(Image.open(path))[::-1, ::-1]
    Image.fromarray(255 - pixels).save(path)
    with path.open("ab") as file:
        file.write(b"\0" * (state.st_size - path.stat().st_size))
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


def turn_training_images(reports):
    for record in reports.records()[0]:
        turn_over(record.path)


def turn_test_images(reports):
    for record in reports.records()[1]:
        turn_over(record.path)


def turn_masks(reports):
    for record in reports.records()[0]:
        turn_over(record.mask)


def train_anew(reports):
    """Replace the model file."""
    model = load_model(reports.job.model_file)
    save_model(model.with_threshold(model.decision_threshold.value + 7), reports.job.model_file)


def lose_gallery(reports):
    reports.job.gallery_file.unlink()


def change_label(reports):
    """As if the label had been corrected before another training."""

    def change(results):
        row = next(row for row in results["images"] if row["label"] == "inflamed")
        row["label"] = "other"

    reports.rewrite("results.json", change)


def change_request(reports):
    lost = {"id": "0" * 12, "image": "0" * 12, "name": "lost.png", "label": "other", "box": None}
    reports.rewrite("job.json", lambda request: request["corrections"].append(lost))


def leave_out(reports):
    """Remove the images of the test patients from the report."""
    names = [row["name"] for row in reports.job.results()["images"]]
    bad = [{"name": name, "reason": "lost"} for name in names]
    write_checked_json(reports.job.folder / "bad-images.json", bad)
    exclude_unreadable_images(reports.job)


@pytest.mark.parametrize(
    "change",
    [
        *(
            turn_training_images,
            turn_test_images,
            turn_masks,
            train_anew,
            change_label,
            change_request,
        ),
        *(leave_out, lose_gallery),
    ],
)
def test_change_gives_another_report(reports, monkeypatch, change):
    before = reports.fetch()
    calls = count_calls(monkeypatch, api_model, "write_report")
    assert reports.fetch() == before and not calls
    change(reports)
    after = reports.fetch()
    assert after == reports.fetch() and len(calls) == 1
    assert after != before
    assert after == reports.fetch(client=reports.fresh_client())


def test_every_threshold_has_its_report(reports):
    contents = {query: reports.fetch(query) for query in ("", "?point=3", "?point=40")}
    assert len(set(contents.values())) == 3
    for query, text in contents.items():
        assert reports.fetch(query) == text == reports.fetch(query, reports.fresh_client())


def test_report_cache_is_bounded(reports, monkeypatch):
    size = len(reports.fetch("?point=2"))
    client = reports.fresh_client()
    client.app.state.context.reports = LRUCache(2 * size + size // 2)
    calls = count_calls(monkeypatch, api_model, "write_report")
    for point in (2, 3, 4, 5, 2):
        reports.fetch(f"?point={point}", client)
    assert len(calls) == 5


def test_image_outside_the_folders_is_refused_despite_the_cache(reports):
    """The cache is not accessible to users who may no longer access the images."""
    reports.fetch()
    record = reports.records()[0][0]
    outside = reports.base / record.path.name
    os.replace(record.path, outside)
    record.path.symlink_to(outside)
    response = reports.client.get(f"/api/jobs/{reports.job.id}/report.html")
    assert response.status_code == 403
