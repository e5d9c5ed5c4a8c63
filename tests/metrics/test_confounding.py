"""Tests of the search for image properties that are associated with the class."""

from __future__ import annotations

import csv
import json
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from histodict.cli import app
from histodict.datasets.manifest import ImageRecord, Manifest, read_manifest
from histodict.metrics.confounding import find_associations, find_confounders
from histodict.models.model_file import read_header

SMALL = ("n_atoms=6", "n_iter=1", "patches_per_class=60", "patch_px=8", "downsample=1")
SETTINGS = [word for setting in SMALL for word in ("--set", setting)]


def write_dataset(
    folder, n_patients=10, site=lambda p: "one", change=lambda pixels, p: pixels, **rest
):
    """Write noise images, equal in both classes; patients with even numbers are of class a."""
    rng, rows = np.random.default_rng(0), ["path,label,patient,site,mpp"]
    folder.mkdir(parents=True, exist_ok=True)
    for p in range(n_patients):
        for i in range(2):
            pixels = rng.integers(60, 230, (40, 48, 3)).astype(np.uint8)
            pixels[:, 10:] = np.add((190, 110, 170), rng.integers(-40, 40, (40, 38, 3)))
            name = f"{p}-{i}{rest.get('suffix', lambda p: '.png')(p)}"
            Image.fromarray(change(pixels, p)).save(folder / name)
            rows.append(f"{name},{'ab'[p % 2]},p{p},{site(p)},0.5")
    (folder / "manifest.csv").write_text("\n".join(rows))
    return folder


def brightened(pixels, p):
    return (np.minimum(pixels * 1.1 + 12, 255)).astype(np.uint8) if p % 2 else pixels


def confounders_of(folder):
    return {a.name: a for a in find_confounders(read_manifest(folder / "manifest.csv"))}


def test_unrelated_site_is_not_reported(tmp_path):
    assert not confounders_of(write_dataset(tmp_path, site=lambda p: "xy"[p // 2 % 2]))


def test_site_that_equals_the_class_is_confounded(tmp_path):
    (site,) = confounders_of(write_dataset(tmp_path, site=lambda p: "xy"[p % 2])).values()
    assert site.confounded and site.accuracy == 1
    assert "Class and site are fully confounded: no evaluation on these data" in str(site)


def test_several_sites_of_one_class_each_are_confounded(tmp_path):
    assert confounders_of(write_dataset(tmp_path, site=lambda p: "wxyz"[p % 4]))["site"].confounded
    one_each = write_dataset(tmp_path / "own", site=lambda p: f"s{p}")
    assert not confounders_of(one_each)


def test_site_that_nearly_equals_the_class_has_its_accuracy(tmp_path):
    folder = write_dataset(tmp_path, 20, site=lambda p: "xy"[p % 2 if p else 1])
    (site,) = confounders_of(folder).values()
    assert not site.confounded and site.accuracy == pytest.approx(0.95)
    assert "0.95" in str(site) and "--protocol site" in str(site)


@pytest.mark.parametrize("column", ["scanner", "acquisition_group"])
def test_scanner_and_batch_columns_are_checked(tmp_path, column):
    folder = write_dataset(tmp_path, site=lambda p: "xy"[p % 2])
    file = folder / "manifest.csv"
    file.write_text(file.read_text().replace("site", column))
    (found,) = confounders_of(folder).values()
    assert found.confounded and found.name in ("scanner", "batch")


def test_image_properties_are_checked(tmp_path):
    assert {"mean colour", "white point"} <= set(
        confounders_of(write_dataset(tmp_path / "bright", change=brightened))
    )
    suffix = lambda p: (".png", ".tif")[p % 2]  # noqa: E731
    assert set(confounders_of(write_dataset(tmp_path / "format", suffix=suffix))) == {"file format"}
    crop = lambda pixels, p: pixels[: 40 - 4 * (p % 2)]  # noqa: E731
    assert set(confounders_of(write_dataset(tmp_path / "size", change=crop))) == {"image size"}
    manifest = read_manifest(write_dataset(tmp_path / "mpp") / "manifest.csv")
    sizes = [replace(r, mpp=0.5 if r.label == "a" else 0.25) for r in manifest.records]
    (found,) = find_confounders(replace(manifest, records=tuple(sizes)))
    assert found.name == "pixel size" and found.confounded


def test_row_order_and_missing_images_do_not_matter(tmp_path):
    manifest = read_manifest(
        write_dataset(tmp_path, change=brightened, site=lambda p: "xy"[p // 2 % 2]) / "manifest.csv"
    )
    order = np.random.default_rng(0).permutation(len(manifest.records)).tolist()
    assert find_confounders(manifest) == find_confounders(manifest.select(order))
    assert find_confounders(Manifest((ImageRecord(tmp_path / "none.png", "a", "p"),))) == []


def test_false_positives_are_rare():
    """In 200 sets without association at most 5 % are reported, up to sampling error."""
    rng, n_alarms, n_sets = np.random.default_rng(0), 0, 200
    for _ in range(n_sets):
        n = 16
        patients = np.repeat(np.arange(n), rng.integers(1, 4, n))
        labels = rng.permutation(np.arange(n) % 2)[patients]
        properties = {
            "site": [f"s{s}" for s in rng.integers(3, size=n)[patients]],
            "image size": [(float(s), 1.0) for s in rng.integers(2, size=n)[patients]],
            "mean colour": list(map(tuple, rng.normal(size=(n, 3))[patients])),
            "white point": list(map(tuple, rng.normal(size=(n, 3))[patients])),
        }
        found = find_associations(properties, labels.astype(str), patients.astype(str))
        n_alarms += any(each.p_value <= 0.05 for each in found)
    assert n_alarms <= 0.05 * n_sets + 2 * np.sqrt(0.05 * 0.95 * n_sets)


def test_commands_reports_and_model_report_a_confounder(tmp_path):
    folder = write_dataset(tmp_path / "t", 6, site=lambda p: "xy"[p % 2])
    text = "Class and site are fully confounded: no evaluation on these data can separate them"
    model = tmp_path / "m.histodict"
    common = ["--preset", "fast", *SETTINGS]
    runs = [
        ["train", folder, "-o", model, *common],
        [
            "evaluate",
            folder,
            "-o",
            tmp_path / "e",
            "--methods",
            "dfdl",
            "--folds",
            "2",
            "--jobs",
            "1",
            *common,
        ],
        ["atoms", model, folder, "-o", tmp_path / "atoms.html", "--no-maps"],
        ["info", model],
    ]
    plain = []
    for run in runs:
        done = CliRunner().invoke(app, list(map(str, run)))
        assert done.exit_code == 0, done.output
        plain.append(" ".join(done.output.split()))
    assert text in plain[0] and text in plain[1] and text in plain[3]
    assert any(text in line for line in read_header(model)["training_info"]["confounders"])
    page = (tmp_path / "e" / "report.html").read_text()
    assert page.count(text) >= 2  # among the warnings and in the model card
    provenance = json.loads((tmp_path / "e" / "provenance.json").read_text())
    assert provenance["confounders"][0]["confounded"]
    page = (tmp_path / "atoms.html").read_text()
    assert text in page and "cannot be said" not in page
    with (tmp_path / "e" / "results.csv").open() as file:
        assert list(csv.DictReader(file))


def test_thousands_of_values_take_little_memory():
    n = 6000
    text = [f"{'ab'[i % 2]}{i // 4}" for i in range(n)]
    labels, patients = ["ab"[i % 2] for i in range(n)], [f"p{i}" for i in range(n)]
    tracemalloc.start()
    try:
        (batch,) = find_associations({"batch": text}, labels, patients)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert batch.confounded and batch.accuracy == pytest.approx(1)
    assert peak < 80e6
