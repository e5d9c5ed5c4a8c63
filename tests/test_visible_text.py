"""Texts for users have the vocabulary of the field: no word of `REPLACED` occurs in them.

Checked are all string literals that contain a space, except docstrings: messages of exceptions and
warnings, hints, help of options, headings and labels. Of f-strings, the literal parts are checked.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.test_vocabulary import PLURALS, REPLACED, ROOT

# Folders and modules of src/histodict that are checked.
FOLDERS = (
    "annotations",
    "datasets",
    "decision",
    "dictionaries",
    "encoders",
    "image_features",
    "images",
    "kernels",
    "methods",
    "metrics",
    "model_selection",
    "paper",
    "patches",
    "precomputed",
    "preprocessing",
    "synthetic",
    "utils",
)

# Terms that contain such a word, as regular expressions.
ALLOWED = (r"chance level", r"data leakage", r"pen marks?")


def texts(source: str) -> Iterator[tuple[str, int]]:
    """Yield the string literals of a module that contain a space, with their lines."""
    tree = ast.parse(source)
    statements = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if " " in text and node not in statements:
                yield text, node.lineno


def complaints(where: str, source: str) -> list[str]:
    """Return a line for each replaced word in the texts of a module."""
    return [
        f"{where}:{line}: {word} -> {REPLACED.get(word) or REPLACED[word[:-1]]}: {text!r}"
        for text, line in texts(source)
        for word in re.findall(r"[a-z]+", re.sub("|".join(ALLOWED), "", text.lower()))
        if word in REPLACED or word in PLURALS
    ]


@pytest.mark.parametrize("folder", FOLDERS)
def test_texts_use_the_standard_vocabulary(folder):
    place = ROOT / "src" / "histodict" / folder
    modules = [place] if place.suffix == ".py" else sorted(place.rglob("*.py"))
    assert modules
    found = [
        text
        for path in modules
        for text in complaints(path.relative_to(ROOT).as_posix(), path.read_text("utf-8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "raise ValueError('there are no answers to evaluate')",
        "raise ImageError(f'{path}: shows {kind} on glass')",
        "warnings.warn(message + ' of the panel', stacklevel=2)",
        "typer.Option(help='Judge the images.')",
        "how = hint(python='columns=…', cli='give --mpp or look at the table')",
        "HEADINGS = {'rows': 'Typical patches'}",
    ],
)
def test_replaced_words_in_texts_are_found(source):
    assert len(complaints("module.py", source)) == 1


def test_docstrings_names_and_terms_pass():
    source = "def answer():\n    'Answer a panel.'\n    return {'answer': 'chance level of 50 %'}"
    assert complaints("module.py", source) == []
