"""Tests of the experiments of the paper: published values, computations, and output of
`histodict reproduce all --quick` with every method, figure and table.

The images are fewer and smaller than the defaults: WND-CHARM alone would take a minute for those.
"""

from __future__ import annotations

import csv
import re
import shutil
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from histodict import paper
from histodict.cli import app
from histodict.datasets.manifest import ImageRecord, Manifest
from histodict.evaluation import measures
from histodict.metrics.intervals import bootstrap_interval
from histodict.models import TissueClassifier
from histodict.models.recipe import preset
from histodict.paper import (
    EXPERIMENT_NAMES,
    EXPERIMENTS,
    FULL,
    ExperimentOptions,
    ExperimentSizes,
    Setting,
    complexity,
    reproduce,
)
from histodict.paper import setting as published
from histodict.paper.accuracy import theta_rates, training_sizes
from histodict.paper.codes import max_cosine_to_other_classes
from histodict.paper.complexity import (
    OPERATIONS,
    PAPER_PROBLEM,
    count_operations,
    format_scientific,
    synthetic_samples,
)
from histodict.paper.image_sets import Dataset
from histodict.paper.setting import (
    COMPARED_METHODS,
    NotPossibleError,
    Problem,
    limit_images,
    published_accuracies,
    published_confusion,
    published_operating_points,
)
from histodict.utils.parallel import ExecutionOptions
from histodict.utils.text_io import read_checked_json

TINY = ExperimentSizes(
    max_images=6,
    recipe={"patch_px": 12, "patches_per_class": 80},
    parameters={"n_iter": 2, "n_epochs": 1, "n_coding_steps": 5, "n_nonzero": 3},
    n_atoms=8,
    patches=(40, 80),
    bases=(4, 8),
    n_image_sizes=2,
    synthetic=(12, 1, (112, 96)),
    timed_problem=Problem(n_atoms=6, n_samples=40, n_features=30, n_nonzero=3, n_iter=1),
)
# Large enough that every method is better than chance.
SMALLER = replace(
    paper.QUICK,
    max_images=8,
    recipe=paper.QUICK.recipe | {"patches_per_class": 180},
    patches=(60, 180),
    bases=(8, 24),
    n_image_sizes=2,
    synthetic=(8, 2, (128, 112)),
    timed_problem=TINY.timed_problem,
)
CLASS_DICTIONARIES = ("DFDL", "LC-KSVD", "FDDL")
DICTIONARIES = (*CLASS_DICTIONARIES, "Nayak's")
NAMES = (*DICTIONARIES, "SRC", "SHIRC", "WND-CHARM")
NAMED = tuple(published.PAPER_NAMES.values())


# --- published values -----------------------------------------------------------------------------


def test_inconsistent_rows_are_stored_as_printed_and_flagged():
    rows = published_confusion()
    assert len(rows) == 2 * 66
    odd = Counter()
    for row in rows:
        if not row["sums_to_100"]:
            odd[row["data"], row["method"], row["truth"]] += row["percent"]
    assert {where: round(total, 2) for where, total in odd.items()} == {
        ("ADL lung", "LC-KSVD", "healthy"): 101.0,
        ("ADL lung", "WND-CHARM", "inflammatory"): 98.0,
        ("ADL kidney", "LC-KSVD", "inflammatory"): 101.0,
        ("ADL kidney", "DFDL", "inflammatory"): 99.94,
        ("ADL spleen", "DFDL", "inflammatory"): 99.9,
    }


def test_every_matrix_is_complete():
    for data, classes in published.CLASSES.items():
        rows = [row for row in published_confusion() if row["data"] == data]
        counts = Counter((row["method"], row["truth"], row["predicted"]) for row in rows)
        methods = {row["method"] for row in rows}
        assert counts == {
            (m, truth, predicted): 1 for m in methods for truth in classes for predicted in classes
        }
        assert methods < set(NAMED) if data == "TCGA" else methods == set(NAMED)
        assert len(methods) == (5 if data == "TCGA" else 7)


def test_accuracies_agree_with_the_text():
    rows = {(row["data"], row["method"]): row for row in published_accuracies()}
    percent = {where: row["accuracy"] for where, row in rows.items()}
    assert percent["TCGA", "DFDL"] == round(100 * (107 + 35) / 150, 2)
    # "less than 0.67 %, one more misclassified image"
    more = percent["TCGA", "LC-KSVD"] - percent["TCGA", "DFDL"]
    assert more == pytest.approx(100 / 150, abs=0.02)
    assert (percent["IBL", "DFDL"], rows["IBL", "DFDL"]["printed"]) == (97.75, "over 97.75")
    assert percent["IBL", "WND-CHARM"] == 92.85  # as printed; the matrix would give 92.99
    assert percent["IBL", "SHIRC"] == pytest.approx((93.33 + 90) / 2, abs=0.006)
    assert rows["IBL", "SHIRC"]["printed"] == "from the confusion matrix"
    assert max(NAMED, key=lambda method: percent["ADL lung", method]) == "DFDL"


def test_operating_points_are_error_rates():
    points = {
        (row["data"], row["method"]): (row["false_alarm"], row["miss"])
        for row in published_operating_points()
    }
    assert points["IBL", "DFDL"] == pytest.approx((0.04, 0.005))
    assert points["TCGA", "WND-CHARM"] == pytest.approx((0.2332, 0.2162))


# --- complexity ---------------------------------------------------------------------------------


def test_operation_counts_are_those_of_the_paper():
    rows = published.read_table("operations")
    assert len(rows) == 12
    ours = {name: method for method, name in published.PAPER_NAMES.items()}
    for row in rows:
        count = count_operations(ours[row["method"]], PAPER_PROBLEM, int(row["q"]))
        assert count == float(row["operations"])
        assert format_scientific(count) == row["operations"]


def test_operation_counts_follow_from_the_steps_in_the_appendix():
    p = Problem(n_classes=3, n_atoms=7, n_samples=11, n_features=13, n_nonzero=5)
    c, k, N, d, L, q = 3, 7, 11, 13, 5, 4

    def pursuit(features, atoms, samples):
        return atoms * samples * (2 * features + L**2)

    assert count_operations("dfdl", p, q) == c * pursuit(d, k, c * N)
    assert count_operations("lcksvd", p, q) == pursuit(d + c * k, c * k, c * N)
    gram, right, step = (c * k) * d * (c * k), 2 * (c * k) * d * (c * N), 2 * (c * k) ** 2 * c * N
    assert count_operations("nayak", p, q) == gram + right + q * step
    one_class = c * d * k * (2 * N + c * k) + 2 * q * c**2 * k**2 * N
    assert count_operations("fddl", p, q) == c * one_class


def test_recorded_times_are_shown_only_for_their_own_size(monkeypatch):
    rows = published.read_table("recorded_times")
    assert {row["method"] for row in rows} <= set(OPERATIONS)
    monkeypatch.setattr(
        complexity, "measure_training_times", lambda *_: dict.fromkeys(OPERATIONS, 1.0)
    )
    shown = complexity.run().rows
    assert {row["method"]: row["recorded seconds"] for row in shown}["DFDL"] == 71
    other = complexity.run(counted_problem=replace(PAPER_PROBLEM, n_atoms=400))
    assert {row["recorded seconds"] for row in other.rows} == {None}
    assert other.draw() is not None


def test_numbers_are_formatted_as_in_the_paper():
    assert [format_scientific(x) for x in (6.6e10, 1.06e11, 1.692e11, 1e3)] == [
        "6.6e10",
        "1.06e11",
        "1.692e11",
        "1e3",
    ]


def test_timing_samples_are_unit_vectors_of_all_classes():
    X, y = synthetic_samples(TINY.timed_problem, 0)
    assert X.shape == (80, 30) and X.dtype == np.float32
    assert np.allclose(np.linalg.norm(X, axis=1), 1, atol=1e-5)
    assert np.bincount(y).tolist() == [40, 40]


# --- parts of the experiments -------------------------------------------------------------------


def test_error_rates_over_theta():
    shares = np.array([1.0, 0.8, 0.4, 0.6, 0.2, 0.0])
    diseased = np.array([False, False, False, True, True, True])
    false_alarm, miss = theta_rates(shares, diseased, np.array([0.0, 0.4, 0.5, 0.7, 1.0]))
    assert false_alarm == pytest.approx([0, 0, 1 / 3, 1 / 3, 2 / 3])
    assert miss == pytest.approx([1, 1 / 3, 1 / 3, 0, 0])


def test_atoms_shared_by_classes_are_found():
    D = np.eye(12).reshape(3, 4, 12)
    assert (max_cosine_to_other_classes(D) == 0).all()
    D[2, 1] = -D[0, 3]
    found = max_cosine_to_other_classes(D)
    assert found[0, 3] == found[2, 1] == 1 and found.sum() == 2


def records(*rows: tuple[str, str]) -> Manifest:
    """Return a manifest of images by (label, patient)."""
    return Manifest(tuple(ImageRecord(Path(f"{i}.png"), *row) for i, row in enumerate(rows)))


def test_few_images_are_from_many_patients():
    manifest = records(*[("a", "p")] * 5, ("a", "q"), ("a", "r"), ("b", "p"))
    stored = limit_images(manifest, 3)
    assert sorted(zip(stored.labels, stored.patients, strict=True)) == [
        ("a", "p"),
        ("a", "q"),
        ("a", "r"),
        ("b", "p"),
    ]
    assert limit_images(manifest, None) is manifest
    assert limit_images(manifest, 4).patients.count("p") == 3


def many(n_patients: int = 30) -> Manifest:
    return records(*((label, f"{label}{i}") for label in "ab" for i in range(n_patients)))


def setting(manifest: Manifest, **changes) -> Setting:
    return Setting(Dataset("x", manifest), Path("unused"), **changes)


def test_full_recipe_is_the_published_one():
    full = setting(many())
    assert full.plan("dfdl").recipe == preset("paper", "dfdl")
    assert full.plan("dfdl").recipe.method_parameters["n_atoms"] == 500
    assert (
        full.plan("nayak").recipe.aggregation == "proportion"
    )  # θ on the patches, as for all others
    assert full.plan("fddl", n_atoms=200).recipe.method_parameters["n_atoms"] == 200
    assert full.plan("nayak", n_atoms=200).recipe.method_parameters["n_atoms"] == 400
    assert full.plan("dfdl", patches_per_class=50).recipe.patches_per_class == 50
    assert FULL.bases == (200, 300, 400, 500, 600)


def test_settings_apply_to_methods_that_have_them():
    choice = ExperimentOptions(settings={"rho": "0.5", "downsample": "2"})
    chosen = setting(many(), options=choice)
    assert chosen.plan("dfdl").recipe.method_parameters["rho"] == 0.5
    assert "rho" not in chosen.plan("fddl").recipe.method_parameters
    assert chosen.plan("fddl").recipe.downsample == 2
    ensemble = replace(
        chosen, options=ExperimentOptions(preset="pixels", settings={"calibration_folds": "2"})
    )
    assert ensemble.plan("dfdl").ensemble and ensemble.plan("dfdl").calibration_folds == 2
    with pytest.raises(ValueError, match="no method has a setting 'colour'"):
        ExperimentOptions(settings={"colour": "1"})
    with pytest.raises(ValueError, match="method must be one of"):
        ExperimentOptions(methods=("magic",))


def test_half_of_the_patients_are_for_training_unless_a_number_of_images_is_set():
    full = setting(many())
    assert full.splits.protocol["kind"] == "k-fold" and len(full.splits) == 2
    few = replace(full, options=ExperimentOptions(per_class=10))
    assert [len(split.train) for split in few.splits] == [20]
    assert "10 training images per class" in few.describe()


def test_training_sizes_are_available_in_every_half():
    assert training_sizes(many(), 3, 5) == [2, 5, 8, 12, 15]
    assert training_sizes(many(4), 1, 5) == [2]
    with pytest.raises(NotPossibleError):
        training_sizes(many(2), 1, 5)


def test_experiment_selects_suitable_methods():
    chosen = setting(many(), options=ExperimentOptions(methods=("nayak", "dfdl")))
    assert chosen.choose_methods(("lcksvd",), ("dfdl", "odl"), "why") == ["dfdl"]
    assert setting(many()).choose_methods(("lcksvd",), ("dfdl", "odl"), "why") == ["lcksvd"]
    with pytest.raises(NotPossibleError, match="why; choose from odl"):
        chosen.choose_methods((), ("odl",), "why")
    assert set(COMPARED_METHODS) == set(published.PAPER_NAMES)


# --- complete run -------------------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def fewer_draws_and_pixels():
    """The intervals themselves are tested elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(published, "_PNG_DPI", 50)
        patch.setattr(measures, "N_REPLICATES", 100)
        few = partial(bootstrap_interval, n_replicates=100)
        patch.setattr(published, "bootstrap_interval", few)
        yield


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    folder = tmp_path_factory.mktemp("paper")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paper, "QUICK", SMALLER)
        arguments = ["reproduce", "all", "--quick", "--jobs", "1", "--output", str(folder)]
        run = CliRunner().invoke(app, arguments)
    assert run.exit_code == 0, run.output
    for count in ("6.6e10", "1.06e11", "8.92e10", "9.04e10"):
        assert count in run.output
    for name in EXPERIMENTS:
        assert read_checked_json(folder / "synthetic" / f"{name}.json")["failures"] == []
    return folder


def table(path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def ours(rows):
    return [row for row in rows if row["source"] == "histodict"]


def figure_text(path) -> str:
    return " ".join(ElementTree.parse(path).getroot().itertext())


EXPECTED_LABELS = {
    "bases": ["DFDL: healthy", "LC-KSVD: inflamed"],
    "codes": ["DFDL on healthy", "LC-KSVD on inflamed", "atoms: healthy | inflamed"],
    "accuracy": [*NAMES, "WND-CHARM", "synthetic (histodict)", "IBL (published)", "97.8"],
    "confusion": [*(f"{name}: healthy" for name in NAMES), "85.59 *", "15.41 *", "96.00"],
    "roc": [*DICTIONARIES, "θ from 0 to 1", "m from 1 to 20", "published points"],
    "training-patches": ["DFDL", "patches per class", "ADL lung", "10,000"],
    "training-images": [*NAMES, "training images per class"],
    "bases-count": ["DFDL", "bases per class", "500 bases"],
}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_writes_its_files(output, name):
    folder = output / "synthetic"
    labels = figure_text(folder / f"{name}.svg")
    assert [text for text in EXPECTED_LABELS[name] if text not in labels] == []
    with Image.open(folder / f"{name}.png") as image:
        assert min(image.size) > 150
        grey = np.asarray(image.convert("L"))
    assert len(np.unique(grey)) > 10 and grey.std() > 5
    assert len(table(folder / f"{name}.csv")) > 3
    page = (output / "index.html").read_text()
    assert f'src="synthetic/{name}.svg"' in page and f"synthetic/{name}.csv" in page


def test_page_is_self_contained_and_its_links_exist(output):
    page = (output / "index.html").read_text()
    links = re.findall(r'(?:src|href)="([^"]+)"', page)
    within = [link[1:] for link in links if link[0] == "#"]
    assert (
        within == re.findall(r'<h2 id="([^"]+)"', page) and len(within) == len(EXPERIMENT_NAMES) - 1
    )
    assert all((output / link).is_file() for link in links if link[0] != "#")
    assert "<script" not in page


def test_accuracy_is_that_of_the_predictions(output):
    folder = output / "synthetic"
    predictions = table(folder / "predictions.csv")
    rows = table(folder / "accuracy.csv")
    assert [row["method"] for row in ours(rows)] == list(NAMES)
    for row, method in zip(ours(rows), COMPARED_METHODS, strict=True):
        own = [a["truth"] == a["label"] for a in predictions if a["method"] == method]
        assert float(row["accuracy"]) == pytest.approx(100 * np.mean(own))
        assert int(row["n_predictions"]) == len(own) == 16
        assert 0 <= float(row["low"]) <= float(row["accuracy"]) <= float(row["high"]) <= 100
    # Few small patches without stain correction: low accuracy, but above chance.
    assert max(float(row["accuracy"]) for row in ours(rows)) >= 80
    assert np.mean([float(row["accuracy"]) for row in ours(rows)]) >= 60
    beside = {r["data"] for r in rows if r["source"] == "published"}
    assert beside == set(published.CLASSES)


def test_confusion_agrees_with_the_accuracy(output):
    folder = output / "synthetic"
    accuracy = {r["method"]: float(r["accuracy"]) for r in ours(table(folder / "accuracy.csv"))}
    rows = ours(table(folder / "confusion.csv"))
    for method, value in accuracy.items():
        own = [row for row in rows if row["method"] == method]
        right = sum(int(row["images"]) for row in own if row["truth"] == row["predicted"])
        assert 100 * right / sum(int(row["images"]) for row in own) == pytest.approx(value)
        for truth in ("healthy", "inflamed"):
            total = sum(float(row["percent"]) for row in own if row["truth"] == truth)
            assert total == pytest.approx(100)


def test_roc_curves_include_the_operating_point(output):
    folder = output / "synthetic"
    curves, points = table(folder / "roc.csv"), ours(table(folder / "roc-points.csv"))
    confusion = ours(table(folder / "confusion.csv"))
    for name in DICTIONARIES:
        own = [row for row in curves if row["method"] == name and row["parameter"] == "θ"]
        values, alarm, miss = (
            np.array([float(row[key]) for row in own]) for key in ("value", "false_alarm", "miss")
        )
        assert (values == np.arange(101) / 100).all()
        assert (alarm[0], miss[0]) == (0, 1)
        assert (np.diff(alarm) >= 0).all() and (np.diff(miss) <= 0).all()
        point = next(p for p in points if p["method"] == name and p["parameter"] == "θ")
        wrong = {
            row["truth"]: float(row["percent"]) / 100
            for row in confusion
            if row["method"] == name and row["truth"] != row["predicted"]
        }
        assert float(point["false_alarm"]) == pytest.approx(wrong["healthy"])
        assert float(point["miss"]) == pytest.approx(wrong["inflamed"])
        own = [row for row in curves if row["method"] == name and row["parameter"] == "m"]
        assert [float(row["value"]) for row in own] == list(range(1, 21))
        assert (np.diff([float(row["miss"]) for row in own]) >= 0).all()
        assert (np.diff([float(row["false_alarm"]) for row in own]) <= 0).all()


@pytest.mark.parametrize(
    ("what", "setting"), [("bases-count", "n_atoms"), ("training-patches", "patches_per_class")]
)
def test_swept_setting_cannot_be_set(tmp_path, what, setting):
    """It would override every step, and the curve would be flat."""
    choice = ExperimentOptions(methods=("dfdl",), settings={setting: "5"})
    images = Manifest((), (), tmp_path)
    requested = Setting(Dataset("d", images, None, region=None), tmp_path, TINY, choice)
    with pytest.raises(ValueError, match=f"omit --set {setting}"):
        EXPERIMENTS[what](requested)


@pytest.mark.parametrize(
    ("name", "axis", "values"),
    [
        ("training-patches", "patches per class", [60, 180]),
        ("bases-count", "bases per class", [8, 24]),
        ("training-images", "training images per class", [2, 4]),
    ],
)
def test_sweeps_end_at_the_compared_value(output, name, axis, values):
    folder = output / "synthetic"
    rows = ours(table(folder / f"{name}.csv"))
    accuracy = {r["method"]: r["accuracy"] for r in ours(table(folder / "accuracy.csv"))}
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method]
        assert [int(row[axis]) for row in own] == values
        if name != "training-images":  # that experiment has other splits
            assert own[-1]["accuracy"] == accuracy[method]
    expected = NAMES if name == "training-images" else DICTIONARIES
    assert list(dict.fromkeys(row["method"] for row in rows)) == list(expected)


def test_bases_and_codes_are_of_the_same_dictionaries(output):
    folder = output / "synthetic"
    atoms = Counter((r["method"], r["class"]) for r in table(folder / "bases.csv"))
    classes = ("healthy", "inflamed")
    assert atoms == {(method, name): 24 for method in CLASS_DICTIONARIES for name in classes}
    codes = table(folder / "codes.csv")
    for share in table(folder / "codes-shares.csv"):
        own = [r for r in codes if (r["method"], r["truth"]) == (share["method"], share["truth"])]
        size = {name: 0.0 for name in classes}
        for row in own:
            assert 0 <= int(row["atom"]) < 24
            size[row["atom_class"]] += abs(float(row["code"]))
        expected = size[share["truth"]] / sum(size.values())
        assert float(share["own_class_fraction"]) == pytest.approx(expected, rel=1e-4)


def test_complexity_has_counts_and_times(output):
    rows = {row["method"]: row for row in table(output / "complexity.csv")}
    assert list(rows) == ["DFDL", "LC-KSVD", "Nayak's", "FDDL"]
    for row in rows.values():
        for q in (1, 3, 10):
            assert float(row[f"operations q={q}"]) == float(row[f"published q={q}"])
        assert float(row["measured seconds"]) > 0
    assert rows["FDDL"]["published time"] == "> 40 hours"
    assert float(rows["DFDL"]["recorded seconds"]) < float(rows["DFDL"]["published seconds"])
    page = (output / "index.html").read_text()
    for count in ("6.6e10", "1.06e11", "8.92e10", "9.04e10", "4.492e11", "4.504e11"):
        assert count in page
    labels = figure_text(output / "complexity.svg")
    assert all(text in labels for text in ("DFDL", "FDDL", "published 1.8e+03 s", "recorded 71 s"))


def test_second_run_trains_nothing_and_draws_the_same(output, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("trained again")

    before = (output / "synthetic" / "confusion.svg").read_bytes()
    monkeypatch.setattr(TissueClassifier, "fit", refuse)
    for name in ("bases", "confusion"):  # from stored models, and from stored predictions
        reproduce(name, output=output, sizes=SMALLER, execution=ExecutionOptions(1))
    assert (output / "synthetic" / "confusion.svg").read_bytes() == before


# --- other data sets ----------------------------------------------------------------------------


def test_other_data_are_compared_with_the_published_values(output, tmp_path):
    synthetic = next(output.glob("synthetic-*"))
    for kind, name in (("healthy", "UDH"), ("inflamed", "DCIS")):
        shutil.copytree(synthetic / kind, tmp_path / "Breast" / name)
    small = {
        "sizes": TINY,
        "options": ExperimentOptions(methods=("dfdl",)),
        "execution": ExecutionOptions(1),
    }
    (confusion,) = reproduce("confusion", tmp_path / "Breast", tmp_path, **small)
    assert {row["data"] for row in confusion.rows} == {"breast", *published.CLASSES}
    assert [row["truth"] for row in confusion.rows[:4]] == ["UDH", "UDH", "DCIS", "DCIS"]
    (roc,) = reproduce("roc", tmp_path / "Breast", tmp_path, **small)
    rates = {(r["truth"], r["predicted"]): r["percent"] / 100 for r in confusion.rows[:4]}
    assert roc.extra_tables["points"][0]["false_alarm"] == pytest.approx(rates["UDH", "DCIS"])
    assert roc.extra_tables["points"][0]["miss"] == pytest.approx(rates["DCIS", "UDH"])
    assert roc.rows[0]["miss"] == 1 and roc.rows[0]["false_alarm"] == 0
    entry = read_checked_json(tmp_path / "breast" / "roc.json")
    assert "no patient" in entry["warnings"][0]
    assert "no patient" in (tmp_path / "index.html").read_text()


def test_masks_alone_give_the_curve_over_m(output, tmp_path):
    regions = next(output.glob("synthetic-*")) / "regions"
    data = tmp_path / "tiles"
    (data / "images").mkdir(parents=True)
    shutil.copytree(regions / "masks", data / "masks")
    for path in regions.glob("*.jpg"):
        shutil.copy(path, data / "images" / f"patient_{path.stem[7:9]}.jpg")
        (data / "masks" / f"{path.stem}.png").rename(
            data / "masks" / f"patient_{path.stem[7:9]}.png"
        )
    choice = ExperimentOptions(methods=("dfdl",))
    made = reproduce(
        "all", data, tmp_path, sizes=TINY, options=choice, execution=ExecutionOptions(1)
    )
    assert [outcome.name for outcome in made] == ["roc", "complexity"]
    assert {row["parameter"] for row in made[0].rows} == {"m"}
    with pytest.raises(NotPossibleError, match="have masks but no classes"):
        reproduce("accuracy", data, tmp_path, sizes=TINY)


def test_invalid_arguments_are_refused(tmp_path):
    with pytest.raises(ValueError, match="choose from bases, codes"):
        reproduce("everything", output=tmp_path)
    with pytest.raises(ValueError, match="folder or data set not found"):
        reproduce("bases", "nowhere", tmp_path)


def test_matrices_are_plotted_if_only_some_methods_found_no_tissue():
    from histodict.paper import accuracy as confusion

    common = {"data": "x", "source": "histodict", "truth": "a", "sums_to_100": True}
    rows = [
        common | {"method": method, "predicted": prediction, "percent": 50.0}
        for method, prediction in (("DFDL", "a"), ("DFDL", "no tissue"), ("ODL", "a"))
    ]
    (axes,) = confusion._draw_confusion(rows).axes
    assert [text.get_text() for text in axes.texts] == ["50.00", "50.00", "50.00", "0.00"]
