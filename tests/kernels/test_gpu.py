"""The GPU backend gives the results of the CPU backend, on CPU tensors (kernels in plain torch)
and, if there is one, on a CUDA device."""

from __future__ import annotations

import sys
import warnings

import numpy as np
import pytest
from scipy.sparse import csr_array

torch = pytest.importorskip("torch", reason="the GPU backend needs PyTorch")

from histodict.kernels import (  # noqa: E402
    class_residuals,
    encode_joint,
    encode_lasso,
    encode_omp,
    load_backend,
    update_atoms,
)
from histodict.kernels.cpu import backend as cpu  # noqa: E402
from histodict.kernels.cuda import backend as cuda  # noqa: E402
from histodict.methods.dfdl import DFDL  # noqa: E402
from tests.kernels import reference  # noqa: E402
from tests.kernels.torch_twins import atoms, lasso, omp  # noqa: E402
from tests.problems import coherent, gaussian, planted, unit_rows  # noqa: E402

RULES = ["order-recursive", "correlation"]
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=needs_cuda)]


@pytest.fixture(params=DEVICES, autouse=True)
def device(request, monkeypatch):
    """The device used by backend="cuda"."""
    monkeypatch.setenv("HISTODICT_DEVICE", request.param)
    if request.param == "cpu":
        monkeypatch.setattr(cuda, "_load_kernels", lambda: (omp, lasso, atoms))
    return request.param


def smooth(rng, n_atoms, n_samples, n_features=80, dtype=np.float32):
    """Return patches that a few atoms span almost completely, so that residuals are rounding
    errors."""
    n_directions = min(60, n_features)
    directions = np.linalg.qr(rng.standard_normal((n_features, n_features)))[0][:n_directions]
    strengths = 20 * 0.7 ** np.arange(n_directions)

    def patches(n):
        return unit_rows(6 + (rng.standard_normal((n, n_directions)) * strengths) @ directions)

    return patches(n_atoms).astype(dtype), patches(n_samples).astype(dtype)


def low_rank(rng, dtype=float):
    """Return atoms of rank 5, among them repeated, negated, halved and zero ones."""
    base = rng.standard_normal((50, 5)) @ rng.standard_normal((5, 40))
    D = np.concatenate([base, base[:9], -base[:9], 0.5 * base[:4], np.zeros((2, 40))])
    return D.astype(dtype), rng.standard_normal((60, 40)).astype(dtype)


def squared_residuals(D, Y, S):
    return np.sum((Y.astype(float) - S.toarray().astype(float) @ D) ** 2, axis=1)


# --- extremes -----------------------------------------------------------------------------------


def test_overflowing_values_are_refused(rng):
    D, Y = gaussian(rng, 8, 3, 5)
    two = np.stack([D, D]), np.stack([Y, Y]) * 1e200
    with pytest.raises(ValueError, match="products of values of Y overflow"):
        encode_lasso(D, Y * 1e154, 0.1, backend="cuda")
    with pytest.raises(ValueError, match="products of values of Y overflow"):
        encode_omp(D, Y * 1e200, 3, backend="cuda")
    with pytest.raises(ValueError, match="products of values of Y overflow"):
        encode_joint(*two, 3, backend="cuda")
    with pytest.raises(ValueError, match="products of values of D overflow"):
        encode_lasso(D * 1e200, Y, 0.1, backend="cuda")
    with pytest.raises(ValueError, match="the codes overflow"):
        encode_omp(D * 1e-160, Y * 1e152, 3, backend="cuda")


def test_large_lasso_codes_equal_the_cpu(rng):
    D, Y = gaussian(rng, 20, 9, 7)
    S = encode_lasso(D, Y * 1e100, 1e98, backend="cuda")
    expected = encode_lasso(D, Y * 1e100, 1e98)
    np.testing.assert_allclose(S.toarray() / 1e100, expected.toarray() / 1e100, atol=1e-4)


def test_atoms_do_not_depend_on_the_scale_of_the_sums(rng):
    D, E = gaussian(rng, 12, 12, 7, np.float32)
    F = np.cov(rng.standard_normal((12, 40))).astype(np.float32)
    new = update_atoms(D, E, F, backend="cuda")
    scale = np.float32(2.0**80)
    np.testing.assert_array_equal(update_atoms(D, E * scale, F * scale, backend="cuda"), new)


# --- pursuit ------------------------------------------------------------------------------------


@pytest.mark.parametrize("selection", RULES)
@pytest.mark.parametrize("problem", [gaussian, coherent])
def test_pursuit_equals_the_reference(rng, problem, selection):
    D, Y = problem(rng, 75, 40, 33)
    S = encode_omp(D, Y, 9, selection=selection, backend="cuda")
    expected = reference.encode_omp(D, Y, 9, selection=selection)
    np.testing.assert_allclose(S.toarray(), expected, atol=1e-7)


@pytest.mark.parametrize("selection", RULES)
@pytest.mark.parametrize("problem", [gaussian, coherent, smooth])
def test_pursuit_in_single_precision_equals_the_cpu(rng, problem, selection):
    D, Y = problem(rng, 130, 1500, 80, dtype=np.float32)
    S = encode_omp(D, Y, 15, selection=selection, backend="cuda")
    plain = encode_omp(D, Y, 15, selection=selection)
    assert S.dtype == np.float32 and S.shape == plain.shape
    errors, expected = (squared_residuals(D, Y, x) for x in (S, plain))
    assert errors.mean() == pytest.approx(expected.mean(), rel=0.01)
    same = ((S.toarray() != 0) == (plain.toarray() != 0)).all(axis=1)
    assert same.mean() >= (0.97 if problem is gaussian else 0.6)  # ties are broken by rounding
    # Rounding errors of a residual are relative to ‖y‖², not to the residual.
    sizes = np.sum(Y[same] ** 2, axis=1)
    assert np.abs(errors[same] - expected[same]).max() <= 1e-5 * sizes.max()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("selection", RULES)
def test_pursuit_of_dependent_atoms(rng, dtype, selection):
    D, Y = low_rank(rng, dtype)
    S = encode_omp(D, Y, 20, selection=selection, backend="cuda")
    assert np.diff(S.indptr).max() <= (5 if dtype == np.float64 else 6)  # rounding may add one
    assert np.abs(S.data).max() < 100
    exact = Y @ np.linalg.pinv(D.astype(float), rcond=1e-5) @ D
    np.testing.assert_allclose(S.toarray() @ D, exact, atol=2e-3)


def test_nearly_dependent_atoms_are_stable_in_single_precision(rng):
    D, Y = smooth(rng, 200, 600)
    S, reported = cuda.OMPCoder(D, 30, 0.0, True).code(Y)
    assert squared_residuals(D, Y, S).max() < 1e-4
    assert np.abs(S.data).max() < 100
    np.testing.assert_allclose(reported, squared_residuals(D, Y, S), atol=2e-5)


def test_pursuit_stops_at_tol_and_skips_zero_samples(rng):
    D, Y = gaussian(rng, 50, 80, 30)
    Y[7] = 0
    S = encode_omp(D, Y, 30, tol=2.0, backend="cuda")
    sizes = np.diff(S.indptr)
    assert sizes[7] == 0 and 1 < sizes.max() < 30
    assert squared_residuals(D, Y, S).max() <= 2.0
    np.testing.assert_array_equal(sizes, np.diff(encode_omp(D, Y, 30, tol=2.0).indptr))


@pytest.mark.parametrize("scale", [1e-15, 1e15])
def test_supports_do_not_depend_on_the_norms_of_atoms_and_samples(rng, scale):
    D, Y = gaussian(rng, 64, 60, 32, np.float32)
    plain = encode_omp(D, Y, 6, backend="cuda").toarray()
    for d, y in ((scale, 1.0), (1.0, scale)):
        other = encode_omp(np.float32(d) * D, np.float32(y) * Y, 6, backend="cuda").toarray()
        np.testing.assert_allclose(other * d / y, plain, atol=1e-3)


def test_no_samples_and_more_nonzeros_than_atoms(rng):
    D, Y = gaussian(rng, 12, 10, 40)
    assert encode_omp(D, Y[:0], 3, backend="cuda").shape == (0, 12)
    exact = Y @ np.linalg.pinv(D) @ D
    np.testing.assert_allclose(encode_omp(D, Y, 50, backend="cuda").toarray() @ D, exact, atol=1e-8)


@pytest.mark.parametrize("selection", RULES)
@pytest.mark.parametrize("problem", [gaussian, coherent])
def test_joint_pursuit_equals_the_cpu(rng, problem, selection):
    pairs = [problem(rng, 60, 200, 30) for _ in range(3)]
    D, Y = (np.stack(part) for part in zip(*pairs, strict=True))
    D[1, 4] = 0  # an atom that one channel lacks
    Y[2, :5] = 0
    plain = encode_joint(D, Y, 7, selection=selection)
    for S, expected in zip(
        encode_joint(D, Y, 7, selection=selection, backend="cuda"), plain, strict=True
    ):
        np.testing.assert_array_equal(S.indices, expected.indices)
        np.testing.assert_allclose(S.data, expected.data, atol=1e-8)


# --- l1 codes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("problem", [gaussian, coherent])
@pytest.mark.parametrize("penalty", [1.0, 0.1, 0.01])
@pytest.mark.parametrize(("dtype", "tol"), [(np.float32, 1e-4), (np.float64, 1e-10)])
def test_duality_gap_is_at_most_tol(rng, problem, penalty, dtype, tol):
    D, Y = problem(rng, 90, 40, 24, dtype)
    Y[3] = 0
    S = encode_lasso(D, Y, penalty, tol=tol, backend="cuda")
    assert S.dtype == dtype
    gaps = reference.lasso_gap(D.astype(float), Y.astype(float), S.toarray().astype(float), penalty)
    rounding = 8 * np.finfo(dtype).eps * np.linalg.norm(Y, axis=1).max() / penalty
    assert gaps.max() <= tol + rounding


def test_lasso_codes_equal_the_cpu(rng):
    D, Y = coherent(rng, 100, 300, 40)
    S = encode_lasso(D, Y, 0.05, tol=1e-12, backend="cuda")
    expected = encode_lasso(D, Y, 0.05, tol=1e-12)
    np.testing.assert_allclose(S.toarray(), expected.toarray(), atol=1e-6)


@pytest.mark.parametrize(("dtype", "tol"), [(np.float32, 1e-4), (np.float64, 1e-9)])
def test_lasso_codes_of_dependent_atoms(rng, dtype, tol):
    D, Y = low_rank(rng, dtype)
    S = encode_lasso(D, Y, 0.3, tol=tol, backend="cuda").toarray().astype(float)
    assert reference.lasso_gap(D.astype(float), Y.astype(float), S, 0.3).max() <= 2 * tol


@pytest.mark.parametrize("device", DEVICES[1:], indirect=True)
def test_lasso_codes_may_exceed_the_initial_capacity(rng):
    D, Y = gaussian(rng, 250, 5, 220)
    S = encode_lasso(D, Y, 0.02, tol=1e-8, backend="cuda")
    assert np.diff(S.indptr).min() > 128
    np.testing.assert_allclose(S.toarray(), encode_lasso(D, Y, 0.02, tol=1e-8).toarray(), atol=1e-5)


def test_violation_by_an_unusable_atom_is_reported():
    D = unit_rows(np.array([[1, 0], [1, 3e-3]]))
    Y = np.array([[0.1, 1]])
    assert cuda.LassoCoder(D.astype(np.float32), 5e-4, 1e-4).code(Y.astype(np.float32))[1] == 1
    assert cuda.LassoCoder(D, 5e-4, 1e-4).code(Y)[1] == 0


# --- sums, atoms, residuals -------------------------------------------------------------------


def coders(D, method):
    """Return the same coder of both backends."""
    options = (4, 0.0, True) if method == "OMPCoder" else (0.1, 1e-9)
    return [getattr(backend, method)(D, *options) for backend in (cpu, cuda)]


def assert_same_sums(found, expected, tolerance):
    found = found.to_host()
    for name in ("E", "F", "F_own_class", "worst_samples"):
        wanted, got = getattr(expected, name), getattr(found, name)
        assert got.dtype == wanted.dtype
        np.testing.assert_allclose(got, wanted, atol=tolerance, err_msg=name)
    np.testing.assert_array_equal(found.F, found.F.T)
    np.testing.assert_array_equal(found.usage_counts, expected.usage_counts)
    np.testing.assert_array_equal(found.sign_balance, expected.sign_balance)
    np.testing.assert_allclose(found.worst_errors, expected.worst_errors, atol=tolerance)
    assert found.objective == pytest.approx(expected.objective, rel=1e-3, abs=tolerance)


@pytest.mark.parametrize("method", ["OMPCoder", "LassoCoder"])
@pytest.mark.parametrize("own_label", [0, 1])
def test_block_statistics_equal_the_cpu(rng, method, own_label):
    """Statistics are also accumulated in double precision, with the worst samples of all blocks."""
    D, Y = gaussian(rng, 45, 700, 33)
    labels = rng.integers(0, 2, 700)
    weights = np.array([0.5, -0.25])
    plain, device = coders(D, method)
    totals = []
    for backend, coder in ((cpu, plain), (cuda, device)):
        parts = [
            backend.encode_and_accumulate(
                coder, Y[rows], labels[rows], own_label, weights, n_worst=9, with_own_class=True
            )
            for rows in (slice(0, 300), slice(300, 700))
        ]
        totals.append((parts[1].to_host(), parts[0].to_double_precision().add(parts[1])))
    for found, expected in zip(totals[1], totals[0], strict=True):
        assert_same_sums(found, expected, 1e-7)


def test_sums_in_single_precision(rng):
    D, Y = gaussian(rng, 45, 700, 33, np.float32)
    labels, weights = np.zeros(700, np.int64), np.ones(1)
    plain, device = coders(D, "OMPCoder")
    expected = cpu.encode_and_accumulate(plain, Y, labels, 0, weights, 9)
    found = cuda.encode_and_accumulate(device, cuda.to_device(Y), labels, 0, weights, 9).to_host()
    assert found.E.dtype == found.F.dtype == np.float32 and found.F_own_class is None
    np.testing.assert_allclose(found.E, expected.E, atol=0.02 * np.abs(expected.E).max())
    np.testing.assert_allclose(found.F, expected.F, atol=0.02 * np.abs(expected.F).max())


def test_tangent_step_stays_on_the_device(rng):
    """The result, copied to the host, equals that of the CPU backend for the same sums."""
    D, Y = gaussian(rng, 30, 400, 25)
    D = unit_rows(D)
    labels, weights = np.arange(400) % 2, np.array([1 / 200, -0.1 / 200])
    device = coders(D, "OMPCoder")[1]
    sums = cuda.encode_and_accumulate(
        device, Y, labels, 0, weights, 9, with_own_class=True
    ).to_double_precision()
    placed = cuda.to_device(D)
    bent = sums.linearize_at(placed, 0.3)
    expected = sums.to_host().linearize_at(D, 0.3)
    np.testing.assert_allclose(bent.to_host().E, expected.E, atol=1e-12)
    np.testing.assert_allclose(bent.to_host().F, expected.F, atol=1e-12)
    new = cuda.update_atoms(placed, bent.E, bent.F, 3, 0.0)
    assert isinstance(new, torch.Tensor)
    np.testing.assert_array_equal(
        new.cpu().numpy(), cuda.update_atoms(D, bent.to_host().E, bent.to_host().F, 3, 0.0)
    )


def test_unused_atoms_are_replaced_as_on_the_cpu(rng):
    D, Y = (unit_rows(rng.standard_normal((n, 20))) for n in (12, 9))
    D[7] = -D[2]
    candidates = np.concatenate([np.zeros((1, 20)), 3 * D[4:5], Y, Y[:2]])
    for uses in (np.ones(12, int), np.arange(12) % 4, np.zeros(12, int)):
        expected = cpu.replace_unused_atoms(D, uses, candidates)
        found = cuda.replace_unused_atoms(*(cuda.to_device(x) for x in (D, uses, candidates)))
        np.testing.assert_allclose(found.cpu().numpy(), expected, atol=1e-15)
        assert (expected != D).any(axis=1).sum() == min(9, (uses == 0).sum() + (uses[7] != 0))


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-10), (np.float32, 1e-4)])
@pytest.mark.parametrize("n_features", [50, 300])
def test_atoms_are_updated_as_on_the_cpu(rng, dtype, tolerance, n_features):
    D, Y = gaussian(rng, 70, 300, n_features)
    S = encode_omp(D, Y, 6).toarray()
    S[:, [3, 40]] = 0
    w = np.where(np.arange(300) < 100, 1 / 100, -0.5 / 200)
    E, F = (S * w[:, None]).T @ Y, (S * w[:, None]).T @ S
    D, E, F = (a.astype(dtype) for a in (D, E, F))
    new = update_atoms(D, E, F, n_sweeps=3, backend="cuda")
    np.testing.assert_allclose(new, update_atoms(D, E, F, n_sweeps=3), atol=tolerance)
    np.testing.assert_array_equal(new[[3, 40]], D[[3, 40]])
    once = update_atoms(D, E, F, n_sweeps=50, tol=2.0, backend="cuda")
    np.testing.assert_array_equal(once, update_atoms(D, E, F, backend="cuda"))


def test_class_residuals_equal_the_cpu(rng):
    D, Y = coherent(rng, 60, 210, 40)
    S = encode_lasso(D, Y, 0.02)
    classes = rng.integers(0, 3, 60)
    expected = reference.class_residuals(D, Y, S.toarray(), classes)
    np.testing.assert_allclose(class_residuals(D, Y, S, classes, backend="cuda"), expected)
    empty = class_residuals(D, Y, csr_array(S.shape), classes, backend="cuda")
    np.testing.assert_allclose(empty, np.linalg.norm(Y, axis=1)[:, None].repeat(3, axis=1))


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_residuals_need_no_codes_and_nonfinite_samples_are_refused(rng, wrong):
    Y, y = two_classes(rng)
    model = DFDL(12, penalty=0.5, n_nonzero=3, n_iter=2, random_state=0, backend="cuda").fit(Y, y)
    np.testing.assert_allclose(model.class_residuals(Y), model.encode(Y)[1], atol=1e-6)
    Y[50, 3] = wrong
    expected = "NaN" if np.isnan(wrong) else "infinity"
    for prediction in (model.encode, model.class_residuals, model.predict):
        with pytest.raises(ValueError, match=f"Input X contains {expected}"):
            prediction(Y)


# --- training -----------------------------------------------------------------------------------


def two_classes(rng, n_per_class=90, n_features=30, dtype=np.float32):
    D = unit_rows(rng.standard_normal((2, 40, n_features)).reshape(-1, n_features))
    Y = np.concatenate([planted(rng, D[i : i + 40], n_per_class, 3, 0.05) for i in (0, 40)])
    return Y.astype(dtype), np.repeat(["a", "b"], n_per_class)


@pytest.mark.parametrize(
    ("rho", "step"), [(0.001, "published"), (0.001, "tangent"), (0.5, "tangent")]
)
def test_training_is_close_to_the_cpu(rng, rho, step):
    Y, y = two_classes(rng, dtype=np.float64)
    options = {"rho": rho, "step": step, "penalty": 0.5, "n_nonzero": 3, "n_iter": 3}
    models = [
        DFDL(12, tol=0.0, random_state=0, backend=backend, **options).fit(Y, y)
        for backend in ("cpu", "cuda")
    ]
    for expected, objective in zip(*(model.objective_ for model in models), strict=True):
        np.testing.assert_allclose(objective, expected, rtol=0.02)
    assert models[1].score(Y, y) >= models[0].score(Y, y) - 0.03


def test_training_is_reproducible_for_any_number_of_threads(rng):
    Y, y = two_classes(rng)
    one, two = (
        DFDL(12, penalty=0.5, n_nonzero=3, n_iter=3, random_state=0, backend="cuda", n_jobs=n).fit(
            Y, y
        )
        for n in (1, 3)
    )
    np.testing.assert_array_equal(one.dictionaries_, two.dictionaries_)
    np.testing.assert_array_equal(one.decision_function(Y), two.decision_function(Y))


def test_training_caches_blocks_on_the_device(rng):
    Y, y = two_classes(rng)
    model = DFDL(12, penalty=0.5, n_nonzero=3, n_iter=4, tol=0.0, random_state=0, backend="cuda")
    model.fit_blocks([(Y[:70], y[:70]), (Y[70:], y[70:])])
    total = DFDL(
        12, penalty=0.5, n_nonzero=3, n_iter=4, tol=0.0, random_state=0, backend="cuda"
    ).fit(Y, y)
    for a, b in zip(model.objective_, total.objective_, strict=True):
        np.testing.assert_allclose(a, b, rtol=0.05)

    blocks = cuda.cache_blocks(lambda: iter([(Y[:70], 0), (Y[70:], 1)]))
    first, again = list(blocks()), list(blocks())
    for (X, label), (X_again, label_again) in zip(first, again, strict=True):
        assert X is X_again and label == label_again


# --- settings and missing libraries
# ----------------------------------------------------------------


def test_torch_settings_of_the_user_are_unchanged(rng):
    D, Y = gaussian(rng, 20, 10, 12, np.float32)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        encode_omp(D, Y, 3, backend="cuda")
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


def test_read_only_samples_give_no_warning(rng):
    D, Y = gaussian(rng, 20, 10, 12)
    Y.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encode_omp(D, Y, 3, backend="cuda")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_missing_device_is_reported(monkeypatch):
    monkeypatch.delenv("HISTODICT_DEVICE")
    with pytest.raises(ValueError, match=r"no CUDA device.*backend='cpu'"):
        load_backend("cuda")


@pytest.mark.parametrize("device", ["cpu"])
def test_missing_triton_is_reported(monkeypatch, device, rng):
    monkeypatch.setenv("HISTODICT_DEVICE", device)
    monkeypatch.setitem(sys.modules, "triton", None)
    for name in ("omp", "lasso", "atom_update"):
        monkeypatch.delitem(sys.modules, f"histodict.kernels.cuda.{name}", raising=False)
        monkeypatch.delattr(f"histodict.kernels.cuda.{name}", raising=False)
    with pytest.raises(ValueError, match=r"needs triton.*pip install triton.*backend='cpu'"):
        encode_omp(*gaussian(rng, 20, 10, 12), 3, backend="cuda")


def test_missing_torch_is_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "histodict.kernels.cuda.backend")
    monkeypatch.delattr("histodict.kernels.cuda.backend")
    with pytest.raises(ImportError, match=r'pip install "\.\[torch\]"'):
        load_backend("cuda")
