import numpy as np
import pytest

from histodict.dictionaries.atoms import match_atoms, normalize
from histodict.dictionaries.online import (
    continue_online,
    learn_axis_anchored,
    learn_online,
    most_variable_axes,
    split_half_similarity,
)

N_PATIENTS, N_FEATURES, N_PLANTED = 8, 60, 8


@pytest.fixture(scope="module")
def planted():
    """Vectors of patients: 8 shared atoms, each with its axis and parts of others, and 2 own
    atoms."""
    rng = np.random.default_rng(0)
    truth = np.zeros((N_PLANTED, N_FEATURES))
    truth[:, :N_PLANTED] = np.eye(N_PLANTED)
    truth[:, 40:] = 0.12 * rng.standard_normal((N_PLANTED, 20))
    truth = normalize(truth)
    vectors, patients = [], []
    for patient in range(N_PATIENTS):
        own = np.zeros((2, N_FEATURES))
        own[[0, 1], [10 + 2 * patient, 11 + 2 * patient]] = 1
        S = rng.standard_normal((300, N_PLANTED)) * (rng.random((300, N_PLANTED)) < 0.25)
        N = 3 * rng.standard_normal((300, 2)) * (rng.random((300, 2)) < 0.5)
        vectors.append(S @ truth + N @ own + 0.02 * rng.standard_normal((300, N_FEATURES)))
        patients += [f"p{patient}"] * 300
    Y = normalize(np.concatenate(vectors)).astype(np.float32)
    return truth, Y, np.array(patients)


def test_shared_atoms_are_recovered_and_individual_ones_are_not(planted):
    truth, Y, patients = planted
    trained = learn_axis_anchored(Y, patients, N_PLANTED, np.random.default_rng(0), n_jobs=1)
    assert sorted(trained.axes) == list(range(N_PLANTED))
    assert match_atoms(truth, trained.atoms).cosines.min() > 0.95

    plain = learn_online(Y, N_PLANTED, 0.1, np.random.default_rng(0), n_jobs=1).atoms
    # an atom is spent on the pattern of one patient
    assert match_atoms(truth, plain).cosines.min() < 0.5
    by_variance = np.argsort(-(Y**2).mean(axis=0))[:N_PLANTED]
    assert not set(by_variance) <= set(range(N_PLANTED))


def test_halves_without_common_patients_agree(planted):
    _, Y, patients = planted
    half = np.isin(patients, ["p0", "p1", "p2", "p3"])
    first, second = (
        learn_axis_anchored(
            Y[own], patients[own], N_PLANTED, np.random.default_rng(seed), n_jobs=1
        ).atoms
        for seed, own in enumerate((half, ~half))
    )
    assert match_atoms(first, second).cosines.min() > 0.9


def test_split_half_similarity_separates_shared_from_individual_atoms(planted):
    truth, Y, patients = planted
    nuisance = np.zeros((1, N_FEATURES))
    nuisance[0, 10] = 1

    def learn(Y, patients, rng):
        # Simulates axes that are chosen by the variance of single patients.
        own = learn_axis_anchored(Y, patients, N_PLANTED, rng, n_jobs=1).atoms
        loudest = np.zeros((1, N_FEATURES))
        loudest[0, 8 + (Y**2).mean(axis=0)[8:].argmax()] = 1
        return np.concatenate([own, loudest])

    atoms = np.concatenate([truth, nuisance])
    found = split_half_similarity(
        Y, patients, atoms, np.random.default_rng(0), n_rounds=1, learn=learn
    )
    assert found.shape == (N_PLANTED + 1,)
    assert found[:-1].min() > 0.9
    assert found[-1] < 0.3


def test_split_half_similarity_needs_enough_patients(planted):
    truth, Y, patients = planted
    few = np.isin(patients, ["p0", "p1", "p2"])
    rng = np.random.default_rng(0)
    assert split_half_similarity(Y[few], patients[few], truth, rng, learn=lambda *_: truth) is None


def test_stronger_pull_keeps_atoms_nearer_to_their_axes(planted):
    _, Y, patients = planted
    near = []
    for pull in (0.01, 0.5, 1e4):
        trained = learn_axis_anchored(
            Y, patients, 20, np.random.default_rng(0), anchor_weight=pull, n_jobs=1
        )
        near.append(np.abs(trained.atoms[np.arange(20), trained.axes]).mean())
    assert near[0] < near[1] < near[2]
    assert near[2] == pytest.approx(1, abs=1e-4)


def test_zero_pull_equals_online_learning(planted):
    _, Y, _ = planted
    start = np.ascontiguousarray(normalize(Y[:12]))
    made = [
        continue_online(
            start, Y, 0.1, n_epochs=2, n_jobs=1, backend="cpu", on_batch=lambda: None, **options
        ).atoms
        for options in ({}, {"anchor_weight": 0.0})
    ]
    assert np.array_equal(*made)


def test_same_seed_gives_the_same_bits_for_any_number_of_threads(planted):
    _, Y, patients = planted
    one, two = (
        learn_axis_anchored(Y, patients, 10, np.random.default_rng(3), n_jobs=n).atoms
        for n in (1, 2)
    )
    assert np.array_equal(one, two)


def test_too_few_varying_features_are_refused(planted):
    Y, patients = np.eye(4, dtype=np.float32), np.array(list("abcd"))
    with pytest.raises(ValueError, match="only 0 of 4 features vary"):
        most_variable_axes(Y, patients, 2)
    _, Y, patients = planted
    with pytest.raises(ValueError, match="use fewer atoms"):
        most_variable_axes(Y, patients, N_FEATURES + 1)
