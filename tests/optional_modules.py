"""Modules that tests need and import only when they run, so that collecting the tests is fast."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest


class _LazyModule(ModuleType):
    """Stand-in for a module, which is imported when a public attribute is first read."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest asks for such attributes during collection
            raise AttributeError(name)
        return getattr(import_module(self.__name__), name)


def import_lazily(name: str, reason: str = "") -> Any:
    """Return a module that is imported on first use; with a reason, skip the test module if it is
    not installed."""
    if reason:
        require(name, reason)
    return _LazyModule(name)


def require(name: str, reason: str) -> None:
    """Skip the test module unless a module is installed; import only its parent packages."""
    parent = name.rpartition(".")[0]
    if (parent and find_spec(parent.partition(".")[0]) is None) or find_spec(name) is None:
        pytest.skip(reason, allow_module_level=True)
