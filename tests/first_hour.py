"""Session with the output of its commands, checked by tests and quoted in the documentation.

`first-hour.txt` contains the script and its output: lines that begin with `$ ` or `>>> ` are input,
the lines below them are output, and lines that begin with `# ` are notes. To change the script,
edit such a line; to update the output, run

    python -m tests.first_hour

and review the diff. `--check` only prints the diff; `make release` uses it to test the wheel. The
synthetic images are few and small and the presets are reduced, so that the session takes half a
minute. The text of messages is what matters; numbers are only compared.
"""

from __future__ import annotations

import ast
import importlib.util
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from difflib import unified_diff
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from typer.testing import CliRunner

TRANSCRIPT = Path(__file__).with_name("first-hour.txt")
_SHELL, _PYTHON, _MORE, _NOTE = "$ ", ">>> ", "... ", "# "
_RECORDED_ON = f"{_NOTE}Recorded on "
_COLUMNS = "100"
_SMALL = {"n_atoms": 12, "n_iter": 2}
# Models with a pretrained encoder are named explicitly; region detectors use one by default.
_NEEDS_ENCODER = ("embeddings", "inflamed.histodict", "found", "detector")
_SMALL_DATASET = {"n_patients": 6, "images_per_patient": 2, "size": (160, 120)}
# Parts that differ between runs or machines.
_MASKS = (
    (r"\bin \d+ s\b", "in … s"),
    (r"(?<=-)[0-9a-f]{8}\b", "········"),  # key of results, of a path
    (r"(?<= )[0-9a-f]{16}\b", "················"),  # digest of images, which depends on a library
    (r"\b(histodict|numpy|scikit-learn) \d[\w.+]*", r"\1 …"),
    (r"\b[0-9a-f]{12}(?=…)", "············"),  # digest of a model
)


@dataclass(frozen=True)
class Step:
    """Input with its prompt, and its output; a note has none."""

    typed: str
    output: str = ""

    @property
    def text(self) -> str:
        return f"{self.typed}\n{self.output}".rstrip() + "\n"

    @property
    def needs_torch(self) -> bool:
        return any(word in self.typed for word in _NEEDS_ENCODER)


# --- the text -----------------------------------------------------------------------------------


def read_steps(text: str) -> list[Step]:
    steps: list[Step] = []
    for line in text.splitlines():
        if line.startswith((_SHELL, _PYTHON, _NOTE)):
            steps.append(Step(line))
        elif line.startswith(_MORE) and not steps[-1].output:
            steps[-1] = replace(steps[-1], typed=f"{steps[-1].typed}\n{line}")
        elif steps:
            steps[-1] = replace(steps[-1], output=f"{steps[-1].output}{line}\n")
    return [replace(step, output=step.output.rstrip()) for step in steps]


def write_steps(steps: list[Step]) -> str:
    """Return the text, with a blank line before every step except after notes and lines of
    Python."""
    text = ""
    for before, step in zip([None, *steps], steps, strict=False):
        together = before is not None and not before.output and step.typed[:2] != _NOTE
        text += step.text if together or not text else f"\n{step.text}"
    return text


def masked(output: str, folder: Path | str = "") -> str:
    for path in {str(folder), os.path.realpath(folder)} if folder else ():
        output = output.replace(f"{path}/", "")
    for pattern, instead in _MASKS:
        output = re.sub(pattern, instead, output)
    return "\n".join(line.rstrip() for line in output.splitlines()).strip("\n")


def without_figures(output: str) -> str:
    """Remove numbers, for other images or processors; line breaks and the flag of uncertain
    predictions are also removed, as they depend on numbers."""
    return re.sub(
        r", N uncertain( \(no clear class\))?", "", " ".join(re.sub(r"\d+", "N", output).split())
    )


# --- running the session --------------------------------------------------------------------------


def run_hour(steps: list[Step], folder: Path) -> list[Step]:
    """Return the same steps with their current output."""
    known: dict[str, Any] = {}
    with _small_presets(), chdir(folder), warnings.catch_warnings():
        _scan(Path("slide.tif"))
        return [_run(step, known, folder) for step in steps]


def _run(step: Step, known: dict[str, Any], folder: Path) -> Step:
    if step.typed.startswith(_NOTE):
        return step
    if step.typed.startswith(_PYTHON):
        text = _python(step.typed, known)
    elif step.typed.startswith(f"{_SHELL}histodict "):
        text = _command(step.typed)
    else:
        text = _shell(step.typed)
    return replace(step, output=masked(text, folder))


def _command(typed: str) -> str:
    from histodict.cli import app

    arguments = shlex.split(typed.removeprefix(_SHELL), comments=True)[1:]
    with _warnings_shown():
        done = CliRunner().invoke(
            app, arguments, prog_name="histodict", env={"COLUMNS": _COLUMNS, "NO_COLOR": "1"}
        )
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output + (f"[exit status {done.exit_code}]\n" if done.exit_code else "")


def _shell(typed: str) -> str:
    environment = os.environ | {"LC_ALL": "C"}
    line = typed.removeprefix(_SHELL)
    done = subprocess.run(line, shell=True, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(f"{line}: {done.stderr}")
    return done.stdout


def _python(typed: str, known: dict[str, Any]) -> str:
    """Run code as at the Python prompt: the value of an expression is printed."""
    source = "\n".join(line[len(_PYTHON) :] for line in typed.splitlines())
    shown = io.StringIO()
    with redirect_stdout(shown), redirect_stderr(shown), _warnings_shown(_category_first):
        try:
            exec(compile(ast.parse(source, mode="single"), "<hour>", "single"), known)
        except Exception as error:
            print(f"{type(error).__name__}: {error}")
    return shown.getvalue()


def _category_first(message: Any, category: type[Warning], *place: Any, **more: Any) -> str:
    return f"{category.__name__}: {message}\n"


@contextmanager
def _warnings_shown(form: Any = None) -> Iterator[None]:
    """Print warnings to the error stream, even if a test runner captures them; not those of
    libraries."""

    def show(message: Any, category: type[Warning], *place: Any, **more: Any) -> None:
        sys.stderr.write(warnings.formatwarning(message, category, "", 0, ""))

    with (
        warnings.catch_warnings(),
        patch.object(warnings, "showwarning", show),
        ExitStack() as also,
    ):
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UserWarning)
        if form is not None:
            also.enter_context(patch.object(warnings, "formatwarning", form))
        yield


@contextmanager
def _small_presets() -> Iterator[None]:
    import matplotlib

    from histodict.methods.registry import METHODS
    from histodict.models import ensemble_recipes as recipes
    from histodict.models.recipe import PRESETS
    from histodict.synthetic import demo as run

    matplotlib.use("Agg")
    with ExitStack() as stack:
        stack.enter_context(patch.dict(run._DATASET_OPTIONS, _SMALL_DATASET))
        stack.enter_context(patch.dict(METHODS["dfdl"].default_parameters, _SMALL))
        stack.enter_context(patch.dict(METHODS["dfdl"].paper_parameters, _SMALL))
        small = {name: replace(made, patches_per_class=300) for name, made in PRESETS.items()}
        small["embeddings"] = replace(small["embeddings"], n_components=20)
        stack.enter_context(patch.dict(PRESETS, small))
        for name, changes in (("PIXEL_RECIPE", {}), ("ENCODER_RECIPE", {"n_components": 20})):
            recipe = replace(getattr(recipes, name), patches_per_class=300, **changes)
            stack.enter_context(patch.object(recipes, name, recipe))
        yield


def _scan(path: Path) -> None:
    """Write a slide of synthetic tissue without a pixel size."""
    from histodict.synthetic.tissue_generator import make_region_image, random_stain
    from tests.images.files import save_slide

    rng = np.random.default_rng(7)
    pixels, _ = make_region_image(random_stain(rng), rng, (512, 384), n_regions=1)
    save_slide(path, pixels)


# --- storing --------------------------------------------------------------------------------------


def recorded() -> list[Step]:
    return read_steps(TRANSCRIPT.read_text("utf-8"))


def recorded_on(steps: list[Step]) -> str:
    """Return the processor, which determines the numbers; it is named in the first line."""
    return steps[0].typed.removeprefix(_RECORDED_ON)


def changes(folder: Path) -> str:
    """Return the diff of recorded and current output.

    On another processor numbers are ignored. Without PyTorch the default models differ: then only
    the exit of each command is compared.
    """
    from tests.data.record import processor

    has_torch = importlib.util.find_spec("torch") is not None
    stored = [step for step in recorded() if has_torch or not step.needs_torch]
    found = [stored[0], *run_hour(stored[1:], folder)]
    if not has_torch:
        stored, found = ([_end(step) for step in steps] for steps in (stored, found))
    elif processor() != recorded_on(stored):
        stored, found = ([_plain(step) for step in steps] for steps in (stored, found))
    diff = unified_diff(write_steps(stored).splitlines(), write_steps(found).splitlines(), n=4)
    return "\n".join(diff)


def _plain(step: Step) -> Step:
    return replace(step, output=without_figures(step.output))


def _end(step: Step) -> Step:
    """Return whether the step succeeded; moving a threshold may fail depending on the scores."""
    failed = [] if " adapt " in step.typed else re.findall(r"\[exit status \d+\]", step.output)
    return replace(step, output="".join(failed))


def record() -> None:
    from tests.data.record import processor

    _, *steps = recorded()
    with tempfile.TemporaryDirectory() as folder:
        done = run_hour(steps, Path(folder).resolve())
    TRANSCRIPT.write_text(write_steps([Step(f"{_RECORDED_ON}{processor()}"), *done]), "utf-8")


def check() -> None:
    import histodict

    print(f"The first hour with {Path(histodict.__file__).parent}")
    with tempfile.TemporaryDirectory() as folder:
        changed = changes(Path(folder).resolve())
    sys.exit(changed or 0)


if __name__ == "__main__":
    check() if sys.argv[1:] == ["--check"] else record()
