"""The data page's calls: tiles do not wait for the table, and the table may change."""

import os

import pytest

from .conftest import MISSING

pytest.importorskip("starlette.testclient", reason=MISSING)
pytest.importorskip("uvicorn", reason=MISSING)

from histodict.images import manifest
from tests.web.app import count_calls, open_client, open_data


@pytest.fixture
def client(tissue, tmp_path):
    with open_client([tissue], tmp_path) as client:
        yield client


def test_tiles_do_not_read_the_table(client, tissue, monkeypatch):
    os.utime(tissue / "tissue" / "manifest.csv", (0, 0))  # what has just changed is read anew
    data = open_data(client)
    image = client.get(f"/api/data/{data}").json()["images"][0]["id"]
    reads = count_calls(monkeypatch, manifest, "_from_csv")
    for _ in range(20):
        answer = client.get(f"/api/data/{data}/images/{image}/tiles/0/0/0.jpg")
        assert answer.status_code == 200
    assert len(reads) == 0


def test_a_changed_table_is_noticed_at_the_next_request(tissue, tmp_path):
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
