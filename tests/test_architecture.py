"""Tests of the structure of the package from its source: layers, heavy imports, no pickle.

Every check is a function from source text to a list of complaints, so that tests can show that it
fails on wrong source.
"""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "histodict"

# A module imports from its own layer or from an earlier one.
LAYERS = (
    "utils",
    "images",
    "preprocessing",
    "precomputed",
    "annotations",
    "datasets",
    "image_features",
    "patches",
    "encoders",
    "kernels",
    "dictionaries",
    "methods",
    "decision",
    "model_selection",
    "metrics",
    "models",
    "explain",
    "evaluation",
    "reports",
    "export",
    "batch",
    "synthetic",
    "paper",
    "web",
    "cli",
)
# Two branches that meet in `decision` and do not import each other.
PIXELS = {
    *("images", "preprocessing", "precomputed", "annotations", "datasets"),
    *("image_features", "patches", "encoders"),
}
MATHS = {"kernels", "dictionaries", "methods"}
# The one exception, inside a method: `ImageEstimator.explain`.
EXCEPTIONS = {("models", "explain")}

HEAVY = {"numba", "llvmlite", "torch"}
PICKLERS = {"pickle", "_pickle", "cloudpickle", "dill", "shelve"}
PICKLING_NAMES = {"joblib.dump", "joblib.load", "pandas.read_pickle"}
PICKLING_METHODS = {"read_pickle", "to_pickle"}
NOT_LOADED_AT_IMPORT = HEAVY | {"mahotas", "matplotlib", "pywt", "shapely", "skimage", "sklearn"}


# --- reading source -----------------------------------------------------------------------------


def source_files() -> dict[str, str]:
    """Return source text by dotted module name; a package is named `name.__init__`."""
    return {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path.read_text("utf-8")
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def imported_names(module: str, source: str) -> Iterator[str]:
    """Return absolute dotted names that a module imports anywhere, even inside a function.

    `from a import b` yields `a.b`, whether b is a module or not. Imports by a literal name, such as
    `importlib.import_module("torch")`, are included.
    """
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=base, names=names, level=level):
                prefix = absolute_name(module, "." * level + (base or ""))
                yield from (f"{prefix}.{alias.name}" for alias in names)
            case ast.Call(
                func=ast.Attribute(attr="import_module")
                | ast.Name(id="import_module" | "__import__"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield absolute_name(module, name)


def absolute_name(module: str, name: str) -> str:
    """Resolve the leading dots of an imported name against the importing module's package."""
    level = len(name) - len(name.lstrip("."))
    if not level:
        return name
    return ".".join([*module.split(".")[:-level], name[level:]]).rstrip(".")


def layer_of(name: str) -> str | None:
    """Return the part of `name` below the package: `histodict.preprocessing.stain` ->
    `preprocessing`."""
    top, *rest = name.split(".")
    return rest[0] if top == "histodict" and rest else None


# --- the checks ---------------------------------------------------------------------------------


def layer_complaints(module: str, source: str) -> list[str]:
    layer = layer_of(module)
    if layer == "__init__":  # the public names may come from anywhere; see the test of `import`
        return []
    if layer not in LAYERS:
        return [f"{module} is in no known layer"]
    targets = {name: layer_of(name) for name in imported_names(module, source)}
    return [
        f"{module} must not import {name}"
        for name, target in targets.items()
        if name.split(".")[0] == "histodict" and not may_import(layer, target)
    ]


def may_import(layer: str, target: str | None) -> bool:
    if target == "__version__":
        return True
    # the package itself or its lazy public names: import the defining module
    if target not in LAYERS:
        return False
    crosses = {layer, target} & PIXELS and {layer, target} & MATHS
    is_ordered = LAYERS.index(target) <= LAYERS.index(layer) or (layer, target) in EXCEPTIONS
    return is_ordered and not crosses


def heavy_import_complaints(module: str, source: str) -> list[str]:
    if layer_of(module) in ("kernels", "encoders"):
        return []
    return [
        f"{module} must not import {name}"
        for name in imported_names(module, source)
        if name.split(".")[0] in HEAVY
    ]


def pickle_complaints(module: str, source: str) -> list[str]:
    found = [
        name
        for name in imported_names(module, source)
        if name.split(".")[0] in PICKLERS or name in PICKLING_NAMES
    ]
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(attr=attr) if attr in PICKLING_METHODS:
                found.append(attr)
            case ast.Attribute(value=ast.Name(id="joblib"), attr="dump" | "load"):
                found.append(ast.unparse(node))
            case ast.keyword(arg="allow_pickle", value=value) if not is_false(value):
                found.append("allow_pickle")
            case ast.keyword(arg="weights_only", value=value) if is_false(value):
                found.append("weights_only=False")
    return [f"{module} uses pickle: {name}" for name in found]


def is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


CHECKS = (layer_complaints, heavy_import_complaints, pickle_complaints)

# Run in a new interpreter: list the loaded modules and the added logging handlers.
IMPORT_PROBE = """
import json, logging, sys
before = set(sys.modules)
exec(sys.argv[1])
loggers = [logging.getLogger()]
loggers += [x for x in logging.root.manager.loggerDict.values() if isinstance(x, logging.Logger)]
handlers = [
    f"{logger.name}: {handler!r}"
    for logger in loggers
    for handler in logger.handlers
    if not isinstance(handler, logging.NullHandler)
]
loaded = sorted({name.split(".")[0] for name in set(sys.modules) - before})
print(json.dumps({"loaded": loaded, "handlers": handlers}))
"""


def import_complaints(source: str) -> list[str]:
    """Return heavy libraries loaded and logging handlers added by `source`."""
    run = subprocess.run(
        [sys.executable, "-c", IMPORT_PROBE, source], capture_output=True, text=True, check=True
    )
    visited = json.loads(run.stdout)
    loaded = sorted(NOT_LOADED_AT_IMPORT.intersection(visited["loaded"]))
    return [f"loads {name}" for name in loaded] + [f"adds handler {h}" for h in visited["handlers"]]


# --- the package passes -------------------------------------------------------------------------


def test_source_files_include_the_package():
    assert "histodict.__init__" in source_files()


@pytest.mark.parametrize("check", CHECKS)
def test_source_follows_the_rule(check):
    complaints = [text for item in source_files().items() for text in check(*item)]
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize("module", ["histodict", "histodict.cli"])
def test_import_is_light_and_adds_no_logging_handler(module):
    assert import_complaints(f"import {module}") == []


def circle_in(imports: dict[str, set[str]]) -> list[str]:
    """Return modules in an import cycle."""
    left = dict(imports)
    while True:
        free = [name for name, needs in left.items() if not needs & set(left) - {name}]
        if not free:
            return sorted(left)
        left = {name: needs for name, needs in left.items() if name not in free}


def test_imports_have_no_cycle():
    sources = source_files()
    names = {name.removesuffix(".__init__"): name for name in sources}
    imports = {
        name: {
            names[home]
            for found in imported_names(name, text)
            for home in (found, found.rpartition(".")[0])
            if home in names
            and names[home] != name
            and (layer_of(name), layer_of(home)) not in EXCEPTIONS
        }
        for name, text in sources.items()
    }
    # The `__init__` file of a package counts for the names that it exports, not for its modules.
    plain = {name: needs for name, needs in imports.items() if not name.endswith("__init__")}
    assert circle_in(plain) == []
    assert circle_in({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["a", "b", "c"]


def test_files_have_at_most_600_lines():
    long = {name: n for name, text in source_files().items() if (n := text.count("\n")) > 600}
    assert not long


# --- the checks can fail ------------------------------------------------------------------------

WRONG = [
    # later layers, in every spelling
    (layer_complaints, "histodict.kernels.cpu.omp", "from histodict.methods import dfdl"),
    (layer_complaints, "histodict.kernels.cpu.omp", "from histodict import models"),
    (layer_complaints, "histodict.kernels.__init__", "from ..dictionaries import online"),
    (layer_complaints, "histodict.kernels.__init__", "from .. import methods"),
    (layer_complaints, "histodict.models", "from . import cli"),
    (layer_complaints, "histodict.models", "def run():\n    import histodict.reports.figures"),
    (layer_complaints, "histodict.preprocessing.stain", "import_module('histodict.patches.grid')"),
    (
        layer_complaints,
        "histodict.preprocessing.stain",
        "importlib.import_module('..web', __package__)",
    ),
    (layer_complaints, "histodict.utils.parallel", "import histodict.images"),
    # across the two branches, although the order alone would allow it
    (layer_complaints, "histodict.methods.dfdl", "from histodict.patches import grid"),
    (layer_complaints, "histodict.kernels.cpu.omp", "from ...images import source"),
    # the lazy public names, and unknown packages
    (layer_complaints, "histodict.methods.dfdl", "import histodict"),
    (layer_complaints, "histodict.reports.html", "from histodict import TissueClassifier"),
    (layer_complaints, "histodict.misc", ""),
    (heavy_import_complaints, "histodict.methods.dfdl", "import numba"),
    (heavy_import_complaints, "histodict.methods.dfdl", "from torch.nn import functional"),
    (heavy_import_complaints, "histodict.cli", "def f():\n    import llvmlite.binding as llvm"),
    (heavy_import_complaints, "histodict.models", "importlib.import_module('torch')"),
    (heavy_import_complaints, "histodict.__init__", "__import__('numba')"),
    (pickle_complaints, "histodict.models.model_file", "import pickle"),
    (pickle_complaints, "histodict.models.model_file", "from pickle import loads"),
    (pickle_complaints, "histodict.models.model_file", "import cloudpickle as cp"),
    (pickle_complaints, "histodict.models.model_file", "from joblib import dump"),
    (pickle_complaints, "histodict.models.model_file", "import joblib\njoblib.load(path)"),
    (pickle_complaints, "histodict.metrics.scores", "frame.to_pickle(path)"),
    (pickle_complaints, "histodict.models.model_file", "np.load(path, allow_pickle=True)"),
    (pickle_complaints, "histodict.kernels.cuda.device", "torch.load(path, weights_only=False)"),
]

RIGHT = [
    (layer_complaints, "histodict.methods.dfdl", "from histodict.kernels import encode_omp"),
    (layer_complaints, "histodict.methods.dfdl", "from ..dictionaries import online"),
    (layer_complaints, "histodict.methods.dfdl", "from . import src\nimport numpy as np"),
    (layer_complaints, "histodict.methods.__init__", "from .dfdl import DFDL"),
    (layer_complaints, "histodict.patches.grid", "from ..images.source import open_image"),
    (layer_complaints, "histodict.kernels.cpu.omp", "from histodict.utils import blocks"),
    (layer_complaints, "histodict.decision.threshold", "from histodict import patches, methods"),
    (layer_complaints, "histodict.cli", "from histodict import __version__"),
    (layer_complaints, "histodict.cli", "from .models import TissueClassifier"),
    (heavy_import_complaints, "histodict.kernels.cpu.omp", "import numba"),
    (heavy_import_complaints, "histodict.methods.dfdl", "from histodict.kernels import torch"),
    (pickle_complaints, "histodict.models.model_file", "np.load(path, allow_pickle=False)"),
    (pickle_complaints, "histodict.models.model_file", "import json\njson.dump(x, f)"),
]


@pytest.mark.parametrize(("check", "module", "source"), WRONG)
def test_wrong_source_is_refused(check, module, source):
    assert check(module, source)


@pytest.mark.parametrize(("check", "module", "source"), RIGHT)
def test_right_source_is_accepted(check, module, source):
    assert check(module, source) == []


def test_heavy_import_and_logging_handler_are_detected():
    assert import_complaints("import llvmlite") == ["loads llvmlite"]
    (complaint,) = import_complaints("import logging; logging.basicConfig()")
    assert complaint.startswith("adds handler root")
