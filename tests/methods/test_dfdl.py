from __future__ import annotations

import warnings
import weakref

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from histodict import DFDL
from histodict.dictionaries.online import learn_online
from histodict.kernels import encode_omp
from tests.kernels import reference as slow
from tests.problems import coherent, planted, unit_rows


def two_classes(rng, n_per_class=600, n_features=40, n_shared=10, noise=0.02, dtype=float):
    """Return classes with own and shared atoms, which reconstruction alone confuses."""
    atoms = unit_rows(rng.standard_normal((n_shared + 24, n_features)))
    shared, first, second = np.split(atoms, [n_shared, n_shared + 12])
    X = np.concatenate(
        [
            planted(rng, np.concatenate([shared, own]), n_per_class, 4, noise)
            for own in (first, second)
        ]
    )
    return unit_rows(X).astype(dtype), np.repeat([0, 1], n_per_class), (first, second)


def papers_objective(D, Y, Y_bar, n_nonzero, rho):
    def mean_error(samples):
        residuals = samples - encode_omp(D, samples, n_nonzero).toarray() @ D
        return np.mean(np.sum(residuals**2, axis=1))

    return mean_error(Y) - rho * mean_error(Y_bar)


def small(**parameters):
    return DFDL(**({"n_atoms": 20, "n_iter": 10, "penalty": 0.1, "random_state": 0} | parameters))


def test_separates_classes_of_different_atoms(rng):
    X, y, _ = two_classes(rng)
    order = rng.permutation(len(X))
    train, test = order[:800], order[800:]
    model = small().fit(X[train], y[train])
    assert model.score(X[test], y[test]) > 0.85


def test_recovers_the_atoms_of_each_class(rng):
    X, y, own = two_classes(rng, n_per_class=2000, n_shared=4)
    model = small(n_atoms=24, n_nonzero=4, n_iter=30).fit(X, y)
    for D, truth in zip(model.dictionaries_, own, strict=True):
        assert (np.abs(truth @ D.T).max(axis=1) > 0.95).mean() >= 0.8


def test_objective_decreases(rng):
    X, y, _ = two_classes(rng)
    model = small(rho=0.2, n_iter=15, tol=0).fit(X, y)
    for values in model.objective_:
        assert len(values) == 15
        assert values[-1] < values[0]


def test_discriminative_term_lowers_the_objective_if_classes_share_atoms(rng):
    X, y, _ = two_classes(rng, n_per_class=1500, n_shared=12)
    rho = 0.3
    options = {"n_atoms": 12, "n_nonzero": 3, "n_iter": 25, "tol": 0}
    plain = small(rho=0.0, **options).fit(X, y)
    discriminative = small(rho=rho, **options).fit(X, y)
    online = [learn_online(X[y == i], 12, 0.1, np.random.default_rng(0)).atoms for i in (0, 1)]
    for i in (0, 1):
        own, others = X[y == i], X[y != i]
        dictionaries = discriminative.dictionaries_[i], plain.dictionaries_[i], online[i]
        ours, *without = (papers_objective(D, own, others, 3, rho) for D in dictionaries)
        assert ours < min(without) - 0.001


@pytest.mark.parametrize("step", ["published", "tangent"])
def test_reported_objective_is_that_of_the_paper(rng, step):
    X, y, _ = two_classes(rng, n_per_class=300)
    model = small(rho=0.1, n_iter=1, step=step).fit(X, y)
    start = model.dictionaries_.copy()
    model.set_params(warm_start=True, n_iter=1).fit(X, y)
    for i in (0, 1):
        expected = papers_objective(start[i], X[y == i], X[y != i], model.n_nonzero_[i], 0.1)
        assert model.objective_[i][0] == pytest.approx(expected, rel=1e-6)


def test_other_classes_have_equal_weight_whatever_their_size(rng):
    X, y, _ = two_classes(rng, n_per_class=300)
    X, y = X[:450], np.repeat([0, 1, 2], [300, 50, 100])
    model = small(rho=0.3, n_iter=1, step="tangent").fit(X, y)
    for i, D in enumerate(model.dictionaries_):
        pairs = [
            papers_objective(D, X[y == i], X[y == j], model.n_nonzero_[i], 0.3)
            for j in range(3)
            if j != i
        ]
        assert model.objective_[i][0] == pytest.approx(np.mean(pairs), rel=1e-6)


def test_residuals_equal_the_reference(rng):
    X, y, _ = two_classes(rng, n_per_class=150)
    model = small(n_atoms=8).fit(X, y)
    D = model.dictionaries_.reshape(-1, X.shape[1])
    S = slow.encode_lasso(D, X[:20], 0.1)
    expected = slow.class_residuals(D, X[:20], S, np.repeat([0, 1], 8))
    np.testing.assert_allclose(model.class_residuals(X[:20]), expected, atol=2e-2)
    np.testing.assert_array_equal(model.predict(X[:20]), expected.argmin(axis=1))


def test_predictions_scores_and_probabilities_agree(rng):
    X, y, _ = two_classes(rng, n_per_class=300)
    three = np.where((y == 1) & (rng.random(len(y)) < 0.5), 2, y)
    for labels in (y, three):
        model = small().fit(X, labels)
        predicted = model.predict(X)
        probability = model.predict_proba(X)
        np.testing.assert_allclose(probability.sum(axis=1), 1)
        np.testing.assert_array_equal(model.classes_[probability.argmax(axis=1)], predicted)
        scores = model.decision_function(X)
        if scores.ndim == 1:
            np.testing.assert_array_equal(predicted, (scores > 0).astype(int))
        else:
            np.testing.assert_array_equal(predicted, scores.argmax(axis=1))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_same_seed_gives_same_bits_for_any_number_of_threads(rng, dtype):
    X, y, _ = two_classes(rng, n_per_class=1500, dtype=dtype)
    one, two, again = (small(n_jobs=n, n_iter=4).fit(X, y) for n in (1, 2, 2))
    assert one.dictionaries_.dtype == dtype
    np.testing.assert_array_equal(one.dictionaries_, two.dictionaries_)
    np.testing.assert_array_equal(one.dictionaries_, again.dictionaries_)
    np.testing.assert_array_equal(one.class_residuals(X), two.class_residuals(X))
    other_seed = small(random_state=1, n_iter=4).fit(X, y)
    assert not np.array_equal(one.dictionaries_, other_seed.dictionaries_)


def test_array_memory_map_and_blocks_give_the_same_bits(rng, tmp_path):
    X, y, _ = two_classes(rng, n_per_class=1300, dtype=np.float32)
    np.save(tmp_path / "patches.npy", X)
    mapped = np.load(tmp_path / "patches.npy", mmap_mode="r")
    blocks = [(X[i : i + 1024], y[i : i + 1024]) for i in range(0, len(X), 1024)]
    expected = small(n_iter=3).fit(X, y).dictionaries_
    np.testing.assert_array_equal(small(n_iter=3).fit(mapped, y).dictionaries_, expected)
    np.testing.assert_array_equal(small(n_iter=3).fit_blocks(blocks).dictionaries_, expected)


def test_only_one_block_is_in_memory(rng):
    X, y, _ = two_classes(rng, n_per_class=1000)
    alive: set[int] = set()
    n_alive = []

    class Blocks:
        def __iter__(self):
            for i in range(0, len(X), 100):
                block = X[i : i + 100].copy()
                alive.add(id(block))
                weakref.finalize(block, alive.discard, id(block))
                n_alive.append(len(alive))
                yield block, y[i : i + 100]

    small(n_iter=3, n_jobs=2).fit_blocks(Blocks())
    assert len(n_alive) > 20 * 4
    assert max(n_alive) <= 8  # of 20: two per running thread, and those being handed over


def test_one_pass_iterators_and_invalid_blocks_are_refused(rng):
    X, y, _ = two_classes(rng, n_per_class=50)
    with pytest.raises(TypeError, match="must be re-iterable"):
        small().fit_blocks((X[i : i + 10], y[i : i + 10]) for i in range(0, 100, 10))
    with pytest.raises(ValueError, match="blocks is empty"):
        small().fit_blocks([])
    with pytest.raises(ValueError, match="39 features"):
        small().fit_blocks([(X, y), (X[:, :39], y)])
    with pytest.raises(ValueError, match="labels of shape"):
        small().fit_blocks([(X, y[:99])])
    with pytest.raises(ValueError, match="NaN"):
        small().fit_blocks([(X, y), (np.full((2, 40), np.nan), y[:2])])


def test_warm_start_continues(rng):
    X, y, _ = two_classes(rng)
    model = small(n_iter=5, tol=0, warm_start=True).fit(X, y)
    before = model.objective_[0][-1]
    model.fit(X, y)
    assert model.objective_[0][0] == pytest.approx(before)
    assert model.objective_[0][-1] < before
    more, labels, _ = two_classes(np.random.default_rng(5))
    model.fit(more, labels)
    assert model.objective_[0][-1] < model.objective_[0][0]
    with pytest.raises(ValueError, match="classes that the initial model lacks"):
        model.fit(X, y + 1)
    with pytest.raises(ValueError, match="features"):
        model.fit(X[:, :30], y)


@pytest.mark.parametrize(("first", "then"), [(np.float64, np.float32), (np.float32, np.float64)])
def test_warm_start_on_samples_of_another_precision(rng, first, then):
    X, y, _ = two_classes(rng)
    model = small(n_iter=4, tol=0, warm_start=True).fit(X.astype(first), y)
    before = model.objective_[0][-1]
    model.fit(X.astype(then), y)
    assert model.dictionaries_.dtype == first
    assert model.objective_[0][0] == pytest.approx(before, rel=1e-4)
    assert model.objective_[0][-1] < before


def test_warm_start_keeps_the_number_of_atoms_and_takes_a_new_limit(rng):
    X, y, _ = two_classes(rng, n_per_class=200)
    model = small(n_iter=2, warm_start=True).fit(X, y)
    model.set_params(n_nonzero=3).fit(X, y)
    assert model.n_nonzero_.tolist() == [3, 3]
    with pytest.raises(ValueError, match="n_atoms is 30"):
        model.set_params(n_atoms=30).fit(X, y)


def test_cancelled_refit_leaves_the_model_unchanged(rng):
    X, y, _ = two_classes(rng, n_per_class=200)
    model = small(n_iter=2).fit(X, y)
    before = model.predict(X)

    def cancel(progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.fit(X, np.array(["a", "b", "c"])[rng.integers(0, 3, len(y))], callback=cancel)
    np.testing.assert_array_equal(model.predict(X), before)


def test_atoms_do_not_become_samples_of_other_classes(rng):
    """More atoms than samples: unused atoms must not become samples of the other class."""
    X = unit_rows(rng.standard_normal((40, 30)))
    y = np.arange(40) % 2
    model = DFDL(50, random_state=0, tol=0, n_iter=20).fit(X, y)
    for i, D in enumerate(model.dictionaries_):
        assert np.abs(X[y != i] @ D.T).max() < 0.99
    assert model.score(X, y) == 1.0


def test_blocks_that_change_between_passes_are_refused(rng):
    X, y, _ = two_classes(rng, n_per_class=300)

    class Shuffled:
        def __iter__(self):
            order = rng.permutation(len(X))
            yield X[order], y[order]

    with pytest.raises(ValueError, match="when they are read again"):
        small().fit_blocks(Shuffled())


def test_large_blocks_are_split_with_the_same_bits(rng):
    X, y, _ = two_classes(rng, n_per_class=1300)
    expected = small(n_iter=3).fit(X, y).dictionaries_
    np.testing.assert_array_equal(small(n_iter=3).fit_blocks([(X, y)]).dictionaries_, expected)


def test_converged_objective_stops_early(rng):
    X, y, _ = two_classes(rng, n_per_class=200)
    assert small(n_iter=200, tol=1e-2).fit(X, y).n_iter_ < 50
    assert small(n_iter=12, tol=0).fit(X, y).n_iter_ == 12


def test_progress_is_reported_and_an_exception_stops(rng):
    X, y, _ = two_classes(rng, n_per_class=200)
    reported = []
    small(n_iter=3, tol=0).fit(X, y, callback=reported.append)
    stages = [(p.stage, p.done, p.total) for p in reported]
    assert stages == [("initialise", i, 10) for i in range(11)] + [
        ("train", i, 3) for i in range(4)
    ]
    assert all(len(p.objective) == 2 for p in reported if p.stage == "train" and p.done)

    def cancel(progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        small().fit(X, y, callback=cancel)


def test_dictionaries_are_normalised_and_in_canonical_order(rng):
    X, y, _ = two_classes(rng, n_per_class=1500)
    X = np.abs(X)  # all samples have positive features, so the codes should be mostly positive
    model = small(n_iter=15, tol=0).fit(X, y)
    np.testing.assert_allclose(np.linalg.norm(model.dictionaries_, axis=2), 1)
    for i, D in enumerate(model.dictionaries_):
        S = encode_omp(D, X[y == i], int(model.n_nonzero_[i])).toarray()
        uses = (S != 0).sum(axis=0)
        assert np.corrcoef(uses, -np.arange(20))[0, 1] > 0.8
        assert (S > 0).sum() > (S < 0).sum()


BLANK = np.full((300, 40), 1 / np.sqrt(40))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "make_difficult",
    [
        lambda X: np.concatenate([BLANK, X[300:-300], BLANK]),
        lambda X: np.concatenate([0 * BLANK, X[300:-300], 0 * BLANK]),
        lambda X: np.repeat(X[::100], 100, axis=0),
        lambda X: np.concatenate([np.repeat(BLANK, 2, axis=0), X[600:]]),
        lambda X: 0 * X,
        lambda X: X[:, :1] * np.ones((1, 40)),
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
    X, y, _ = two_classes(rng)
    X = make_difficult(X).astype(dtype)
    model = small(n_atoms=30, n_iter=3, tol=0).fit(X, y)
    assert np.isfinite(model.dictionaries_).all()
    np.testing.assert_allclose(np.linalg.norm(model.dictionaries_, axis=2), 1, atol=1e-5)
    with warnings.catch_warnings():
        # raised for huge samples and their penalty
        warnings.simplefilter("ignore", ConvergenceWarning)
        assert np.isfinite(model.class_residuals(X)).all()
        assert np.isfinite(model.predict_proba(X)).all()


def test_fewer_samples_than_atoms_and_more_nonzeros_than_rank(rng):
    X, y, _ = two_classes(rng, n_per_class=5)
    model = small(n_atoms=50, n_nonzero=45).fit(X, y)
    assert np.isfinite(model.dictionaries_).all()
    assert model.dictionaries_.shape == (2, 50, 40)
    assert (model.predict(X) == y).all()


def test_very_different_class_sizes(rng):
    X, y, _ = two_classes(rng)
    selected = np.r_[0:600, 600:603]
    model = small().fit(X[selected], y[selected])
    assert np.isfinite(model.dictionaries_).all()


def test_text_labels(rng):
    X, y, _ = two_classes(rng, n_per_class=100)
    names = np.array(["healthy", "inflamed"])[y]
    model = small().fit(X, names)
    assert set(model.predict(X)) <= {"healthy", "inflamed"}


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_atoms": 0}, "n_atoms"),
        ({"n_atoms": 2.5}, "n_atoms"),
        ({"rho": -1}, "rho"),
        ({"rho": "much"}, "rho"),
        ({"step": "newton"}, "step"),
        ({"step": None}, "step"),
        ({"penalty": 0}, "penalty"),
        ({"n_nonzero": 0}, "n_nonzero"),
        ({"n_nonzero": "all"}, "n_nonzero"),
        ({"n_iter": 0}, "n_iter"),
        ({"tol": -1}, "tol"),
        ({"backend": "abacus"}, "backend"),
        ({"n_jobs": 0}, "n_jobs"),
    ],
)
def test_invalid_parameters_are_refused(rng, parameters, message):
    X, y, _ = two_classes(rng, n_per_class=20)
    with pytest.raises(ValueError, match=message):
        small(**parameters).fit(X, y)


def test_invalid_input_is_refused(rng):
    X, y, _ = two_classes(rng, n_per_class=20)
    with pytest.raises(ValueError, match="one class"):
        small().fit(X[:20], y[:20])
    with pytest.raises(ValueError, match="NaN"):
        small().fit(np.where(X > 0.2, np.nan, X), y)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        small().fit(X, y[:-1])
    model = small().fit(X, y)
    with pytest.raises(ValueError, match="39 features"):
        model.predict(X[:, :39])


def test_coherent_patches_with_a_common_mean(rng):
    """Uncentred vectors, all close to one direction, like RGB patches."""
    _, X = coherent(rng, 1, 2000, 60, np.float32)
    y = (X[:, 0] > np.median(X[:, 0])).astype(int)
    model = small(n_atoms=60, n_iter=5).fit(X, y)
    assert np.isfinite(model.dictionaries_).all()
    assert (model.n_nonzero_ >= 1).all()
