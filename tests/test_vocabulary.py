"""Identifiers use the vocabulary of the field: no word of `REPLACED` occurs in a name.

Names of modules, classes, functions, parameters, attributes, variables and command-line options are
split into words at underscores, hyphens and capitals. Documentation is checked in its code spans.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("src", "tests", "benchmarks", "attacks", "examples")
DOCUMENTS = (
    "README.md",
    "docs",
)  # Markdown files and folders of these, whose code spans are checked

# Words that names do not contain, and the standard word. Words that also have a plain technical
# meaning are not listed: part, line, rule, cell, candidate, reason, find, keep, blank, before.
REPLACED = {
    "panel": "ensemble, figure",
    "hearing": "cross-validation",
    "hear": "evaluate",
    "heard": "evaluated",
    "view": "prepared image, estimator",
    "look": "scores, summary",
    "looked": "read",
    "judge": "predict",
    "judged": "predicted",
    "ask": "predict, request",
    "asked": "requested",
    "answer": "prediction",
    "answered": "predicted",
    "speak": "explain",
    "spoken": "contributions",
    "why": "reason, explanation",
    "trial": "run",
    "held": "cached, stored",
    "hold": "run, lock",
    "verdict": "prediction",
    "evidence": "patch statistics",
    "win": "class count",
    "winner": "predicted class",
    "misfit": "nonconformity score, incompatibility",
    "silent": "abstaining",
    "typical": "reference, median",
    "usual": "reference, default",
    "glass": "background",
    "fact": "statistics, fingerprint",
    "leak": "confounding",
    "doubt": "adjusted p-value, warning",
    "chance": "p-value",
    "given": "precomputed, the name of the argument",
    "sheet": "placeholder image, annotations",
    "learnt": "fitted",
    "network": "encoder",
    "drawing": "annotation",
    "drawn": "annotated, sampled, rendered",
    "brought": "imported",
    "meanwhile": "temporary",
    "leaving": "removed, exit",
    "sealed": "checked",
    "watching": "progress",
    "pace": "rate",
    "texts": "labels, names",
    "lanes": "vector, limit",
    "stamp": "fingerprint",
    "kept": "stored, selected",
    "told": "described",
    "said": "described",
    "words": "text, message",
    "owner": "class, patient",
    "mark": "target, label",
    "marked": "labelled",
    "former": "previous",
}
PLURALS = {f"{word}s" for word in REPLACED} - {"givens"}

# Names that may contain such a word: regular expressions for FILE:NAME, with the reason.
ALLOWED = {
    r".*:PatientLeakError": "data leakage is the term of scikit-learn",
    r".*:chance_(accuracy|level)": "chance level is the accuracy of guessing",
    r".*:source_stamp": "result of a function of numba",
    r"docs/encoders.md:OWNER": "owner of a repository on the Hugging Face hub",
    r"docs/command-line.md:hold": "hold-out, the usual name of a single split",
    r"docs/command-line.md:networks": "optional dependencies of the package",
    r"src/histodict/web/schema.py:answer(_before)?": "fields of the JSON that the page reads",
}


@cache
def split_identifier(name: str) -> list[str]:
    """Split an identifier: PatchMap_of2 is patch, map, of."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def replaced_terms(where: str, name: str) -> list[str]:
    found = [word for word in split_identifier(name) if word in REPLACED or word in PLURALS]
    if found and any(re.fullmatch(pattern, f"{where}:{name}") for pattern in ALLOWED):
        return []
    return found


def identifiers(source: str) -> Iterator[tuple[str, int]]:
    """Yield the names that a module defines or assigns, with their lines."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, node.lineno
            case ast.arg():
                yield node.arg, node.lineno
            case ast.Name(ctx=ast.Store()):
                yield node.id, node.lineno
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr, node.lineno
            case ast.alias(asname=str(name)):
                yield name, node.lineno
            case ast.ExceptHandler(name=str(name)):
                yield name, node.lineno
            case ast.Constant(value=str(text)) if re.fullmatch(r"--[a-z][a-z-]+", text):
                yield text, node.lineno


def code_spans(text: str) -> Iterator[tuple[str, int]]:
    """Yield the identifiers in the code spans of a Markdown page, without its code blocks."""
    is_code = False
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith(("```", "~~~", ":::")):
            is_code = not is_code and not line.lstrip().startswith(":::")
        elif not is_code:
            for span in re.findall(r"`([^`]+)`", line):
                for name in re.findall(r"[A-Za-z_]\w*", span):
                    yield name, number


def complaints(where: str, names: Iterator[tuple[str, int]]) -> list[str]:
    return [
        f"{where}:{line}: {name}: {word} -> {REPLACED.get(word) or REPLACED[word[:-1]]}"
        for name, line in names
        for word in replaced_terms(where, name)
    ]


def module_complaints(path: Path) -> list[str]:
    where = path.relative_to(ROOT).as_posix()
    source = path.read_text("utf-8")
    return complaints(where, iter([(path.stem, 1)])) + complaints(where, identifiers(source))


@pytest.mark.parametrize("folder", FOLDERS)
def test_names_use_the_standard_vocabulary(folder):
    modules = sorted((ROOT / folder).rglob("*.py"))
    assert modules
    found = [text for path in modules for text in module_complaints(path)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("place", DOCUMENTS)
def test_code_spans_use_the_standard_vocabulary(place):
    path = ROOT / place
    pages = sorted(path.rglob("*.md")) if path.is_dir() else [path]
    found = [
        text
        for page in pages
        for text in complaints(
            page.relative_to(ROOT).as_posix(), code_spans(page.read_text("utf-8"))
        )
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "class Panel: ...",
        "def predict(asked): ...",
        "def run(*, heard=None): ...",
        "last_look = 1",
        "self.owners = []",
        "import numpy as winners",
        "nMisfits = 0",
        "for told in things: ...",
        "Option('--by-heart', '--spoken')",
    ],
)
def test_replaced_terms_are_found(source):
    assert len(complaints("module.py", identifiers(source))) == 1


def test_other_names_pass():
    source = "class PatientLeakError: ...\ndef lookup(answers_of_nobody=1): ..."
    assert complaints("m.py", identifiers(source)) == [
        "m.py:2: answers_of_nobody: answers -> prediction"
    ]
    assert [*code_spans("`view_of(x)` says\n```\nlook\n```\n`a`")] == [
        ("view_of", 1),
        ("x", 1),
        ("a", 5),
    ]
