"""Tests of mutation testing: each mutant has one change, and crashing tests kill it."""

from __future__ import annotations

import ast

import pytest

from attacks import mutation

CODE = '''"""Compute 1 + 2."""
from dataclasses import dataclass

@dataclass(frozen=True)
class Point:
    """At most 3 < 4."""

    x: Literal[5] = 6

def f(a: int = -7, *rest: Tuple[8]) -> Literal[9]:
    """Return a - 1, not 2."""
    if not a or a is None or a not in rest:
        raise ValueError(f"é: {a + 10} must be < {11}", 12)
    é = "1 < 2" if a <= 1_3 < 20 else f"{a * 14}"
    return max(a, 0.5) ** (2) if any(rest) else np.argmin(
        a
        % 0.0)
'''
# Line and change of each mutant, in the order of the file.
MUTANTS = [
    (8, "6", "7"),
    (10, "-", ""),
    (10, "7", "8"),
    (12, "not ", ""),
    (12, "or", "and"),
    (12, "is", "is not"),
    (12, "or", "and"),
    (14, "<=", "<"),
    (14, "1_3", "14"),
    (14, "<", "<="),
    (14, "20", "21"),
    (15, "max", "min"),
    (15, "0.5", "1.0"),
    (15, "**", "*"),
    (15, "2", "3"),
    (15, "any", "all"),
    (15, "argmin", "argmax"),
    (17, "%", "*"),
    (17, "0.0", "1.0"),
]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Make an empty folder the mutated package."""
    folder = tmp_path / "histodict"
    folder.mkdir()
    monkeypatch.setattr(mutation, "PACKAGE", folder)
    monkeypatch.setattr(mutation, "ROOT", tmp_path)
    return folder


def test_mutants_change_one_place_of_code_but_no_annotation_message_or_text(package):
    file = package / "example.py"
    file.write_text(CODE, encoding="utf-8")
    mutants = sorted(mutation.mutants_of(file), key=lambda mutant: mutant.start)
    assert [(m.line, m.before, m.after) for m in mutants] == MUTANTS
    before = CODE.splitlines()
    for mutant in mutants:
        after = mutant.apply(CODE)
        ast.parse(after)
        changed = [i + 1 for i, line in enumerate(after.splitlines()) if line != before[i]]
        assert changed == [mutant.line]
        assert len(after) - len(CODE) == len(mutant.after) - len(mutant.before)


def test_mutant_is_killed_by_a_crash_and_survives_without_a_failing_test(package, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # saves time
    file, source = package / "small.py", "unused, crashes = 1, 0\n"
    (package / "__init__.py").touch()
    file.write_text(source)
    root = package.parent
    (root / "test_small.py").write_text(
        "import os\nfrom histodict.small import crashes\n\n"
        "def test_small():\n    if crashes:\n        os.abort()\n"
    )
    unused, crash = mutation.mutants_of(file)
    statuses = [mutation.run_mutant(m, ["test_small.py"], root) for m in (unused, crash)]
    assert statuses == ["survived", "killed"]
    assert file.read_text() == source
    assert mutation.run_mutant(unused, [], root) == "untested"
