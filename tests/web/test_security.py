"""Requests without a token, from other pages, with crafted addresses or too large are refused."""

import pytest

from .conftest import MISSING

pytest.importorskip("starlette.testclient", reason=MISSING)
pytest.importorskip("uvicorn", reason=MISSING)

from tests.web.app import OWN, TINY, open_client, open_data, sign_in


@pytest.fixture
def client(tissue, tmp_path):
    with open_client([tissue], tmp_path / "workspace") as client:
        yield client


def test_foreign_host_names_are_refused(client):
    assert client.get("/", headers={"host": "evil.example:8642"}).status_code == 403
    token = client.app.state.users[0].token()
    for host in ("localhost:8642", "[::1]:8642", "LOCALHOST:8642"):
        assert client.get(f"/?token={token}", headers={"host": host}).status_code == 200


def test_other_pages_cannot_change_anything(client):
    body = {"folder_index": 0, "relative_path": "tissue"}
    assert client.post("/api/data", json=body).status_code == 403
    foreign = OWN | {"origin": "http://evil.example"}
    assert client.post("/api/data", json=body, headers=foreign).status_code == 403
    own = OWN | {"origin": "http://127.0.0.1:8642"}
    assert client.post("/api/data", json=body, headers=own).status_code == 200


def test_content_security_policy_allows_own_content_only(client):
    policy = client.get("/").headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "http" not in policy and "unsafe" not in policy


@pytest.mark.parametrize(
    "address",
    [
        "/static/../server.py",
        "/static/%2e%2e/server.py",
        "/static/..%2f..%2fcli.py",
        "/api/data/..%2f..%2f..%2fetc",
        "/api/jobs/..%2f..%2ftoken",
        "/api/jobs/..",
        "/api/data/aaaaaaaaaaaa",
        "/api/jobs/aaaaaaaaaaaa",
        "/api/jobs/aaaaaaaaaaaa/model",
    ],
)
def test_crafted_addresses_find_nothing(client, address):
    assert client.get(address).status_code in (400, 404)


@pytest.mark.parametrize("inside", ["..", "../..", "/etc", "tissue/../../..", "tissue\0"])
def test_data_outside_the_folders_cannot_be_opened(client, inside):
    response = client.post(
        "/api/data", json={"folder_index": 0, "relative_path": inside}, headers=OWN
    )
    assert response.status_code == 403
    assert (
        client.get("/api/folders", params={"folder_index": 0, "relative_path": inside}).status_code
        == 403
    )


def test_table_that_points_outside_is_refused(client, tissue, tmp_path):
    image = next((tissue / "tissue" / "healthy").iterdir())
    (tmp_path / "secret.jpg").write_bytes(image.read_bytes())
    table = tissue / "escape.csv"
    for path in (tmp_path / "secret.jpg", "../" * 20 + str(tmp_path / "secret.jpg").lstrip("/")):
        table.write_text(f"path,label,patient\n{path},a,1\n{image},b,2\n")
        response = client.post(
            "/api/data", json={"folder_index": 0, "relative_path": "escape.csv"}, headers=OWN
        )
        assert response.status_code == 403
    table.unlink()


def test_link_outside_is_refused_even_if_created_later(tmp_path, tissue):
    folder = tmp_path / "data"
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
    pixels = next((tissue / "tissue" / "healthy").iterdir()).read_bytes()
    (folder / "a" / "1.jpg").write_bytes(pixels)
    (folder / "b" / "1.jpg").write_bytes(pixels)
    (tmp_path / "secret.jpg").write_bytes(pixels)
    with open_client([folder], tmp_path / "workspace") as client:
        data = open_data(client, "")
        image = client.get(f"/api/data/{data}").json()["images"][0]["id"]
        address = f"/api/data/{data}/images/{image}/tiles/0/0/0.jpg"
        assert client.get(address).status_code == 200
        (folder / "a" / "1.jpg").unlink()
        (folder / "a" / "1.jpg").symlink_to(tmp_path / "secret.jpg")
        for path in (address, f"/api/data/{data}/images/{image}/thumbnail.jpg"):
            assert client.get(path).status_code in (403, 404)  # it is no longer among the images


@pytest.mark.parametrize(
    ("level", "column", "row"),
    [(0, 1, 0), (0, 0, 7), (9, 0, 0), (0, 10**30, 0), (10**30, 0, 0), ("-1", 0, 0), ("x", 0, 0)],
)
def test_crafted_tile_numbers_find_nothing(client, level, column, row):
    data = open_data(client)
    image = client.get(f"/api/data/{data}").json()["images"][0]["id"]
    base = f"/api/data/{data}/images/{image}"
    assert client.get(f"{base}/tiles/0/0/0.jpg").status_code == 200
    assert client.get(f"{base}/tiles/{level}/{column}/{row}.jpg").status_code == 404


def test_large_or_foreign_requests_are_refused(client):
    response = client.post("/api/data", content=b"x" * 100_000, headers=OWN)
    assert response.status_code == 400 and "too large" in response.json()["error"]
    assert client.post("/api/data", content=b"\xff{", headers=OWN).status_code == 400
    assert client.post("/api/data", json=[1], headers=OWN).status_code == 400
    files = {"file": ("model.histodict", b"x" * 200_000)}
    assert client.post("/api/data", files=files, headers=OWN).status_code == 400


@pytest.mark.parametrize("accepts_remote_hosts", [True, False])
def test_token_is_required(tissue, tmp_path, accepts_remote_hosts):
    with open_client([tissue], tmp_path, accepts_remote_hosts=accepts_remote_hosts) as client:
        client.cookies.clear()
        token = client.app.state.users[0].token()
        for address in ("/", "/api/session", "/static/app.js", "/?token=wrong", "/?token="):
            assert client.get(address).status_code == 401
        assert client.get(f"/api/session?token={token}").status_code == 401  # links only open "/"
        welcome = client.get(f"/?token={token}")
        cookie = welcome.headers["set-cookie"].lower()
        assert "httponly" in cookie and "samesite=strict" in cookie
        assert client.get("/api/session").json()["user"] == "local"
    assert (tmp_path / "users" / "local" / "token").stat().st_mode & 0o077 == 0


def test_users_are_isolated(tissue, tmp_path):
    with open_client([tissue], tmp_path, users=("anna", "ben")) as client:
        anna, ben = client.app.state.users
        assert anna.token() != ben.token()
        data = open_data(client)
        job = client.post(
            "/api/jobs", json={"data": data, "preset": "quick", "settings": TINY}, headers=OWN
        ).json()["id"]
        client.post(f"/api/jobs/{job}/cancel", headers=OWN)
        assert [entry["id"] for entry in client.get("/api/session").json()["jobs"]] == [job]
        sign_in(client, ben)
        session = client.get("/api/session").json()
        assert session["user"] == "ben" and session["jobs"] == [] and session["data"] == []
        for address in (f"/api/jobs/{job}", f"/api/jobs/{job}/model", f"/api/data/{data}"):
            assert client.get(address).status_code == 404
        assert client.post(f"/api/jobs/{job}/resume", headers=OWN).status_code == 404


def test_user_names_cannot_be_paths(tissue, tmp_path):
    with pytest.raises(ValueError, match="user name"):
        open_client([tissue], tmp_path, users=("../anna",))


@pytest.mark.parametrize(
    "host", ["[::1", "::1]", "127.0.0.1:x", "localhost:99999999", "user@localhost", "", "a b"]
)
def test_invalid_host_is_refused(client, host):
    response = client.get("/", headers={"host": host})
    assert response.status_code in (400, 403) and len(response.text.splitlines()) == 1


@pytest.mark.parametrize("origin", ["null", "http://[::1", "127.0.0.1:8642", "http://127.0.0.1"])
def test_foreign_origin_is_refused(client, origin):
    response = client.post("/api/data", json={}, headers=OWN | {"origin": origin})
    assert response.status_code == 403


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 60_000,
        b'{"folder_index":' * 4000,
        b'{"folder_index": NaN}',
        b'{"folder_index": ' + b"9" * 5000 + b"}",
    ],
)
def test_invalid_json_is_refused_with_a_message(client, body):
    response = client.post("/api/data", content=body, headers=OWN)
    assert response.status_code == 400 and "JSON" in response.json()["error"]


@pytest.mark.parametrize("number", ["9" * 5000, "1" + "0" * 30, "-1", "1e5", "\u0663"])
@pytest.mark.parametrize(
    "address",
    [
        "/api/jobs/aaaaaaaaaaaa/atoms/{}.png",
        "/api/jobs/aaaaaaaaaaaa/patches/{}.jpg",
        "/api/data/{data}/images/{image}/tiles/0/{}/0.jpg",
    ],
)
def test_extreme_positions_find_nothing(client, address, number):
    data = open_data(client)
    image = client.get(f"/api/data/{data}").json()["images"][0]["id"]
    response = client.get(address.format(number, data=data, image=image))
    assert response.status_code == 404 and response.json()["error"]


@pytest.mark.parametrize(
    "requested",
    [
        {"seed": 10**30},
        {"seed": -1},
        {"seed": True},
        {"test_folds": True},
        {"test_folds": []},
        {"settings": {"n_atoms": "abc"}},
        {"settings": {"n_atoms": "-5"}},
        {"settings": {"penalty": "NaN"}},
        {"settings": {"mpp": "[1]"}},
        {"settings": {"patch_px": "[" * 5000}},
    ],
)
def test_invalid_trainings_are_refused_at_once(client, requested):
    response = client.post("/api/jobs", json={"data": open_data(client)} | requested, headers=OWN)
    assert response.status_code == 400 and response.json()["error"]
    assert client.get("/api/jobs").json()["jobs"] == []
