"""Tests of the evaluation report: its numbers are those of the tables, and it is self-contained."""

from __future__ import annotations

import csv
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from histodict.datasets.manifest import read_manifest
from histodict.evaluation import evaluate
from histodict.metrics.scores import brier_score, roc_curve
from histodict.model_selection.protocols import k_folds, learning_curve_splits, leave_one_site_out
from histodict.models import Plan
from histodict.models.recipe import Recipe
from histodict.reports import evaluation_tables as evaluation_errors
from histodict.reports.evaluation_page import write_evaluation_page
from histodict.reports.model_card import CHECKLIST_ITEMS
from histodict.utils.parallel import ExecutionOptions
from tests.evaluation import planted
from tests.evaluation.planted import evaluate_planted, one_hot, write_images, wrong_for

LBP, WND = "lbp-colour", "paper:wndcharm"


class Page(HTMLParser):
    """Parsed page: tables as lists of rows, alternative texts of images, and all text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.tables: list[list[list[str]]] = []
        self.alts: list[str] = []
        self.text = ""
        self._open_cell = False
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self._open_cell = True
        if tag == "img":
            self.alts.append(dict(attrs)["alt"] or "")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._open_cell = False

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._open_cell:
            self.tables[-1][-1][-1] += data

    def table(self, *header: str) -> list[list[str]]:
        """Return the rows below a header that begins with these cells."""
        (found,) = (t for t in self.tables if tuple(t[0][: len(header)]) == header)
        return found[1:]


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def report(done, folder: Path) -> Page:
    write_evaluation_page(folder / "report.html", done, None)
    return Page(folder / "report.html")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("images") / "set")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("evaluation")


@pytest.fixture(scope="module")
def done(images, folder):
    splits = k_folds(images, 3, n_repeats=2)
    predictions = {LBP: wrong_for("p0_1", "p3_0"), WND: wrong_for("p0_1", "p1_1", "p2_1", "p4_1")}
    return evaluate_planted(images, splits, folder, predictions, seeds=(0, 7))


@pytest.fixture(scope="module")
def page(done, folder):
    return report(done, folder)


# --- agreement with the tables --------------------------------------------------------------------


def test_results_equal_the_table(page, folder):
    metrics = ["balanced accuracy", "AUC", "sensitivity", "specificity"]
    displayed = {
        (row[0], metric): cell
        for row in page.table("method", *metrics)
        for metric, cell in zip(metrics, row[1:], strict=False)
    }
    rows = read_csv(folder / "results.csv")
    assert len(rows) == len(displayed) == 8
    for row in rows:
        value, low, high = (float(row[key]) for key in ("value", "low", "high"))
        text = f"{value:.3f} ({low:.3f} to {high:.3f})"
        assert displayed[row["method"], row["metric"]] == text
    # Planted: of six images per class the first method has one wrong each; the second none and
    # four.
    assert displayed[LBP, "balanced accuracy"].startswith("0.833 ")
    assert displayed[WND, "sensitivity"].startswith("0.333 ")
    assert displayed[WND, "specificity"].startswith("1.000 ")


def test_comparisons_equal_the_table(page, folder):
    (row,) = read_csv(folder / "comparisons.csv")
    (displayed,) = page.table("methods", "difference")
    assert displayed[0] == f"{LBP} minus {WND}"
    assert displayed[1] == f"{float(row['difference']):+.3f}" == "+0.167"
    assert displayed[2] == f"{float(row['low']):+.3f} to {float(row['high']):+.3f}"
    assert displayed[3:5] == [f"{float(row[key]):.3f}" for key in ("p_value", "p_holm")]
    assert float(row["p_holm"]) > 0.05
    assert displayed[5] == "not significant"


def test_confusion_matrices_count_the_predictions(page, folder):
    predictions = read_csv(folder / "predictions.csv")
    counts = Counter((row["method"], row["truth"], row["label"]) for row in predictions)
    matrices = [t for t in page.tables if t[0][0].startswith("true class")]
    assert len(matrices) == 2
    for method, (header, *rows) in zip((LBP, WND), matrices, strict=True):
        assert header[1:] == ["benign", "malignant"]
        for truth, *cells in rows:
            assert cells == [str(counts[method, truth, label]) for label in header[1:]]
    for row in read_csv(folder / "confusion.csv"):
        assert int(row["n_predictions"]) == counts[row["method"], row["truth"], row["label"]]


def test_operating_points_are_those_of_the_predictions(page, folder):
    text = re.search(r'aria-label="False positive rate and true positive rate[^"]*', page.source)
    assert text
    for method in (LBP, WND):
        own = [row for row in read_csv(folder / "predictions.csv") if row["method"] == method]
        truth, scores = [r["truth"] for r in own], [float(r["score"]) for r in own]
        curve = roc_curve(truth, scores, positive="malignant")
        assert (
            f"{method} {curve.operating_point[0]:.3f}, {1 - curve.operating_point[1]:.3f}"
            in text[0]
        )


def test_time_and_memory(page):
    assert page.table("method", "trainings") == [
        [name, "12", "2.0", "2.0", "0.50", "123"] for name in (LBP, WND)
    ]


def test_data_are_summarised(page):
    assert page.table("class", "images") == [
        ["benign", "6", "6", "2"],
        ["malignant", "6", "6", "2"],
    ]
    assert "2: north, south" in page.text
    assert "0.5 µm" in page.text
    assert "3 folds; every image is tested once; 2 repeats" in page.text


# --- errors -------------------------------------------------------------------------------------


def test_exactly_the_wrong_images_are_shown(page, folder):
    predictions = read_csv(folder / "predictions.csv")
    wrong = {row["image"] for row in predictions if row["label"] != row["truth"]}
    assert wrong == {"p0_1.png", "p3_0.png", "p1_1.png", "p2_1.png", "p4_1.png"}
    assert sorted(page.alts) == sorted(wrong)
    assert {row["image"] for row in read_csv(folder / "errors.csv")} == wrong
    assert f"{LBP}: benign (wrong in 4 of 4 predictions)" in page.text


def test_errors_by_patient(page):
    rows = {row[0]: row[1:] for row in page.table("patient", "images")}
    assert next(iter(rows)) == "p0"  # the patient with the most wrong predictions
    assert rows["p0"] == ["2", "4 of 8", "4 of 8"]
    assert rows["p3"] == ["2", "4 of 8", "0 of 8"]
    assert "p5" not in rows


def test_too_many_images_are_named_instead(done, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluation_errors, "_MAX_ERROR_IMAGES", 2)
    page = report(done, tmp_path)
    assert len(page.alts) == 2
    for name in ("p0_1.png", "p3_0.png", "p1_1.png", "p2_1.png", "p4_1.png"):
        assert f"{name}: true class" in page.text
    assert page.text.count("picture omitted") == 3


def test_report_without_errors(images, tmp_path):
    done = evaluate_planted(images, k_folds(images, 2), tmp_path, {LBP: wrong_for()})
    page = report(done, tmp_path)
    assert "all predictions are correct" in page.text
    assert "An interval of zero width does not mean certainty" in page.text
    assert page.alts == []
    assert "Comparisons" not in page.text.partition("Checklist")[0]


def test_background_is_a_separate_column(images, tmp_path):
    def no_tissue_for_p0(record, seed, split):
        if record.patient == "p0":
            return "no tissue", [float("nan")], []
        return wrong_for()(record, seed, split)

    page = report(
        evaluate_planted(images, k_folds(images, 2), tmp_path, {LBP: no_tissue_for_p0}), tmp_path
    )
    assert page.table("true class ↓ / predicted class →", "benign", "malignant", "no tissue") == [
        ["benign", "5", "0", "1"],
        ["malignant", "0", "5", "1"],
    ]
    assert sorted(page.alts) == ["p0_0.png", "p0_1.png"]


# --- warnings -----------------------------------------------------------------------------------


def test_split_by_image_is_warned_of(images, page, tmp_path):
    splits = k_folds(images, 2, unit="image")
    loud = report(evaluate_planted(images, splits, tmp_path, {LBP: wrong_for("p0_1")}), tmp_path)
    sides = [[{images.patients[i] for i in side} for side in (s.train, s.test)] for s in splits]
    n_shared = len(set.union(*(train & test for train, test in sides)))
    assert f"{n_shared} of the patients are in both training and test set" in loud.text
    head = loud.text.partition("Data")[0]
    assert "Warning: split by image, not by patient" in loud.text
    assert "too optimistic for new patients" in loud.text
    assert "Training and test sets have no patient in common" not in head
    assert "Split by image: all scores are too optimistic." in loud.text  # in the model card
    assert "split by image" not in page.text.lower()
    assert "no patient is in both training and test set" in page.text


def test_warnings_about_the_data_are_repeated(tmp_path):
    write_images(tmp_path / "set")
    (tmp_path / "set" / "manifest.csv").write_text(
        "path,label\n" + "\n".join(f"p{i}_{j}.png,{'ab'[j]}" for i in range(6) for j in (0, 1))
    )
    manifest = read_manifest(tmp_path / "set")

    def right(record, seed, split):
        return record.label, [1.0 if record.label == "b" else -1.0], []

    done = evaluate_planted(manifest, k_folds(manifest, 2), tmp_path / "out", {LBP: right})
    page = report(done, tmp_path / "out")
    assert "no patient is specified for 12 images" in page.text
    assert "Some images have no patient" in page.text
    assert "training and test sets may share patients" in page.text
    assert "have no patient in common" not in page.text
    assert "no patient is in both" not in page.text
    rows = {row[0]: row[1] for table in page.tables for row in table if len(row) == 2}
    assert rows["Patients"] == "unknown"
    assert rows["Split by"] == "patients; images without a patient count as separate patients"
    assert rows["Training sets"] == "each with 6 images of unknown patients"


def test_failures_are_named_and_excluded(images, tmp_path):
    # No patch fits into the images: training fails at once.
    recipes = {"dfdl": Recipe(patch_px=400), "odl": Recipe(method="odl", patch_px=400)}
    plans = {name: Plan(recipe) for name, recipe in recipes.items()}
    done = evaluate(
        images, plans, k_folds(images, 2), tmp_path, execution=ExecutionOptions(n_jobs=1)
    )
    assert done.methods == []
    page = report(done, tmp_path)
    assert "Some runs failed" in page.text
    assert "dfdl, repeat 1, fold 1, seed 0: ImageError: " in page.text
    assert "smaller than a patch (400 x 400)" in page.text
    assert "Model card" not in page.text
    files = page.text.partition("Files in the same folder: ")[2]
    assert "results.csv" in files and "confusion.csv" not in files and "figures" not in files
    assert "histodict 0." in page.text  # provenance is written in any case


# --- other kinds of evaluation ------------------------------------------------------------------


def test_three_classes(tmp_path):
    names = ("a<b>&$x$", "b_1", "c")
    manifest = write_images(tmp_path / "set", names)

    def second_for_third(record, seed, split):
        place = (
            min(names.index(record.label), 1)
            if record.patient == "p1"
            else names.index(record.label)
        )
        return names[place], one_hot(place, 3), []

    splits = leave_one_site_out(manifest)
    done = evaluate_planted(manifest, splits, tmp_path / "out", {LBP: second_for_third})
    row, *_ = read_csv(tmp_path / "out" / "predictions.csv")
    assert [name for name in row if name.startswith("score")] == [
        "score",
        *(f"score_{name}" for name in names),
    ]
    assert (row["score"], row[f"score_{row['label']}"]) == ("1", "1")
    page = report(done, tmp_path / "out")
    matrix = page.table("true class ↓ / predicted class →", *names)
    assert matrix == [
        [names[0], "6", "0", "0"],
        [names[1], "0", "6", "0"],
        [names[2], "0", "1", "5"],
    ]
    assert "sensitivity" not in page.text.lower()
    assert not (tmp_path / "out" / "figures" / "roc.svg").exists()
    assert "a<b>" not in page.source  # names are text, not tags
    assert "each site in turn is the test set" in page.text
    assert "another laboratory were not tested" not in page.text


def test_training_sizes(images, tmp_path):
    splits = learning_curve_splits(images, (1, 2), n_repeats=2)

    def wrong_if_few(record, seed, split):
        names = (record.path.stem,) if "1 per class" in split and record.label == "benign" else ()
        return wrong_for(*names)(record, seed, split)

    tested = images.select(splits.splits[0].test).records
    wrong = next(record.path.stem for record in tested if record.label == "benign")
    done = evaluate_planted(images, splits, tmp_path, {LBP: wrong_if_few, WND: wrong_for(wrong)})
    page = report(done, tmp_path)
    displayed = {(row[0], row[1]): row[2] for row in page.table("method", "images per class")}
    for row in read_csv(tmp_path / "results.csv"):
        if row["metric"] == "balanced accuracy":
            value, low, high = (float(row[key]) for key in ("value", "low", "high"))
            cell = displayed[row["method"], row["n_per_class"]]
            assert cell == f"{value:.3f} ({low:.3f} to {high:.3f})"
    assert displayed[LBP, "1"].startswith("0.500 ")
    assert displayed[LBP, "2"].startswith("1.000 ")
    assert "training-size-figure_1" in page.source
    # Other sections are for the larger size, at which the first method has no errors.
    assert page.alts == [f"{wrong}.png"]
    assert "with 2 training images per class" in page.text


def test_probabilities_are_evaluated(images, tmp_path):
    def nearly_sure(record, seed, split):
        label, scores, _ = wrong_for("p0_1")(record, seed, split)
        p = 0.8 if scores[0] > 0 else 0.1
        return label, scores, [1 - p, p]

    done = evaluate_planted(
        images, k_folds(images, 2), tmp_path, {LBP: nearly_sure, WND: wrong_for()}
    )
    page = report(done, tmp_path)
    output = [nearly_sure(record, 0, "")[2][1] for record in images.records]
    assert f"{LBP}: Brier score {brier_score(images.labels, output):.3f}" in page.text
    assert f"{WND}: Brier score" not in page.text
    stored = np.mean([nearly_sure(record, 0, "")[0] == record.label for record in images.records])
    assert stored < 1 and f"contain the true class for {stored:.3f} of the images" in page.text
    assert (tmp_path / "figures" / "calibration.svg").is_file()


def test_uncertain_predictions_are_reported_with_the_best_guess(images, tmp_path, monkeypatch):
    def wrong_probability(record, seed, split):
        label, scores, _ = wrong_for("p0_1")(record, seed, split)
        return label, scores, [0.5, 0.5]

    def report_with(prediction_set):
        monkeypatch.setattr(planted, "prediction_set", lambda label: prediction_set)
        folder = tmp_path / str(len(prediction_set))
        done = evaluate_planted(images, k_folds(images, 2), folder, {LBP: wrong_probability})
        return report(done, folder).text

    text = f"{LBP}: uncertain (best guess: benign) (wrong in 1 of 1 prediction)"
    assert text in report_with(["benign", "malignant"]) and text in report_with([])
    assert f"{LBP}: benign (wrong in 1 of 1 prediction)" in report_with(["benign"])


# --- the file -----------------------------------------------------------------------------------


def test_every_method_is_named_everywhere(page):
    for method in (LBP, WND):
        for header in (("method", "balanced accuracy"), ("method", "trainings")):
            assert method in [row[0] for row in page.table(*header)]
        for name in ("balanced-accuracy", "auc", "sensitivity", "specificity", "roc"):
            chart = page.source.partition(f'id="{name}-figure_1"')[2].partition("</svg>")[0]
            assert f">{method}</text>" in chart, name


def test_report_is_self_contained(page):
    source = page.source
    assert not re.findall(r"<(script|link|iframe|object|embed|base)\b", source, re.IGNORECASE)
    assert not re.search(r"@import|\bon\w+\s*=\s*\"", source)
    for target in re.findall(r'(?:src|href)\s*=\s*"([^"]*)"', source):
        assert target.startswith(("data:", "#")), target
    for target in re.findall(r"url\(([^)]*)\)", source):
        assert target.startswith("#"), target
    addresses = set(re.findall(r"https?://[^\"\s<]*", source))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


def test_ids_are_unique_and_links_have_targets(page):
    ids = re.findall(r'\bid="([^"]*)"', page.source)
    assert len(ids) == len(set(ids))
    targets = set(re.findall(r'href="#([^"]*)"|url\(#([^)]*)\)', page.source))
    assert {a or b for a, b in targets} <= set(ids)


def test_figures_are_also_files(page, folder):
    names = {path.name for path in (folder / "figures").iterdir()}
    wanted = ("balanced-accuracy", "auc", "sensitivity", "specificity", "differences", "roc")
    assert names == {f"{name}.svg" for name in wanted}
    for name in names:
        text = (folder / "figures" / name).read_text(encoding="utf-8")
        assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
        assert text in page.source


def test_same_evaluation_gives_the_same_bytes(done, page, tmp_path):
    sources = [each.source for each in (report(done, tmp_path), page)]
    # The list of files depends on the folder.
    first, second = (re.sub("Files in the same folder: .*", "", source) for source in sources)
    assert first == second


def test_checklist_is_complete(page):
    (rows,) = (t for t in page.tables if t and t[0][0].startswith("1\u2002Title"))
    assert [row[0] for row in rows] == [
        f"{item}\u2002{requested}" for item, requested in CHECKLIST_ITEMS
    ]
    items = {row[0].partition("\u2002")[0]: row[1] for row in rows}
    assert items["17"] == "not recorded"  # not provided
    assert items["6a"] == "2: north, south"
    assert "0.833" in items["23a"]


def test_provenance(page, done, images):
    assert images.digest() in page.text
    assert "0, 7" in page.text  # seeds
    assert "stain correction macenko" in page.text


def test_ensemble_is_described_with_its_members():
    from histodict.models import Plan
    from histodict.reports.evaluation_tables import describe_plan

    text = describe_plan(Plan.named("pixels"))
    assert (
        "ensemble with 2 other base models: lbp-colour (stain correction reinhard, width and "
        "height reduced by" in text
    )
    assert "lbp-colour (stain correction none, width and height reduced by a factor of 4)" in text
    assert "views" not in describe_plan(Plan.named("fast"))
