"""The kinds of input that are fuzzed, by name; a module each."""

from __future__ import annotations

from importlib import import_module

from ..target import Target

TARGETS = (
    *("images", "metadata", "models", "texts", "kernels", "http", "servers", "odd_files"),
    *("zarr_codecs", "missing_chunks", "feature_bombs"),
)


def target_named(name: str) -> Target:
    """By its name above, or by that of a module elsewhere.

    It is imported here, in the process that tries its cases: what it needs set before histodict is
    imported, it can set.
    """
    module = import_module(name if "." in name else f"{__name__}.{name}")
    target: Target = module.TARGET
    return target
