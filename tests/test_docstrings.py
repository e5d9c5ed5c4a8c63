"""Docstrings of the public functions, classes and methods follow the NumPy convention."""

from __future__ import annotations

import inspect
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from numpydoc.validate import validate

import histodict

DOCS = Path(__file__).parents[1] / "docs"
# Public sub-packages: of these all functions, of the others those that they export.
PACKAGES = ("histodict.metrics", "histodict.model_selection", "histodict.synthetic")
EXPORTING = ("histodict.kernels", "histodict.encoders")

IGNORED = {
    "GL01": "the summary begins beside the quotes",
    "GL02": "the quotes of a docstring of one line end beside the summary",
    "SS06": "ruff checks the length of lines",
    "ES01": "the extended summary is optional",
    "SA01": "so is See Also",
    "EX01": "and Examples, which are in docs/python.md and in the gallery",
    "PR04": "types are annotations",
    "PR07": "`name : meaning` in one line; the type is the annotation",
    "PR08": "such a meaning is not a sentence",
    "PR09": "and has no period",
    "RT02": "results of several values have names",
    "RT03": "the summary describes a single result",
    "RT04": "such as (n_samples, n_classes)",
    "RT05": "such as (n_samples, n_classes)",
    "YD01": "generators that return a list of their results",
}


def hidden_methods() -> set[str]:
    """Methods that the reference leaves out: hooks between the classes of the package."""
    template = (DOCS / "templates/autosummary/class.rst").read_text("utf-8")
    (listed,) = re.findall(r":exclude-members: (.+)", template)
    return set(listed.split(", "))


def listed_names() -> list[str]:
    """The names in the lists of docs/api-reference.md."""
    page = (DOCS / "api-reference.md").read_text("utf-8")
    blocks = re.findall(r"\.\. autosummary::\n   :toctree: api\n\n((?:   \w+\n)+)", page)
    return [name for block in blocks for name in block.split()]


def module_of(member: Any) -> str:
    """The module that defines a function, class, method or property."""
    for attribute in ("fget", "func", "__func__", "__wrapped__"):
        member = getattr(member, attribute, member)
    return getattr(member, "__module__", None) or ""


def public_members(name: str, cls: type) -> Iterator[str]:
    """The methods and properties of a class, without those of scikit-learn."""
    for member in sorted(set(dir(cls)) - hidden_methods()):
        value = inspect.getattr_static(cls, member)
        is_method = callable(value) or isinstance(value, property | classmethod | staticmethod)
        is_method |= hasattr(value, "func")  # cached properties
        if not member.startswith("_") and is_method and module_of(value).startswith("histodict"):
            yield f"{name}.{member}"


def package_functions() -> Iterator[str]:
    for package in map(import_module, PACKAGES):
        for entry in pkgutil.iter_modules(package.__path__):
            module = import_module(f"{package.__name__}.{entry.name}")
            for name, value in inspect.getmembers(module, inspect.isfunction):
                if not name.startswith("_") and value.__module__ == module.__name__:
                    yield f"{module.__name__}.{name}"
    for package in map(import_module, EXPORTING):
        for name in package.__all__:
            if inspect.isfunction(getattr(package, name)):
                yield f"{package.__name__}.{name}"


def public_names() -> Iterator[str]:
    for name in listed_names():
        value = getattr(histodict, name)
        yield f"histodict.{name}"
        if inspect.isclass(value):
            yield from public_members(f"histodict.{name}", value)
    yield from package_functions()


def complaints(name: str) -> list[str]:
    errors = [(code, text) for code, text in validate(name)["errors"] if code not in IGNORED]
    value = getattr(histodict, name.removeprefix("histodict."), None)
    if is_dataclass(value):  # its fields may be parameters or attributes
        errors = [(code, text) for code, text in errors if code != "PR01"]
        errors += [("PR01", field) for field in undocumented_fields(value)]
    return [f"{name}: {code} {text}" for code, text in errors]


def undocumented_fields(cls: Any) -> list[str]:
    listed = re.findall(r"(?m)^ *((?:\w+, )*\w+) : ", cls.__doc__)
    documented = {name for names in listed for name in names.split(", ")}
    return [field.name for field in fields(cls) if field.init and field.name not in documented]


def test_the_reference_lists_every_public_name():
    assert sorted(listed_names()) == sorted({*histodict.__all__} - {"__version__"})


@pytest.mark.parametrize("name", sorted(set(public_names())))
def test_docstring_follows_the_convention(name):
    assert complaints(name) == []


class Examples:
    """Docstrings that are not complete."""

    def without_parameters(self, image: object) -> None:
        """Predict an image."""

    def without_result(self) -> int:
        """Count the images."""
        return 1

    def not_a_sentence(self) -> None:
        """Predict an image"""

    def not_imperative(self) -> None:
        """Predicts an image."""

    def other_order(self, first: int, second: int) -> None:
        """Compare images.

        Parameters
        ----------
        second : another image
        first : an image
        """


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("without_parameters", "PR01"),
        ("without_result", "RT01"),
        ("not_a_sentence", "SS03"),
        ("not_imperative", "SS05"),
        ("other_order", "PR03"),
    ],
)
def test_incomplete_docstrings_are_found(name, code, monkeypatch):
    monkeypatch.setattr(histodict, "Examples", Examples, raising=False)
    assert code in {text.split()[1] for text in complaints(f"histodict.Examples.{name}")}
