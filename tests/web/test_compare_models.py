"""Tests of model comparison: imported models, compatibility, differences of maps, and exports."""

from __future__ import annotations

import csv
import io
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("starlette", reason='the web app is not installed: pip install ".[web]"')

from histodict.models import TissueClassifier, save_model
from histodict.patches.grid import PatchGrid
from histodict.patches.patch_map import NO_TISSUE, PatchMap
from histodict.web import model_compatibility
from histodict.web.maps import MapDifference
from histodict.web.model_compatibility import ModelProfile, model_differences
from tests.web.app import OWN, open_client, open_data, sign_in


def make_map(predicted_classes, side=10, step=10, classes=("a", "b"), **where):
    predicted_classes = np.array(predicted_classes, np.int16)
    grid = PatchGrid(*predicted_classes.shape, side, step, 1.0, **where)
    margins = np.zeros((*predicted_classes.shape, len(classes)), np.float32)
    return PatchMap(grid, predicted_classes, margins, tuple(classes), "x.png")


# --- differences of maps ------------------------------------------------------------------------


def test_map_does_not_differ_from_itself():
    one = make_map([[0, 1, NO_TISSUE], [1, 1, 0]])
    found = MapDifference.from_maps(one, one)
    assert found.count_changes() == [[2, 0], [0, 3]] and found.n_tissue_mismatches == 0
    assert (found.render()[..., 3] == np.where(one.predicted_classes == NO_TISSUE, 0, 70)).all()


def test_differing_patches_are_counted_and_have_the_new_colour():
    one, other = make_map([[0, 0, 1, NO_TISSUE]]), make_map([[0, 1, NO_TISSUE, 1]])
    found = MapDifference.from_maps(one, other)
    assert found.count_changes() == [[1, 1], [0, 0]] and found.n_tissue_mismatches == 2
    pixels = found.render()[0]
    assert tuple(pixels[1]) == (213, 94, 0, 255)  # the colour of the second class, as everywhere
    assert [int(alpha) for alpha in pixels[:, 3]] == [70, 255, 0, 0]
    chosen = found.render({one.classes[1]: "#0a0b0c", "gone": "#ffffff"})[0]
    assert tuple(chosen[1]) == (10, 11, 12, 255)


def test_classes_are_matched_by_name():
    one, other = make_map([[0, 1]]), make_map([[1, 0]], classes=("b", "a"))
    assert MapDifference.from_maps(one, other).count_changes() == [[1, 0], [0, 1]]
    with pytest.raises(ValueError, match="side by side"):
        MapDifference.from_maps(one, make_map([[0, 1]], classes=("a", "c")))


@pytest.mark.parametrize("factor", [2, 3])
def test_maps_of_other_grids_are_compared_at_patch_centres(factor):
    """The same area in patches of another size: no difference except for the finer patches."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 2, (6, 8))
    fine = np.kron(coarse, np.ones((factor, factor), int))
    one, other = make_map(coarse, 30, 30), make_map(fine, 30 // factor, 30 // factor)
    n = int(coarse.sum())
    assert MapDifference.from_maps(one, other).count_changes() == [[48 - n, 0], [0, n]]
    assert MapDifference.from_maps(other, one).count_changes() == [
        [(48 - n) * factor**2, 0],
        [0, n * factor**2],
    ]


def test_area_outside_the_other_map_is_not_compared():
    one, other = make_map([[0, 0, 0]]), make_map([[1, 1]], left=10.0)
    found = MapDifference.from_maps(one, other)
    assert found.second.tolist() == [[NO_TISSUE, 1, 1]] and found.n_tissue_mismatches == 1


def test_differences_of_models_are_described():
    one = ModelProfile("one", False, "set", ("a", "b"), 0.5, "centred", 20)
    assert model_differences(one, one) == []
    other = replace(
        one, training_set="other", classes=("a", "c"), mpp=None, features="lines", patch_px=16
    )
    text = " ".join(model_differences(one, other))
    for part in ("a / b, and a / c", "trained on different images", "0.5 µm, and unknown"):
        assert part in text
    assert "centred of 20 pixels, and lines of 16" in text


# --- models from files --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tissue, model, recipe, manifest, tmp_path_factory):
    """Two models; the second one's map changes with its threshold."""
    base = tmp_path_factory.mktemp("opened") / "data"
    shutil.copytree(tissue / "tissue", base / "tissue")
    save_model(model, base / "kept.histodict")
    moved = TissueClassifier(replace(recipe, aggregation="margin")).fit(manifest)
    save_model(moved, base / "margin.histodict")
    (base / "notes.txt").write_text("no model")
    (base / "broken.histodict").write_bytes((base / "kept.histodict").read_bytes()[:3000])
    return base


@pytest.fixture(scope="module")
def client(folder):
    with open_client([folder], folder.parent / "workspace", users=("anna", "ben")) as client:
        yield client


def open_model(client, inside, place=0):
    return client.post(
        "/api/models", json={"folder_index": place, "relative_path": inside}, headers=OWN
    )


def test_imported_model_is_used_like_a_trained_one(client, model):
    assert "kept.histodict" in client.get("/api/folders").json()["models"]
    job = open_model(client, "kept.histodict").json()["id"]
    # the same file is imported once
    assert open_model(client, "kept.histodict").json()["id"] == job
    session = client.get("/api/session").json()
    assert session["jobs"] == [] and session["maps"] == []
    assert [(entry["id"], entry["name"]) for entry in session["opened"]] == [
        (job, "kept.histodict")
    ]
    reported = client.get(f"/api/jobs/{job}/model").json()
    assert (
        reported["opened"]
        and reported["classes"] == model.class_names_
        and reported["results"] is None
    )
    data = open_data(client)
    image = client.get(f"/api/data/{data}").json()["images"][0]["id"]
    place = f"/api/jobs/{job}/look/{data}/{image}"
    assert client.get(place).json()["state"] == "done"
    explanation = client.get(f"{place}/why", params={"row": 1, "column": 1}).json()
    assert explanation["similar"] == [] and "reconstruct" in explanation["words"]
    assert client.get(f"/api/jobs/{job}/report.html").status_code in (400, 404)
    assert client.get(f"/api/jobs/{job}/model.histodict").status_code == 200


def test_imported_model_is_no_running_job(client):
    job = open_model(client, "kept.histodict").json()["id"]
    assert client.get(f"/api/jobs/{job}").json()["state"] == "done"
    for act in ("cancel", "resume"):
        assert client.post(f"/api/jobs/{job}/{act}", headers=OWN).status_code == 400
    body = {"data": open_data(client), "parent": job}
    response = client.post("/api/jobs", json=body, headers=OWN)
    assert response.status_code == 400 and "other images" in response.json()["error"]
    assert client.get(f"/api/jobs/{job}").json()["state"] == "done"


def test_incompatibilities_are_reported(client, folder):
    job = open_model(client, "kept.histodict").json()["id"]
    data = open_data(client)
    (text,) = client.get(f"/api/jobs/{job}/fits/{data}").json()["warnings"]
    assert "comes from a file (kept.histodict)" in text
    for name, label in (("grade1", "healthy"), ("grade2", "inflamed")):
        shutil.copytree(folder / "tissue" / label, folder / "graded" / name, dirs_exist_ok=True)
    _, text = client.get(f"/api/jobs/{job}/fits/{open_data(client, 'graded')}").json()["warnings"]
    assert "labelled grade1 / grade2; the classes of the model are healthy / inflamed" in text


def test_images_of_another_pixel_size_are_refused(client, folder):
    job = open_model(client, "kept.histodict").json()["id"]
    image = min((folder / "tissue" / "healthy").iterdir())
    rows = (
        f"path,label,patient,mpp\n{image},a,1,0.25\n{image.parent / 'patient02_2.jpg'},b,2,0.25\n"
    )
    (folder / "fine.csv").write_text(rows)
    data = open_data(client, "fine.csv")
    first = client.get(f"/api/data/{data}").json()["images"][0]["id"]
    response = client.get(f"/api/jobs/{job}/look/{data}/{first}")
    assert response.status_code == 400
    assert (
        "has 0.25 µm per pixel, but the model was trained on images with 0.5"
        in response.json()["error"]
    )


@pytest.mark.parametrize(
    ("inside", "status"),
    [
        ("notes.txt", 400),
        ("tissue", 400),
        ("broken.histodict", 400),
        ("absent.histodict", 404),
        ("../workspace/kept.histodict", 403),
        ("/etc/passwd", 403),
        ("..", 403),
        ("a\0.histodict", 403),
        (7, 400),
    ],
)
def test_file_that_is_no_model_is_not_imported(client, folder, inside, status):
    before = sorted((folder.parent / "workspace" / "users" / "anna" / "jobs").iterdir())
    response = open_model(client, inside)
    assert response.status_code == status
    text = response.json()["error"]
    assert text and str(folder.parent / "workspace") not in text
    assert sorted((folder.parent / "workspace" / "users" / "anna" / "jobs").iterdir()) == before


def test_link_to_a_model_elsewhere_is_refused(client, folder, model):
    save_model(model, folder.parent / "secret.histodict")
    (folder / "link.histodict").symlink_to(folder.parent / "secret.histodict")
    assert open_model(client, "link.histodict").status_code == 403
    assert "link.histodict" not in client.get("/api/folders").json()["models"]


def test_too_large_model_is_refused(client, folder, monkeypatch):
    monkeypatch.setattr(model_compatibility, "_MAX_FILE_BYTES", 100)
    response = open_model(client, "kept.histodict")
    assert response.status_code == 400 and "larger than" in response.json()["error"]


def test_imported_model_is_private_to_its_user(client):
    job = open_model(client, "kept.histodict").json()["id"]
    anna, ben = client.app.state.users
    sign_in(client, ben)
    assert client.get("/api/session").json()["opened"] == []
    assert client.get(f"/api/jobs/{job}/model").status_code == 404
    sign_in(client, anna)


def test_imported_model_is_deleted_without_its_file(client, folder):
    shutil.copy(folder / "kept.histodict", folder / "second.histodict")
    job = open_model(client, "second.histodict").json()["id"]
    assert client.post(f"/api/jobs/{job}/delete", headers=OWN).status_code == 200
    assert client.get(f"/api/jobs/{job}/model").status_code == 404
    assert (folder / "second.histodict").is_file()


# --- exports and differences over HTTP
# -------------------------------------------------------------


@pytest.fixture(scope="module")
def place(client, folder):
    job = open_model(client, "kept.histodict").json()["id"]
    data = open_data(client)
    image = client.get(f"/api/data/{data}").json()["images"][-1]["id"]
    path = f"/api/jobs/{job}/look/{data}/{image}"
    assert client.get(path).json()["answer"]
    return job, path


def test_exported_table_equals_the_map(client, place):
    response = client.get(f"{place[1]}/map.csv")
    assert "attachment" in response.headers["content-disposition"]
    rows = list(csv.DictReader(io.StringIO(response.text)))
    shares = client.get(place[1]).json()["shares"]
    n = len(rows)
    assert n == client.get(place[1]).json()["n_patches"] > 50
    for name, share in shares.items():
        assert sum(row["class"] == name for row in rows) / n == pytest.approx(share)
    assert (float(rows[0]["x"]), float(rows[0]["side"])) == (12 * int(rows[0]["column"]), 12)
    only = client.get(f"{place[1]}/map.csv?only=1").text.splitlines()
    assert len(only) - 1 == sum(row["class"] == "inflamed" for row in rows)
    assert client.get(f"{place[1]}/map.csv?only=9").status_code == 404


def test_outlines_for_qupath_cover_the_patches(client, place):
    features = json.loads(client.get(f"{place[1]}/map.geojson").text)["features"]
    names = {one["properties"]["classification"]["name"] for one in features}
    assert names == {"healthy", "inflamed"}
    only = json.loads(client.get(f"{place[1]}/map.geojson?only=0").text)["features"]
    assert {one["properties"]["classification"]["name"] for one in only} == {"healthy"}

    def area(ring):
        x, y = np.array(ring).T
        return abs(np.sum(x[:-1] * y[1:] - x[1:] * y[:-1]) / 2)

    def size(geometry):
        polygons = geometry["coordinates"]
        if geometry["type"] == "Polygon":
            polygons = [polygons]
        return sum(area(rings[0]) - sum(map(area, rings[1:])) for rings in polygons)

    n_healthy = client.get(f"{place[1]}/map.csv?only=0").text.count("\n") - 1
    assert sum(size(one["geometry"]) for one in only) == pytest.approx(n_healthy * 12**2)


def test_moved_threshold_changes_exports_and_comparisons(client, place):
    job = open_model(client, "margin.histodict").json()["id"]
    path = place[1].replace(place[0], job)
    assert client.get(path).json()["state"] == "done"
    point = "point=0.001"
    assert client.get(f"{path}/map.csv?only=1").text.count("\n") > 1
    moved = client.get(f"{path}/map.csv?only=1&{point}").text
    same = client.get(f"{path}/difference?with={job}").json()
    assert same["warnings"] == []
    assert same["counts"][0][1] == same["counts"][1][0] == 0
    other = client.get(f"{path}/difference?with={job}&with_{point}").json()
    n_before, n_now = sum(same["counts"][1]), moved.count("\n") - 1
    assert n_now != n_before == other["counts"][1][0] + other["counts"][1][1]
    assert n_now == other["counts"][0][1] + other["counts"][1][1]
    assert other["version"] != same["version"]
    overlay = client.get(f"{path}/difference.png?with={job}&with_{point}")
    assert overlay.headers["content-type"] == "image/png"
    assert overlay.content != client.get(f"{path}/difference.png?with={job}").content
    (text,) = client.get(f"{path}/difference?with={place[0]}").json()["warnings"]
    assert text.startswith("The models were probably trained on different images")
    assert client.get(f"{path}/difference?with=aaaaaaaaaaaa").status_code == 404
    assert client.get(f"{path}/difference?with=../../x").status_code == 404


# --- what to label next -------------------------------------------------------------------------


def test_images_are_suggested_after_some_predictions(client, folder):
    job = open_model(client, "kept.histodict").json()["id"]
    data = open_data(client)
    ids = [image["id"] for image in client.get(f"/api/data/{data}").json()["images"]]
    place = f"/api/jobs/{job}/suggest/{data}"
    before = client.get(place).json()
    assert before["of"] == len(ids) and set(before["next"]) <= set(ids)
    for image in before["next"]:
        client.get(f"/api/jobs/{job}/look/{data}/{image}")
    after = client.get(place).json()
    assert after["judged"] > before["judged"] and not set(after["next"]) & set(before["next"])
    first = after["suggested"][0]["image"]
    body = {"image": first, "label": None, "box": None}
    assert client.post(f"/api/data/{data}/correct", json=body, headers=OWN).status_code == 200
    now = client.get(place).json()
    assert now["of"] == len(ids) - 1  # labelled images are not suggested again
    assert first not in [one["image"] for one in now["suggested"]]
    parts = client.get(f"/api/jobs/{job}/look/{data}/{ids[-1]}/fields").json()["fields"]
    assert all(0 <= part["doubt"] <= 1 and len(part["box"]) == 4 for part in parts)


def test_unreadable_and_annotated_images_are_not_suggested(client, folder):
    shutil.copytree(folder / "tissue", folder / "spoilt")
    first, second, *_ = sorted((folder / "spoilt").rglob("*.jpg"))
    first.write_bytes(b"no image")
    job = open_model(client, "kept.histodict").json()["id"]
    body = {"folder_index": 0, "relative_path": "spoilt", "bare": True}
    data = client.post("/api/data", json=body, headers=OWN).json()["id"]
    own = f"/api/data/{data}"
    ids = {image["name"]: image["id"] for image in client.get(own).json()["images"]}
    found = client.get(f"/api/jobs/{job}/suggest/{data}").json()
    assert found["of"] == len(ids) and found["unread"] == 1 and len(found["next"]) > 1
    label = client.post(f"{own}/classes", json={"name": "a"}, headers=OWN).json()["classes"][0][
        "id"
    ]
    stroke = {"act": "draw", "tool": "brush", "points": [[30, 30]], "radius": 9, "label": label}
    annotated = ids[second.relative_to(folder / "spoilt").as_posix()]
    response = client.post(f"{own}/images/{annotated}/drawn", json=stroke, headers=OWN)
    assert response.status_code == 200, response.text
    found = client.get(f"/api/jobs/{job}/suggest/{data}").json()
    assert found["of"] == len(ids) - 1 and annotated not in found["next"]
