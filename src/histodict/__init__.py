"""histodict: interpretable tissue classification from a handful of labelled images."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .methods.dfdl import DFDL
    from .pipeline import RegionDetector, TissueClassifier

__version__ = version("histodict")
__all__ = ["DFDL", "RegionDetector", "TissueClassifier", "__version__"]

_HOMES = {
    "DFDL": ".methods.dfdl",
    "RegionDetector": ".pipeline",
    "TissueClassifier": ".pipeline",
}


def __getattr__(name: str) -> Any:
    """Public names are loaded when asked for: importing the package does nothing else."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
