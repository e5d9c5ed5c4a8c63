import numpy as np
import pytest

from histodict.dictionaries.atoms import normalize
from tests.optional_modules import import_lazily

concept_cells = import_lazily("benchmarks.concept_cells")
concept_measures = import_lazily("benchmarks.concept_measures")
concept_page = import_lazily("benchmarks.concept_page")


def planted(seed, n_patients=8):
    """Return features of 8 axes that all patients have; the last class has more of axis 0."""
    rng = np.random.default_rng(seed)
    n = 120 * n_patients
    patients = np.repeat([f"p{i}" for i in range(n_patients)], 120)
    units = np.repeat(np.arange(10 * n_patients), 12)
    labels = np.where(np.repeat(np.arange(n_patients) % 2, 120), "ill", "healthy")
    S = rng.standard_normal((n, 8)) * (rng.random((n, 8)) < 0.2)
    S[labels == "ill", 0] += 2
    X = S @ np.eye(8, 20) + 0.02 * rng.standard_normal((n, 20))
    return concept_cells.Cells(X.astype(np.float32), units, patients, labels)


def test_halves_share_no_patient_and_have_both_classes():
    cells = planted(0)
    for seed in range(5):
        inside = concept_cells.halves(cells, seed)
        assert not set(cells.patients[inside]) & set(cells.patients[~inside])
        assert all(len(set(cells.labels[own])) == 2 for own in (inside, ~inside))


def test_planted_truth_has_the_best_measures(tmp_path):
    def truth(data, rng):
        return np.eye(8, 20, dtype=np.float32), None

    def random_atoms(data, rng):
        return normalize(rng.standard_normal((8, 20))), None

    result = concept_measures.measure(truth, planted(0), planted(1), 0, few=True)
    assert result["halves"] == result["seeds"] == pytest.approx(1)
    assert result["explained"] > 0.95
    assert result["accuracy"] > 0.95
    assert result["concepts from 10"] > 0.9
    guessed = concept_measures.measure(random_atoms, planted(0), planted(1), 0)
    assert guessed["seeds"] < 0.9
    assert guessed["explained"] < result["explained"]

    names = ("ODL λ 0.3", "axis-anchored (`histodict concepts`)", "k-means")
    rows = [{"set": own, "learner": n} | result for own in ("ucsb", "glas") for n in names]
    concept_page.write_page(tmp_path, rows)
    assert "| 1.000 |" in (tmp_path / "concepts-compared.md").read_text("utf-8")
    assert (tmp_path / "concepts-compared.png").stat().st_size < 150_000
