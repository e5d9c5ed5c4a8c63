"""Fuzz targets by name, one module each."""

from __future__ import annotations

from importlib import import_module

from ..target import Target

TARGETS = (
    *("images", "metadata", "models", "text_files", "kernels", "http", "servers", "odd_files"),
    *("zarr_codecs", "missing_chunks", "feature_bombs"),
)


def load_target(name: str) -> Target:
    """Return a target by its name in TARGETS, or by the name of a module elsewhere.

    The module is imported here, in the process that runs the cases, so that it can set environment
    variables before histodict is imported.
    """
    module = import_module(name if "." in name else f"{__name__}.{name}")
    target: Target = module.TARGET
    return target
