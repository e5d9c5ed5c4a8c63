"""Texts for users have the vocabulary of the field: no word of `REPLACED` occurs in them.

Checked are all string literals that contain a space, except docstrings: messages of exceptions and
warnings, hints, help of options, headings and labels. Of f-strings, the literal parts are checked;
of page templates, the text without tags and expressions.
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


def string_literals(source: str) -> Iterator[tuple[str, int]]:
    """Yield the string literals of a module that contain a space, with their lines."""
    tree = ast.parse(source)
    statements = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if " " in text and node not in statements:
                yield text, node.lineno


def visible_lines(template: str) -> Iterator[tuple[str, int]]:
    """Yield the visible lines of a page template, with their numbers."""
    code = re.compile(r"\{%.*?%\}|\{\{.*?\}\}|\{#.*?#\}|<(style|script).*?</\1>|<.*?>", re.DOTALL)
    visible = code.sub(lambda found: " " + "\n" * found[0].count("\n"), template)
    for number, line in enumerate(visible.splitlines(), start=1):
        yield " ".join(line.split()), number


def complaints(where: str, source: str) -> list[str]:
    """Return a line for each replaced word in the texts of a module or page template."""
    found = visible_lines(source) if where.endswith(".j2") else string_literals(source)
    return [
        f"{where}:{line}: {word} -> {REPLACED.get(word) or REPLACED[word[:-1]]}: {text!r}"
        for text, line in found
        for word in re.findall(r"[a-z]+", re.sub("|".join(ALLOWED), "", text.lower()))
        if word in REPLACED or word in PLURALS
    ]


@pytest.mark.parametrize("folder", FOLDERS)
def test_messages_use_the_standard_vocabulary(folder):
    place = ROOT / "src" / "histodict" / folder
    files = [place] if place.suffix == ".py" else [*place.rglob("*.py"), *place.rglob("*.html.j2")]
    assert files
    found = [
        text
        for path in sorted(files)
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
def test_replaced_terms_in_literals_are_found(source):
    assert len(complaints("module.py", source)) == 1


def test_replaced_terms_on_pages_are_found():
    page = "{% block page %}\n<h2 class='look'>{{ answer }}</h2>\n<p>Where it\nlooks</p>"
    assert [text.split(": ")[0] for text in complaints("page.html.j2", page)] == ["page.html.j2:4"]


def test_docstrings_names_and_terms_pass():
    source = "def answer():\n    'Answer a panel.'\n    return {'answer': 'chance level of 50 %'}"
    assert complaints("module.py", source) == []
