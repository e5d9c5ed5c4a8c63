"""Tests of annotation over HTTP on unlabelled images: classes, strokes, undo, file import and
export, and refused requests."""

from __future__ import annotations

import json
import threading
import time

import numpy as np
import pytest

pytest.importorskip("starlette", reason='the web app is not installed: pip install ".[web]"')

from PIL import Image

from histodict.annotations.annotation_file import AnnotationFile
from histodict.images.source import open_image
from histodict.web.annotation import store
from histodict.web.annotation.store import AnnotationStore, Shape
from tests.web.app import OWN, open_client, open_data, run_job, start

BRUSH = {"act": "draw", "tool": "brush", "points": [[60, 60], [120, 70]], "radius": 15}
BOX = {"act": "draw", "tool": "rectangle", "points": [[150, 100], [220, 160]]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two unlabelled images: stripes on the left, dots on the right."""
    folder = tmp_path_factory.mktemp("bare")
    rng = np.random.default_rng(0)
    for name in ("first", "second"):
        noise = rng.integers(0, 30, (200, 280, 3), dtype=np.uint8)
        pixels = noise + np.array((190, 110, 160), np.uint8)
        pixels[:, 2:140:8] = pixels[:, 3:140:8] = (90, 40, 120)
        pixels[::5, 140::5] = (90, 40, 120)
        Image.fromarray(pixels).save(folder / f"{name}.png")
    return folder


@pytest.fixture
def client(folder, tmp_path, monkeypatch):
    from histodict.web.api import annotate as api_annotate

    # an encoder takes seconds to load
    monkeypatch.setattr(api_annotate, "is_encoder_installed", lambda: False)
    with open_client([folder.parent], tmp_path / "workspace") as client:
        client.data = open_data(client, folder.name)
        client.images = {i["name"]: i["id"] for i in request(client)["images"]}
        yield client


def request(client, path="", body=None):
    url = f"/api/data/{client.data}{path}"
    response = client.get(url) if body is None else client.post(url, json=body, headers=OWN)
    assert response.status_code == 200, response.text
    return response.json()


def refused(client, path, body):
    response = client.post(f"/api/data/{client.data}{path}", json=body, headers=OWN)
    assert 400 <= response.status_code < 500, response.text
    return response.json()["error"]


def annotation_path(client, name="first.png"):
    return f"/images/{client.images[name]}/drawn"


def make(client, *names):
    return [request(client, "/classes", {"name": name})["classes"][-1]["id"] for name in names]


def draw_both(client, name="first.png"):
    own = make(client, "stripes", "dots") if not annotation_state(client)["classes"] else None
    own = own or [one["id"] for one in annotation_state(client)["classes"]]
    request(client, annotation_path(client, name), BRUSH | {"label": own[0]})
    return own, request(client, annotation_path(client, name), BOX | {"label": own[1]})


def annotation_state(client):
    return request(client, "/drawn")


def import_file(client, content, name="first.geojson"):
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    url = f"/api/data/{client.data}{annotation_path(client)}/file?name={name}"
    return client.post(url, content=data, headers=OWN)


def feature(corners, name="Tumor", **more):
    message = {"classification": {"name": name, "color": [200, 0, 0]}} if name else {}
    geometry = {"type": "Polygon", "coordinates": [corners]}
    return {"type": "Feature", "geometry": geometry, "properties": message | more}


def square(left, top, side):
    right, low = left + side, top + side
    return [[left, top], [right, top], [right, low], [left, low], [left, top]]


# --- classes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["Tumor, grade 3", 'a "b" <i>c</i>', "Гистология", "腫瘍", "é" * 60, "../x", "100 %", "'; --"],
)
def test_any_readable_name_makes_a_class_and_survives_a_file(client, name):
    (own,) = make(client, f"  {name}  ")
    request(client, annotation_path(client), BOX | {"label": own})
    saved = client.get(f"/api/data/{client.data}{annotation_path(client)}.geojson")
    (found,) = json.loads(saved.content)["features"]
    assert found["properties"]["classification"] == {"name": name, "color": [213, 94, 0]}
    assert saved.content.isascii()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"name": ""}, "1 to 60 characters"),
        ({"name": "   "}, "1 to 60 characters"),
        ({"name": "x" * 61}, "1 to 60 characters"),
        ({"name": 5}, "name of the class is empty"),
        ({}, "name of the class is empty"),
        ({"name": "a\x00b"}, "cannot contain"),
        ({"name": "a\u202eb"}, "cannot contain"),
        ({"name": "ok", "colour": "red"}, "#rrggbb"),
        ({"name": " STRIPES"}, "already"),
        ({"id": "0" * 12, "name": "y"}, "class does not exist"),
    ],
)
def test_misleading_names_are_refused(client, body, message):
    make(client, "stripes")
    assert message in refused(client, "/classes", body)
    assert len(annotation_state(client)["classes"]) == 1


def test_class_is_renamed_everywhere_and_only_removed_if_unused(client):
    (first, second), _ = draw_both(client)
    request(client, "/classes", {"id": first, "name": "lines", "colour": "#123456"})
    assert annotation_state(client)["classes"][0] == {
        "id": first,
        "name": "lines",
        "colour": "#123456",
    }
    assert "remove its shapes first" in refused(client, "/classes", {"id": second, "remove": True})
    request(client, annotation_path(client), {"act": "undo"})
    request(client, "/classes", {"id": second, "remove": True})
    assert request(client, annotation_path(client))["redo"] == 0  # it contained the removed class


# --- shapes --------------------------------------------------------------------------------------


def test_annotations_and_undo_survive_a_restart(client, folder, tmp_path):
    _, now = draw_both(client)
    with open_client([folder.parent], tmp_path / "workspace") as later:
        later.data, later.images = client.data, client.images
        assert request(later, annotation_path(later)) == now
        before = request(later, annotation_path(later), {"act": "undo"})
        assert len(before["shapes"]) == 1 and (before["undo"], before["redo"]) == (1, 1)
        again = request(later, annotation_path(later), {"act": "redo"})
        assert again["shapes"] == now["shapes"]
        assert "nothing to redo" in refused(later, annotation_path(later), {"act": "redo"})


def test_later_paint_has_precedence_and_one_undo_restores(client):
    (first, second), before = draw_both(client)
    over = BRUSH | {"points": [[90, 65]], "radius": 10, "label": second}
    after = request(client, annotation_path(client), over)
    areas = {first: 0.0, second: 0.0}
    for shape in after["shapes"]:
        areas[shape["label"]] += shape["area"]
    was = {s["label"]: s["area"] for s in before["shapes"]}
    dab = next(s for s in after["shapes"] if s["id"] == after["shapes"][-1]["id"])["area"]
    assert areas[first] == pytest.approx(was[first] - dab, rel=0.02)
    back = request(client, annotation_path(client), {"act": "undo"})["shapes"]
    assert sorted(s["id"] for s in back) == sorted(s["id"] for s in before["shapes"])


def test_eraser_relabelling_and_removal(client):
    (_, second), _ = draw_both(client)
    wipe = {"act": "draw", "tool": "eraser", "points": [[185, 90], [185, 170]], "radius": 8}
    shapes = request(client, annotation_path(client), wipe)["shapes"]
    assert len(shapes) == 2 and sum(len(s["polygons"]) for s in shapes) == 3
    assert "nothing to erase" in refused(
        client, annotation_path(client), wipe | {"points": [[5, 190]]}
    )
    own = {"act": "relabel", "id": shapes[0]["id"], "label": second}
    assert {s["label"] for s in request(client, annotation_path(client), own)["shapes"]} == {second}
    last = request(client, annotation_path(client))["shapes"][-1]["id"]
    assert (
        len(request(client, annotation_path(client), {"act": "remove", "id": last})["shapes"]) == 1
    )
    assert "shape does not exist" in refused(
        client, annotation_path(client), {"act": "remove", "id": last}
    )


@pytest.mark.parametrize(
    "body",
    [
        {"act": "dance"},
        {"act": "draw", "tool": "axe", "points": [[1, 1]]},
        {"act": "draw", "tool": [], "points": [[1, 1]]},
        {"act": "draw", "tool": "brush", "points": [[10**400, 1]]},
        {"act": "draw", "tool": "brush", "points": []},
        {"act": "draw", "tool": "brush", "points": [[1]]},
        {"act": "draw", "tool": "brush", "points": [["a", 1]]},
        {"act": "draw", "tool": "brush", "points": [[1e300, 1]]},
        {"act": "draw", "tool": "brush", "points": [[50, 50]], "radius": 0},
        {"act": "draw", "tool": "brush", "points": [[50, 50]], "radius": 1e9},
        {"act": "draw", "tool": "brush", "points": [[5000, 5000]], "radius": 5},
        {"act": "draw", "tool": "polygon", "points": [[1, 1], [5, 5]]},
        {"act": "draw", "tool": "rectangle", "points": [[1, 1], [1, 50]]},
        {"act": "draw", "tool": "brush", "points": [[50, 50]], "radius": 5, "label": "0" * 12},
        {"act": "undo"},
    ],
)
def test_invalid_annotation_is_refused_without_a_change(client, body):
    (own,) = make(client, "stripes")
    assert refused(client, annotation_path(client), {"label": own} | body)
    assert request(client, annotation_path(client))["shapes"] == []


def test_concurrent_requests_lose_no_stroke(client):
    (own,) = make(client, "stripes")

    def draw(place):
        points = [[20 + 12 * place, 40]]
        request(
            client, annotation_path(client), BRUSH | {"points": points, "radius": 4, "label": own}
        )

    hands = [threading.Thread(target=draw, args=[place]) for place in range(12)]
    for hand in hands:
        hand.start()
    for hand in hands:
        hand.join()
    assert len(request(client, annotation_path(client))["shapes"]) == 12


# --- files ---------------------------------------------------------------------------------------


def test_exported_file_covers_the_same_pixels_when_imported(client, folder, tmp_path):
    draw_both(client)
    saved = client.get(f"/api/data/{client.data}{annotation_path(client)}.geojson")
    assert 'filename="first.geojson"' in saved.headers["content-disposition"]
    path = tmp_path / "first.geojson"
    path.write_bytes(saved.content)
    shapes = request(client, annotation_path(client))["shapes"]
    with open_image(folder / "first.png") as source:
        n_pixels = {
            n: AnnotationFile(path, (n,)).region_mask(source).n_pixels for n in ("stripes", "dots")
        }
    assert n_pixels["dots"] == 70 * 60
    assert n_pixels["stripes"] == pytest.approx(shapes[0]["area"], rel=0.02)
    for shape in shapes:
        request(client, annotation_path(client), {"act": "remove", "id": shape["id"]})
    assert import_file(client, saved.content).status_code == 200
    back = request(client, annotation_path(client))["shapes"]
    assert [s["polygons"] for s in back] == [s["polygons"] for s in shapes]
    assert {s["tool"] for s in back} == {"file"} and len(annotation_state(client)["classes"]) == 2


def test_files_of_other_programs_provide_classes_and_colours(client):
    old = {"name": "Necrosis", "colorRGB": -16776961}
    features = [
        feature(square(10, 10, 40)),
        feature(square(60, 10, 40), None),
        feature(square(10, 100, 40), None, classification=old),
        feature(square(100, 100, 40), "Cells", objectType="detection"),
    ]
    found = import_file(client, features).json()
    assert {one["name"]: one["colour"] for one in found["classes"]} == {
        "Necrosis": "#0000ff",
        "Tumor": "#c80000",
        "unclassified": "#d55e00",
    }
    assert len(found["shapes"]) == 3 and "1 detections" in found["notes"][0]
    again = import_file(client, [feature(square(60, 100, 30), " tumor ")]).json()
    assert len(again["classes"]) == 3  # names that differ in case and blanks are equal
    assert again["shapes"][-1]["label"] == next(
        one["id"] for one in again["classes"] if one["name"] == "Tumor"
    )


def test_self_intersecting_outline_is_warned_of_and_filled(client):
    tie = [[100, 50], [200, 150], [200, 50], [100, 150], [100, 50]]
    found = import_file(client, {"type": "FeatureCollection", "features": [feature(tie)]}).json()
    assert "self-intersecting" in found["notes"][0]
    assert sum(shape["area"] for shape in found["shapes"]) == pytest.approx(5000, rel=0.03)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "invalid GeoJSON"),
        (b"<xml/>", "invalid GeoJSON"),
        (b"\xff\xfe", "invalid GeoJSON"),
        (b"[" * 10_000, "invalid GeoJSON"),
        ({"type": "FeatureCollection", "features": []}, "no outline"),
        ([{"a": 1}], "without GeoJSON features"),
        ([1, 2], "without GeoJSON features"),
        ([feature(square(9000, 9000, 50))], "outside"),
        ([feature([[0, 0], [1, "x"], [5, 5]])], "without two finite numbers"),
        ([{"type": "Feature", "geometry": {"type": "Point", "coordinates": [1, 1]}}], "no outline"),
        ([feature(square(10, 10, 40), "a\x00b")], "cannot contain"),
        ([feature(square(10, 10, 40), "x" * 100)], "1 to 60 characters"),
    ],
)
def test_invalid_files_are_refused_without_a_change(client, content, message):
    response = import_file(client, content)
    assert response.status_code == 400
    error = response.json()["error"]
    assert message in error and "set --" not in error and "give --" not in error
    assert annotation_state(client)["images"] == annotation_state(client)["classes"] == []


def many_corners(how, n=40_000):
    if how == "crossing":  # back and forth over the image
        return np.random.default_rng(0).uniform(10, 190, (n, 2)).round(1).tolist()
    angles = np.linspace(0, 2 * np.pi, n, endpoint=False)
    return np.stack([120 + 60 * np.cos(angles), 100 + 60 * np.sin(angles)], 1).round(4).tolist()


def test_outline_of_many_corners_is_imported_or_refused_quickly(client):
    begun = time.process_time()
    found = import_file(client, [feature(many_corners("round"))]).json()
    assert sum(shape["area"] for shape in found["shapes"]) == pytest.approx(np.pi * 3600, rel=0.01)
    crossing = import_file(client, [feature(many_corners("crossing"))])
    assert crossing.status_code == 400 and "simplify them" in crossing.json()["error"]
    tie = [[100, 50], [200, 150], [200, 50], [100, 150], [100, 50]]
    ties = import_file(client, [feature(tie)] * 1000)
    assert ties.status_code == 400 and "1000 self-intersecting outlines" in ties.json()["error"]
    squares = import_file(client, [feature(square(60, 100, 30))] * 5001)
    assert squares.status_code == 400 and "5000 outlines and" in squares.json()["error"]
    assert len(
        client.get(f"/api/data/{client.data}{annotation_path(client)}").json()["shapes"]
    ) == len(found["shapes"])
    assert time.process_time() - begun < 10


def test_crossings_of_a_very_complex_outline_are_not_counted():
    """Counting them takes 20 s for 150,000 corners."""
    assert store.count_intersections(np.array(many_corners("crossing"))) == np.inf


def test_file_may_exceed_the_request_limit_up_to_its_own(client):
    many = [feature(square(10, 10, 40)) | {"pad": "x" * 100} for _ in range(1000)]
    assert import_file(client, many).status_code == 200
    assert "too large" in import_file(client, b" " * (17 * 2**20)).json()["error"]


def test_id_that_is_a_path_is_refused(client):
    for image in ("..%2f..%2ftoken", "000000000000"):
        response = client.post(
            f"/api/data/{client.data}/images/{image}/drawn", json={"act": "undo"}, headers=OWN
        )
        assert response.status_code == 404


# --- live preview
# ------------------------------------------------------------------------------------


def test_live_preview_separates_the_annotations(client):
    import base64
    import io

    draw_both(client)
    for name in client.images:  # also on an image without annotations
        quick = request(client, f"/images/{client.images[name]}/quick", {"box": [0, 0, 280, 200]})
        assert quick["left"] == 0 and min(quick["patches"].values()) > 5
        png = base64.b64decode(quick["picture"]["png"].partition(",")[2])
        colours = np.asarray(Image.open(io.BytesIO(png)))[..., :3].astype(int)
        assert quick["picture"]["box"][:2] == [0, 0]
        is_first = colours[..., 0] > colours[..., 2]  # orange, not blue
        half = colours.shape[1] // 2
        assert is_first[:, :half].mean() > 0.9 and is_first[:, half + 1 :].mean() < 0.1


def test_live_preview_needs_patches_of_two_classes(client):
    own = make(client, "stripes", "dots")
    thin = BRUSH | {"radius": 1, "label": own[0]}
    request(client, annotation_path(client), thin)
    quick = request(
        client, f"/images/{client.images['first.png']}/quick", {"box": [0, 0, 280, 200]}
    )
    assert quick["picture"] is None and quick["patches"] == dict.fromkeys(own, 0)
    bad = f"/images/{client.images['first.png']}/quick"
    for box in (None, [1, 2, 3], ["a", 1, 2, 3], [1e300, 0, 0, 0]):
        assert "numbers" in refused(client, bad, {"box": box})


def test_tiles_do_not_wait_for_the_live_preview(client, monkeypatch):
    from histodict.web.api import annotate as api_annotate

    begun, over = threading.Event(), threading.Event()

    def slow(*args):
        begun.set()
        over.wait(20)
        return {}

    monkeypatch.setattr(api_annotate, "predict_viewport", slow)
    image = f"/images/{client.images['first.png']}"
    body = {"box": [0, 0, 280, 200]}
    asking = [
        threading.Thread(target=request, args=[client, f"{image}/quick", body]) for _ in range(4)
    ]
    for thread in asking:
        thread.start()
    assert begun.wait(20)
    started = time.monotonic()
    # a new tile of the same image
    tile = client.get(f"/api/data/{client.data}{image}/tiles/0/0/0.jpg")
    assert tile.status_code == 200 and time.monotonic() - started < 10
    over.set()
    for thread in asking:
        thread.join()


def test_very_large_shape_is_processed_quickly(tmp_path):
    from histodict.utils.files import file_key
    from histodict.web.annotation.edits import new_shape
    from histodict.web.annotation.quick_prediction import (
        AnnotatedImage,
        InteractiveImage,
        make_quick_recipe,
    )
    from histodict.web.annotation.store import polygonize

    path = tmp_path / "large.bmp"  # not compressed
    Image.fromarray(np.full((4000, 5000, 3), (200, 120, 170), np.uint8)).save(path)
    with open_image(path) as source:
        sight = InteractiveImage(source, make_quick_recipe(None, False), file_key(path))
        ring = np.array([[0, 0], [5000, 0], [5000, 4000]], float)
        (triangle,) = [new_shape("a", "polygon", polygonize([ring], source.size))]
        dabs = [
            new_shape("b", "brush", polygonize([np.array(square(x, 3500, 50), float)], source.size))
            for x in range(0, 4500, 100)
        ]
        assert len(sight.chunks) == 80
        few = AnnotatedImage(sight, [triangle]).training_chunks()
        assert 1 <= len(few) <= 5
        assert all(c.stop * 4000 > r.start * 5000 for r, c in few)  # none below the triangle
        many = AnnotatedImage(sight, [triangle, *dabs]).training_chunks()
        assert len(many) <= 24 and {
            repr(f) for f in AnnotatedImage(sight, dabs[-1:]).training_chunks()
        } <= {repr(f) for f in many}


# --- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", [b"", b"{}", b"[1]", b"no JSON"])
def test_damaged_annotations_are_reported_and_never_overwritten(client, damage):
    own, _ = draw_both(client)
    user = client.app.state.users[0].folder / "data" / client.data
    path = user / "sheets" / f"{client.images['first.png']}.json"
    path.write_bytes(damage)
    response = client.post(
        f"/api/data/{client.data}{annotation_path(client)}",
        json=BRUSH | {"label": own[0]},
        headers=OWN,
    )
    assert response.status_code == 400 and "is damaged" in response.json()["error"]
    assert path.read_bytes() == damage
    # other images can be annotated
    request(client, annotation_path(client, "second.png"), BRUSH | {"label": own[0]})


# --- training ------------------------------------------------------------------------------------


def test_training_needs_two_classes_and_training_patients(client):
    assert "two classes" in refused(client, "/../../jobs", {"data": client.data})
    draw_both(client)
    body = {"data": client.data, "preset": "quick"}
    assert "choose the positive class" in refused(client, "/../../jobs", body)
    request(client, "/about", {"positive": "dots"})
    body |= {"test_patients": ["first.png"]}
    assert "Leave at least one patient for training" in refused(client, "/../../jobs", body)


def test_model_is_trained_and_tested_on_shapes_alone(client, monkeypatch):
    monkeypatch.setattr(client.app.state.context.queue, "add", lambda job: None)
    draw_both(client)
    draw_both(client, "second.png")
    request(client, "/about", {"positive": "dots"})
    job = start(client, client.data, test_patients=["second.png"])
    # training uses the annotations at the time of the request
    request(client, annotation_path(client), {"act": "undo"})
    run_job(client, job)
    model = client.get(f"/api/jobs/{job}/model").json()
    assert model["classes"] == ["stripes", "dots"] and model["colours"]["dots"] == "#0072b2"
    rows = {row["name"]: row for row in model["results"]["images"]}
    assert set(rows) == {"second.png [stripes]", "second.png [dots]"}
    assert all(row["look"] == client.images["second.png"] for row in rows.values())
    assert [rows[f"second.png [{name}]"]["answer"] for name in ("stripes", "dots")] == [
        "stripes",
        "dots",
    ]
    card = dict(model["card"])
    assert card["Test set"] == "1 other patient"
    assert card["Annotations"].startswith("4 shapes on 2 images")
    assert client.get(f"/api/jobs/{job}/report.html").status_code == 200
    place = f"/api/jobs/{job}/look/{client.data}/{client.images['first.png']}"
    assert client.get(place).json()["n_patches"] > rows["second.png [dots]"]["n_patches"]
    assert client.get(f"{place}/map.png?only=-1").status_code == 200


# --- limits ---------------------------------------------------------------------------------------


def test_long_stroke_is_accepted_and_an_endless_one_refused(client):
    """Its JSON is larger than the limit for other requests."""
    (own,) = make(client, "dots")
    angles = np.linspace(0, 60 * np.pi, 20_000)
    reach = 20 + 60 * angles / angles[-1]
    path = np.stack([140 + reach * np.cos(angles), 100 + reach * np.sin(angles)], axis=1).round(1)
    body = BRUSH | {"label": own, "points": path.tolist(), "radius": 3}
    assert len(json.dumps(body)) > 2**17
    (shape,) = request(client, annotation_path(client), body)["shapes"]
    assert abs(shape["area"] / (np.pi * (83**2 - 17**2)) - 1) < 0.05
    more = body | {"points": [*body["points"], [1, 1]]}
    assert "must have 1 to 20000 points" in refused(client, annotation_path(client), more)
    endless = body | {"points": 10 * body["points"]}
    assert "too large" in refused(client, annotation_path(client), endless)


def square_of(n_corners, number):
    """Return a shape with this number of corners."""
    corners = [[float(number), float(i)] for i in range(n_corners)]
    return Shape(id=f"{number:012x}", label="a", tool="brush", area=1.0, polygons=[[corners]])


def test_length_of_the_undo_history_is_limited(monkeypatch):
    monkeypatch.setattr(store, "_MAX_HISTORY_CORNERS", 2000)
    small = large = AnnotationStore([], [], [])
    for number in range(130):
        small = small.with_change([], [square_of(4, number)])
    assert len(small.undo_stack) == 100
    for number in range(9):
        large = large.with_change([], [square_of(400, number)])
    assert len(large.undo_stack) == 5 and len(large.shapes) == 9
    back = large.undo().undo()
    assert len(back.shapes) == 7 and back.redo().redo().shapes == large.shapes
    last = AnnotationStore([], [], []).with_change([], [square_of(3000, 1)])
    assert last.undo().shapes == []  # the last step can be undone, whatever its size


# --- labelled images
# --------------------------------------------------------------------------------


@pytest.fixture
def labelled(tmp_path, folder):
    for name in ("healthy/p1", "inflamed/p2"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for number in (1, 2):
            data = (folder / "first.png").read_bytes()
            (tmp_path / "data" / name / f"{number}.png").write_bytes(data)
    with open_client([tmp_path / "data"], tmp_path / "own") as client:
        client.data = open_data(client, "")
        yield client


def test_labelled_images_are_annotated_as_a_separate_set(labelled):
    before = request(labelled)
    assert before["labelled"] and before["classes"] == ["healthy", "inflamed"]
    image = before["images"][0]["id"]
    for path, body in (("/classes", {"name": "a"}), (f"/images/{image}/drawn", BRUSH)):
        assert "To annotate them, open them without labels" in refused(labelled, path, body)
    own = labelled.data
    place = {
        "folder_index": before["folder_index"],
        "relative_path": before["relative_path"],
        "bare": True,
    }
    labelled.data = labelled.post("/api/data", json=place, headers=OWN).json()["id"]
    bare = request(labelled)
    assert labelled.data != own and not bare["labelled"] and bare["classes"] == []
    assert [(i["id"], i["patient"], i["label"]) for i in bare["images"]] == [
        (i["id"], i["patient"], "") for i in before["images"]
    ]
    assert "labels are ignored" in bare["notes"][0] and bare["name"].endswith(", without labels")
    (label,) = make(labelled, "a")
    assert request(labelled, f"/images/{image}/drawn", BRUSH | {"label": label})["shapes"]
    labelled.data = own
    assert request(labelled)["labelled"] and annotation_state(labelled)["images"] == []
    names = [data["name"] for data in labelled.get("/api/session").json()["data"]]
    assert sorted(names) == ["data", "data, without labels"]
