"""Measure the structure of the source: modules, lines, imports, long functions, call depth.

    python -m benchmarks.structure            # static figures
    python -m benchmarks.structure --trace    # also: files and functions that one image passes

The trace trains and predicts with the preset `fast` on small synthetic images, in one process and
one thread, and counts the files and functions of the package that are called, and the frames of
the package on the stack when Pillow decodes an image.
"""

from __future__ import annotations

import argparse
import ast
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "histodict"
LONG_FUNCTION = 40


def modules() -> dict[str, Path]:
    """Paths of the package's modules by dotted name."""
    return {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def imported_modules(name: str, tree: ast.Module, names: set[str], *, top: bool) -> set[str]:
    """Modules of the package that a module imports.

    Parameters
    ----------
    name : dotted name of the module; that of a package ends with `.__init__`
    tree : its syntax tree
    names : dotted names of all modules
    top : count imports at the top level only, without those for type checkers
    """
    found = set()
    nodes: Iterator[ast.AST] = iter(tree.body) if top else ast.walk(tree)
    for node in nodes:
        if not isinstance(node, ast.ImportFrom):
            continue
        base = node.module or ""
        if node.level:
            parts = name.split(".")[: -node.level]
            base = ".".join([*parts, *([node.module] if node.module else [])])
        for alias in node.names:
            for candidate in (f"{base}.{alias.name}", base, f"{base}.__init__"):
                if candidate in names:
                    found.add(candidate)
                    break
    return found - {name}


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import each other, by Tarjan's algorithm."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            at = stack.index(node)
            groups.append(stack[at:])
            del stack[at:]

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return [group for group in groups if len(group) > 1]


def code_lines(tree: ast.AST) -> set[int]:
    """Return the lines that hold code: no blank lines, comments or docstrings."""
    found: set[int] = set()
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.stmt) and not is_text:
            ends = [node.lineno, node.end_lineno or node.lineno]
            body = getattr(node, "body", None)
            # The parts of a compound statement are counted on their own.
            found |= set(range(ends[0], body[0].lineno if body else ends[1] + 1))
    return found


def static_figures() -> dict[str, Any]:
    """Count modules, lines, imports, importers and long functions."""
    paths = modules()
    trees = {name: ast.parse(path.read_text("utf-8")) for name, path in paths.items()}
    lines = {name: path.read_text("utf-8").count("\n") for name, path in paths.items()}
    import_lines, long_functions = 0, 0
    importers: dict[str, set[str]] = defaultdict(set)
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                import_lines += node.end_lineno - node.lineno + 1  # type: ignore[operator]
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                long_functions += len(code_lines(node)) > LONG_FUNCTION
        for other in imported_modules(name, tree, set(paths), top=False):
            importers[other].add(name)
    graph = {
        name: imported_modules(name, tree, set(paths), top=True) for name, tree in trees.items()
    }
    stems: dict[str, list[str]] = defaultdict(list)
    for path in paths.values():
        if path.name not in ("__init__.py", "__main__.py"):
            stems[path.stem].append(str(path.relative_to(PACKAGE)))
    total = sum(lines.values())
    plain = [name for name in paths if not name.endswith("__init__")]
    return {
        "modules": len(paths),
        "lines": total,
        "lines of code": sum(len(code_lines(tree)) for tree in trees.values()),
        "lines per module": round(total / len(paths)),
        "modules of at most 100 lines": sum(lines[name] <= 100 for name in plain),
        "modules of more than 600 lines": sum(n > 600 for n in lines.values()),
        "share of import lines (%)": round(100 * import_lines / total, 1),
        "modules with one importer": sum(len(importers[name]) == 1 for name in plain),
        f"functions over {LONG_FUNCTION} lines": long_functions,
        "import circles": len(circles(graph)),
        "base names in several folders": sum(len(found) > 1 for found in stems.values()),
    }


def traced(work: Callable[[], object]) -> tuple[int, int]:
    """Run `work` and count the package's files and functions that are called."""
    called: Counter[tuple[str, str]] = Counter()
    root = str(PACKAGE)

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        is_function = code.co_flags & CO_OPTIMIZED and not code.co_name.startswith("<")
        if event == "call" and is_function and code.co_filename.startswith(root):
            called[code.co_filename, code.co_qualname] += 1

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return len({file for file, _ in called}), len(called)


def frames_before_decoder(work: Callable[[], object]) -> tuple[int, int]:
    """Count frames and files of the package on the stack when Pillow first loads an image."""
    from PIL import ImageFile

    found: list[tuple[int, int]] = []
    load = ImageFile.ImageFile.load

    def watched(self: Any) -> Any:
        frame, files = sys._getframe(1), []
        while frame is not None:
            name = frame.f_code.co_name
            if frame.f_code.co_filename.startswith(str(PACKAGE)) and not name.startswith("<"):
                files.append(frame.f_code.co_filename)
            frame = frame.f_back  # type: ignore[assignment]
        found.append((len(files), len(set(files))))
        return load(self)

    ImageFile.ImageFile.load = watched  # type: ignore[method-assign, assignment]
    try:
        work()
    finally:
        ImageFile.ImageFile.load = load  # type: ignore[method-assign]
    return max(found, default=(0, 0))


def trace_figures() -> dict[str, Any]:
    """Follow small JPEG images through `train` and `predict` of the command line."""
    import numpy as np
    from PIL import Image
    from typer.testing import CliRunner

    from histodict.cli import app

    runner = CliRunner()
    rng = np.random.default_rng(0)
    settings = ["patch_px=8", "downsample=1", "patches_per_class=100", "n_atoms=6", "n_iter=1"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for i in range(8):
            path = folder / "data" / "ab"[i % 2] / f"{i}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(60, 160 + 40 * (i % 2), (96, 96, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(path)
        model = str(folder / "model.histodict")
        train = ["train", str(folder / "data"), "-o", model, "--preset", "fast", "--jobs", "1"]
        for setting in settings:
            train += ["--set", setting]

        def run(*arguments: str) -> None:
            result = runner.invoke(app, list(arguments))
            if result.exit_code:
                raise RuntimeError(f"{arguments[0]} failed: {result.output}") from result.exception

        image = str(folder / "data" / "a" / "0.jpg")
        figures: dict[str, Any] = {}
        predict = ["predict", model, image, "-o"]
        # Imports are not counted.
        run(*train[:3], str(folder / "warm.histodict"), *train[4:])
        run("predict", str(folder / "warm.histodict"), image, "-o", str(folder / "warm"))
        figures["files, functions in train"] = traced(lambda: run(*train))
        figures["files, functions in predict"] = traced(
            lambda: run(*predict, str(folder / "first"))
        )
        figures["frames, files before the decoder in predict"] = frames_before_decoder(
            lambda: run(*predict, str(folder / "second"))
        )
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trace", action="store_true", help="also run train and predict")
    options = parser.parse_args()
    figures = static_figures() | (trace_figures() if options.trace else {})
    width = max(map(len, figures))
    for name, value in figures.items():
        print(f"{name:{width}s}  {value}")


if __name__ == "__main__":
    main()
