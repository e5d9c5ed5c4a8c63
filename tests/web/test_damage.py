"""Damaged files of the workspace: the server starts, reports them, and continues."""

import json
import shutil

import pytest

from .conftest import MISSING

pytest.importorskip("starlette.testclient", reason=MISSING)
pytest.importorskip("uvicorn", reason=MISSING)

from tests.web.app import OWN, open_client, open_data, run_job, start

FLIP = b"?"
HOW = {"empty": b"", "an object": b"{}", "garbage": b"\x00\xff}{", "folder": None, "bit": FLIP}
HOW_JSON = HOW | {"a list": b"[1]", "deep": b"[" * 100_000}


@pytest.fixture(scope="module")
def made(tissue, tmp_path_factory):
    """A workspace with two trainings, a correction and a map; the ids of its contents."""
    workspace = tmp_path_factory.mktemp("made")
    client = open_client([tissue], workspace)
    data = open_data(client)
    image = client.get(f"/api/data/{data}").json()["images"][0]
    body = {"image": image["id"], "label": "healthy", "box": [0, 0, 60, 60]}
    assert client.post(f"/api/data/{data}/correct", json=body, headers=OWN).status_code == 200
    job = start(client, data)
    run_job(client, job)
    client.get(f"/api/jobs/{job}/look/{data}/{image['id']}").raise_for_status()
    jobs = workspace / "users" / "local" / "jobs"
    other = shutil.copytree(jobs / job, jobs / "0123456789ab").name
    return workspace, data, image["id"], (job, other)


def damage(path, how):
    content, workspace_copy = HOW_JSON[how], path.read_bytes()
    path.unlink()
    if content is None:
        path.mkdir()
    elif content is FLIP:
        path.write_bytes(
            workspace_copy[:-9] + bytes([workspace_copy[-9] ^ 1]) + workspace_copy[-8:]
        )
    else:
        path.write_bytes(content)


@pytest.fixture
def workspace_copy(made, tmp_path):
    """A copy of the workspace, its user's folder, and the ids."""
    workspace = shutil.copytree(made[0], tmp_path / "workspace")
    return workspace, workspace / "users" / "local", *made[1:]


def addresses(data, image, job):
    """Return all addresses that the pages request."""
    place = f"/api/jobs/{job}/look/{data}/{image}"
    return [
        "/api/session",
        "/api/jobs",
        f"/api/data/{data}",
        f"/api/jobs/{job}",
        f"/api/jobs/{job}/model",
        f"/api/jobs/{job}/atoms/0",
        f"/api/jobs/{job}/patches/0.jpg",
        f"/api/jobs/{job}/model.histodict",
        place,
        f"{place}/map.png",
        f"{place}/outlines",
        f"{place}/why?row=0&column=0",
    ]


@pytest.mark.filterwarnings("default:.*is damaged")  # in the log of the server
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(
    "name",
    ["job.json", "state.json", "results.json", "progress.jsonl", "model.histodict", "gallery.npz"],
)
def test_damaged_training_is_reported_and_others_continue(
    workspace_copy, tissue, name, how, capsys
):
    workspace, user, data, image, (job, other) = workspace_copy
    damage(user / "jobs" / job / name, how)
    with open_client([tissue], workspace) as client:
        responses = {address: client.get(address) for address in addresses(data, image, job)}
        assert {response.status_code for response in responses.values()} <= {200, 400, 404}
        assert responses["/api/session"].status_code == 200
        for address in addresses(data, image, other):
            assert client.get(address).status_code == 200
        if name == "state.json" and how != "folder":
            assert "state.json" in responses[f"/api/jobs/{job}"].json()["error"]
            client.post(f"/api/jobs/{job}/resume", headers=OWN)
            assert client.get(f"/api/jobs/{job}").json()["state"] in ("waiting", "running", "done")
    message = capsys.readouterr().err
    if name in ("job.json", "state.json"):
        assert f"{job}/{name}: is damaged" in message.replace("\\", "/")
    if name == "results.json":
        assert name in responses[f"/api/jobs/{job}/model"].json()["error"]


@pytest.mark.parametrize("how", [how for how in HOW if how != "folder"])
def test_damaged_map_is_computed_again(workspace_copy, tissue, how):
    workspace, user, data, image, (job, _) = workspace_copy
    place = f"/api/jobs/{job}/look/{data}/{image}"
    for kind in ("json", "npz"):
        for path in (user / "jobs" / job / "maps").glob(f"*.{kind}"):
            damage(path, how)
        with open_client([tissue], workspace) as client:
            client.get(place)
            client.get(f"{place}/map.png")  # reports the damage
            assert client.get(place).json()["grid"]
            assert client.get(f"{place}/map.png").status_code == 200


@pytest.mark.parametrize("how", HOW_JSON)
def test_damaged_corrections_are_reported_and_remain(workspace_copy, tissue, how):
    workspace, user, data, image, _ = workspace_copy
    path = user / "data" / data / "corrections.json"
    damage(path, how)
    damaged = None if path.is_dir() else path.read_bytes()
    with open_client([tissue], workspace) as client:
        body = {"image": image, "label": "inflamed"}
        response = client.post(f"/api/data/{data}/correct", json=body, headers=OWN)
        assert response.status_code == 400 and "corrections.json" in response.json()["error"]
        assert path.is_dir() or path.read_bytes() == damaged
        assert client.get("/api/session").status_code == 200


@pytest.mark.parametrize("how", [how for how in HOW_JSON if how != "folder"])
def test_damaged_settings_of_a_set_are_reported(tissue, tmp_path, how):
    """If ignored, it would silently change colours and sizes."""
    with open_client([tissue], tmp_path) as client:
        data = open_data(client)
        path = tmp_path / "users" / "local" / "data" / data / "about.json"
        path.write_bytes(HOW_JSON[how])
        response = client.get(f"/api/data/{data}")
        assert response.status_code == 400 and "about.json: is damaged" in response.json()["error"]
        assert client.get("/api/session").status_code == 200
        path.unlink()
        assert client.get(f"/api/data/{data}").status_code == 200


@pytest.mark.parametrize("how", HOW_JSON)
def test_data_set_with_a_lost_source_is_skipped(workspace_copy, tissue, how, capsys):
    workspace, user, data, *_ = workspace_copy
    damage(user / "data" / data / "source.json", how)
    with open_client([tissue], workspace) as client:
        assert client.get("/api/session").json()["data"] == []
        assert client.get(f"/api/data/{data}").status_code in (400, 404)
    assert "source.json: is damaged" in capsys.readouterr().err


@pytest.mark.parametrize("token", ["", "\n", "short", "\x00" * 32])
def test_damaged_token_grants_no_access(tissue, tmp_path, token):
    folder = tmp_path / "users" / "local"
    folder.mkdir(parents=True)
    (folder / "token").write_text(token)
    with open_client([tissue], tmp_path) as client:
        client.cookies.clear()
        assert client.get("/api/session").status_code == 401
        assert client.get("/", params={"token": token}).status_code == 401
        cookie = {"cookie": f"histodict-8642={token.strip()}"}
        assert client.get("/api/session", headers=cookie).status_code == 401


def test_damaged_images_are_reported_and_others_shown(tissue, tmp_path):
    folder = tmp_path / "data"
    shutil.copytree(tissue / "tissue" / "healthy", folder / "healthy")
    for number, content in enumerate((b"", b"\xff\xd8\xff", b"II*\x00" + bytes(50))):
        path = folder / "damaged" / f"{number}.{'svs' if number else 'jpg'}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    with open_client([folder], tmp_path / "workspace") as client:
        data = open_data(client, "")
        for image in client.get(f"/api/data/{data}").json()["images"]:
            base = f"/api/data/{data}/images/{image['id']}"
            for address in (base, f"{base}/thumbnail.jpg", f"{base}/tiles/0/0/0.jpg"):
                response = client.get(address)
                is_good = image["label"] == "healthy"
                assert response.status_code == (200 if is_good else 400)
                assert is_good or image["name"].split("/")[1] in response.json()["error"]


def test_names_that_are_not_unicode_are_shown(tissue, tmp_path):
    folder = tmp_path / "data"
    shutil.copytree(tissue / "tissue" / "healthy", folder)
    try:
        (folder / "a\udcff.jpg").write_bytes(next(folder.iterdir()).read_bytes())
    except OSError:
        pytest.skip("this file system knows only names that are text")
    with open_client([folder], tmp_path / "workspace") as client:
        data = open_data(client, "")
        images = client.get(f"/api/data/{data}").json()["images"]
        image = next(image for image in images if "\udcff" in image["name"])
        address = f"/api/data/{data}/images/{image['id']}/thumbnail.jpg"
        assert client.get(address).status_code == 200
        assert json.loads(client.get("/api/session").content)["data"]
