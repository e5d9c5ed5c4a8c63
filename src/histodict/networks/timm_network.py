"""Models of timm, convolutional and transformers alike: their last feature map."""

from __future__ import annotations

from pathlib import Path

import timm
import torch

from .torch_network import TorchNetwork


class TimmNetwork(TorchNetwork):
    """A timm model by name, with weights from the hub or from a local file.

    Parameters
    ----------
    name : as timm lists it, or `hf-hub:…`
    file : weights as safetensors, or as a PyTorch file of tensors alone
    """

    def __init__(self, name: str, file: str | None = None) -> None:
        if file is not None and not Path(file).is_file():
            raise ValueError(f"{file}: there is no such file with weights for {name}")
        sizes = {"dynamic_img_size": True} if _is_transformer(name) else {}
        module = timm.create_model(name, pretrained=file is None, num_classes=0, **sizes)
        if file is not None:
            found = timm.models.load_checkpoint(module, file, strict=False, weights_only=True)
            if found.missing_keys:
                raise ValueError(f"{file}: these are not weights of {name}: {found.missing_keys}")
        data = timm.data.resolve_model_data_config(module)
        cell_px = int(module.feature_info[-1]["reduction"])
        mean, std = (tuple(255 * value for value in data[key]) for key in ("mean", "std"))

        def feature_map(batch: torch.Tensor) -> torch.Tensor:
            maps: list[torch.Tensor] = module.forward_intermediates(
                batch, indices=1, intermediates_only=True, output_fmt="NCHW"
            )
            return maps[-1]

        super().__init__(module, cell_px, mean, std, feature_map)


def _is_transformer(name: str) -> bool:
    return "vit" in name.lower() or name.startswith("hf-hub:")
