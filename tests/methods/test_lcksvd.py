from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from histodict.dictionaries.ksvd import learn_ksvd, update_atoms_and_codes
from histodict.kernels import encode_omp
from histodict.methods.lcksvd import LCKSVD
from tests.kernels import reference as slow
from tests.problems import unit_rows

N_FEATURES = 40


def two_classes(rng, n_per_class=400, n_shared=6, dtype=float, n_own=8):
    """Return positive combinations of own and shared atoms, which a linear classifier separates."""
    atoms = unit_rows(rng.standard_normal((n_shared + 2 * n_own, N_FEATURES)))
    shared, *own = np.split(atoms, [n_shared, n_shared + n_own])
    X = []
    for of_class in own:
        pool = np.concatenate([shared, of_class])
        uses = np.argsort(rng.random((n_per_class, len(pool))), axis=1)[:, :4]
        weights = rng.uniform(0.5, 1.5, uses.shape)
        X.append(np.einsum("nl,nlf->nf", weights, pool[uses]))
    X = unit_rows(np.concatenate(X) + 0.02 * rng.standard_normal((2 * n_per_class, N_FEATURES)))
    return X.astype(dtype), np.repeat([0, 1], n_per_class)


def small(**parameters):
    standard = {"n_atoms": 12, "n_nonzero": 4, "n_iter": 10, "label_weight": 0.05}
    return LCKSVD(**(standard | {"random_state": 0} | parameters))


def start_of(X, y, n_atoms, n_nonzero, seed=0):
    """Return the class-wise K-SVD dictionaries at the start of training, and the generator."""
    rng = np.random.default_rng(np.random.RandomState(seed).randint(2**31, size=4))
    classes = np.unique(y)
    atoms = [learn_ksvd(X[y == i], n_atoms, n_nonzero, rng, n_iter=20).atoms for i in classes]
    return np.concatenate(atoms), rng


def ridge(S, targets):
    S = S.toarray()
    return np.linalg.solve(S.T @ S + np.eye(S.shape[1]), S.T @ targets)


def literal_lcksvd(X, y, n_atoms, n_nonzero, alpha, beta, n_iter):
    """LC-KSVD2 as published: K-SVD on the rows [y √α·q √β·h]. Returns D, W and the objective."""
    D, rng = start_of(X, y, n_atoms, n_nonzero)
    H = np.eye(2)[y]
    Q = np.repeat(H, n_atoms, axis=1)
    S = encode_omp(D, X, n_nonzero)
    rows = np.hstack([X, np.sqrt(alpha) * Q, np.sqrt(beta) * H])
    start = np.hstack([D, np.sqrt(alpha) * ridge(S, Q), np.sqrt(beta) * ridge(S, H)])
    trained = learn_ksvd(
        rows,
        len(D),
        n_nonzero,
        rng,
        n_iter=n_iter,
        initial=unit_rows(start),
        groups=(np.repeat([0, 1], n_atoms), y),
    )
    D, _, W = np.split(trained.atoms, [X.shape[1], X.shape[1] + len(D)], axis=1)
    norms = np.linalg.norm(D, axis=1, keepdims=True)
    return D / norms, W / np.sqrt(beta) / norms, trained.objective


@pytest.mark.parametrize("variant", [1, 2])
@pytest.mark.parametrize("decision", ["classifier", "residual"])
def test_separates_classes_of_different_atoms(rng, variant, decision):
    X, y = two_classes(rng, n_per_class=800)
    order = rng.permutation(len(X))
    train, test = order[:1000], order[1000:]
    model = small(variant=variant, decision=decision).fit(X[train], y[train])
    assert model.score(X[test], y[test]) > 0.9


def test_three_classes_in_separate_subspaces(rng):
    subspaces = [unit_rows(rng.standard_normal((3, N_FEATURES))) for _ in range(3)]
    X = unit_rows(np.concatenate([rng.uniform(0, 1, (200, 3)) @ basis for basis in subspaces]))
    y = np.repeat(["a", "b", "c"], 200)
    model = small(n_atoms=4, n_nonzero=3).fit(X, y)
    assert model.score(X, y) > 0.99
    for D, basis in zip(model.dictionaries_, subspaces, strict=True):
        inside = np.linalg.norm(D @ np.linalg.qr(basis.T)[0], axis=1)
        np.testing.assert_allclose(inside, 1, atol=1e-2)


@pytest.mark.parametrize(("alpha", "beta"), [(0.05, 0.5), (1.0, 4.0)])
def test_short_rows_equal_the_published_ones(rng, alpha, beta):
    X, y = two_classes(rng)
    D, W, objective = literal_lcksvd(X, y, 12, 4, alpha, beta, n_iter=6)
    model = small(label_weight=alpha, classifier_weight=beta, n_iter=6).fit(X, y)
    np.testing.assert_allclose(model.objective_, objective, rtol=1e-6)
    cosines = np.abs(model.dictionaries_.reshape(24, -1) @ D.T)
    np.testing.assert_allclose(cosines.max(axis=1), 1, atol=1e-6)
    scores = encode_omp(D, X, 4) @ W
    np.testing.assert_allclose(-model.encode(X)[1], scores, atol=1e-4)


def test_stacked_objective_never_increases_in_the_atom_update(rng):
    """The greedy coding in between may increase it; over the iterations it decreases."""
    X, y = two_classes(rng)
    D, _ = start_of(X, y, 12, 4)
    H = np.sqrt(2.0) * np.eye(2)[y]
    rows = np.hstack([X, H])
    D = unit_rows(np.hstack([D, ridge(encode_omp(D, X, 4), H)]))
    for _ in range(5):
        S = encode_omp(D, rows, 4)
        new_D, new_S = update_atoms_and_codes(rows, D, S)
        assert np.sum((rows - new_S @ new_D) ** 2) < np.sum((rows - S @ D) ** 2)
        D = new_D
    values = small(n_iter=20).fit(X, y).objective_
    assert len(values) == 20
    assert values[-1] < 0.7 * values[0]


def test_without_weights_it_equals_ksvd(rng):
    X, y = two_classes(rng)
    start, left = start_of(X, y, 12, 4)
    groups = np.repeat([0, 1], 12), y
    plain = learn_ksvd(X, 24, 4, left, n_iter=5, initial=start, groups=groups)
    model = small(label_weight=0, classifier_weight=0, n_iter=5).fit(X, y)
    np.testing.assert_array_equal(model.objective_, plain.objective)
    for D, expected in zip(model.dictionaries_, np.split(plain.atoms, 2), strict=True):
        same = np.abs(D @ expected.T) > 1 - 1e-12
        assert (same.sum(axis=0) == 1).all()
        assert (same.sum(axis=1) == 1).all()
    scores = encode_omp(plain.atoms, X, 4) @ ridge(plain.codes, np.eye(2)[y])
    np.testing.assert_allclose(-model.encode(X)[1], scores, atol=1e-8)


def share_of_own_atoms(model, X, y):
    """Return the share of the codes' energy on atoms of the samples' own class."""
    energy = model.encode(X)[0].toarray() ** 2
    by_class = energy.reshape(len(X), len(model.classes_), -1).sum(axis=2)
    return by_class[np.arange(len(X)), y].sum() / by_class.sum()


def test_label_term_keeps_codes_on_atoms_of_their_class(rng):
    X, y = two_classes(rng, n_per_class=600, n_shared=4)
    train, fresh = (X[1::2], y[1::2]), (X[::2], y[::2])
    shares = [
        share_of_own_atoms(small(variant=1, label_weight=weight, n_iter=20).fit(*train), *fresh)
        for weight in (0, 1)
    ]
    assert shares[1] > shares[0] + 0.04


def test_classifier_distances_are_negative_scores_of_the_greedy_code(rng):
    X, y = two_classes(rng)
    model = small().fit(X, y)
    S, distances = model.encode(X[:30])
    expected = slow.encode_omp(model.dictionaries_.reshape(24, -1), X[:30], 4)
    np.testing.assert_allclose(S.toarray(), expected, atol=1e-8)
    np.testing.assert_allclose(distances, -expected @ model.classifier_, atol=1e-8)
    assert model.n_codes_ == S.shape[1] == 24


def test_residual_decision_is_the_l1_residual_rule(rng):
    X, y = two_classes(rng)
    model = small(decision="residual").fit(X, y)
    D = model.dictionaries_.reshape(24, -1)
    S = slow.encode_lasso(D, X[:20], 0.1)
    expected = slow.class_residuals(D, X[:20], S, np.repeat([0, 1], 12))
    np.testing.assert_allclose(model.encode(X[:20])[1], expected, atol=2e-2)
    by_classifier = model.set_params(decision="classifier")
    np.testing.assert_allclose(by_classifier.class_residuals(X[:20]), expected, atol=2e-2)


def test_first_variant_ignores_the_classifier_weight(rng):
    X, y = two_classes(rng, n_per_class=100)
    first, same, second = (
        small(variant=variant, classifier_weight=weight, n_iter=2).fit(X, y)
        for variant, weight in ((1, 0.5), (1, 9.0), (2, 9.0))
    )
    np.testing.assert_array_equal(first.classifier_, same.classifier_)
    np.testing.assert_array_equal(first.dictionaries_, same.dictionaries_)
    assert not np.allclose(first.classifier_, second.classifier_)


def test_atoms_are_normalised_and_in_canonical_order(rng):
    X, y = two_classes(rng)
    model = small(n_iter=15).fit(np.abs(X), y)
    np.testing.assert_allclose(np.linalg.norm(model.dictionaries_, axis=2), 1)
    S = model.encode(np.abs(X))[0].toarray()
    assert (S > 0).sum() > (S < 0).sum()
    uses = (S != 0).sum(axis=0).reshape(2, 12)
    assert uses[:, :4].sum() > uses[:, -4:].sum()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_same_seed_gives_same_bits_for_any_number_of_threads(rng, dtype):
    X, y = two_classes(rng, n_per_class=1100, dtype=dtype)
    one, two, again = (small(n_jobs=n, n_iter=3).fit(X, y) for n in (1, 2, 2))
    for model in (two, again):
        np.testing.assert_array_equal(one.dictionaries_, model.dictionaries_)
        np.testing.assert_array_equal(one.classifier_, model.classifier_)
    assert one.dictionaries_.dtype == one.classifier_.dtype == dtype
    np.testing.assert_array_equal(one.encode(X)[1], two.encode(X)[1])
    other_seed = small(random_state=1, n_iter=3).fit(X, y)
    assert not np.array_equal(one.dictionaries_, other_seed.dictionaries_)


@pytest.mark.parametrize("decision", ["classifier", "residual"])
def test_fitted_arrays_restore_the_model(rng, decision):
    X, y = two_classes(rng, n_per_class=100)
    model = small(decision=decision).fit(X, y)
    restored = LCKSVD(**model.get_params())
    restored.classes_, restored.n_features_in_ = model.classes_, model.n_features_in_
    for name in model.fitted_arrays:
        setattr(restored, name, getattr(model, name))
    np.testing.assert_array_equal(restored.decision_function(X), model.decision_function(X))


def test_predictions_scores_and_probabilities_agree(rng):
    X, y = two_classes(rng, n_per_class=200)
    three = np.where((y == 1) & (rng.random(len(y)) < 0.5), 2, y)
    for labels in (y, three):
        model = small(n_iter=3).fit(X, labels)
        predicted = model.predict(X)
        probability = model.predict_proba(X)
        np.testing.assert_allclose(probability.sum(axis=1), 1)
        np.testing.assert_array_equal(model.classes_[probability.argmax(axis=1)], predicted)


def test_progress_is_reported_and_an_exception_leaves_the_model_unchanged(rng):
    X, y = two_classes(rng, n_per_class=100)
    reported = []
    model = small(n_iter=3).fit(X, y, callback=reported.append)
    assert [(p.stage, p.done, p.total) for p in reported] == [
        ("initialise", i, 40) for i in range(41)
    ] + [("train", i, 3) for i in range(4)]
    assert [p.objective for p in reported[42:]] == [(value,) for value in model.objective_]
    before = model.predict(X)

    def cancel(progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.fit(X, 1 - y, callback=cancel)
    np.testing.assert_array_equal(model.predict(X), before)


BLANK = np.full((200, N_FEATURES), 1 / np.sqrt(N_FEATURES))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "make_difficult",
    [
        lambda X: np.concatenate([BLANK, X[200:-200], BLANK]),
        lambda X: np.concatenate([0 * BLANK, X[200:-200], 0 * BLANK]),
        lambda X: np.repeat(X[::100], 100, axis=0),
        lambda X: np.concatenate([np.repeat(BLANK, 2, axis=0), X[400:]]),
        lambda X: 0 * X,
        lambda X: X[:, :1] * np.ones((1, N_FEATURES)),
        lambda X: 1e-20 * X,
        lambda X: 1e15 * X,
    ],
    ids=[
        "half blank",
        "half zero",
        "repeated",
        "a class all blank",
        "all zero",
        "rank one",
        "tiny",
        "huge",
    ],
)
def test_difficult_input_gives_finite_results(rng, make_difficult, dtype):
    X, y = two_classes(rng)
    X = make_difficult(X).astype(dtype)
    for weight in (0.001, 100.0):
        model = small(n_atoms=20, n_iter=4, label_weight=weight).fit(X, y)
        norms = np.linalg.norm(model.dictionaries_, axis=2)
        np.testing.assert_allclose(norms[norms > 0], 1, atol=1e-5)
        with warnings.catch_warnings():
            # raised by l1 codes of huge samples
            warnings.simplefilter("ignore", ConvergenceWarning)
            assert np.isfinite(model.encode(X)[1]).all()
            assert np.isfinite(model.class_residuals(X)).all()
            assert np.isfinite(model.predict_proba(X)).all()


def test_few_samples_and_very_different_class_sizes(rng):
    X, y = two_classes(rng, n_per_class=5)
    model = small(n_atoms=30, n_nonzero=35, n_iter=3).fit(X, y)
    assert model.dictionaries_.shape == (2, 30, N_FEATURES)
    assert (model.predict(X) == y).all()
    X, y = two_classes(rng)
    selected = np.r_[0:400, 400:401]
    model = small(n_iter=3).fit(X[selected], y[selected])
    assert np.isfinite(model.encode(X)[1]).all()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_atoms": 0}, "n_atoms"),
        ({"variant": 3}, "variant must be 1 or 2"),
        ({"label_weight": -1}, "label_weight"),
        ({"classifier_weight": "much"}, "classifier_weight"),
        ({"n_nonzero": 0}, "n_nonzero"),
        ({"n_nonzero": "auto"}, "n_nonzero"),
        ({"n_iter": 0}, "n_iter"),
        ({"decision": "vote"}, "decision must be one of"),
        ({"penalty": 0}, "penalty"),
        ({"backend": "abacus"}, "backend"),
        ({"n_jobs": 0}, "n_jobs"),
    ],
)
def test_invalid_parameters_are_refused(rng, parameters, message):
    X, y = two_classes(rng, n_per_class=20)
    with pytest.raises(ValueError, match=message):
        small(**parameters).fit(X, y)


def test_invalid_input_is_refused(rng):
    X, y = two_classes(rng, n_per_class=20)
    with pytest.raises(ValueError, match="needs at least two classes"):
        small().fit(X[:20], y[:20])
    with pytest.raises(ValueError, match="NaN"):
        small().fit(np.where(X > 0.2, np.nan, X), y)
    model = small(n_iter=1).fit(X, y)
    with pytest.raises(ValueError, match="39 features"):
        model.predict(X[:, :39])
    with pytest.raises(ValueError, match="decision must be one of"):
        model.set_params(decision="vote").predict(X)
