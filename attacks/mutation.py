"""Mutation testing: change one operator or constant at a time, and count those that tests detect.

    python -m attacks.mutation decision metrics --sample 150 --jobs 16
    python -m attacks.mutation decision --survivors

A mutant is a copy of the package with one change: another comparison, arithmetic or logical
operator, another number, `min` for `max`, `any` for `all`. It is *killed* if a test fails, crashes
the interpreter or takes longer than the time limit. Only tests that execute the changed line are
run, the fastest first; for compiled kernels, whose lines cannot be traced, all tests of the folder.
Results are stored one by one, and an interrupted run is resumed.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import Queue
from xml.etree import ElementTree

import coverage

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "histodict"
# Test folders and files of each package.
TESTS = {
    "kernels": ["tests/kernels", "tests/dictionaries"],
    "methods": [
        "tests/methods",
        "tests/test_methods_on_images.py",
        "tests/test_sklearn_contract.py",
    ],
    "decision": ["tests/decision", "tests/models", "tests/explain"],
    "metrics": ["tests/metrics", "tests/evaluation", "tests/models/test_ensemble.py"],
}
_EXCLUDED_FOLDERS = ("cuda",)  # tested only with a GPU
_MAX_TESTS = 60  # per mutant
_TIME_LIMIT = 240  # seconds per mutant
_OPERATORS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "in": "not in",
    "is": "is not", "+": "-", "-": "+", "*": "/", "/": "*", "//": "*", "%": "*", "**": "*",
    "&": "|", "|": "&", "and": "or", "or": "and",
}  # fmt: skip
_FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}
_FUNCTIONS |= {"minimum": "maximum", "maximum": "minimum", "argmin": "argmax", "argmax": "argmin"}


@dataclass(frozen=True)
class Mutant:
    """Replacement of `before` by `after` at the character `start` of a file."""

    file: str
    line: int
    start: int
    before: str
    after: str

    @property
    def name(self) -> str:
        return f"{self.file}:{self.line}:{self.start} {self.before} -> {self.after}"

    def apply(self, source: str) -> str:
        return source[: self.start] + self.after + source[self.start + len(self.before) :]


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Yield all mutants of a file."""
    source = path.read_text()
    starts = [0]
    for text in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(text))

    def position(line: int, column: int) -> int:
        text = source[starts[line - 1] : starts[line]]
        return starts[line - 1] + len(text.encode()[:column].decode())

    def mutant(start: int, before: str, after: str) -> Mutant:
        line = source.count("\n", 0, start) + 1
        return Mutant(str(path.relative_to(PACKAGE)), line, start, before, after)

    def operator_between(left: ast.expr, right: ast.expr) -> Iterator[Mutant]:
        start = position(left.end_lineno or 0, left.end_col_offset or 0)
        text = source[start : position(right.lineno, right.col_offset)]
        found = re.search(r"[^\s()\\#]+(?: not| in)?", text)
        if found and found.group() in _OPERATORS:
            yield mutant(start + found.start(), found.group(), _OPERATORS[found.group()])

    for node in _code_nodes(ast.parse(source)):
        if isinstance(node, ast.BinOp):
            yield from operator_between(node.left, node.right)
        elif isinstance(node, ast.Compare):
            for left, right in zip([node.left, *node.comparators], node.comparators, strict=False):
                yield from operator_between(left, right)
        elif isinstance(node, ast.BoolOp):
            for left, right in zip(node.values, node.values[1:], strict=False):
                yield from operator_between(left, right)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
            start = position(node.lineno, node.col_offset)
            end = position(node.operand.lineno, node.operand.col_offset)
            if "(" not in source[start:end]:
                yield mutant(start, source[start:end], "")
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
            start = position(node.lineno, node.col_offset)
            end = position(node.end_lineno or 0, node.end_col_offset or 0)
            other = (
                not node.value
                if isinstance(node.value, bool)
                else node.value + 1
                if isinstance(node.value, int)
                else node.value * 2 or 1.0
            )
            yield mutant(start, source[start:end], repr(other))
        elif isinstance(node, ast.Call):
            function = node.func
            name = getattr(function, "attr", getattr(function, "id", ""))
            if name in _FUNCTIONS:
                end = position(function.end_lineno or 0, function.end_col_offset or 0)
                yield mutant(end - len(name), name, _FUNCTIONS[name])


def _code_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of code that runs, without annotations, decorators and error messages."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for node in value if isinstance(value, list) else [value]:
            if not isinstance(node, ast.AST) or isinstance(node, ast.Raise | ast.JoinedStr):
                continue
            yield node
            yield from _code_nodes(node)


# --- tests of each line --------------------------------------------------------------------------


@dataclass
class Traced:
    """Tests that execute each line, and the duration of each test in seconds."""

    by_line: dict[str, dict[int, list[str]]]
    seconds: dict[str, float]

    def tests_of(self, mutant: Mutant) -> list[str]:
        """Return the tests of the mutant's line, the fastest first.

        Lines that are executed on import belong to all tests of their file, and lines of compiled
        kernels to all tests.
        """
        is_compiled = mutant.file.startswith("kernels/cpu")
        lines = self.by_line.get(mutant.file, {})
        tests = {test for test in lines.get(mutant.line, []) if test in self.seconds}
        if is_compiled:
            tests = set(self.seconds)
        elif not tests and mutant.line in lines:
            tests = {t for names in lines.values() for t in names if t in self.seconds}
        return sorted(tests, key=self.seconds.__getitem__)[: None if is_compiled else _MAX_TESTS]


def trace_tests(package: str, jobs: int, folder: Path) -> Traced:
    """Run the tests of a package once, and return which tests execute which lines."""
    data, report = folder / f"{package}.coverage", folder / f"{package}.xml"
    if not report.exists():
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS[package]]
        command += [f"--cov={PACKAGE / package}", "--cov-context=test", "--cov-report="]
        command += ["-n", str(jobs), f"--junitxml={report}.part", "-o", "junit_family=xunit1"]
        # Tests that fail without any change reveal nothing about a mutant; they are left out below.
        subprocess.run(
            command, cwd=ROOT, env=os.environ | {"COVERAGE_FILE": str(data)}, check=False
        )
        Path(f"{report}.part").rename(report)
    seconds = {
        f"{case.get('file')}::{case.get('name')}": float(case.get("time") or 0)
        for case in ElementTree.parse(report).iter("testcase")
        if not list(case)
    }
    read = coverage.CoverageData(str(data))
    read.read()
    by_line = {
        str(Path(file).relative_to(PACKAGE)): {
            line: [context.partition("|")[0] for context in contexts]
            for line, contexts in read.contexts_by_lineno(file).items()
        }
        for file in read.measured_files()
    }
    return Traced(by_line, seconds)


# --- runs ----------------------------------------------------------------------------------------


def run_mutant(mutant: Mutant, tests: list[str], copy: Path) -> str:
    """Return "killed", "survived" or "untested" for a mutant in a copy of the source."""
    if not tests:
        return "untested"
    path = copy / "histodict" / mutant.file
    original = path.read_text()
    path.write_text(mutant.apply(original))
    path_variable = os.pathsep.join([str(copy), str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path_variable, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            timeout=_TIME_LIMIT,
            check=False,
        )
        # Negative: ended by a signal, such as a segmentation fault in a compiled kernel.
        if done.returncode > 2:
            raise RuntimeError(f"{mutant.name}: {done.stdout.decode()[-2000:]}")
        return "killed" if done.returncode else "survived"
    except subprocess.TimeoutExpired:
        return "killed"
    finally:
        path.write_text(original)
        # The copy's files must be newer than any compiled version of the mutant.
        os.utime(path, (time.time() + 1, time.time() + 1))


def run(package: str, sample: int, jobs: int, folder: Path, deadline: float) -> None:
    """Run a random sample of the mutants of a package, and append the results to a file."""
    everything = [
        mutant
        for path in sorted((PACKAGE / package).rglob("*.py"))
        if not set(path.parts) & set(_EXCLUDED_FOLDERS)
        for mutant in mutants_of(path)
    ]
    sample_mutants = random.Random(package).sample(everything, min(sample, len(everything)))
    results = folder / f"{package}.jsonl"
    known = {r["name"] for r in read_results(results)}
    traced = trace_tests(package, jobs, folder)
    copies: Queue[Path] = Queue()
    with tempfile.TemporaryDirectory() as temporary, results.open("a") as file:
        for number in range(jobs):
            shutil.copytree(PACKAGE, Path(temporary, str(number), "histodict"))
            copies.put(Path(temporary, str(number)))

        def work(mutant: Mutant) -> None:
            if mutant.name in known or time.time() > deadline:
                return
            copy, start = copies.get(), time.time()
            try:
                status = run_mutant(mutant, traced.tests_of(mutant), copy)
            finally:
                copies.put(copy)
            row = asdict(mutant) | {"name": mutant.name, "status": status}
            file.write(json.dumps(row | {"seconds": round(time.time() - start, 1)}) + "\n")
            file.flush()

        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(work, sample_mutants))


def read_results(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("packages", nargs="*", default=list(TESTS), metavar="package")
    parser.add_argument("--sample", type=int, default=100, help="mutants per package")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--minutes", type=float, default=600, help="start no mutant after this time"
    )
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "mutants")
    parser.add_argument("--survivors", action="store_true", help="list survivors and run nothing")
    options = parser.parse_args()
    if unknown := sorted(set(options.packages) - set(TESTS)):
        parser.error(f"unknown package {unknown[0]!r}; choose from {', '.join(TESTS)}")
    options.output.mkdir(parents=True, exist_ok=True)
    deadline = time.time() + 60 * options.minutes
    for package in options.packages:
        if not options.survivors:
            run(package, options.sample, options.jobs, options.output.resolve(), deadline)
        rows = read_results(options.output / f"{package}.jsonl")
        counts = {
            s: sum(r["status"] == s for r in rows) for s in ("killed", "survived", "untested")
        }
        print(f"{package}: {len(rows)} mutants, {counts}", flush=True)
        for row in rows:
            if row["status"] != "killed":
                print(f"  {row['status']}: {row['name']}")


if __name__ == "__main__":
    main()
