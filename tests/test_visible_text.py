"""Texts for users have the vocabulary of the field: no word of `REPLACED` occurs in them.

Checked are all string literals that contain a space, except docstrings: messages of exceptions and
warnings, hints, help of options, headings and labels. Of f-strings, the literal parts are checked;
of page templates and HTML files, the text without tags and expressions; of JavaScript, the
literals with a space or a capital letter at the start, except names of CSS classes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_vocabulary import PLURALS, REPLACED, ROOT

# Folders and modules of src/histodict that are checked.
FOLDERS = (
    "__init__.py",
    "annotations",
    "batch.py",
    "cli",
    "datasets",
    "decision",
    "dictionaries",
    "encoders",
    "evaluation",
    "explain",
    "export",
    "image_features",
    "images",
    "kernels",
    "methods",
    "metrics",
    "model_selection",
    "models",
    "paper",
    "patches",
    "precomputed",
    "preprocessing",
    "reports",
    "synthetic",
    "utils",
    "web",
)

# Terms that contain such a word, as regular expressions.
ALLOWED = (r"chance level", r"data leakage", r"hold-out", r"pen marks?")


def string_literals(source: str) -> Iterator[tuple[str, int]]:
    """Yield the string literals of a module that contain a space, with their lines."""
    tree = ast.parse(source)
    statements = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if " " in text and node not in statements:
                yield text, node.lineno


def visible_lines(template: str) -> Iterator[tuple[str, int]]:
    """Yield the visible lines of a page or page template, with their numbers."""
    code = re.compile(
        r"\{% block style %\}.*?\{% endblock %\}|\{%.*?%\}|\{\{.*?\}\}|\{#.*?#\}"
        r"|<(style|script).*?</\1>|<.*?>",
        re.DOTALL,
    )
    visible = code.sub(lambda found: " " + "\n" * found[0].count("\n"), template)
    for number, line in enumerate(visible.splitlines(), start=1):
        yield " ".join(line.split()), number


_SCRIPT = re.compile(
    r"""//[^\n]* | /\*.*?\*/                                 # comments
    | (?<=[(,=:\[!&|?]) \s* /(?![/*])(?:\\.|[^/\\\n])+/    # regular expressions
    | "(?P<string>(?:\\.|[^"\\\n])*)" | [`{}]""",
    re.DOTALL | re.VERBOSE,
)


def script_literals(script: str) -> Iterator[tuple[str, int]]:
    """Yield the visible literals of a JavaScript file, with their lines.

    Template literals are yielded in parts: the text around their expressions.
    """
    position, braces = 0, [0]  # open braces of each enclosing expression of a template literal
    while found := _SCRIPT.search(script, position):
        position = found.end()
        token, text = found[0], found["string"]
        braces[-1] += (token == "{") - (token == "}")
        if token == "`" or (len(braces) > 1 and braces[-1] < 0):
            if token == "}":
                braces.pop()
            end = re.compile(r"(?:\\.|(?!\$\{)[^`\\])*", re.DOTALL).match(script, position)
            assert end is not None
            text, position = end[0], end.end()
            if script.startswith("${", position):
                braces.append(0)
                position += 2
            else:
                position += 1  # the closing backquote
        is_class = re.search(r"\bclass(Name)?\s*[:=]\s*$", script[: found.start()]) is not None
        if text and not is_class and (" " in text or text[0].isupper()):
            yield text, script.count("\n", 0, found.start()) + 1


READERS = {
    ".py": string_literals,
    ".js": script_literals,
    ".html": visible_lines,
    ".j2": visible_lines,
}


def complaints(where: str, source: str) -> list[str]:
    """Return a line for each replaced word in the texts of a module, script or page."""
    return [
        f"{where}:{line}: {word} -> {REPLACED.get(word) or REPLACED[word[:-1]]}: {text!r}"
        for text, line in READERS[Path(where).suffix](source)
        for word in re.findall(r"[a-z]+", re.sub("|".join(ALLOWED), "", text.lower()))
        if word in REPLACED or word in PLURALS
    ]


@pytest.mark.parametrize("folder", FOLDERS)
def test_messages_use_the_standard_vocabulary(folder):
    place = ROOT / "src" / "histodict" / folder
    files = [path for path in [place, *place.rglob("*")] if path.suffix in READERS]
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


def test_scripts_are_searched():
    script = """// The view.
    const where = /["`]a\\//.test(name) ? "judge" : h("p", { class: "view asked" }, "Answers");
    text = `${rows.map((row) => { return `${row.name} spoken`; })} is ${f({ a: 1 })} held`;
    """
    found = [text.split(" -> ")[0] for text in complaints("page.js", script)]
    assert found == ["page.js:2: answers", "page.js:3: spoken", "page.js:3: held"]


def test_docstrings_names_and_terms_pass():
    source = "def answer():\n    'Answer a panel.'\n    return {'answer': 'chance level of 50 %'}"
    assert complaints("module.py", source) == []
