"""Tests of explanations: contributions add up to the score of every model; disabled atoms."""

from __future__ import annotations

import re
from copy import copy
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from histodict import EnsembleClassifier, RegionDetector, TissueClassifier, load
from histodict.datasets.manifest import read_manifest
from histodict.decision.aggregation import smooth_margins
from histodict.decision.atom_annotations import AtomAnnotations, patch_weights
from histodict.explain.concept_contribution import (
    ConceptContribution,
    MemberContribution,
    ScoreContributions,
)
from histodict.explain.explanation import Explanation
from histodict.models.ensemble_recipes import ensemble_recipes, resolve_ensemble_recipe
from histodict.models.image_pipeline import PatchRecorder
from histodict.models.recipe import Recipe
from histodict.reports.explanation_page import write_explanation_page
from histodict.synthetic.dataset import write_synthetic_dataset

SMALL = Recipe(
    method_parameters={"n_atoms": 12, "n_iter": 3},
    patch_px=12,
    patches_per_class=200,
    features="centred",
    aggregation="margin",
)
KINDS = {
    "margin": TissueClassifier(SMALL),
    "proportion": TissueClassifier(replace(SMALL, aggregation="proportion")),
    "codes": TissueClassifier(replace(SMALL, aggregation="codes")),
    "both": TissueClassifier(replace(SMALL, aggregation="margin-and-codes")),
    "neighbours": TissueClassifier(replace(SMALL, aggregation="proportion", smoothing_radius=1)),
    "smooth": TissueClassifier(replace(SMALL, smoothing_radius=2)),
    "components": TissueClassifier(replace(SMALL, n_components=10)),
    "src": TissueClassifier(replace(SMALL, method="src", method_parameters={"n_atoms": 40})),
    "logistic": TissueClassifier(replace(SMALL, method="logistic", method_parameters={})),
    "whole": TissueClassifier(replace(SMALL, method="mean-logistic", method_parameters={})),
    "ensemble": EnsembleClassifier([SMALL, replace(SMALL, aggregation="codes")], folds=2),
    "regions": RegionDetector(SMALL, region="inflamed"),
}


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    folder = write_synthetic_dataset(tmp_path_factory.mktemp("set") / "t", 4, 2, size=(120, 96))
    return read_manifest(folder / "manifest.csv")


@pytest.fixture(scope="module")
def models(manifest):
    made = {}

    def get(kind):
        if kind not in made:
            made[kind] = KINDS[kind].fit(manifest)
        return made[kind]

    return get


@pytest.mark.parametrize("kind", KINDS)
def test_contributions_add_up_to_the_score_of_every_model(models, manifest, kind, tmp_path):
    model = models(kind)
    path = manifest.records[-1].path
    explanation = model.explain(path)
    total = explanation.constant + sum(part.contribution for part in explanation.contributions)
    np.testing.assert_allclose(total, explanation.scores, atol=1e-6, rtol=0)
    prediction = model.predict_one(path)
    if kind != "regions":
        assert explanation.scores.tolist() == list(prediction.scores)
    again = load(model.save(tmp_path / "m.histodict")).explain(path)
    np.testing.assert_allclose(
        [p.contribution for p in again.contributions],
        [p.contribution for p in explanation.contributions],
    )
    assert again.summary() == explanation.summary()


@pytest.mark.parametrize("kind", ["margin", "codes", "both", "smooth", "components", "src"])
def test_constant_is_the_bias_of_the_aggregator(models, manifest, kind):
    """The constant contains only the bias, up to single precision."""
    model = models(kind)
    explanation = model.explain(manifest.records[0].path)
    np.testing.assert_allclose(
        explanation.constant, model.aggregator_.bias - model.threshold_shift_, atol=1e-3
    )


def test_constant_of_proportions_has_the_abstaining_patches(models, manifest):
    model = models("proportion")
    explanation = model.explain(manifest.records[0].path)
    np.testing.assert_allclose(explanation.constant, model.aggregator_.bias, atol=1e-3)
    weight = model.aggregator_.weights[0, 0]
    shares = np.array([part.contribution[0] / weight for part in explanation.contributions])
    assert (shares >= -1e-9).all() and shares.sum() == pytest.approx(
        model.predict_one(manifest.records[0].path).proportions[model.classes_[1]], abs=1e-6
    )


def test_patch_weights_are_the_transposed_neighbour_mean(tmp_path):
    rng = np.random.default_rng(0)
    tissue, chosen = rng.random((9, 7)) > 0.3, rng.random((9, 7)) > 0.5
    chosen &= tissue
    margins = rng.normal(size=(9, 7, 2)).astype(np.float32) * tissue[..., None]
    smooth = smooth_margins(margins, tissue, 2)
    expected = smooth[chosen].sum(axis=0)
    found = (patch_weights(tissue, chosen, 2)[..., None] * margins).sum(axis=(0, 1))
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_usage_is_the_share_of_patches_and_agrees_with_positions(models, manifest):
    model = models("margin")
    path, used = manifest.records[0].path, []
    recorder = PatchRecorder()
    recorder.add = lambda positions, codes, contributions: used.append(codes)
    model.with_recorders([recorder]).predict_one(path)
    shares = np.mean(np.concatenate([codes.toarray() != 0 for codes in used]), axis=0)
    explanation = model.explain(path)
    by_name = {part.name: part for part in explanation.contributions}
    first = f"{model.classes_[0]}:1"
    assert by_name[first].usage == pytest.approx(shares[0])
    assert np.nanmax(by_name[first].usage_map) > 0


@pytest.mark.parametrize("rule", ["margin", "proportion"])
def test_explain_encodes_each_patch_once(models, manifest, rule, monkeypatch):
    model, path = models(rule), manifest.records[0].path
    kind = type(model.model_.classifier_)
    n_encoded, encode = [], kind.encode
    monkeypatch.setattr(kind, "encode", lambda self, X: n_encoded.append(len(X)) or encode(self, X))
    explanation = model.explain(path)
    assert sum(n_encoded) == explanation.prediction.n_patches > 0


def test_summary_names_reasons_and_required_change(models, manifest):
    model = models("margin")
    explanation = model.explain(manifest.records[-1].path)
    assert explanation.summary().startswith(explanation.label)
    runner_up = model.classes_[explanation.runner_up]
    assert f"('{runner_up}' training patches: " in explanation.summary()
    if explanation.counterfactual is not None:
        left = explanation.margin_to_runner_up(explanation.scores) - sum(
            map(explanation.excess_over_reference, explanation.counterfactual)
        )
        assert left < 0 <= left + explanation.excess_over_reference(explanation.counterfactual[-1])
        assert runner_up in explanation.describe_change()
    row = explanation.to_dict()["concepts"][0]
    assert row["name"] in explanation.summary() or row["difference"] < 0


@pytest.mark.parametrize("kind", ["margin", "regions"])
def test_map_of_the_page_has_no_score_of_opposite_sign(
    models, manifest, kind, tmp_path, monkeypatch
):
    captions = []

    def record_caption(patch_map, caption):
        captions.append(caption)
        return np.zeros((8, 8, 3), np.uint8)

    monkeypatch.setattr("histodict.reports.explanation_page.draw_overlay", record_caption)
    model, records = models(kind), [manifest.records[0], manifest.records[-1]]
    explanations = [model.explain(record.path) for record in records]
    write_explanation_page(tmp_path / "page.html", model, explanations, records)
    for caption, explanation in zip(captions, explanations, strict=True):
        assert caption.startswith(explanation.prediction.top_label)
        assert ", score " not in caption
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert " % of patches" not in page  # no line break between number and sign


def _make_explanation(excess, score=1.0):
    """Return an explanation of class b with these differences from the reference of class a."""
    parts = [
        ConceptContribution(
            f"b:{i + 1}", "b", np.array([value + 0.5]), 0.37, {"a": 0.02}, {"a": np.full(1, 0.5)}
        )
        for i, value in enumerate(excess)
    ]
    scores = np.array([score])
    constant = scores - sum(part.contribution for part in parts)
    prediction = SimpleNamespace(label="b", top_label="b", path="x")
    return Explanation(prediction, ("a", "b"), scores, constant, parts)


def test_uncertain_prediction_is_reported_with_the_best_guess():
    explanation = _make_explanation([0.6, 0.1])
    assert explanation.summary().startswith("b, because")
    explanation.prediction.label = "uncertain"
    assert explanation.summary().startswith("uncertain (best guess: b), because")
    assert explanation.to_dict()["label"] == "uncertain"


def test_summary_states_reasons_only_if_they_explain_half_of_the_difference():
    strong = _make_explanation([0.6, 0.1, 0.1, 0.2])
    assert strong.summary() == (
        "b, because b:1 is used by 37 % of patches ('a' training patches: 2 %); "
        "b:4 is used by 37 % of patches ('a' training patches: 2 %); "
        "b:2 is used by 37 % of patches ('a' training patches: 2 %). "
        "These 3 concepts account for 90 % of the difference between this score and the mean "
        "score of 'a' training patches."
    )
    weak = _make_explanation([0.01, 0.01, 0.02, *np.full(96, 0.01)])
    assert "because" not in weak.summary()
    assert "account for only 4 % of the difference between this score" in weak.summary()
    counteracted = _make_explanation([0.9, -0.5])
    assert "This concept differs more from 'a' training patches than the score" in (
        counteracted.summary()
    )


@pytest.mark.parametrize("n_shown", [0, 2, 9])
def test_sums_add_up_to_the_score(n_shown):
    explanation = _make_explanation([0.6, -0.1, 0.1, 0.2], score=1.3)
    *rows, (name, *total) = explanation.sum_rows(n_shown)
    assert name == "score" and total[0] == pytest.approx(1.3)
    np.testing.assert_allclose(np.sum([row[1:] for row in rows], axis=0), total)
    for _, contribution, reference, difference in rows:
        assert contribution - reference == pytest.approx(difference)
    assert total[2] == pytest.approx(explanation.total_excess) == pytest.approx(0.8)


def test_change_of_many_concepts_names_their_number():
    explanation = _make_explanation(np.full(6, 0.2))
    assert explanation.describe_change() == (
        "The prediction would be 'a' if the contributions of the 6 concepts with the largest "
        "differences in favour of 'b' had their mean values in 'a' training patches."
    )


@pytest.mark.parametrize("kind", ["margin", "codes", "ensemble", "regions"])
def test_sums_of_fitted_models_add_up(models, manifest, kind):
    explanation = models(kind).explain(manifest.records[-1].path)
    *rows, (_, *total) = explanation.sum_rows(3)
    np.testing.assert_allclose(np.sum([row[1:] for row in rows], axis=0), total, atol=1e-9)
    assert total[0] == pytest.approx(explanation.margin_to_runner_up(explanation.scores))


def test_change_is_only_stated_if_it_leads_to_the_named_class():
    """Removing a concept of the predicted class may make a third class win."""
    scores = np.array([1.5, 0.9, 1.3])
    parts = [
        ConceptContribution(
            "p", "a", np.array([0.8, 0.0, 0.0]), reference_contribution={"c": np.zeros(3)}
        ),
        ConceptContribution(
            "q", "a", np.array([0.3, 0.0, 0.0]), reference_contribution={"c": np.zeros(3)}
        ),
    ]
    explanation = Explanation(
        SimpleNamespace(label="a", top_label="a", path="x"),
        ("a", "b", "c"),
        scores,
        scores,
        parts,
        False,
    )
    assert explanation.runner_up == 2 and [part.name for part in explanation.counterfactual] == [
        "p"
    ]
    parts[0] = ConceptContribution(
        "p", "a", np.array([0.8, -0.6, 0.0]), reference_contribution={"c": np.zeros(3)}
    )
    other = Explanation(
        SimpleNamespace(label="a", top_label="a", path="x"),
        ("a", "b", "c"),
        scores,
        scores,
        parts,
        False,
    )
    assert other.counterfactual is None  # b would then have 1.5


def test_too_few_patches_for_a_region_are_reported(models, manifest):
    model = copy(models("regions"))
    model.min_patches_ = 10_000
    found = [model.explain(record.path) for record in manifest.records]
    few = [explanation for explanation in found if explanation.has_too_few_patches]
    assert few
    for explanation in few:
        assert (
            explanation.summary().startswith(f"{explanation.prediction.label} (")
            and "too few" in explanation.summary()
        )
        assert "larger group" in explanation.describe_change()


def test_explaining_changes_nothing(models, manifest):
    model = models("regions")
    before = [part.margins.copy() for part in model.model_.class_reference_]
    off = model.with_atom_annotations(AtomAnnotations().with_changes([0], disabled=True))
    off.explain(manifest.records[0].path)
    for was, part in zip(before, model.model_.class_reference_, strict=True):
        np.testing.assert_array_equal(part.margins, was)


# --- names and disabled atoms --------------------------------------------------------------------


def test_atoms_of_one_name_form_one_concept(models, manifest):
    model = models("margin")
    path = manifest.records[-1].path
    before = {part.name: part for part in model.explain(path).contributions}
    used = [name for name in before if name.startswith(f"{model.classes_[1]}:")][:2]
    places = [12 + int(name.rpartition(":")[2]) - 1 for name in used]
    named = model.with_atom_annotations(
        AtomAnnotations().with_changes(places, name="dark nuclei", group="nuclei")
    )
    explanation = named.explain(path)
    merged = next(part for part in explanation.contributions if part.name == "dark nuclei")
    np.testing.assert_allclose(merged.contribution, sum(before[name].contribution for name in used))
    assert merged.group == "nuclei" and merged.class_name == model.classes_[1]
    assert explanation.scores.tolist() == model.explain(path).scores.tolist()


@pytest.mark.parametrize("kind", ["margin", "both", "codes", "regions", "ensemble", "src"])
def test_disabled_atoms_equal_a_model_without_them(models, manifest, kind, tmp_path):
    """The bits equal those of a model whose arrays lack these atoms."""
    model = models(kind)
    off = [0, 3, 14]
    path = manifest.records[-1].path
    switched = model.with_atom_annotations(AtomAnnotations().with_changes(off, disabled=True))
    without = _reduced(model, off)
    found, expected = switched.predict_one(path), without.predict_one(path)
    assert found.row() == expected.row()
    np.testing.assert_array_equal(found.patch_map.margins, expected.patch_map.margins)
    assert not np.array_equal(found.patch_map.margins, model.predict_one(path).patch_map.margins)
    loaded = load(switched.save(tmp_path / "off.histodict"))
    assert loaded.predict_one(path).row() == found.row()
    assert [note["atom"] for note in _noted(loaded).to_model_data().atom_annotations] == off
    back = loaded.with_atom_annotations(AtomAnnotations())
    assert back.predict_one(path).row() == model.predict_one(path).row()


def _noted(model):
    return model.estimators_[0] if model.kind == "ensemble" else model


def _reduced(model, off):
    from copy import copy

    changed = copy(model)
    inner = copy(model.model_)
    D, classes = inner.classifier_.labelled_atoms()
    stored = np.setdiff1d(np.arange(len(D)), off)
    # Residuals of SRC are of samples of unit length, so the method gets its own other atoms.
    method = copy(inner.classifier_)
    method.labelled_atoms = lambda: (np.ascontiguousarray(D[stored]), classes[stored])
    inner.classifier_ = method
    if inner.aggregator_ is not None:
        n = len(inner.aggregator_.weights)
        width = inner.aggregator_.weights.shape[1]
        columns = np.arange(width)
        if width >= len(D):
            start = width - len(D)
            columns = np.r_[:start, start + stored]
        assert width in (n, len(D), n + len(D))
        inner.aggregator_ = replace(
            inner.aggregator_, weights=inner.aggregator_.weights[:, columns].copy()
        )
    if model.kind == "ensemble":
        first = copy(model.estimators_[0])
        first._model = inner
        changed.estimators_ = [first, *model.estimators_[1:]]
    elif model.kind == "region-detector":
        changed.model_ = inner
    else:
        changed._model = inner
    return changed


def test_every_class_keeps_an_atom_and_unknown_atoms_are_refused(models):
    model = models("margin")
    with pytest.raises(ValueError, match="at least one enabled atom"):
        model.with_atom_annotations(AtomAnnotations().with_changes(range(12), disabled=True))
    with pytest.raises(ValueError, match="there is no atom 99"):
        model.with_atom_annotations(AtomAnnotations().with_changes([99], name="x"))
    with pytest.raises(ValueError, match="no atoms"):
        models("logistic").with_atom_annotations(AtomAnnotations().with_changes([0], name="x"))
    with pytest.raises(ValueError, match="no atoms"):
        models("whole").with_atom_annotations(AtomAnnotations().with_changes([0], name="x"))


def test_atoms_are_displayed_with_their_sign_of_use(models):
    inner = models("margin").model_
    atoms, reference = inner.atoms(), inner.class_reference_
    code_sums = np.array([reference[c].mean_codes[j] for j, c in enumerate(atoms.classes)])
    turned = np.sign(np.sum(atoms.signed_atoms * atoms.D, axis=1))
    assert (turned * code_sums >= 0).all() and set(turned) <= {-1, 1}
    changed = replace(atoms, signs=-atoms.signs)
    np.testing.assert_array_equal(changed.signed_atoms, -atoms.signed_atoms)


# --- ensembles -----------------------------------------------------------------------------------


def test_member_contributions_add_up_and_their_concepts_have_unique_names(models, manifest):
    model = models("ensemble")
    for record in manifest.records:
        explanation = model.explain(record.path)
        assert [vote.member for vote in explanation.member_contributions] == [0, 1]
        total = (
            sum(vote.contribution for vote in explanation.member_contributions)
            + model.combination_.offset
        )
        np.testing.assert_allclose(total, explanation.scores, rtol=1e-6)
        constant = explanation.member_constant
        offset = np.atleast_1d(model.combination_.offset)
        assert constant == pytest.approx(explanation.margin_to_runner_up(offset), abs=1e-6)
        names = [row["name"] for row in explanation.to_dict()["concepts"]]
        assert len(set(names)) == len(names)
        assert all(name.startswith(("base model 1: ", "base model 2: ")) for name in names)
        n_agree = sum(
            explanation.margin_to_runner_up(vote.contribution) > 0
            for vote in explanation.member_contributions
        )
        assert f"({n_agree} of 2 base models agree)" in explanation.summary()
    assert models("margin").explain(manifest.records[0].path).member_contributions == []


def _make_ensemble_contributions(leads, parts, score=1.0, n_abstaining=0):
    votes = [
        MemberContribution(place, "dfdl on rgb", np.array([lead]))
        for place, lead in enumerate(leads)
    ]
    scores = np.array([score])
    prediction = SimpleNamespace(label="b", top_label="b", path="x", n_abstaining=n_abstaining)
    return Explanation(prediction, ("a", "b"), scores, scores, parts, member_contributions=votes)


def test_summary_counts_agreeing_and_abstaining_members():
    whole_image = ConceptContribution(
        "lbp-colour", "", np.array([0.9]), member=1, is_ensemble_member=True
    )
    used = ConceptContribution(
        "b:3",
        "b",
        np.array([0.4]),
        0.2,
        {"a": 0.1},
        {"a": np.zeros(1)},
        member=0,
        is_ensemble_member=True,
    )
    explanation = _make_ensemble_contributions([0.4, 0.9], [whole_image, used])
    assert explanation.summary() == (
        "b (2 of 2 base models agree). Largest differences from 'a' training patches in "
        "favour of 'b': b:3 of base model 1 is used by 20 % of patches ('a' training patches: "
        "10 %). "
        "This concept accounts for only 31 % of the difference between this score "
        "and the mean score of 'a' training patches."
    )
    assert explanation.describe_change() == (
        "The prediction would be 'a' if base model 2 had a score of 0 and the contribution of "
        "b:3 of base model 1 had its mean value in 'a' training patches."
    )
    assert [part.name for part in explanation.concepts] == ["b:3"]
    assert explanation.others(1) == [whole_image]
    assert whole_image.full_name == "base model 2: lbp-colour"
    some = _make_ensemble_contributions([0.4, -0.1], [used], n_abstaining=1)
    assert "(1 of 2 base models agree; 1 without a score)" in some.summary()
    alone = _make_ensemble_contributions([0.9, 0.1], [whole_image])
    assert alone.summary() == "b (2 of 2 base models agree)." and alone.describe_change() == ""


def test_member_of_three_classes_agrees_with_the_same_prediction():
    votes = [
        MemberContribution(0, "x", np.array([1.0, 0.2, 0.1])),
        MemberContribution(1, "y", np.array([0.1, 0.0, 1.3])),
    ]
    scores = np.array([1.5, 1.0, 0.5])
    prediction = SimpleNamespace(label="a", top_label="a", path="x")
    explanation = Explanation(
        prediction, ("a", "b", "c"), scores, scores, [], member_contributions=votes
    )
    assert explanation.summary() == "a (1 of 2 base models agree)."


@pytest.mark.parametrize(
    ("kind", "text"), [("whole", "uses whole images"), ("logistic", "has no atoms")]
)
def test_methods_without_atoms_have_no_concepts(models, manifest, kind, text):
    explanation = models(kind).explain(manifest.records[0].path)
    assert "No concepts: the method" in explanation.summary() and text in explanation.summary()
    assert explanation.describe_change() == "" and len(explanation.concepts) == 1


def test_members_have_unique_names():
    for name in ("default", "pixels"):
        names = [
            ScoreContributions(SimpleNamespace(recipe=r), np.zeros(1)).name
            for r in ensemble_recipes(resolve_ensemble_recipe(name, None, {}))
        ]
        assert len(set(names)) == len(names) > 1


def test_page_shows_contributions_of_members_that_add_up_to_the_score(models, manifest, tmp_path):
    model, record = models("ensemble"), manifest.records[0]
    explanation = model.explain(record.path)
    write_explanation_page(tmp_path / "page.html", model, [explanation], [record])
    page = (tmp_path / "page.html").read_text()
    part = page.partition("Contribution of each base model")[2].partition("<h3>")[0]
    values = [float(text) for text in re.findall(r"<small>([+-][\d.e+-]+) for", part)]
    assert len(values) == 3 and "<b>constant</b>" in part
    score = explanation.margin_to_runner_up(explanation.scores)
    assert sum(values) == pytest.approx(score, abs=0.01 * max(map(abs, values)))
