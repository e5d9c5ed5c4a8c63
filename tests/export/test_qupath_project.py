"""QuPath project: what QuPath requires of one, and that changes made by QuPath are kept.

QuPath itself is not run. The format was taken from its source and from projects on GitHub:

project.qpproj, classes.json    DefaultProject.java of 0.3 (48f1129) and after 0.6; projects of
                                0.4.0 (orion-cirb/QuPath_Foci), 0.5.1 (AndrewZhang419/QuPath),
                                0.6.0-rc3 (sbalci/metadata-qupath) and 0.7.0
                                (smith6jt-cop/SpleenFollicleCounterQP)
entry without `metadata`        ImageServerBuilder.java (c680c8c): it is read from the image
data/N/data.qpdata              PathIO.java: serialised Java, not written here, hence the script
features, measurements          QuPathTypeAdapters.java (1489180), GsonTools.java (0a77ded)
polygons with holes             ROITypeAdapters.java (0a77ded)
.geojson.gz, ASCII              PathIO.java of 0.3 (e3378d6) and later
bounds of slides                OpenslideImageServer.java (0e0ee19, 052a285)
import-outlines.groovy          run by Groovy 2.4 on substitutes for the classes of QuPath
"""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest
from PIL import Image

from histodict.export.qupath import ProjectImage, save_project
from histodict.patches.patch_map import class_rgb

CLASSES = ["healthy", "entzündet"]
NAMES = ["a.png", "b c#1 100%.png", "grün.png"]


@pytest.fixture
def images(tmp_path):
    found = []
    for name in NAMES:
        Image.fromarray(np.full((20, 30, 3), 200, np.uint8)).save(tmp_path / name)
        found.append(ProjectImage(tmp_path / name, f"key {name}", {"histodict label": "healthy"}))
    return found


def read(place):
    return json.loads(place.read_text("utf-8"))


def test_project_has_all_required_content(images, tmp_path):
    folder = tmp_path / "qupath"
    save_project(folder, CLASSES, images)
    project = read(folder / "project.qpproj")
    assert list(project) == [
        *("version", "createTimestamp", "modifyTimestamp", "uri", "lastID", "images")
    ]
    assert project["modifyTimestamp"] >= project["createTimestamp"] > 1_600_000_000_000
    assert unquote(urlsplit(project["uri"]).path) == str(folder / "project.qpproj")
    assert project["lastID"] == 3 and [e["entryID"] for e in project["images"]] == [1, 2, 3]
    for entry, image in zip(project["images"], images, strict=True):
        server = entry["serverBuilder"]
        assert list(server) == ["builderType", "providerClassName", "uri", "args"]
        assert server["builderType"] == "uri" and server["uri"].startswith("file:/")
        assert Path(unquote(urlsplit(server["uri"]).path)) == image.path
        assert server["providerClassName"].endswith(".BioFormatsServerBuilder")
        assert entry["imageName"] == image.path.name
        assert entry["metadata"] == {"histodict": image.key, "histodict label": "healthy"}
        thumbnail = folder / "data" / str(entry["entryID"]) / "thumbnail.jpg"
        with Image.open(thumbnail) as picture:
            assert picture.format == "JPEG" and picture.size == (30, 20)


def test_classes_have_the_colours_of_the_legend(images, tmp_path):
    save_project(tmp_path / "qupath", CLASSES, images)
    found = read(tmp_path / "qupath" / "classifiers" / "classes.json")["pathClasses"]
    assert [each["name"] for each in found] == CLASSES
    for place, each in enumerate(found):
        bits = each["color"].to_bytes(4, "big", signed=True)  # alpha, red, green, blue
        assert tuple(bits) == (255, *class_rgb(place))


def test_script_finds_the_outlines_from_the_project(images, tmp_path):
    save_project(tmp_path / "qupath", CLASSES, images)
    script = (tmp_path / "qupath" / "scripts" / "import-outlines.groovy").read_text()
    assert '.get("histodict")' in script and '"geojson"' in script
    entry = read(tmp_path / "qupath" / "project.qpproj")["images"][0]
    assert entry["metadata"]["histodict"] == images[0].key


def test_changes_made_by_qupath_are_preserved(images, tmp_path):
    folder = tmp_path / "qupath"
    save_project(folder, CLASSES, images[:2])
    # Changes by QuPath: metadata of the image, another image, a new class, a new colour.
    project, classes = read(folder / "project.qpproj"), folder / "classifiers" / "classes.json"
    first, second = project["images"]
    first["serverBuilder"]["metadata"] = {"width": 30}
    first["description"] = "seen"
    first["metadata"]["ward"] = "7"
    own = {"serverBuilder": {"builderType": "uri"}, "entryID": 9, "imageName": "x", "metadata": {}}
    project["images"] = [own, first, second]
    project["version"] = "0.6.0"
    (folder / "project.qpproj").write_text(json.dumps(project))
    colours = read(classes)
    colours["pathClasses"][1]["color"] = -1
    colours["pathClasses"].append({"name": "Other", "color": None})
    classes.write_text(json.dumps(colours))
    (folder / "data" / "1" / "data.qpdata").write_bytes(b"drawn")
    reported = [ProjectImage(i.path, i.key, {"histodict label": "entzündet"}) for i in images]
    save_project(folder, [*CLASSES, "third"], reported)
    after = read(folder / "project.qpproj")
    assert after["images"][0] == own and after["version"] == "0.6.0"
    assert after["images"][1] == first | {
        "metadata": first["metadata"] | {"histodict label": "entzündet"}
    }
    assert [entry["entryID"] for entry in after["images"]] == [9, 1, 2, 10]
    assert after["lastID"] == 10 and after["createTimestamp"] == project["createTimestamp"]
    names = [each["name"] for each in read(classes)["pathClasses"]]
    assert names == [*CLASSES, "Other", "third"]
    assert read(classes)["pathClasses"][1]["color"] == -1
    assert (folder / "data" / "1" / "data.qpdata").read_bytes() == b"drawn"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"images": 3}', '{"images": [{"a": 1}]}'])
def test_damaged_project_is_left_unchanged(images, tmp_path, text):
    folder = tmp_path / "qupath"
    save_project(folder, CLASSES, images)
    (folder / "project.qpproj").write_text(text)
    with pytest.raises(ValueError, match=r"project\.qpproj: .*Restore"):
        save_project(folder, CLASSES, images)
    assert (folder / "project.qpproj").read_text() == text


def test_missing_image_is_warned_of_and_skipped(images, tmp_path):
    images[1].path.unlink()
    with pytest.warns(UserWarning, match=r"not added to .*b c#1"):
        save_project(tmp_path / "qupath", CLASSES, images)
    project = read(tmp_path / "qupath" / "project.qpproj")
    assert [entry["imageName"] for entry in project["images"]] == ["a.png", "grün.png"]
    assert [entry["entryID"] for entry in project["images"]] == [1, 2]
