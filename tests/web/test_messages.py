"""Settings of a data set, problems of its images and the threshold apply on all pages.

One small training is shared; it runs in this process.
"""

import re
import shutil
import time

import numpy as np
import pytest

from .conftest import MISSING

pytest.importorskip("starlette.testclient", reason=MISSING)
pytest.importorskip("uvicorn", reason=MISSING)

from histodict.datasets.manifest import read_manifest
from histodict.decision.threshold import TUNED_IMAGES_NOTE
from histodict.models import load_model
from histodict.models.model_file import read_header
from histodict.utils.progress import no_callback
from histodict.utils.validation import hints_for
from histodict.web import model_report
from histodict.web.maps import load_map
from histodict.web.worker import train
from tests.web.app import OWN, job_of, open_client, open_data, start

NAMES = {"inflamed": "adenocarcinoma", "healthy": "normal"}


def lay_out(tissue, folder):
    """Copy the synthetic set to a folder per class and patient, without pixel sizes."""
    for record in read_manifest(tissue / "tissue" / "manifest.csv").records:
        path = folder / NAMES[record.label] / record.patient / record.path.name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(record.path, path)
    return folder


def change_settings(client, data, **body):
    return client.post(f"/api/data/{data}/about", json=body, headers=OWN)


def checked(client, data):
    while not (found := client.get(f"/api/data/{data}/checks").json())["ready"]:
        time.sleep(0.02)
    return found


@pytest.fixture
def colon(tissue, tmp_path):
    """A client that trains nothing, and an opened set."""
    folder = lay_out(tissue, tmp_path / "folder" / "colon")
    client = open_client([tmp_path / "folder"], tmp_path / "workspace")
    with hints_for("web"):
        yield client, open_data(client, "colon"), folder


# --- before a training --------------------------------------------------------------------------


def test_positive_class_is_guessed_and_can_be_changed(colon):
    client, data, _ = colon
    found = client.get(f"/api/data/{data}").json()
    assert found["positive"] == {"name": "adenocarcinoma", "how": "by its name"}
    assert found["classes"] == ["normal", "adenocarcinoma"]
    found = change_settings(client, data, positive="normal").json()
    assert found["positive"] == {"name": "normal", "how": "chosen"}
    assert found["classes"] == ["adenocarcinoma", "normal"]
    job = start(client, data)
    assert client.get(f"/api/jobs/{job}").json()["classes"] == ["adenocarcinoma", "normal"]
    assert job_of(client, job).request["positive"] == "normal"
    regions = start(client, data, preset="regions", regions="adenocarcinoma")
    assert client.get(f"/api/jobs/{regions}").json()["classes"] == ["normal", "adenocarcinoma"]
    response = change_settings(client, data, positive="tumour")
    assert response.status_code == 400 and "unknown positive class" in response.json()["error"]


def test_uninformative_names_give_no_positive_class(colon):
    client, data, folder = colon
    (folder / "normal").rename(folder / "carcinoma")
    found = client.get(f"/api/data/{data}").json()
    assert found["positive"] == {"name": "carcinoma", "how": "unknown"}


@pytest.mark.parametrize("mpp", [0, -1, "wide", True, 1e6])
def test_invalid_pixel_size_is_refused(colon, mpp):
    client, data, _ = colon
    response = change_settings(client, data, mpp=mpp)
    assert response.status_code == 400 and "number of µm" in response.json()["error"]
    assert client.get(f"/api/data/{data}").json()["mpp"] is None


def test_default_pixel_size_does_not_override(colon):
    client, data, folder = colon
    first, second, *others = sorted(path.relative_to(folder) for path in folder.rglob("*.jpg"))
    lines = [f"{first},normal,0.25", *(f"{path},{path.parts[0]}," for path in (second, *others))]
    (folder / "manifest.csv").write_text("\n".join(["path,label,mpp", *lines]))
    found = checked(client, data)
    (text,) = (text for text in found["warnings"] if "is unknown" in text)
    assert f"pixel size of {len(others) + 1} of {len(others) + 2} images is unknown" in text
    response = client.post("/api/jobs", json={"data": data, "preset": "quick"}, headers=OWN)
    assert response.status_code == 400
    assert "set it on the data page (µm per pixel) or in a column 'mpp'" in response.json()["error"]
    assert change_settings(client, data, mpp=0.5).json()["mpp"] == 0.5
    sizes = {(s["mpp"], s["from"]): s["n_images"] for s in checked(client, data)["sizes"]}
    assert sizes == {(0.5, "command"): len(others) + 1, (0.25, "table"): 1}
    images = client.get(f"/api/data/{data}").json()["images"]
    pairs_shown = [
        client.get(f"/api/data/{data}/images/{image['id']}").json() for image in images[:2]
    ]
    assert [(s["mpp"], s["mpp_from"]) for s in pairs_shown] == [(0.25, "table"), (0.5, "command")]


def test_duplicate_in_two_classes_is_refused_at_the_start(colon):
    client, data, folder = colon
    image = min(folder.glob("normal/*/*.jpg"))
    shutil.copy(image, folder / "adenocarcinoma" / "copy.jpg")
    checked(client, data)
    response = client.post("/api/jobs", json={"data": data, "preset": "quick"}, headers=OWN)
    assert response.status_code == 400
    text = response.json()["error"]
    assert "adenocarcinoma/copy.jpg" in text and image.name in text
    (image_id,) = (
        image["id"]
        for image in client.get(f"/api/data/{data}").json()["images"]
        if image["name"].endswith("copy.jpg")
    )
    body = {"image": image_id, "label": "normal", "box": None}
    assert client.post(f"/api/data/{data}/correct", json=body, headers=OWN).status_code == 200
    assert checked(client, data)["refused"] == []  # the user has decided which label is right


def test_worker_repeats_the_checks_of_the_page(colon):
    client, data, folder = colon
    image = min(folder.glob("normal/*/*.jpg"))
    shutil.copy(image, folder / "adenocarcinoma" / "copy.jpg")
    job = job_of(client, start(client, data))
    with pytest.raises(ValueError, match=r"adenocarcinoma/copy\.jpg.*are identical images"):
        train(job, no_callback)


def test_region_cut_out_of_an_image_has_its_pixel_size(colon):
    """The cut-out is a file without a pixel size: sizes would be partly known."""
    client, data, _ = colon
    change_settings(client, data, mpp=0.5)
    image = client.get(f"/api/data/{data}").json()["images"][0]
    body = {"image": image["id"], "label": "normal", "box": [0, 0, 60, 60]}
    assert client.post(f"/api/data/{data}/correct", json=body, headers=OWN).status_code == 200
    request = job_of(client, start(client, data)).request
    assert request["records"][-1]["mpp"] == request["mpp"] == 0.5


# --- a training and after it --------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tissue, tmp_path_factory):
    """A training for normal tissue at 0.5 µm, without the unreadable image."""
    base = tmp_path_factory.mktemp("told")
    folder = lay_out(tissue, base / "folder" / "colon")
    client = open_client([base / "folder"], base / "workspace")
    data = open_data(client, "colon")
    broken = min(folder.glob("normal/*/*.jpg"))
    broken.write_bytes(broken.read_bytes()[:500])
    change_settings(client, data, mpp=0.5, positive="normal")
    job = job_of(client, start(client, data))
    with pytest.raises(ValueError, match="1 of 8 images cannot be read"):
        train(job, no_callback)
    (bad,) = client.get(f"/api/jobs/{job.id}").json()["bad"]
    assert bad["name"] == broken.relative_to(folder).as_posix() and bad["reason"]
    job.set_state("failed", 1)
    body = {"skip_bad": True}
    client.post(f"/api/jobs/{job.id}/resume", json=body, headers=OWN).raise_for_status()
    train(job, no_callback)
    return client, data, job, bad["name"]


def test_model_has_the_settings_of_the_set(trained):
    client, _, job, bad = trained
    model = load_model(job.model_file)
    assert model.class_names_ == ["adenocarcinoma", "normal"]
    assert model.model_.mpp_ == 0.5
    assert model.training_info_["left_out"] == [bad]
    found = client.get(f"/api/jobs/{job.id}/model").json()
    assert found["warnings"] == []
    rows = found["results"]["images"]
    assert {(row["mpp"], row["mpp_from"]) for row in rows} == {(0.5, "command")}
    assert bad not in [row["name"] for row in rows]
    atoms = client.get(f"/api/jobs/{job.id}/atoms/0").json()["patches"]
    assert atoms and all(patch["name"] != bad for patch in atoms)
    assert "1 unreadable excluded" in client.get(f"/api/jobs/{job.id}").json()["words"]


def test_damaged_list_of_unreadable_images_is_reported(trained):
    client, _, job, _ = trained
    path = job.folder / "bad-images.json"
    content = path.read_bytes()
    for damaged in (b"", b"{}", b"[1]"):
        path.write_bytes(damaged)
        response = client.get(f"/api/jobs/{job.id}")
        assert response.status_code == 400 and path.name in response.json()["error"]
    path.write_bytes(content)
    assert client.get(f"/api/jobs/{job.id}").status_code == 200


def test_unreadable_images_are_skipped_on_request(trained):
    client, data, _, _ = trained
    checked(client, data)
    body = {"data": data, "preset": "quick"}
    response = client.post("/api/jobs", json=body, headers=OWN)
    assert response.status_code == 400 and "cannot be read" in response.json()["error"]
    assert (job_of(client, start(client, data, skip_bad=True)).folder / "skip-bad").exists()


def test_removed_pixel_size_is_assumed_with_a_warning(trained):
    client, data, job, _ = trained
    row = job.results()["images"][0]
    address = f"/api/jobs/{job.id}/look/{data}/{row['image']}"
    before = client.get(address).json()
    assert (before["mpp"], before["mpp_from"]) == (0.5, "command")
    change_settings(client, data, mpp=None)
    with hints_for("web"):
        after = client.get(address).json()
    assert (after["mpp"], after["mpp_from"]) == (0.5, "assumed")
    assert "set it on the data page" in after["warnings"][0] and before["warnings"] == []
    assert after["version"] != before["version"]
    change_settings(client, data, mpp=0.5)
    assert client.get(address).json() == before


def test_label_map_and_report_agree_at_a_moved_threshold(trained):
    client, data, job, _ = trained
    rows = job.results()["images"]
    own, values = job.results()["operating_point"]["value"], [row["value"] for row in rows]
    for point, name in ((min(values) - 0.05, "normal"), (max(values) + 0.05, "adenocarcinoma")):
        moved = load_model(job.model_file).with_threshold(point)
        for row in rows:
            address = f"/api/jobs/{job.id}/look/{data}/{row['image']}"
            client.get(address).raise_for_status()
            found = client.get(f"{address}?point={point}").json()
            requested = moved.predict_one(job_image(job, row), mpp=0.5)
            assert found["answer"] == name == requested.label
            assert found["words"] == requested.summary()
            assert found["shares"] == pytest.approx(requested.proportions, abs=0.02)
            pictures = [
                client.get(f"{address}/map.png{q}").content for q in ("", f"?point={point}")
            ]
            assert pictures[0] != pictures[1]
        report = client.get(f"/api/jobs/{job.id}/report.html?point={point}").text
        assert set(re.findall(r'predicted <span class="[a-z]*">(.+?)</span>', report)) == {name}
        assert "of the model before" not in report
    assert client.get(f"{address}?point={own}").json() == client.get(address).json()


def test_threshold_at_an_image_value_gives_consistent_counts(trained):
    """The page compares values with the selected threshold; the model stores it as a score."""
    client, _, job, _ = trained
    results = job.results()
    rows, classes = results["images"], results["classes"]
    for row in rows:
        point = row["value"]
        found = client.get(f"/api/jobs/{job.id}/figures?point={point}").json()["classes"]
        pairs_shown = [
            (r["label"], classes[r["value"] > point]) for r in rows if r["label"] in classes
        ]
        for one in found:
            assert one["n_right"] == sum(pair == (one["name"],) * 2 for pair in pairs_shown)


def job_image(job, row):
    from histodict.web.training import split_training_and_test

    (found,) = (
        record
        for record in split_training_and_test(job.request)[1].records
        if record.path.as_posix().endswith(row["name"])
    )
    return found.path


def test_overlay_of_the_report_uses_the_moved_threshold(trained, monkeypatch):
    """The overlay shows the moved map, whose mean agrees with the label."""
    client, _, job, _ = trained
    annotated = []

    def draw(patch_map, summary, outlines):
        annotated.append((patch_map, summary))
        return np.zeros((4, 4, 3), np.uint8)

    monkeypatch.setattr(model_report, "draw_overlay", draw)
    values = [row["value"] for row in job.results()["images"]]
    client.get(f"/api/jobs/{job.id}/report.html?point={max(values) + 0.06}").raise_for_status()
    assert annotated
    for patch_map, summary in annotated:
        assert summary.startswith("adenocarcinoma")
        assert patch_map.margins[..., 1][patch_map.tissue].mean() < 0
        stored = load_map(job.folder / "maps", record_of(job, patch_map.path), 0.5)
        assert (stored.predicted_classes != patch_map.predicted_classes).any()


def record_of(job, path):
    from histodict.web.training import manifest_from_request

    (found,) = (r for r in manifest_from_request(job.request).records if r.path == path)
    return found


def test_metrics_at_a_moved_threshold_are_flagged_as_tuned(trained, tmp_path):
    client, _, job, _ = trained
    address = f"/api/jobs/{job.id}"
    plain = client.get(f"{address}/report.html").text
    assert TUNED_IMAGES_NOTE not in plain and "not used for training" in plain
    values = [row["value"] for row in job.results()["images"]]
    point = max(values) + 0.05
    text = client.get(f"{address}/report.html?point={point}").text
    tuned = text[text.index("At the threshold chosen on these images") :]
    assert TUNED_IMAGES_NOTE in tuned and "not used for training" not in tuned
    assert "not used for training" in text[: text.index("At the threshold chosen")]
    assert "set manually from" in text
    own = re.search(r"<b>([\d.]+)</b>balanced accuracy", plain)[1]
    assert re.search(r"<b>([\d.]+)</b>balanced accuracy", text)[1] == own
    file = tmp_path / "m.histodict"
    file.write_bytes(client.get(f"{address}/model.histodict?point={point}").content)
    (change,) = read_header(file)["training_info"]["tuning"]
    assert change["source"] == "manual" and change["value"] == pytest.approx(point)
    assert change["n_images"] == len(change["images"]) == len(values)
    file.write_bytes(client.get(f"{address}/model.histodict").content)
    assert "tuning" not in read_header(file)["training_info"]


def test_metrics_follow_the_threshold_and_count_patients(trained):
    client, _, job, _ = trained
    address, values = f"/api/jobs/{job.id}", [row["value"] for row in job.results()["images"]]
    own = client.get(f"{address}/model").json()["figures"]
    assert own == client.get(f"{address}/figures").json()
    moved = client.get(f"{address}/figures?point={max(values) + 0.05}").json()
    n_found = {one["name"]: one["n_right"] for one in moved["classes"]}
    n_all = {one["name"]: one["n_images"] for one in moved["classes"]}
    assert sorted(n_found.values()) == [0, max(n_all.values())]
    assert {one["n_patients"] for one in own["classes"]} == {
        len({row["patient"] for row in job.results()["images"] if row["label"] == name})
        for name in n_all
    }


def test_sensitivity_in_the_report_is_that_of_the_positive_class(trained):
    client, _, job, _ = trained
    values = [row["value"] for row in job.results()["images"]]
    text = client.get(f"/api/jobs/{job.id}/report.html?point={max(values) + 0.05}").text
    assert re.search(r"0\.00.{0,80}sensitivity for normal", text, re.DOTALL)
    assert re.search(r"1\.00.{0,80}specificity for normal", text, re.DOTALL)
