"""Dictionary learning and other methods by name: each learns unit atoms from feature vectors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA, MiniBatchNMF
from sklearn.mixture import GaussianMixture

from histodict.dictionaries.atoms import normalize
from histodict.dictionaries.online import (
    ANCHOR_WEIGHT,
    continue_online,
    learn_axis_anchored,
    learn_online,
)
from histodict.methods.dfdl import DFDL

from .concept_cells import Cells

N_ATOMS, N_NONZERO = 128, 8
RHO = "\N{GREEK SMALL LETTER RHO}"
Array = NDArray[Any]
# Reconstruction of vectors by the method itself, without pursuit.
Encoder = Callable[[Array], Array]


@dataclass(frozen=True)
class TrainingVectors:
    """Training vectors; Y: centred unit vectors, the input of every method except NMF."""

    Y: Array
    cells: Cells

    @classmethod
    def from_cells(cls, cells: Cells, mean: Array | None = None) -> TrainingVectors:
        centre = cells.X.mean(axis=0) if mean is None else mean
        return cls(np.ascontiguousarray(normalize(cells.X - centre)), cells)


Learner = Callable[[TrainingVectors, np.random.Generator], tuple[Array, Encoder | None]]


def odl(
    penalty: float, n_atoms: int, seen: TrainingVectors, rng: Any
) -> tuple[Array, Encoder | None]:
    Y = np.ascontiguousarray(seen.Y[rng.permutation(len(seen.Y))])
    return learn_online(Y, n_atoms, penalty, rng, n_jobs=1).atoms, None


def axis_anchored(
    pull: float, n_atoms: int, seen: TrainingVectors, rng: Any, penalty: float = 0.1
) -> tuple[Array, Encoder | None]:
    patients = seen.cells.patients
    found = learn_axis_anchored(
        seen.Y, patients, n_atoms, rng, penalty=penalty, anchor_weight=pull, n_jobs=1
    )
    return found.atoms, None


def axes_alone(seen: TrainingVectors, rng: Any) -> tuple[Array, Encoder | None]:
    return axis_anchored(1e6, N_ATOMS, seen, rng)


def turned(seen: TrainingVectors, rng: Any) -> tuple[Array, Encoder | None]:
    """Anchor atoms to the axes of a fixed, randomly rotated frame."""
    n = seen.Y.shape[1]
    turn = np.linalg.qr(np.random.default_rng(0).standard_normal((n, n)))[0].astype(np.float32)
    other = replace(seen, Y=np.ascontiguousarray(seen.Y @ turn))
    return axis_anchored(ANCHOR_WEIGHT, N_ATOMS, other, rng)[0] @ turn.T, None


def anchored_to_random(seen: TrainingVectors, rng: Any) -> tuple[Array, Encoder | None]:
    """Anchor atoms to 128 fixed random directions."""
    start = np.random.default_rng(0).standard_normal((N_ATOMS, seen.Y.shape[1]))
    Y = np.ascontiguousarray(seen.Y[rng.permutation(len(seen.Y))])
    start = np.ascontiguousarray(normalize(start), dtype=Y.dtype)
    options = {"n_epochs": 5, "n_jobs": 1, "backend": "cpu", "anchor_weight": ANCHOR_WEIGHT}
    return continue_online(start, Y, 0.1, on_batch=lambda: None, **options).atoms, None


def dfdl(rho: float, seen: TrainingVectors, rng: Any) -> tuple[Array, Encoder | None]:
    classes = np.unique(seen.cells.labels)
    model = DFDL(
        N_ATOMS // len(classes),
        rho=rho,
        penalty=0.3,
        n_nonzero=N_NONZERO,
        n_iter=15,
        random_state=int(rng.integers(2**31)),
        n_jobs=1,
    )
    return model.fit(seen.Y, seen.cells.labels).labelled_atoms()[0], None


def k_means(seen: TrainingVectors, rng: Any) -> tuple[Array, Encoder | None]:
    model = KMeans(N_ATOMS, n_init=1, random_state=int(rng.integers(2**31))).fit(seen.Y)
    return normalize(model.cluster_centers_), lambda Y: model.cluster_centers_[model.predict(Y)]


def mixture(seen: TrainingVectors, rng: Any) -> tuple[Array, Encoder | None]:
    """Diagonal Gaussians in the 128 leading components; in 1280, the weights collapse to one."""
    space = PCA(128, random_state=0).fit(seen.Y)
    seed = int(rng.integers(2**31))
    options = {"reg_covar": 1e-4, "max_iter": 50, "random_state": seed}
    model = GaussianMixture(N_ATOMS, covariance_type="diag", **options)
    model.fit(space.transform(seen.Y))
    means = space.inverse_transform(model.means_).astype(np.float32)
    return normalize(means), lambda Y: means[model.predict(space.transform(Y))]


def nmf(seen: TrainingVectors, rng: Any) -> tuple[Array, Encoder | None]:
    """Use the original features, which are non-negative as the encoder ends in a ReLU."""
    X = normalize(seen.cells.X)
    model = MiniBatchNMF(N_ATOMS, random_state=int(rng.integers(2**31)), max_iter=60).fit(X)
    return normalize(model.components_).astype(np.float32), None


def pca(seen: TrainingVectors, rng: Any) -> tuple[Array, Encoder | None]:
    return PCA(N_ATOMS, svd_solver="covariance_eigh").fit(seen.Y).components_, None


def autoencoder(seen: TrainingVectors, rng: Any) -> tuple[Array, Encoder | None]:
    """TopK sparse autoencoder: the 8 largest ReLU units and a unit-norm decoder.

    Training ends if the lowest error of an epoch has not fallen by 0.2 % in five epochs, and after
    150 epochs at most.
    """
    import torch

    torch.manual_seed(int(rng.integers(2**31)))
    torch.set_num_threads(1)
    Y = torch.from_numpy(seen.Y)
    # Initialised with samples, like the dictionaries.
    decoder = torch.nn.Parameter(Y[torch.randperm(len(Y))[:N_ATOMS]].clone())
    encoder = torch.nn.Parameter(decoder.detach().clone())
    bias, centre = torch.nn.Parameter(torch.zeros(N_ATOMS)), torch.nn.Parameter(Y.mean(dim=0))
    optimiser = torch.optim.Adam([encoder, decoder, bias, centre], lr=1e-3)

    def rebuilt(batch: Any) -> Any:
        codes = torch.relu((batch - centre) @ encoder.T + bias)
        top = torch.topk(codes, N_NONZERO, dim=1)
        sparse = torch.zeros_like(codes).scatter(1, top.indices, top.values)
        return sparse @ torch.nn.functional.normalize(decoder) + centre

    errors: list[float] = []
    while len(errors) < 150 and not _is_flat(errors):
        total = 0.0
        for rows in torch.randperm(len(Y)).split(256):
            loss = ((rebuilt(Y[rows]) - Y[rows]) ** 2).sum(dim=1).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            total += float(loss.detach()) * len(rows)
        errors.append(total / len(Y))

    def encode(Z: Array) -> Array:
        with torch.no_grad():
            return rebuilt(torch.from_numpy(np.ascontiguousarray(Z))).numpy()

    return normalize(decoder.detach().numpy()), encode


def _is_flat(errors: list[float]) -> bool:
    return len(errors) > 10 and min(errors[-5:]) > 0.998 * min(errors[:-5])


METHODS: dict[str, Learner] = {
    "ODL λ 0.3": partial(odl, 0.3, N_ATOMS),
    "ODL λ 0.15": partial(odl, 0.15, N_ATOMS),
    "axis-anchored (`histodict concepts`)": partial(axis_anchored, ANCHOR_WEIGHT, N_ATOMS),
    f"DFDL {RHO} 0.001": partial(dfdl, 0.001),
    f"DFDL {RHO} 0.1": partial(dfdl, 0.1),
    f"DFDL {RHO} 0.3": partial(dfdl, 0.3),
    "TopK autoencoder": autoencoder,
    "k-means": k_means,
    "Gaussian mixture": mixture,
    "NMF": nmf,
    "PCA": pca,
}
VARIANTS: dict[str, Learner] = {
    "axis-anchored, pull 0.1": partial(axis_anchored, 0.1, N_ATOMS),
    "axis-anchored, pull 0.5": partial(axis_anchored, 0.5, N_ATOMS),
    "axis-anchored, pull 2": partial(axis_anchored, 2.0, N_ATOMS),
    "the axes alone": axes_alone,
    "axis-anchored, 64 atoms": partial(axis_anchored, ANCHOR_WEIGHT, 64),
    "axis-anchored in a randomly rotated space": turned,
    "anchored to fixed random directions": anchored_to_random,
}
