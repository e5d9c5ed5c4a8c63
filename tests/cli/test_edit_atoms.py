"""Tests of the commands `edit` and `explain`."""

from __future__ import annotations

import csv
import json
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from scipy.sparse import csr_array
from typer.testing import CliRunner

from histodict import EnsembleClassifier, RegionDetector, TissueClassifier, load
from histodict.cli import app
from histodict.cli.edit_atoms import _print_explanation
from histodict.decision.atom_annotations import AtomAnnotations
from histodict.explain.concept_contribution import ConceptContribution, MemberContribution
from histodict.explain.explanation import Explanation
from histodict.models.recipe import Recipe
from histodict.synthetic.dataset import write_synthetic_dataset

SMALL = Recipe(
    method_parameters={"n_atoms": 8, "n_iter": 2},
    patch_px=12,
    patches_per_class=150,
    features="centred",
    aggregation="margin",
)
TEXTURES = Recipe(method="lbp-colour")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    home = tmp_path_factory.mktemp("edit")
    write_synthetic_dataset(home / "set", 3, 2, size=(120, 96))
    TissueClassifier(SMALL).fit(home / "set" / "manifest.csv").save(home / "m.histodict")
    return home


def run(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)])


def test_names_are_stored_and_appear_in_explain_atoms_and_info(folder, tmp_path):
    new = tmp_path / "new.histodict"
    before = (folder / "m.histodict").read_bytes()
    done = run(
        *("edit", folder / "m.histodict", "--name", "inflamed:1,inflamed:2=dark nuclei"),
        *(
            "--group",
            "dark nuclei=nuclei",
            "--disable",
            "healthy:3",
            "--artefact",
            "healthy:4",
            "--output",
            new,
            "--json",
        ),
    )
    assert done.exit_code == 0, done.output
    notes = {note["label"]: note for note in json.loads(done.stdout)["atoms"]}
    assert notes["inflamed:2"]["group"] == "nuclei"  # by the name that it has just got
    assert notes["inflamed:2"]["name"] == "dark nuclei" and notes["healthy:3"]["disabled"]
    assert notes["healthy:4"]["artefact"] and not notes["healthy:4"]["disabled"]
    assert (folder / "m.histodict").read_bytes() == before
    assert "2 named, 1 labelled as artefacts, 1 disabled" in run("info", new).output
    image = next((folder / "set" / "inflamed").iterdir())
    report = json.loads(run("explain", new, image, "--mpp", 0.5, "--json").stdout)["images"][0]
    names = [part["name"] for part in report["concepts"]]
    assert "dark nuclei" in names and "healthy:3" not in names and "inflamed:1" not in names
    total = report["constant"][0] + sum(part["contribution"][0] for part in report["concepts"])
    assert total == pytest.approx(report["scores"][0], abs=1e-6)
    page = tmp_path / "atoms.html"
    output = run("atoms", new, folder / "set" / "manifest.csv", "--output", page, "--no-maps")
    assert output.exit_code == 0, output.output
    assert "<b>dark nuclei</b>" in page.read_text()
    # By its name, and back.
    again = tmp_path / "again.histodict"
    back = ("--name", "dark nuclei=", "--group", "inflamed:1,inflamed:2=", "--enable", "healthy:3")
    run("edit", new, *back, "--tissue", "healthy:4", "--output", again)
    assert "No atom has a name" in run("edit", again).output
    assert (
        load(again).predict_one(image).row()
        == load(folder / "m.histodict").predict_one(image).row()
    )


def test_names_and_statistics_appear_in_all_outputs(folder, tmp_path):
    """In the table of predictions, in GeoJSON measurements, and in AnnData."""
    new, statistics, out = tmp_path / "new.histodict", tmp_path / "facts.csv", tmp_path / "out"
    run("edit", folder / "m.histodict", "--name", "inflamed:1,healthy:2=fat", "-o", new)
    table = folder / "set" / "manifest.csv"
    output = run("atoms", new, table, "-o", tmp_path / "a.html", "--no-maps", "--csv", statistics)
    assert output.exit_code == 0, output.output
    done = run(
        "predict",
        new,
        table,
        "-o",
        out,
        "--anndata",
        "--atom-statistics",
        statistics,
        "--outline-patches",
    )
    assert done.exit_code == 0, done.output
    with (out / "predictions.csv").open() as text:
        rows = list(csv.DictReader(text))
    assert len(rows) == 6 and any(float(row["usage_fat"]) > 0 for row in rows)
    h5py = pytest.importorskip("h5py")
    for row in rows:
        patches = json.loads((out / "geojson" / f"{row['key']}.geojson").read_text())["features"]
        uses = [patch["properties"]["measurements"]["fat: use"] for patch in patches]
        assert np.mean(uses) == pytest.approx(float(row["usage_fat"]))
        with h5py.File(out / "anndata" / f"{row['key']}.h5ad") as file:
            names, var = file["var/concept/categories"].asstr()[()].tolist(), file["var"]
            concepts = [names[code] for code in var["concept/codes"]]
            codes = csr_array(
                tuple(file["X"][part][()] for part in ("data", "indices", "indptr")),
                shape=(len(uses), len(concepts)),
            ).toarray()
            own = [place for place, name in enumerate(concepts) if name == "fat"]
            assert len(own) == 2
            assert (codes[:, own] != 0).any(axis=1).mean() == pytest.approx(np.mean(uses))
            with statistics.open() as text:
                class_names = list(csv.DictReader(text))
            assert set(class_names[0]) > {
                "largest_patient_share",
                "similarity_other_seeds",
                "similarity_half_of_patients",
            }
            np.testing.assert_allclose(var["auc"][()], [float(atom["auc"]) for atom in class_names])
            assert (var["auc_low"][()] <= var["auc"][()]).all()
            assert (
                np.isnan(var["similarity_other_seeds"][()]).all()
                and not var["is_site_confounded"][()].any()
            )
            assert {
                "n_patients",
                "variance_share_site",
                "variance_share_patient",
                "variance_share_slide_high",
            } <= set(var)
    alone = run("predict", new, table, "-o", tmp_path / "b", "--atom-statistics", statistics)
    assert alone.exit_code == 2 and "--atom-statistics needs --anndata" in alone.output
    # Statistics of another model with equal atom labels; and of this one before disabling.
    other, less = tmp_path / "other.histodict", tmp_path / "less.histodict"
    TissueClassifier(SMALL, random_state=1).fit(table).save(other)
    run("edit", new, "--disable", "healthy:1", "-o", less)
    for model, message in ((other, "not of the"), (less, "with other disabled atoms")):
        report = run(
            "predict",
            model,
            table,
            "-o",
            tmp_path / "c",
            "--anndata",
            "--atom-statistics",
            statistics,
        )
        assert report.exit_code == 2 and message in " ".join(report.output.split())


def test_effect_of_disabling_atoms_is_shown(folder):
    done = run("edit", folder / "m.histodict", "--disable", "inflamed:1,inflamed:2,inflamed:3",
               "--show", folder / "set" / "manifest.csv", "--json")  # fmt: skip
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["images"]
    assert len(rows) == 6
    assert any(row["score_before"] != row["score_after"] for row in rows)
    plain = run("edit", folder / "m.histodict", "--disable", "inflamed:1", "--show",
                folder / "set" / "manifest.csv").output  # fmt: skip
    assert "of 6 predictions change; correct before" in plain
    image = next((folder / "set" / "healthy").iterdir())
    switched = ("edit", folder / "m.histodict", "--disable", "inflamed:1")
    bare, sized = (run(*switched, "--show", image, *size) for size in ((), ("--mpp", 0.5)))
    assert "is not known" in bare.output and "is not known" not in sized.output
    alone = run("edit", folder / "m.histodict", "--mpp", 0.5)
    assert alone.exit_code == 2 and "--show" in alone.output


def test_explanation_as_text_and_as_a_page(folder, tmp_path):
    image = next((folder / "set" / "inflamed").iterdir())
    page = tmp_path / "why.html"
    done = run("explain", folder / "m.histodict", image, "--mpp", 0.5, "--output", page)
    assert done.exit_code == 0, done.output
    assert "the mean score of 'healthy' training patches" in done.output
    text = page.read_text()
    assert (
        "<script" not in text and "http" not in text and "differences from healthy training" in text
    )
    lines = [line.split() for line in done.stdout.splitlines()]
    columns = [[float(value) for value in line[-3:]] for line in lines if line[-3:][0][:1] in "+-"]
    total = columns[-1]  # after 8 concepts: the sums of these, of the others, and the constant
    assert len(columns) == 8 + 3 + 1
    np.testing.assert_allclose(np.sum(columns[8:-1], axis=0), total, atol=0.02)
    np.testing.assert_allclose(np.sum(columns[:8], axis=0), columns[8], atol=0.02)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--name", "inflamed:1"], "write ATOMS=TEXT"),
        (["--name", "inflamed:99=x"], "unknown atom 'inflamed:99'. Write CLASS:NUMBER"),
        (["--name", "inflamed:1=inflamed:2"], "is the label of another atom"),
        (
            ["--disable", ",".join(f"healthy:{n}" for n in range(1, 9))],
            "must have at least one enabled atom",
        ),
        (["--disable", "healthy:1"], "with --output"),
        (["--member", "2"], "the model has 1 base model"),
    ],
)
def test_invalid_edits_are_refused(folder, arguments, message):
    done = run("edit", folder / "m.histodict", *arguments)
    assert done.exit_code != 0 and message in " ".join(done.output.split())


def test_existing_model_is_not_overwritten(folder):
    old = folder / "m.histodict"
    done = run("edit", old, "--disable", "healthy:1", "--output", old)
    assert done.exit_code != 0 and load(old).model_.atom_annotations.disabled == []


def test_rule_is_refitted_after_disabling_atoms(folder, tmp_path):
    """Without most atoms of one class all images would get the other."""
    table, new = folder / "set" / "manifest.csv", tmp_path / "new.histodict"
    off = ",".join(f"inflamed:{n}" for n in range(1, 7))
    bare = run("edit", folder / "m.histodict", "--disable", off, "--show", table, "--json")
    predictions = {row["after"] for row in json.loads(bare.stdout)["images"]}
    assert predictions == {"healthy"}
    done = run(
        *("edit", folder / "m.histodict", "--disable", off, "--refit-rule", table),
        *("--show", table, "--output", new, "--json"),
    )
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["images"]
    assert np.mean([row["after"] == row["truth"] for row in rows]) > 0.5  # as without disabling
    model, before = load(new), load(folder / "m.histodict")
    assert model.training_info_["tuning"][-1]["n_images"] == len(rows)
    np.testing.assert_array_equal(model.model_.atoms().D, before.model_.atoms().D)


def test_refitting_needs_images_of_the_classes_of_the_model(folder, tmp_path):
    other = tmp_path / "other.csv"
    rows = (folder / "set" / "manifest.csv").read_text().replace("inflamed,", "fat,")
    other.write_text(rows)
    for name in ("healthy", "inflamed"):
        (tmp_path / name).symlink_to(folder / "set" / name)
    done = run(
        "edit", folder / "m.histodict", "--refit-rule", other, "-o", tmp_path / "n.histodict"
    )
    assert done.exit_code != 0 and "'fat' is not a class" in done.output
    assert not (tmp_path / "n.histodict").exists()


def test_regions_have_the_usage_of_named_atoms(folder):
    table = folder / "set" / "manifest.csv"
    found = RegionDetector(SMALL, region="inflamed").fit(table)
    named = found.with_atom_annotations(AtomAnnotations().with_changes([8, 9], name="dark nuclei"))
    image = next((folder / "set" / "inflamed").iterdir())
    before, after = (model.predict_one(image, mpp=0.5) for model in (found, named))
    used = after.patch_map.concepts["dark nuclei"]
    assert before.regions and before.patch_map.concepts == {}
    assert [region.concept_usage for region in before.regions] == [{}] * len(before.regions)
    windows = after.patch_map.regions(1, after.min_patches)
    for region, (window, cells, _) in zip(after.regions, windows, strict=True):
        assert region.concept_usage == {"dark nuclei": pytest.approx(used[window][cells].mean())}
    share = used.sum() / after.patch_map.n_patches
    assert after.row()["usage_dark nuclei"] == pytest.approx(share) and 0 < share < 1


def test_explanation_of_background_has_a_page(folder, tmp_path):
    background = tmp_path / "background.png"
    Image.new("RGB", (160, 120), (243, 242, 244)).save(background)
    image = next((folder / "set" / "inflamed").glob("*.jpg"))
    page = tmp_path / "why.html"
    done = run("explain", folder / "m.histodict", background, image, "--mpp", 0.5, "--output", page)
    assert done.exit_code == 0 and "background.png: no tissue" in " ".join(done.output.split())
    text = page.read_text(encoding="utf-8")
    assert "no tissue" in text and text.count('class="sums"') == 1
    report = json.loads(
        run("explain", folder / "m.histodict", background, "--mpp", 0.5, "--json").stdout
    )
    assert report["images"][0]["scores"] is None and report["images"][0]["base_models"] == []


@pytest.mark.parametrize("others", [[SMALL], [TEXTURES, TEXTURES]])
def test_explanation_of_an_ensemble_begins_with_its_members(folder, tmp_path, others):
    ensemble = EnsembleClassifier([*others, TEXTURES], folds=2).fit(folder / "set" / "manifest.csv")
    file, page = ensemble.save(tmp_path / "panel.histodict"), tmp_path / "why.html"
    image = next((folder / "set" / "inflamed").glob("*.jpg"))
    done = run("explain", file, image, "--mpp", 0.5, "--output", page)
    assert done.exit_code == 0, done.output
    n_members, has_atoms = len(ensemble.estimators_), SMALL in others
    assert f"of {n_members} base models agree" in done.output and "description" in done.output
    text = page.read_text(encoding="utf-8")
    assert f"base model {n_members}: lbp-colour" in text and 'class="sums"' in text
    assert ("<h3>Largest differences from " in text) == has_atoms


def _explanation_of_class_a(*, is_of_regions, leads=()):
    scores, prediction = np.array([-1.0]), SimpleNamespace(label="a", top_label="a", path="x")
    part = ConceptContribution("a:1", "a", np.array([-0.4]), 0.2, {"b": 0.1}, {"b": np.zeros(1)})
    votes = [MemberContribution(i, "dfdl on rgb", np.array([x])) for i, x in enumerate(leads)]
    return Explanation(prediction, ("a", "b"), scores, scores + 0.4, [part], is_of_regions, votes)


@pytest.mark.parametrize("is_of_regions", [False, True])
def test_explain_mentions_the_sign_of_scores_only_for_classifiers(is_of_regions, capsys):
    """Tables of region detectors contain numbers of patches as scores."""
    _print_explanation(_explanation_of_class_a(is_of_regions=is_of_regions), 3)
    assert ("scores above 0 support b" in capsys.readouterr().out) != is_of_regions


def test_printed_contributions_of_base_models_add_up_to_the_score(capsys):
    explanation = _explanation_of_class_a(is_of_regions=False, leads=[-0.25, -0.5])
    _print_explanation(explanation, 3)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    start = next(i for i, line in enumerate(lines) if line[:2] == ["base", "model"])
    values = [line[-1] for line in lines[start + 1 : start + 4]]
    assert values == ["+0.25", "+0.5", "+0.25"] and lines[start + 3][0] == "constant"
    assert sum(map(float, values)) == explanation.margin_to_runner_up(explanation.scores)
