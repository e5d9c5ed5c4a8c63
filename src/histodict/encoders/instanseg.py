"""Encoder of the nucleus segmentation InstanSeg `brightfield_nuclei`, trained on histology images.

Reference: Goldsborough et al., "InstanSeg: an embedding-based instance segmentation algorithm
optimized for accurate, efficient and portable cell segmentation", 2024, arXiv:2408.15954. The
package `histodict_instanseg`, in the folder packages of the repository, contains the weights.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from histodict_instanseg import WEIGHTS_FILE
from safetensors.torch import load_file
from torch.nn.functional import avg_pool2d, conv2d, max_pool2d, relu

from .efficientnet_lite import StripwiseModule, fold_batch_norm
from .torch_encoder import TorchEncoder

State = Mapping[str, torch.Tensor]

_STRIDE_PX = 32
_N_LEVELS = 4  # each with half the resolution of the one before
_EPSILON = 1e-5  # of the batch norms in training
_RECEPTIVE_RADIUS = 4  # of the four 3 × 3 convolutions of a level, in rows of its output
_MEAN, _STD = (0.0,) * 3, (255.0,) * 3


class InstanSeg(TorchEncoder):
    """InstanSeg encoder: stride 32 pixels, 480 features; trained at 0.5 µm per pixel.

    The features are the means over 32 × 32 pixels of the channels of all levels: 32, 64, 128 and
    256 channels at strides of 1, 2, 4 and 8 pixels.
    """

    def __init__(self) -> None:
        state = load_file(WEIGHTS_FILE)
        super().__init__(LevelMeans(state), _STRIDE_PX, _MEAN, _STD, state=state)


class LevelMeans(torch.nn.Module):
    """Levels of the encoder, averaged over squares of 32 × 32 pixels and concatenated.

    The module maps images (n, 3, h, w) to (n, 480, h // 32, w // 32).

    Parameters
    ----------
    state : weights by name, with separate batch norms
    """

    def __init__(self, state: State) -> None:
        super().__init__()
        self.levels = torch.nn.ModuleList()
        for index in range(_N_LEVELS):
            level = Level(state, index)
            n_values = 3 * len(level.weight_0) // level.stride**2  # three maps at the same time
            self.levels.append(
                StripwiseModule(level, level.stride, _RECEPTIVE_RADIUS, max(1, n_values))
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the means of all levels."""
        means = []
        for index, level in enumerate(self.levels):
            x = level(x)
            means.append(avg_pool2d(x, _STRIDE_PX >> index))
        return torch.cat(means, dim=1)


class Level(torch.nn.Module):
    """One level of the encoder: maximum over 2 × 2 pixels and two residual steps.

    With c_i a convolution, its batch norm and a ReLU, and x the maxima (in the first level, the
    image): y = c_0(x) + c_2(c_1(x)), and the output is y + c_4(c_3(y)). c_0 has kernels of one
    pixel, the others of 3 × 3 pixels.

    Parameters
    ----------
    state : weights of all levels by name
    index : index of the level; level 0 takes no maximum
    """

    def __init__(self, state: State, index: int) -> None:
        super().__init__()
        self.stride = 2 if index else 1
        for number in range(5):
            name = f"{index}.conv{number}"
            parts = ("weight", "bias", "running_mean", "running_var")
            scale, shift, mean, variance = (state[f"{name}.1.{part}"].double() for part in parts)
            mean = mean - state[f"{name}.0.bias"].double()  # of the convolution without its bias
            weight, bias = fold_batch_norm(
                state[f"{name}.0.weight"], scale, shift, mean, variance, _EPSILON
            )
            weight = weight.contiguous(memory_format=torch.channels_last)
            self.register_buffer(f"weight_{number}", weight)
            self.register_buffer(f"bias_{number}", bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output of the level."""
        if self.stride > 1:
            x = max_pool2d(x, self.stride)
        y = self._convolve(x, 0).add_(self._convolve(self._convolve(x, 1), 2))
        return self._convolve(self._convolve(y, 3), 4).add_(y)

    def _convolve(self, x: torch.Tensor, number: int) -> torch.Tensor:
        weight: torch.Tensor = getattr(self, f"weight_{number}")
        bias: torch.Tensor = getattr(self, f"bias_{number}")
        return relu(conv2d(x, weight, bias, padding=weight.shape[-1] // 2), inplace=True)
