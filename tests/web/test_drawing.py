"""Drawing on images without labels, as the page asks for it: classes, strokes, the way back,
files in and out, and what is refused.
"""

from __future__ import annotations

import json
import threading
import time

import numpy as np
import pytest

pytest.importorskip(
    "starlette", reason="the web app is not installed: pip install 'histodict[web]'"
)

from PIL import Image

from histodict.annotations.annotation_file import AnnotationFile
from histodict.images.source import open_image
from histodict.web.annotation.store import AnnotationStore, Shape
from tests.web.app import OWN, open_client, open_data, start, wait_for

BRUSH = {"act": "draw", "tool": "brush", "points": [[60, 60], [120, 70]], "radius": 15}
BOX = {"act": "draw", "tool": "rectangle", "points": [[150, 100], [220, 160]]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two bare images: stripes to the left, dots to the right."""
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

    monkeypatch.setattr(api_annotate, "uses_encoder", lambda: False)  # which takes seconds to start
    with open_client([folder.parent], tmp_path / "workspace") as client:
        client.data = open_data(client, folder.name)
        client.images = {i["name"]: i["id"] for i in ask(client)["images"]}
        yield client


def ask(client, path="", body=None):
    url = f"/api/data/{client.data}{path}"
    response = client.get(url) if body is None else client.post(url, json=body, headers=OWN)
    assert response.status_code == 200, response.text
    return response.json()


def refused(client, path, body):
    response = client.post(f"/api/data/{client.data}{path}", json=body, headers=OWN)
    assert 400 <= response.status_code < 500, response.text
    return response.json()["error"]


def sheet(client, name="first.png"):
    return f"/images/{client.images[name]}/drawn"


def make(client, *names):
    return [ask(client, "/classes", {"name": name})["classes"][-1]["id"] for name in names]


def draw_both(client, name="first.png"):
    own = make(client, "stripes", "dots") if not drawn(client)["classes"] else None
    own = own or [one["id"] for one in drawn(client)["classes"]]
    ask(client, sheet(client, name), BRUSH | {"label": own[0]})
    return own, ask(client, sheet(client, name), BOX | {"label": own[1]})


def drawn(client):
    return ask(client, "/drawn")


def bring(client, content, name="first.geojson"):
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    url = f"/api/data/{client.data}{sheet(client)}/file?name={name}"
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
def test_any_name_that_can_be_read_makes_a_class_and_comes_back_from_a_file(client, name):
    (own,) = make(client, f"  {name}  ")
    ask(client, sheet(client), BOX | {"label": own})
    saved = client.get(f"/api/data/{client.data}{sheet(client)}.geojson")
    (found,) = json.loads(saved.content)["features"]
    assert found["properties"]["classification"] == {"name": name, "color": [213, 94, 0]}
    assert saved.content.isascii()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"name": ""}, "from 1 to 60"),
        ({"name": "   "}, "from 1 to 60"),
        ({"name": "x" * 61}, "from 1 to 60"),
        ({"name": 5}, "needs a name"),
        ({}, "needs a name"),
        ({"name": "a\x00b"}, "cannot hold"),
        ({"name": "a\u202eb"}, "cannot hold"),
        ({"name": "ok", "colour": "red"}, "#rrggbb"),
        ({"name": " STRIPES"}, "already"),
        ({"id": "0" * 12, "name": "y"}, "no such class"),
    ],
)
def test_names_that_would_mislead_are_refused(client, body, words):
    make(client, "stripes")
    assert words in refused(client, "/classes", body)
    assert len(drawn(client)["classes"]) == 1


def test_a_class_is_renamed_everywhere_and_removed_only_if_nothing_is_of_it(client):
    (first, second), _ = draw_both(client)
    ask(client, "/classes", {"id": first, "name": "lines", "colour": "#123456"})
    assert drawn(client)["classes"][0] == {"id": first, "name": "lines", "colour": "#123456"}
    assert "remove these first" in refused(client, "/classes", {"id": second, "remove": True})
    ask(client, sheet(client), {"act": "undo"})
    ask(client, "/classes", {"id": second, "remove": True})
    assert ask(client, sheet(client))["redo"] == 0  # it led through the class that is no more


# --- shapes --------------------------------------------------------------------------------------


def test_what_is_drawn_is_there_after_a_restart_with_the_way_back(client, folder, tmp_path):
    _, now = draw_both(client)
    with open_client([folder.parent], tmp_path / "workspace") as later:
        later.data, later.images = client.data, client.images
        assert ask(later, sheet(later)) == now
        before = ask(later, sheet(later), {"act": "undo"})
        assert len(before["shapes"]) == 1 and (before["undo"], before["redo"]) == (1, 1)
        again = ask(later, sheet(later), {"act": "redo"})
        assert again["shapes"] == now["shapes"]
        assert "nothing to do again" in refused(later, sheet(later), {"act": "redo"})


def test_what_is_painted_last_counts_and_one_step_takes_it_back(client):
    (first, second), before = draw_both(client)
    over = BRUSH | {"points": [[90, 65]], "radius": 10, "label": second}
    after = ask(client, sheet(client), over)
    areas = {first: 0.0, second: 0.0}
    for shape in after["shapes"]:
        areas[shape["label"]] += shape["area"]
    was = {s["label"]: s["area"] for s in before["shapes"]}
    dab = next(s for s in after["shapes"] if s["id"] == after["shapes"][-1]["id"])["area"]
    assert areas[first] == pytest.approx(was[first] - dab, rel=0.02)
    back = ask(client, sheet(client), {"act": "undo"})["shapes"]
    assert sorted(s["id"] for s in back) == sorted(s["id"] for s in before["shapes"])


def test_the_eraser_relabelling_and_removing(client):
    (_, second), _ = draw_both(client)
    wipe = {"act": "draw", "tool": "eraser", "points": [[185, 90], [185, 170]], "radius": 8}
    shapes = ask(client, sheet(client), wipe)["shapes"]
    assert len(shapes) == 2 and sum(len(s["polygons"]) for s in shapes) == 3
    assert "nothing to rub out" in refused(client, sheet(client), wipe | {"points": [[5, 190]]})
    own = {"act": "relabel", "id": shapes[0]["id"], "label": second}
    assert {s["label"] for s in ask(client, sheet(client), own)["shapes"]} == {second}
    last = ask(client, sheet(client))["shapes"][-1]["id"]
    assert len(ask(client, sheet(client), {"act": "remove", "id": last})["shapes"]) == 1
    assert "no such shape" in refused(client, sheet(client), {"act": "remove", "id": last})


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
def test_what_cannot_be_drawn_is_refused_and_changes_nothing(client, body):
    (own,) = make(client, "stripes")
    assert refused(client, sheet(client), {"label": own} | body)
    assert ask(client, sheet(client))["shapes"] == []


def test_two_hands_at_once_lose_no_stroke(client):
    (own,) = make(client, "stripes")

    def draw(place):
        points = [[20 + 12 * place, 40]]
        ask(client, sheet(client), BRUSH | {"points": points, "radius": 4, "label": own})

    hands = [threading.Thread(target=draw, args=[place]) for place in range(12)]
    for hand in hands:
        hand.start()
    for hand in hands:
        hand.join()
    assert len(ask(client, sheet(client))["shapes"]) == 12


# --- files ---------------------------------------------------------------------------------------


def test_a_saved_file_covers_the_same_pixels_and_comes_back(client, folder, tmp_path):
    draw_both(client)
    saved = client.get(f"/api/data/{client.data}{sheet(client)}.geojson")
    assert 'filename="first.geojson"' in saved.headers["content-disposition"]
    path = tmp_path / "first.geojson"
    path.write_bytes(saved.content)
    shapes = ask(client, sheet(client))["shapes"]
    with open_image(folder / "first.png") as source:
        n_pixels = {
            n: AnnotationFile(path, (n,)).region(source).n_pixels for n in ("stripes", "dots")
        }
    assert n_pixels["dots"] == 70 * 60
    assert n_pixels["stripes"] == pytest.approx(shapes[0]["area"], rel=0.02)
    for shape in shapes:
        ask(client, sheet(client), {"act": "remove", "id": shape["id"]})
    assert bring(client, saved.content).status_code == 200
    back = ask(client, sheet(client))["shapes"]
    assert [s["polygons"] for s in back] == [s["polygons"] for s in shapes]
    assert {s["tool"] for s in back} == {"file"} and len(drawn(client)["classes"]) == 2


def test_files_of_others_bring_classes_and_colours(client):
    old = {"name": "Necrosis", "colorRGB": -16776961}
    features = [
        feature(square(10, 10, 40)),
        feature(square(60, 10, 40), None),
        feature(square(10, 100, 40), None, classification=old),
        feature(square(100, 100, 40), "Cells", objectType="detection"),
    ]
    found = bring(client, features).json()
    assert {one["name"]: one["colour"] for one in found["classes"]} == {
        "Necrosis": "#0000ff",
        "Tumor": "#c80000",
        "unclassified": "#d55e00",
    }
    assert len(found["shapes"]) == 3 and "1 detections" in found["notes"][0]
    again = bring(client, [feature(square(60, 100, 30), " tumor ")]).json()
    assert len(again["classes"]) == 3  # a name that differs in case and blanks is the same
    assert again["shapes"][-1]["label"] == next(
        one["id"] for one in again["classes"] if one["name"] == "Tumor"
    )


def test_an_outline_that_crosses_itself_is_said_and_all_of_it_taken(client):
    tie = [[100, 50], [200, 150], [200, 50], [100, 150], [100, 50]]
    found = bring(client, {"type": "FeatureCollection", "features": [feature(tie)]}).json()
    assert "crossing itself" in found["notes"][0]
    assert sum(shape["area"] for shape in found["shapes"]) == pytest.approx(5000, rel=0.03)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not GeoJSON"),
        (b"<xml/>", "not GeoJSON"),
        (b"\xff\xfe", "not GeoJSON"),
        (b"[" * 10_000, "not GeoJSON"),
        ({"type": "FeatureCollection", "features": []}, "no outline"),
        ([{"a": 1}], "not of features"),
        ([1, 2], "not of features"),
        ([feature(square(9000, 9000, 50))], "outside"),
        ([feature([[0, 0], [1, "x"], [5, 5]])], "not two numbers"),
        ([{"type": "Feature", "geometry": {"type": "Point", "coordinates": [1, 1]}}], "no outline"),
        ([feature(square(10, 10, 40), "a\x00b")], "cannot hold"),
        ([feature(square(10, 10, 40), "x" * 100)], "from 1 to 60"),
    ],
)
def test_foreign_and_broken_files_are_refused_in_words_and_change_nothing(client, content, words):
    response = bring(client, content)
    assert response.status_code == 400
    assert words in response.json()["error"] and "--" not in response.json()["error"]
    assert drawn(client)["images"] == drawn(client)["classes"] == []


def many_corners(how, n=150_000):
    if how == "crossing":  # to and fro over the whole image
        return np.random.default_rng(0).uniform(10, 190, (n, 2)).round(1).tolist()
    turns = np.linspace(0, 2 * np.pi, n, endpoint=False)
    return np.stack([120 + 60 * np.cos(turns), 100 + 60 * np.sin(turns)], 1).round(4).tolist()


def test_an_outline_of_many_corners_is_taken_soon_or_refused_soon(client):
    begun = time.process_time()
    found = bring(client, [feature(many_corners("round"))]).json()
    assert sum(shape["area"] for shape in found["shapes"]) == pytest.approx(np.pi * 3600, rel=0.01)
    crossing = bring(client, [feature(many_corners("crossing"))])
    assert crossing.status_code == 400 and "simplify them" in crossing.json()["error"]
    tie = [[100, 50], [200, 150], [200, 50], [100, 150], [100, 50]]
    ties = bring(client, [feature(tie)] * 1000)
    assert ties.status_code == 400 and "1000 self-intersecting outlines" in ties.json()["error"]
    squares = bring(client, [feature(square(60, 100, 30))] * 5001)
    assert squares.status_code == 400 and "5000 outlines and" in squares.json()["error"]
    assert len(client.get(f"/api/data/{client.data}{sheet(client)}").json()["shapes"]) == len(
        found["shapes"]
    )
    assert time.process_time() - begun < 20  # it was 30 s for one of them


def test_a_file_may_be_larger_than_a_request_but_not_without_end(client):
    many = [feature(square(10, 10, 40)) | {"pad": "x" * 100} for _ in range(1000)]
    assert bring(client, many).status_code == 200
    assert "too large" in bring(client, b" " * (17 * 2**20)).json()["error"]


def test_nothing_is_read_or_written_by_an_id_that_is_a_path(client):
    for image in ("..%2f..%2ftoken", "000000000000"):
        response = client.post(
            f"/api/data/{client.data}/images/{image}/drawn", json={"act": "undo"}, headers=OWN
        )
        assert response.status_code == 404


# --- the quick answer ----------------------------------------------------------------------------


def test_the_quick_answer_tells_apart_what_was_drawn(client):
    import base64
    import io

    draw_both(client)
    for name in client.images:  # also on an image on which nothing is drawn
        quick = ask(client, f"/images/{client.images[name]}/quick", {"box": [0, 0, 280, 200]})
        assert quick["left"] == 0 and min(quick["patches"].values()) > 5
        png = base64.b64decode(quick["picture"]["png"].partition(",")[2])
        colours = np.asarray(Image.open(io.BytesIO(png)))[..., :3].astype(int)
        assert quick["picture"]["box"][:2] == [0, 0]
        is_first = colours[..., 0] > colours[..., 2]  # orange, not blue
        half = colours.shape[1] // 2
        assert is_first[:, :half].mean() > 0.9 and is_first[:, half + 1 :].mean() < 0.1


def test_without_two_classes_there_is_no_quick_answer_and_a_thin_stroke_is_counted_as_none(client):
    own = make(client, "stripes", "dots")
    thin = BRUSH | {"radius": 1, "label": own[0]}
    ask(client, sheet(client), thin)
    quick = ask(client, f"/images/{client.images['first.png']}/quick", {"box": [0, 0, 280, 200]})
    assert quick["picture"] is None and quick["patches"] == dict.fromkeys(own, 0)
    bad = f"/images/{client.images['first.png']}/quick"
    for box in (None, [1, 2, 3], ["a", 1, 2, 3], [1e300, 0, 0, 0]):
        assert "numbers" in refused(client, bad, {"box": box})


def test_tiles_do_not_wait_for_the_quick_answer(client, monkeypatch):
    from histodict.web.api import annotate as api_annotate

    begun, over = threading.Event(), threading.Event()

    def slow(*given):
        begun.set()
        over.wait(20)
        return {}

    monkeypatch.setattr(api_annotate, "predict_viewport", slow)
    image = f"/images/{client.images['first.png']}"
    body = {"box": [0, 0, 280, 200]}
    asking = [threading.Thread(target=ask, args=[client, f"{image}/quick", body]) for _ in range(4)]
    for thread in asking:
        thread.start()
    assert begun.wait(20)
    started = time.monotonic()
    tile = client.get(f"/api/data/{client.data}{image}/tiles/0/0/0.jpg")  # of the same image, new
    assert tile.status_code == 200 and time.monotonic() - started < 10
    over.set()
    for thread in asking:
        thread.join()


def test_a_shape_as_large_as_a_slide_is_not_waited_for(tmp_path):
    from histodict.utils.files import file_key
    from histodict.web.annotation.edits import shape_of
    from histodict.web.annotation.quick_prediction import (
        AnnotatedImage,
        InteractiveImage,
        quick_recipe,
    )
    from histodict.web.annotation.store import polygonize

    path = tmp_path / "large.png"
    Image.fromarray(np.full((4000, 5000, 3), (200, 120, 170), np.uint8)).save(path)
    with open_image(path) as source:
        sight = InteractiveImage(source, quick_recipe(None, False), file_key(path))
        ring = np.array([[0, 0], [5000, 0], [5000, 4000]], float)
        (triangle,) = [shape_of("a", "polygon", polygonize([ring], source.size))]
        dabs = [
            shape_of("b", "brush", polygonize([np.array(square(x, 3500, 50), float)], source.size))
            for x in range(0, 4500, 100)
        ]
        assert len(sight.fields) == 80
        few = AnnotatedImage(sight, [triangle]).fields()
        assert 1 <= len(few) <= 5
        assert all(c.stop * 4000 > r.start * 5000 for r, c in few)  # none below the triangle
        many = AnnotatedImage(sight, [triangle, *dabs]).fields()
        assert len(many) <= 24 and {repr(f) for f in AnnotatedImage(sight, dabs[-1:]).fields()} <= {
            repr(f) for f in many
        }


# --- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", [b"", b"{}", b"[1]", b"no JSON"])
def test_a_damaged_sheet_is_named_and_never_overwritten(client, damage):
    own, _ = draw_both(client)
    user = client.app.state.users[0].folder / "data" / client.data
    path = user / "sheets" / f"{client.images['first.png']}.json"
    path.write_bytes(damage)
    response = client.post(
        f"/api/data/{client.data}{sheet(client)}", json=BRUSH | {"label": own[0]}, headers=OWN
    )
    assert response.status_code == 400 and "is damaged" in response.json()["error"]
    assert path.read_bytes() == damage
    ask(client, sheet(client, "second.png"), BRUSH | {"label": own[0]})  # the others go on


# --- training ------------------------------------------------------------------------------------


def test_training_needs_two_classes_and_somebody_left_to_learn_from(client):
    assert "two classes" in refused(client, "/../../jobs", {"data": client.data})
    draw_both(client)
    body = {"data": client.data, "preset": "quick"}
    assert "which class is to be found" in refused(client, "/../../jobs", body)
    ask(client, "/about", {"positive": "dots"})
    body |= {"test_patients": ["first.png"]}
    assert "leave one to learn from" in refused(client, "/../../jobs", body)


def test_a_model_learns_from_shapes_alone_and_is_tested_on_shapes_of_others(client):
    draw_both(client)
    draw_both(client, "second.png")
    ask(client, "/about", {"positive": "dots"})
    job = start(client, client.data, test_patients=["second.png"])
    ask(client, sheet(client), {"act": "undo"})  # it learns from what was there when it was asked
    assert wait_for(client, job, "done", "failed")["error"] == ""
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
    assert card["Tested on"] == "1 other patient"
    assert card["Drawn by the user"].startswith("4 shapes on 2 images")
    assert client.get(f"/api/jobs/{job}/report.html").status_code == 200
    place = f"/api/jobs/{job}/look/{client.data}/{client.images['first.png']}"
    assert client.get(place).json()["n_patches"] > rows["second.png [dots]"]["n_patches"]
    assert client.get(f"{place}/map.png?only=-1").status_code == 200


# --- how much -------------------------------------------------------------------------------------


def test_a_long_stroke_is_taken_and_an_endless_one_refused(client):
    """As JSON it has more bytes than other requests may."""
    (own,) = make(client, "dots")
    turns = np.linspace(0, 60 * np.pi, 20_000)
    reach = 20 + 60 * turns / turns[-1]
    path = np.stack([140 + reach * np.cos(turns), 100 + reach * np.sin(turns)], axis=1).round(1)
    body = BRUSH | {"label": own, "points": path.tolist(), "radius": 3}
    assert len(json.dumps(body)) > 2**17
    (shape,) = ask(client, sheet(client), body)["shapes"]
    assert abs(shape["area"] / (np.pi * (83**2 - 17**2)) - 1) < 0.05
    more = body | {"points": [*body["points"], [1, 1]]}
    assert "from 1 to 20000 points" in refused(client, sheet(client), more)
    endless = body | {"points": 10 * body["points"]}
    assert "too large" in refused(client, sheet(client), endless)


def square_of(n_corners, number):
    """A shape of so many corners."""
    corners = [[float(number), float(i)] for i in range(n_corners)]
    return Shape(id=f"{number:012x}", label="a", tool="brush", area=1.0, polygons=[[corners]])


def test_the_way_back_is_as_long_as_there_is_room():
    small = large = AnnotationStore([], [], [])
    for number in range(130):
        small = small.changed([], [square_of(4, number)])
    assert len(small.done) == 100
    for number in range(9):
        large = large.changed([], [square_of(40_000, number)])
    assert len(large.done) == 5 and len(large.shapes) == 9
    back = large.undo().undo()
    assert len(back.shapes) == 7 and back.redo().redo().shapes == large.shapes
    last = AnnotationStore([], [], []).changed([], [square_of(300_000, 1)])
    assert last.undo().shapes == []  # the last step can be taken back, whatever it takes


# --- images that have labels ----------------------------------------------------------------------


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


def test_images_with_labels_are_drawn_on_as_a_set_of_its_own(labelled):
    before = ask(labelled)
    assert before["labelled"] and before["classes"] == ["healthy", "inflamed"]
    image = before["images"][0]["id"]
    for path, body in (("/classes", {"name": "a"}), (f"/images/{image}/drawn", BRUSH)):
        assert "open them to be drawn on" in refused(labelled, path, body)
    own = labelled.data
    place = {"place": before["place"], "inside": before["where"], "bare": True}
    labelled.data = labelled.post("/api/data", json=place, headers=OWN).json()["id"]
    bare = ask(labelled)
    assert labelled.data != own and not bare["labelled"] and bare["classes"] == []
    assert [(i["id"], i["patient"], i["label"]) for i in bare["images"]] == [
        (i["id"], i["patient"], "") for i in before["images"]
    ]
    assert "left aside" in bare["notes"][0] and bare["name"].endswith(", to draw on")
    (label,) = make(labelled, "a")
    assert ask(labelled, f"/images/{image}/drawn", BRUSH | {"label": label})["shapes"]
    labelled.data = own
    assert ask(labelled)["labelled"] and drawn(labelled)["images"] == []
    names = [data["name"] for data in labelled.get("/api/session").json()["data"]]
    assert sorted(names) == ["data", "data, to draw on"]
