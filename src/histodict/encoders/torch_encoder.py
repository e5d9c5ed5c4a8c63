"""Encoders from torch modules, including timm models.

A convolutional encoder accepts areas of any size. A transformer accepts images of one size: areas
are cut into windows, and the patch tokens of each window form its feature map. Mean, standard
deviation and size are read from the configuration of the model.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
import torch
from numpy.typing import NDArray

from ..utils.text_io import parse_json, shorten


def window_starts(length: int, side: int) -> list[int]:
    """Return start positions of windows of `side` pixels that cover `length` pixels.

    The last window may overlap the one before it.
    """
    if length <= side:
        return [0]
    return [*range(0, length - side, side), length - side]


def pad_to_side(pixels: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """Return an image padded to at least side × side pixels by reflection at right and bottom."""
    padding = [(0, max(0, side - length)) for length in pixels.shape[:2]]
    return np.pad(pixels, (*padding, (0, 0)), mode="symmetric") if np.any(padding) else pixels


def cut_windows(
    pixels: NDArray[np.uint8], side: int
) -> tuple[list[tuple[int, int]], NDArray[np.uint8]]:
    """Cut an image into windows; return their corners (y, x) and pixels (n, side, side, 3)."""
    corners = [
        (y, x)
        for y in window_starts(pixels.shape[0], side)
        for x in window_starts(pixels.shape[1], side)
    ]
    return corners, np.stack([pixels[y : y + side, x : x + side] for y, x in corners])


def join_maps(
    corners: list[tuple[int, int]],
    maps: NDArray[np.float32],
    stride_px: int,
    shape: tuple[int, int],
) -> NDArray[np.float32]:
    """Join the feature maps of windows into one map.

    Where windows overlap, each position is copied from the window in which it is farthest from the
    window's border.

    Parameters
    ----------
    corners : (y, x) of each window in pixels
    maps : (n, h, w, n_features), feature map of each window
    stride_px : distance between positions of a map in pixels
    shape : (height, width) of the joined map in positions
    """
    n_cells, n_features = maps.shape[1], maps.shape[3]
    inside = np.minimum(np.arange(n_cells), np.arange(n_cells)[::-1])
    depths = np.minimum(inside[:, None], inside)
    joined = np.zeros((*shape, n_features), np.float32)
    deepest = np.full(shape, -1)
    for (y, x), window_map in zip(corners, maps, strict=True):
        rows, columns = (
            slice(start // stride_px, start // stride_px + n_cells) for start in (y, x)
        )
        target = joined[rows, columns]  # smaller where the area was padded
        height, width = target.shape[:2]
        deeper = depths[:height, :width] > deepest[rows, columns]
        target[deeper] = window_map[:height, :width][deeper]
        deepest[rows, columns][deeper] = depths[:height, :width][deeper]
    return joined


# Maximum number of pixels of the windows in a batch.
_BATCH_PX = 2**20


class _SingleThread:
    """Context manager that limits torch to one thread, so that results are reproducible.

    Several threads may enter it; the limit is restored when the last thread leaves.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._n_inside = 0
        self._previous_limit = 1

    def __enter__(self) -> None:
        with self._lock:
            if self._n_inside == 0:
                self._previous_limit = torch.get_num_threads()
            self._n_inside += 1
            torch.set_num_threads(1)

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._n_inside -= 1
            torch.set_num_threads(self._previous_limit)


_SINGLE_THREAD = _SingleThread()
_GPU_LOCK = threading.Lock()


@contextmanager
def _exclusive_gpu(use_cudnn: bool) -> Iterator[None]:
    """Return a context in which only this thread uses the GPU, without TF32 in convolutions."""
    with _GPU_LOCK, torch.backends.cudnn.flags(enabled=use_cudnn, allow_tf32=False):
        yield


class TorchEncoder:
    """Encoder that wraps a torch module.

    The module maps a batch (n, 3, h, w) to (n, n_features, h / stride_px, w / stride_px).

    Parameters
    ----------
    module : module with the weights; it is put into evaluation mode
    stride_px : distance between positions of the feature map in pixels of the image
    mean : mean of the pixel values (0 to 255) in training, for each channel
    std : standard deviation of the pixel values in training, for each channel
    feature_map : function that computes the feature maps of a batch; None to call the module
    state : weights by name, from which the digest is computed; None to use the weights of the
        module. Pass the published weights if the module stores them in another form
    use_cudnn : whether to use cuDNN's convolutions on a GPU, instead of torch's own
    window_px : side in pixels of the images that the module accepts, a multiple of stride_px; areas
        are cut into windows of this size. None if the module accepts any size
    """

    def __init__(
        self,
        module: torch.nn.Module,
        stride_px: int,
        mean: tuple[float, float, float],
        std: tuple[float, float, float],
        feature_map: Callable[[torch.Tensor], torch.Tensor] | None = None,
        state: Mapping[str, torch.Tensor] | None = None,
        use_cudnn: bool = True,
        window_px: int | None = None,
    ) -> None:
        if window_px is not None and window_px % stride_px:
            raise ValueError(f"window size {window_px} is not a multiple of the stride {stride_px}")
        self.stride_px = stride_px
        self._use_cudnn = use_cudnn
        self.window_px = window_px
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._module = module.eval().requires_grad_(False).to(self._device)
        self._feature_map = feature_map or module
        self._mean, self._std = (
            torch.tensor(values, device=self._device).view(1, 3, 1, 1) for values in (mean, std)
        )
        self.digest = _digest(module.state_dict() if state is None else state)

    def feature_map(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the feature map (h, w, n_features) of an image (height, width, 3)."""
        if self.window_px is None:
            return self._feature_maps(pixels[None])[0]
        corners, windows = cut_windows(pad_to_side(pixels, self.window_px), self.window_px)
        step = max(1, _BATCH_PX // self.window_px**2)
        parts = [
            self._feature_maps(windows[start : start + step])
            for start in range(0, len(windows), step)
        ]
        shape = pixels.shape[0] // self.stride_px, pixels.shape[1] // self.stride_px
        return join_maps(corners, np.concatenate(parts), self.stride_px, shape)

    def _feature_maps(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the feature maps (n, h, w, n_features) of images (n, height, width, 3)."""
        with self._reserve_device(), torch.inference_mode():
            batch = torch.from_numpy(np.ascontiguousarray(images)).to(self._device)
            batch = batch.permute(0, 3, 1, 2).to(torch.float32, copy=True)
            features = self._feature_map(batch.sub_(self._mean).div_(self._std))
            vectors: NDArray[np.float32] = features.permute(0, 2, 3, 1).float().cpu().numpy()
        expected = images.shape[1] // self.stride_px, images.shape[2] // self.stride_px
        if vectors.shape[1:3] != expected:
            raise ValueError(
                f"the encoder returned a feature map of {vectors.shape[1:3]} positions "
                f"instead of {expected}; stride_px={self.stride_px} is wrong"
            )
        return vectors

    def _reserve_device(self) -> AbstractContextManager[None]:
        """Return a context that reserves the GPU or, without a GPU, limits torch to one thread."""
        return _SINGLE_THREAD if self._device == "cpu" else _exclusive_gpu(self._use_cudnn)


def _digest(state: Mapping[str, torch.Tensor]) -> str:
    """Return the SHA-256 of all weights, sorted by name."""
    total = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        total.update(name.encode())
        total.update(tensor.detach().cpu().contiguous().view(-1).numpy().tobytes())
    return total.hexdigest()


_MAX_LISTED_KEYS = 3  # missing arrays named in a message
_SOURCE_PREFIXES = ("hf-hub:", "local-dir:")
# Arguments of timm.create_model that are classes, given by name.
_LAYER_ARGUMENTS = ("mlp_layer", "act_layer", "norm_layer", "embed_layer", "block_fn")


def _import_timm() -> ModuleType:
    try:
        import timm
    except RuntimeError as error:  # torchvision was built for another version of torch
        raise ImportError(
            f"versions of torch and torchvision do not match ({error}). Install matching versions"
        ) from error
    return timm


class TimmEncoder(TorchEncoder):
    """Encoder from a timm model with weights from the hub, a local folder or a local file.

    Parameters
    ----------
    name : timm name, `hf-hub:OWNER/NAME` or `local-dir:FOLDER`
    file : file with the weights (safetensors, or a PyTorch file with only tensors); None to use the
        pretrained weights of the model
    arguments : additional arguments of `timm.create_model`; None for no arguments
    """

    def __init__(
        self, name: str, file: str | None = None, arguments: dict[str, Any] | None = None
    ) -> None:
        if file is not None and not Path(file).is_file():
            raise ValueError(f"{file}: file with the weights of {name} not found")
        module = _create_model(name, file is None, arguments or {})
        if file is not None:
            _load_weights(module, file, name)
        module = module.float()
        data = _import_timm().data.resolve_model_data_config(module)
        stride_px = _stride_px(module, name)
        mean, std = (tuple(255 * value for value in data[key]) for key in ("mean", "std"))
        window_px = _window_px(module, data)
        # The digest must differ from that of the same weights without windows.
        state = None if window_px is None else _prefixed_state(module, f"windows of {window_px}")
        super().__init__(
            module, stride_px, mean, std, _feature_map(module), state=state, window_px=window_px
        )

    @classmethod
    def from_name(cls, text: str) -> TimmEncoder:
        """Create an encoder from "NAME" or "NAME@FILE", with optional "?KEY=VALUE&KEY=VALUE"."""
        name, _, query = text.partition("?")
        file = ""
        if not name.startswith(_SOURCE_PREFIXES):  # on the hub, a revision follows @
            name, _, file = name.partition("@")
        arguments = {key: _parse_argument(key, value) for key, value in parse_qsl(query, True)}
        return cls(name, file or None, arguments)


def _stride_px(module: Any, name: str) -> int:
    """Return the distance between positions of the last feature map in pixels."""
    info = getattr(module, "feature_info", None)
    if not info or not hasattr(module, "forward_intermediates"):
        raise ValueError(f"{name} has no feature maps in timm; choose another model")
    return int(info[-1]["reduction"])


def _create_model(name: str, pretrained: bool, arguments: dict[str, Any]) -> Any:
    timm = _import_timm()
    try:
        return timm.create_model(name, pretrained=pretrained, num_classes=0, **arguments)
    except Exception as error:
        if type(error).__module__.startswith("huggingface_hub") or isinstance(error, OSError):
            reason = " ".join(str(error).split())[:300]
            raise ValueError(
                f"the weights of {name} cannot be downloaded ({reason}). For gated models, "
                "accept the terms on the page of the model and run: hf auth login. Without "
                "internet access, download the folder elsewhere and use timm:local-dir:FOLDER"
            ) from error
        raise ValueError(
            f"timm cannot create {name!r} with {arguments or 'no arguments'}: {shorten(error)}"
            f"{_suggest_names(name)}"
        ) from error


def _suggest_names(name: str) -> str:
    """Return similar timm model names, as text for an error message; "" if the name exists."""
    if name.startswith(_SOURCE_PREFIXES) or _import_timm().is_model(name):
        return ""
    matches = get_close_matches(name.partition(".")[0], _import_timm().list_models(), n=3)
    suggestion = f"did you mean {' or '.join(matches)}? " if matches else ""
    return f". {suggestion}timm.list_models() lists all names"


def _load_weights(module: Any, file: str, name: str) -> None:
    """Load weights from a file into the module; raise ValueError if they do not fit the model."""
    try:
        missing = (
            _import_timm()
            .models.load_checkpoint(module, file, strict=False, weights_only=True)
            .missing_keys
        )
    except Exception as error:  # torch raises many types on damaged files
        raise ValueError(
            f"{file}: not the weights of {name}, or damaged ({shorten(error)})"
        ) from error
    if missing:
        names = ", ".join(missing[:_MAX_LISTED_KEYS]) + ", …" * (len(missing) > _MAX_LISTED_KEYS)
        raise ValueError(
            f"{file}: not the weights of {name}; {len(missing)} of {len(module.state_dict())} "
            f"arrays are missing ({names})"
        )


def _parse_argument(key: str, text: str) -> Any:
    """Convert the text of an argument of `timm.create_model` to a layer class or JSON value.

    Other text is returned unchanged.
    """
    if key in _LAYER_ARGUMENTS:
        layer = getattr(_import_timm().layers, text, None) or getattr(torch.nn, text, None)
        kind = getattr(layer, "func", layer)  # some are partial functions of a layer
        if not (isinstance(kind, type) and issubclass(kind, torch.nn.Module)):
            raise ValueError(f"{key}={text}: layer not found in timm.layers or torch.nn")
        return layer
    try:
        return parse_json(text.lower() if text.lower() in ("true", "false") else text)
    except ValueError:
        return text


def _window_px(module: Any, data: dict[str, Any]) -> int | None:
    """Return the side in pixels of the images that a model requires; None if any size fits."""
    size = getattr(getattr(module, "patch_embed", None), "img_size", None)
    if size is None and not (module.pretrained_cfg or {}).get("fixed_input_size"):
        return None
    height, width = size or data["input_size"][-2:]
    if height != width:
        raise ValueError(
            f"the model needs images of {width} x {height}; only square images are supported"
        )
    return int(height)


def _feature_map(module: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that computes the last feature map of a timm model for a batch."""
    norm = {"norm": True} if hasattr(module, "patch_embed") else {}

    def last_map(batch: torch.Tensor) -> torch.Tensor:
        maps: list[torch.Tensor] = module.forward_intermediates(
            batch, indices=1, intermediates_only=True, output_fmt="NCHW", **norm
        )
        return maps[-1]

    return last_map


def _prefixed_state(module: Any, prefix: str) -> dict[str, torch.Tensor]:
    return {f"{prefix}.{name}": tensor for name, tensor in module.state_dict().items()}
