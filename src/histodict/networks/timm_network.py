"""Models of timm, convolutional and transformers alike: their last feature map.

A convolutional network sees any area at once. A transformer was trained on pictures of one size: an
area is cut into such, and the tokens of each, less the class token and registers, are its cells.
Mean, deviation and size are those of the model's own configuration.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

try:
    import timm
except RuntimeError as error:  # of torchvision, which has to be of the same build as torch
    raise ImportError(f"torch and torchvision do not fit together: {error}") from error
import torch

from ..execution.texts import parse_json, shorten
from .torch_network import TorchEncoder

_MAX_KEYS = 3  # of missing arrays that a message names
_SOURCES = ("hf-hub:", "local-dir:")
# Of timm.create_model: classes, which are given by their names.
_LAYERS = ("mlp_layer", "act_layer", "norm_layer", "embed_layer", "block_fn")


class TimmEncoder(TorchEncoder):
    """A timm model by name, with weights from the hub, a local folder or a local file.

    Parameters
    ----------
    name : as timm lists it, `hf-hub:OWNER/NAME` or `local-dir:FOLDER`
    file : weights as safetensors, or as a PyTorch file of tensors alone
    arguments : of `timm.create_model`, for models whose configuration does not name them all
    """

    def __init__(
        self, name: str, file: str | None = None, arguments: dict[str, Any] | None = None
    ) -> None:
        if file is not None and not Path(file).is_file():
            raise ValueError(f"{file}: there is no such file with weights for {name}")
        module = _created(name, file is None, arguments or {})
        if file is not None:
            _load(module, file, name)
        module = module.float()
        data = timm.data.resolve_model_data_config(module)
        cell_px = _stride_px(module, name)
        mean, std = (tuple(255 * value for value in data[key]) for key in ("mean", "std"))
        window_px = _window_px(module, data)
        # Weights alone do not tell that tokens are of windows, and through the last norm.
        state = None if window_px is None else _named(module, f"windows of {window_px}")
        super().__init__(
            module, cell_px, mean, std, _feature_map(module), state=state, window_px=window_px
        )

    @classmethod
    def named(cls, text: str) -> TimmEncoder:
        """NAME, NAME@FILE; behind a question mark arguments, as KEY=VALUE&KEY=VALUE."""
        name, _, query = text.partition("?")
        file = ""
        if not name.startswith(_SOURCES):  # of the hub, what follows @ is a revision
            name, _, file = name.partition("@")
        arguments = {key: _value(key, value) for key, value in parse_qsl(query, True)}
        return cls(name, file or None, arguments)


def _stride_px(module: Any, name: str) -> int:
    """Side in pixels of a position of the last feature map."""
    info = getattr(module, "feature_info", None)
    if not info or not hasattr(module, "forward_intermediates"):
        raise ValueError(f"{name} has no feature maps in timm: take another model")
    return int(info[-1]["reduction"])


def _created(name: str, pretrained: bool, arguments: dict[str, Any]) -> Any:
    try:
        return timm.create_model(name, pretrained=pretrained, num_classes=0, **arguments)
    except Exception as error:
        if type(error).__module__.startswith("huggingface_hub") or isinstance(error, OSError):
            words = " ".join(str(error).split())[:300]
            raise ValueError(
                f"the weights of {name} cannot be had ({words}). Models that are gated ask you to "
                "accept their terms on their page, then: hf auth login. Without a connection, "
                "download the folder elsewhere and give timm:local-dir:FOLDER"
            ) from error
        raise ValueError(
            f"timm cannot create {name!r} with {arguments or 'no arguments'}: {shorten(error)}"
            f"{_similar_names(name)}"
        ) from error


def _similar_names(name: str) -> str:
    """Return suggestions for a model name that timm does not have."""
    if name.startswith(_SOURCES) or timm.is_model(name):
        return ""
    near = get_close_matches(name.partition(".")[0], timm.list_models(), n=3)
    meant = f"did you mean {' or '.join(near)}? " if near else ""
    return f". {meant}timm.list_models() lists all names"


def _load(module: Any, file: str, name: str) -> None:
    """Load weights into the module; raise ValueError if they do not belong to this model."""
    try:
        missing = timm.models.load_checkpoint(
            module, file, strict=False, weights_only=True
        ).missing_keys
    except Exception as error:  # torch raises many types on damaged files
        raise ValueError(
            f"{file}: these are not weights of {name}, or the file is damaged ({shorten(error)})"
        ) from error
    if missing:
        shown = ", ".join(missing[:_MAX_KEYS]) + ", …" * (len(missing) > _MAX_KEYS)
        raise ValueError(
            f"{file}: these are not weights of {name}: {len(missing)} of "
            f"{len(module.state_dict())} arrays are missing ({shown})"
        )


def _value(key: str, text: str) -> Any:
    """An argument's value: a layer by its name in timm, else as JSON has it, else the text."""
    if key in _LAYERS:
        found = getattr(timm.layers, text, None) or getattr(torch.nn, text, None)
        kind = getattr(found, "func", found)  # some are a layer with a setting or two
        if not (isinstance(kind, type) and issubclass(kind, torch.nn.Module)):
            raise ValueError(f"{key}={text}: neither timm.layers nor torch.nn has such a layer")
        return found
    try:
        return parse_json(text.lower() if text.lower() in ("true", "false") else text)
    except ValueError:
        return text


def _window_px(module: Any, data: dict[str, Any]) -> int | None:
    """The side of the pictures that a model was made for; None of one that takes any."""
    own = getattr(getattr(module, "patch_embed", None), "img_size", None)
    if own is None and not (module.pretrained_cfg or {}).get("fixed_input_size"):
        return None
    height, width = own or data["input_size"][-2:]
    if height != width:
        raise ValueError(f"the model takes pictures of {width} x {height}; square ones are given")
    return int(height)


def _feature_map(module: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    norm = {"norm": True} if hasattr(module, "patch_embed") else {}

    def last_map(batch: torch.Tensor) -> torch.Tensor:
        maps: list[torch.Tensor] = module.forward_intermediates(
            batch, indices=1, intermediates_only=True, output_fmt="NCHW", **norm
        )
        return maps[-1]

    return last_map


def _named(module: Any, form: str) -> dict[str, torch.Tensor]:
    return {f"{form}.{name}": tensor for name, tensor in module.state_dict().items()}
