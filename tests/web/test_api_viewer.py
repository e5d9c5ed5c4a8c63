"""Tests of the viewer's API with one small training, including files of an earlier version."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from .conftest import MISSING

pytest.importorskip("starlette.testclient", reason=MISSING)
pytest.importorskip("uvicorn", reason=MISSING)

from histodict.datasets import manifest
from histodict.models import model_file, prepared_image
from histodict.web import request as web_calls
from histodict.web import training
from histodict.web.api import viewer
from histodict.web.jobs import Job
from histodict.web.maps import load_prediction
from histodict.web.training import manifest_from_request
from histodict.web.workspace import short_id
from tests.web.app import OWN, count_calls, open_client, open_data, run_job, start
from tests.web.test_maps import make_old


@pytest.fixture(scope="module")
def viewed(tissue, tmp_path_factory):
    """A client, a finished training, and the address of a test image with a prediction."""
    # recently changed files are always read again
    os.utime(tissue / "tissue" / "manifest.csv", (0, 0))
    workspace = tmp_path_factory.mktemp("workspace")
    client = open_client([tissue], workspace)
    data = open_data(client)
    job = start(client, data)
    run_job(client, job)
    with open_client([tissue], workspace) as client:
        image = client.get(f"/api/jobs/{job}/model").json()["results"]["images"][0]["image"]
        address = f"/api/jobs/{job}/look/{data}/{image}"
        assert client.get(address).json()["state"] == "done"
        yield client, job, address


def stored_images(client, job):
    """Return the folder of the job's maps, and the images with a map there."""
    (folder,) = client.app.state.context.workspace.glob(f"users/*/jobs/{job}/maps")
    records = manifest_from_request(Job(folder.parent).request).records
    return folder, [record for record in records if load_prediction(folder, record)]


def make_all_old(client, job):
    folder, records = stored_images(client, job)
    for record in records:
        make_old(folder, record)
    assert stored_images(client, job)[1] == []


def test_maps_of_an_earlier_version_are_computed_again(viewed):
    client, job, address = viewed
    before = client.get(address).json()
    make_all_old(client, job)
    assert client.get(f"{address}/map.png").status_code == 404
    assert client.get(address).json() == before
    assert client.get(f"{address}/map.png").status_code == 200
    assert client.get(f"{address}/outlines").status_code == 200


def test_map_image_is_rendered_once(viewed, monkeypatch):
    client, job, address = viewed
    client.get(address)
    folder, _ = stored_images(client, job)
    for place in ("map.png?only=1", "outlines?class=1&least=2"):
        calls = count_calls(monkeypatch, viewer, "load_map")
        first, again = (client.get(f"{address}/{place}") for _ in range(2))
        assert first.status_code == 200 and first.content == again.content
        assert len(calls) == 1
        client.get(f"{address}/{place}&point=0.25")  # with another threshold
        assert len(calls) == 2
        for file in folder.glob("*.npz"):
            os.utime(file)
        assert client.get(f"{address}/{place}").content == first.content
        assert len(calls) == 3


def test_report_needs_no_maps_of_this_version(viewed):
    client, job, _ = viewed
    make_all_old(client, job)
    report = client.get(f"/api/jobs/{job}/report.html")
    assert report.status_code == 200 and "Patch maps" in report.text
    assert len(stored_images(client, job)[1]) == 4


def test_large_image_with_an_old_map_is_computed_again(viewed, monkeypatch):
    client, job, address = viewed
    monkeypatch.setattr(viewer, "_MAX_IMMEDIATE_PIXELS", 0)
    monkeypatch.setattr(client.app.state.context.queue, "add", lambda job: None)
    make_all_old(client, job)
    first = client.post(address, json={}, headers=OWN).json()
    run_job(client, first["job"])
    make_all_old(client, job)
    again = client.post(address, json={}, headers=OWN).json()
    assert again["job"] != first["job"]
    run_job(client, again["job"])
    assert client.get(address).json()["grid"]["n_rows"] == 10


def test_explanation_does_not_list_images(viewed, monkeypatch):
    """A click shows six training patches without reading the data set or the training."""
    client, _, address = viewed
    client.get(address)
    places = [f"{address}/why?row={row}&column={row}" for row in range(10)]
    place = next(place for place in places if client.get(place).json()["winner"])  # not background
    tables = count_calls(monkeypatch, manifest, "_read_rows")
    requests = count_calls(monkeypatch, training, "manifest_from_request")
    assert len(client.get(place).json()["similar"]) == 6
    assert (len(tables), len(requests)) == (0, 0)


def test_training_patches_written_after_the_model_are_found(viewed):
    """Results that are missing when the page is opened must be found later."""
    client, job, address = viewed
    (gallery,) = client.app.state.context.workspace.glob(f"users/*/jobs/{job}/gallery.npz")
    away = gallery.with_name("away.npz")
    gallery.rename(away)
    assert client.get(f"{address}/why?row=0&column=0").json()["similar"] == []
    away.rename(gallery)
    assert len(client.get(f"{address}/why?row=0&column=0").json()["similar"]) == 6


def a_patch(client, address):
    """Return the address of the explanation of a tissue patch."""
    grid = client.get(address).json()["grid"]
    for row in range(grid["n_rows"]):
        found = client.get(f"{address}/why?row={row}&column=0").json()
        if found["winner"] is not None:
            return f"{address}/why?row={row}"
    raise AssertionError("all of it is glass")


def test_patches_of_one_chunk_are_read_once(viewed, monkeypatch):
    client, job, address = viewed
    place = a_patch(client, address)
    calls = count_calls(monkeypatch, prepared_image.PreparedImage, "chunk_features")
    before = [client.get(f"{place}&column={column}").json() for column in (0, 1)]
    assert calls == [] and before[0] != before[1]
    os.utime(images_of(client, job)[address.rpartition("/")[2]])  # simulates another image
    client.get(address)
    calls.clear()
    after = [client.get(f"{place}&column={column}").json() for column in (0, 1)]
    assert after == before and len(calls) == 1


def images_of(client, job):
    """Return the files of the training's images by id."""
    (folder,) = client.app.state.context.workspace.glob(f"users/*/jobs/{job}")
    found = manifest_from_request(Job(folder).request)
    return {short_id(found.name(record)): record.path for record in found.records}


def test_request_reads_its_data_set_once(viewed, monkeypatch):
    client, _, address = viewed
    place = a_patch(client, address)
    for requested in (address, f"{address}?point=0.25", f"{address}/map.png", f"{place}&column=0"):
        calls = count_calls(monkeypatch, web_calls, "find_dataset")
        assert client.get(requested).status_code == 200 and len(calls) == 1


def test_model_page_does_not_read_the_model_again(viewed, monkeypatch):
    client, job, _ = viewed
    first = client.get(f"/api/jobs/{job}/model").json()
    calls = count_calls(monkeypatch, model_file, "digest")
    assert client.get(f"/api/jobs/{job}/model").json() == first and calls == []


def test_hanging_slide_does_not_block_other_explanations(viewed, monkeypatch):
    client, job, address = viewed
    base, _, image = address.rpartition("/")
    images = images_of(client, job)
    other = next(id_ for id_ in images if id_ != image)
    hung, good = a_patch(client, address), a_patch(client, f"{base}/{other}")
    released, explain = threading.Event(), viewer.explain

    def slow(model, prepared, patch_map, *args):
        if patch_map.path == images[image]:
            released.wait(30)
        return explain(model, prepared, patch_map, *args)

    monkeypatch.setattr(viewer, "explain", slow)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.get, f"{hung}&column=0")
        time.sleep(0.2)
        assert client.get(f"{good}&column=0").status_code == 200
        assert not waiting.done()
        released.set()
        assert waiting.result().status_code == 200
