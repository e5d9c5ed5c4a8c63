"""Tests of the data page's API: tiles do not wait for the table, and the table may change."""

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Barrier, BrokenBarrierError

import pytest

from .conftest import MISSING

pytest.importorskip("starlette.testclient", reason=MISSING)
pytest.importorskip("uvicorn", reason=MISSING)

from histodict.datasets import manifest
from histodict.web.datasets import DatasetSettings
from tests.web.app import OWN, count_calls, open_client, open_data

ABORTS = Path(__file__).parents[1] / "fuzz_failures" / "images" / "1106a9b4-jpeg-tiles.tif"


@pytest.fixture
def client(tissue, tmp_path):
    with open_client([tissue], tmp_path) as client:
        yield client


def test_tiles_do_not_read_the_table(client, tissue, monkeypatch):
    # recently changed files are always read again
    os.utime(tissue / "tissue" / "manifest.csv", (0, 0))
    data = open_data(client)
    image = client.get(f"/api/data/{data}").json()["images"][0]["id"]
    reads = count_calls(monkeypatch, manifest, "_read_rows")
    for _ in range(20):
        response = client.get(f"/api/data/{data}/images/{image}/tiles/0/0/0.jpg")
        assert response.status_code == 200
    assert len(reads) == 0


def test_concurrent_settings_are_all_stored(client, monkeypatch):
    data, changed, both = open_data(client), DatasetSettings.with_changes, Barrier(2)

    def slowly(*args):
        with suppress(BrokenBarrierError):  # if one has to wait for the other
            both.wait(0.3)
        return changed(*args)

    monkeypatch.setattr(DatasetSettings, "with_changes", slowly)
    with ThreadPoolExecutor(2) as pool:
        message = ({"mpp": 0.25}, {"positive": "healthy"})
        address = f"/api/data/{data}/about"
        list(pool.map(lambda body: client.post(address, json=body, headers=OWN), message))
    reported = client.get(f"/api/data/{data}").json()
    assert (reported["mpp"], reported["positive"]["name"]) == (0.25, "healthy")


def test_changed_table_is_read_at_the_next_request(tissue, tmp_path):
    table = tissue / "changing.csv"
    paths = sorted((tissue / "tissue").glob("*/*.jpg"))[:3]
    rows = [f"{path},{n % 2},{n}" for n, path in enumerate(paths)]
    table.write_text("\n".join(["path,label,patient", *rows]))
    os.utime(table, (0, 0))
    with open_client([tissue], tmp_path) as client:
        data = open_data(client, "changing.csv")
        images = client.get(f"/api/data/{data}").json()["images"]
        addresses = [f"/api/data/{data}/images/{image['id']}/tiles/0/0/0.jpg" for image in images]
        assert [client.get(address).status_code for address in addresses] == [200, 200, 200]
        table.write_text("\n".join(["path,label,patient", *rows[:2]]))
        assert [client.get(address).status_code for address in addresses] == [200, 200, 404]
    table.unlink()


def test_slide_that_aborts_its_library_is_reported(tissue, tmp_path):
    folder = tmp_path / "images"
    for name, image in zip("ab", sorted((tissue / "tissue").glob("*/*.jpg"))[:2], strict=True):
        (folder / name).mkdir(parents=True)
        shutil.copy(image, folder / name)
    shutil.copy(ABORTS, folder / "a" / "aborts.tif")
    with open_client([folder], tmp_path / "workspace") as client:
        data = open_data(client, "")
        images = client.get(f"/api/data/{data}").json()["images"]
        responses = [client.get(f"/api/data/{data}/images/{i['id']}/thumbnail.jpg") for i in images]
        assert [response.status_code for response in responses].count(200) == 2
        (refused,) = (response for response in responses if response.status_code != 200)
        assert "aborts.tif: part of the slide cannot be read" in refused.json()["error"]
