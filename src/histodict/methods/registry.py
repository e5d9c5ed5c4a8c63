"""The methods by name, and what each of them looks at.

A method judges patch vectors, or one vector of the whole image; `features` says which, and `rule`
how the patches' votes become the image's answer where the method's own paper says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class MethodEntry:
    """`home` is module:class; `small` are the parameters of the default preset, `published` those
    of the paper's comparison. `features` names the vector of a whole image; None: patches.
    """

    home: str
    summary: str
    features: str | None = None
    rule: str | None = None
    small: dict[str, Any] = field(default_factory=dict)
    published: dict[str, Any] = field(default_factory=dict)

    def load(self) -> type:
        """The method's class."""
        module, name = self.home.split(":")
        found: type = getattr(import_module(f".{module}", __package__), name)
        return found


METHODS: dict[str, MethodEntry] = {
    "dfdl": MethodEntry(
        "dfdl:DFDL",
        "class dictionaries that code their own class well and the others badly",
        small={"n_atoms": 200, "n_iter": 20},
        published={"n_atoms": 500, "penalty": 0.1, "rho": 0.001, "n_iter": 50, "tol": 0.0},
    ),
}


def method_entry(name: str) -> MethodEntry:
    if name not in METHODS:
        raise ValueError(f"method must be one of {sorted(METHODS)}, not {name!r}")
    return METHODS[name]
