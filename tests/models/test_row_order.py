"""Models, tables and concepts do not depend on the order of rows, bit for bit."""

from __future__ import annotations

import csv
import shutil
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from histodict import EnsembleClassifier, RegionDetector, TissueClassifier
from histodict.cli import app
from histodict.datasets.manifest import read_manifest
from histodict.datasets.survey import content_order
from histodict.evaluation import measures
from histodict.explain.patch_sample import PatchSample
from histodict.models.recipe import Recipe, preset
from histodict.synthetic.dataset import write_synthetic_dataset
from histodict.utils import files

SMALL = Recipe(
    method_parameters={"n_atoms": 8, "n_iter": 2},
    patch_px=10,
    patches_per_class=120,
    features="centred",
    aggregation="margin",
)
WHOLE_IMAGE = preset("fast", "lbp-colour")
MODELS = {
    "single": lambda: TissueClassifier(SMALL, random_state=3),
    "detector": lambda: RegionDetector(SMALL, region="inflamed", random_state=3),
    "ensemble": lambda: EnsembleClassifier([SMALL, WHOLE_IMAGE], folds=2, random_state=3),
    "whole image": lambda: TissueClassifier(WHOLE_IMAGE, random_state=3),
}


@pytest.fixture(scope="module")
def tissue(tmp_path_factory):
    """Four patients with two images of each class; one image is duplicated."""
    folder = write_synthetic_dataset(tmp_path_factory.mktemp("set") / "t", 4, 2, size=(110, 90))
    rows = (folder / "manifest.csv").read_text().splitlines()
    path = rows[1].split(",")[0]
    copied = path.replace("1.", "copy.")
    shutil.copy(folder / path, folder / copied)
    (folder / "manifest.csv").write_text("\n".join([*rows, rows[1].replace(path, copied)]))
    return folder


@pytest.fixture(scope="module")
def manifest(tissue):
    return read_manifest(tissue / "manifest.csv")


def shuffled(manifest, seed=1):
    order = np.random.default_rng(seed).permutation(len(manifest.records))
    return manifest.select(order.tolist())


def fitted_values(model):
    """Return all arrays and numbers of a model, including its members."""
    content = model.to_model_data()
    return [
        (each.decision_parameters, {name: array.tobytes() for name, array in each.arrays.items()})
        for each in [content, *content.estimators]
    ]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore")
def test_shuffled_rows_give_the_same_model(name, manifest):
    first, second, reverse = (
        MODELS[name]().fit(images)
        for images in (
            manifest,
            shuffled(manifest),
            manifest.select(range(len(manifest.records))[::-1]),
        )
    )
    assert fitted_values(first) == fitted_values(second) == fitted_values(reverse)


def test_warm_start_uses_the_same_order(manifest):
    start = MODELS["single"]().fit(manifest)
    first, second = (
        MODELS["single"]().fit(images, start_from=start)
        for images in (manifest, shuffled(manifest))
    )
    assert fitted_values(first) == fitted_values(second)
    moved = [start.refit_decision_rule(images) for images in (manifest, shuffled(manifest))]
    assert fitted_values(moved[0]) == fitted_values(moved[1])


def test_names_and_locations_of_files_do_not_matter(tissue, manifest, tmp_path):
    """Patients default to file names, so they are given explicitly here."""
    places = {}
    for place, record in enumerate(manifest.records):
        file = tmp_path / f"z{len(manifest.records) - place:02}{record.path.suffix}"
        shutil.copy(record.path, file)
        places[record.path] = file
    moved = replace(
        manifest,
        root=tmp_path,
        records=tuple(replace(r, path=places[r.path]) for r in manifest.records),
    )
    first, second = (MODELS["single"]().fit(images) for images in (manifest, moved))
    assert fitted_values(first) == fitted_values(second)


def test_sampled_patches_are_the_same(manifest):
    model = MODELS["single"]().fit(manifest)
    found = []
    for images in (manifest, shuffled(manifest)):
        gallery = PatchSample.from_records(model.model_, images.records, 0, n_patches=80)
        names = [str(images.records[place].path) for place in gallery.images.tolist()]
        found.append(sorted(zip(names, map(tuple, gallery.corners.tolist()), strict=True)))
        found[-1].append(gallery.codes.toarray().tobytes())
    assert found[0] == found[1]


def test_tables_of_an_evaluation_are_the_same(tissue, manifest, tmp_path, monkeypatch):
    monkeypatch.setattr(measures, "N_REPLICATES", 100)
    arguments = ["evaluate", "--folds", "2", "--repeats", "2", "--methods", "dfdl,lbp-colour"]
    for setting in ("n_atoms=8", "n_iter=2", "patches_per_class=120", "patch_px=10"):
        arguments += ["--set", setting]
    head, *rows = (tissue / "manifest.csv").read_text().splitlines()
    order = np.random.default_rng(2).permutation(len(rows)).tolist()
    tables, predictions = [], []
    for name, lines in (("a", rows), ("b", [rows[place] for place in order])):
        file = tissue / f"{name}.csv"
        file.write_text("\n".join([head, *lines]))
        out = tmp_path / name
        run = CliRunner().invoke(app, [*arguments, str(file), "-o", str(out), "--jobs", "1"])
        assert run.exit_code == 0, run.output
        tables.append([(out / f"{t}.csv").read_text() for t in ("results", "comparisons")])
        predictions.append(sorted((out / "predictions.csv").read_text().splitlines()))
    assert tables[0] == tables[1]
    assert predictions[0] == predictions[1]


def test_concepts_are_the_same_and_tables_keep_their_order(tmp_path):
    rng, names = np.random.default_rng(0), [f"s{place}.npz" for place in range(6)]
    places = np.stack(np.meshgrid(np.arange(6), np.arange(6)), axis=-1).reshape(-1, 2) * 64
    for name in names:
        X = rng.standard_normal((36, 12)) * (rng.random((36, 12)) < 0.3)
        np.savez(tmp_path / name, features=X.astype(np.float32), coords=places)
    tables = []
    for out, order in (("a", names), ("b", names[::-1])):
        file = tmp_path / f"{out}.csv"
        file.write_text("path,patient\n" + "".join(f"{n},p{n[1]}\n" for n in order))
        arguments = ["concepts", str(file), "--atoms", "4", "-o", str(tmp_path / out)]
        assert CliRunner().invoke(app, arguments).exit_code == 0
        with (tmp_path / out / "usage.csv").open() as text:
            rows = list(csv.DictReader(text))
        assert [row["image"] for row in rows] == order
        tables.append(sorted(map(str, rows)))
    assert tables[0] == tables[1]
    again = ["concepts", str(tmp_path / "b.csv"), "--atoms", "4", "-o", str(tmp_path / "a")]
    assert "reused" in CliRunner().invoke(app, again).output


def test_large_files_are_sorted_by_sampled_content(tmp_path, monkeypatch):
    """Slides of gigabytes are not read completely, and files that differ at the end are
    distinguished."""
    monkeypatch.setattr(files, "_BLOCK_BYTES", 64)
    content = bytearray(100_000)
    found = []
    for place, change in enumerate((None, 0, 50_000, 99_999)):
        own = bytearray(content)
        if change is not None:
            own[change] = 1
        (tmp_path / str(place)).write_bytes(own)
        found.append(files.sampled_digest(tmp_path / str(place)))
    assert found[0] != found[1] and found[0] != found[3]
    assert files.sampled_digest(tmp_path / "none") == ""


def test_order_is_by_content_then_label_and_patient(tissue, manifest):
    order = [manifest.records[place] for place in content_order(manifest.records)]
    other = shuffled(manifest)
    again = [other.records[place] for place in content_order(other.records)]
    statistics = [
        [(files.content_digest(r.path), r.label, r.patient) for r in each]
        for each in (order, again)
    ]
    assert statistics[0] == statistics[1]
