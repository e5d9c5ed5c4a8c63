"""Any torch module that turns a picture into a feature map, as a `Encoder`."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

from .windows import cut_windows, join_maps, padded

# Pixels that a network sees at once, as one chunk of a slide or as windows of it.
_BATCH_PX = 2**20


class _OneThread:
    """A call's convolutions on the calling thread alone: they are cut by the number of threads, and
    round otherwise for each. Several calls may run at once.

    torch keeps a number for every thread and one for threads to come: each that enters sets its
    own, and leaves what was there before the first.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._n_inside = 0
        self._before = 1

    def __enter__(self) -> None:
        with self._lock:
            if self._n_inside == 0:
                self._before = torch.get_num_threads()
            self._n_inside += 1
            torch.set_num_threads(1)

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._n_inside -= 1
            torch.set_num_threads(self._before)


_ONE_THREAD = _OneThread()
_ONE_AT_A_TIME = threading.Lock()


@contextmanager
def _on_gpu(cudnn: bool) -> Iterator[None]:
    """The GPU for one thread, in full single precision as on the processor (no TF32)."""
    with _ONE_AT_A_TIME, torch.backends.cudnn.flags(enabled=cudnn, allow_tf32=False):
        yield


class TorchEncoder:
    """Wraps `feature_map(batch)`: (n, 3, h, w) to (n, n_features, h / cell_px, w / cell_px).

    Parameters
    ----------
    module : holds the weights; put into evaluation mode
    feature_map : the function to call; None calls the module
    cell_px : pixels of the picture per cell of the map
    mean, std : of the pixel values (0 … 255) that the network was trained with, per channel
    state : the weights by name, of which the digest is made; None takes the module's. For a module
        that holds them in another form than they were published in: the digest, which models are
        kept with, does not change when only the form does
    cudnn : on a GPU, take cuDNN's convolutions where it has them; without, torch's own
    window_px : side of the pictures that it takes, a whole number of cells; an area is cut into
        such. None: it takes any, and sees the area at once
    """

    def __init__(
        self,
        module: torch.nn.Module,
        stride_px: int,
        mean: tuple[float, float, float],
        std: tuple[float, float, float],
        feature_map: Callable[[torch.Tensor], torch.Tensor] | None = None,
        state: Mapping[str, torch.Tensor] | None = None,
        cudnn: bool = True,
        window_px: int | None = None,
    ) -> None:
        if window_px is not None and window_px % stride_px:
            raise ValueError(f"pictures of {window_px} pixels are no whole cells of {stride_px}")
        self.stride_px = stride_px
        self._cudnn = cudnn
        self.window_px = window_px
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._module = module.eval().requires_grad_(False).to(self._device)
        self._feature_map = feature_map or module
        self._mean, self._std = (
            torch.tensor(values, device=self._device).view(1, 3, 1, 1) for values in (mean, std)
        )
        self.digest = _digest(module.state_dict() if state is None else state)

    def feature_map(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """One vector per cell: (h, w, n_features)."""
        if self.window_px is None:
            return self._maps(pixels[None])[0]
        corners, windows = cut_windows(padded(pixels, self.window_px), self.window_px)
        step = max(1, _BATCH_PX // self.window_px**2)
        parts = [self._maps(windows[at : at + step]) for at in range(0, len(windows), step)]
        shape = pixels.shape[0] // self.stride_px, pixels.shape[1] // self.stride_px
        return join_maps(corners, np.concatenate(parts), self.stride_px, shape)

    def _maps(self, pictures: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Pictures (n, height, width, 3) to (n, h, w, n_features)."""
        with self._lock(), torch.inference_mode():
            batch = torch.from_numpy(np.ascontiguousarray(pictures)).to(self._device)
            batch = batch.permute(0, 3, 1, 2).to(torch.float32, copy=True)
            features = self._feature_map(batch.sub_(self._mean).div_(self._std))
            vectors: NDArray[np.float32] = features.permute(0, 2, 3, 1).float().cpu().numpy()
        expected = pictures.shape[1] // self.stride_px, pictures.shape[2] // self.stride_px
        if vectors.shape[1:3] != expected:
            raise ValueError(
                f"the network gave a map of {vectors.shape[1:3]} cells where {expected} "
                f"were expected: cell_px={self.stride_px} does not fit it"
            )
        return vectors

    def _lock(self) -> AbstractContextManager[None]:
        """On the processor one of its threads, on a GPU the only one that uses it."""
        return _ONE_THREAD if self._device == "cpu" else _on_gpu(self._cudnn)


def _digest(state: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 of all weights, by name."""
    total = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        total.update(name.encode())
        total.update(tensor.detach().cpu().contiguous().view(-1).numpy().tobytes())
    return total.hexdigest()
