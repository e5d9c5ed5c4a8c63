"""The first hour with histodict as one text: what is typed, and the words that it is answered by.

`first-hour.txt` is the script and the record: lines that begin with `$ ` or `>>> ` are typed, what
stands below them was printed, lines that begin with `# ` are for the reader. To change the script,
write such a line into it; to keep new words, run

    python -m tests.first_hour

and read the diff; with `--check` it shows the diff and keeps nothing, which `make release` does
with the wheel that it has built. Tissue is drawn, in fewer and smaller images than a user gets, and
the presets are small, so that all of it takes half a minute: words are what is kept, and figures
only show that they stay.
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
# In what is typed of models that see through a pretrained network; regions do, by themselves.
_OF_THE_NETWORK = ("embeddings", "inflamed.histodict", "found", "finder")
_DRAWN = {"n_patients": 6, "images_per_patient": 2, "size": (160, 120)}
# What differs from run to run or from machine to machine, and says nothing.
_MASKS = (
    (r"\bin \d+ s\b", "in … s"),
    (r"(?<=-)[0-9a-f]{8}\b", "········"),  # of a path: keys of results
    (r"(?<= )[0-9a-f]{16}\b", "················"),  # of the images, which a library compresses
    (r"\b(histodict|numpy|scikit-learn) \d[\w.+]*", r"\1 …"),
    (r"\b[0-9a-f]{12}(?=…)", "············"),  # of a model
)


@dataclass(frozen=True)
class Step:
    """What is typed, with its prompt, and the words that came of it; a note has none."""

    typed: str
    words: str = ""

    @property
    def text(self) -> str:
        return f"{self.typed}\n{self.words}".rstrip() + "\n"

    @property
    def needs_torch(self) -> bool:
        return any(word in self.typed for word in _OF_THE_NETWORK)


# --- the text -----------------------------------------------------------------------------------


def read_steps(text: str) -> list[Step]:
    steps: list[Step] = []
    for line in text.splitlines():
        if line.startswith((_SHELL, _PYTHON, _NOTE)):
            steps.append(Step(line))
        elif line.startswith(_MORE) and not steps[-1].words:
            steps[-1] = replace(steps[-1], typed=f"{steps[-1].typed}\n{line}")
        elif steps:
            steps[-1] = replace(steps[-1], words=f"{steps[-1].words}{line}\n")
    return [replace(step, words=step.words.rstrip()) for step in steps]


def write_steps(steps: list[Step]) -> str:
    """A blank line before every step but those that follow a note or lines of Python."""
    text = ""
    for before, step in zip([None, *steps], steps, strict=False):
        together = before is not None and not before.words and step.typed[:2] != _NOTE
        text += step.text if together or not text else f"\n{step.text}"
    return text


def masked(words: str, folder: Path | str = "") -> str:
    for path in {str(folder), os.path.realpath(folder)} if folder else ():
        words = words.replace(f"{path}/", "")
    for pattern, instead in _MASKS:
        words = re.sub(pattern, instead, words)
    return "\n".join(line.rstrip() for line in words.splitlines()).strip("\n")


def without_figures(words: str) -> str:
    """For other images, or a processor whose last bits differ; lines may be broken elsewhere, and
    whether an answer is uncertain is a figure, too.
    """
    return re.sub(", N uncertain", "", " ".join(re.sub(r"\d+", "N", words).split()))


# --- the hour -----------------------------------------------------------------------------------


def run_hour(steps: list[Step], folder: Path) -> list[Step]:
    """The same steps with the words of today."""
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
    return replace(step, words=masked(text, folder))


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
    """As at Python's prompt: the value of an expression is shown."""
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
    """On the error stream, also where a test runner listens to them; those of libraries are not."""

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
    from histodict.models import recipe as views
    from histodict.models.recipe import PRESETS
    from histodict.synthetic import demo as run

    matplotlib.use("Agg")
    with ExitStack() as stack:
        stack.enter_context(patch.dict(run._IMAGE_FOLDER, _DRAWN))
        stack.enter_context(patch.dict(METHODS["dfdl"].default_parameters, _SMALL))
        stack.enter_context(patch.dict(METHODS["dfdl"].paper_parameters, _SMALL))
        small = {name: replace(made, patches_per_class=300) for name, made in PRESETS.items()}
        small["embeddings"] = replace(small["embeddings"], n_components=20)
        stack.enter_context(patch.dict(PRESETS, small))
        for name, changes in (("PIXELS", {}), ("ENCODER", {"n_components": 20})):
            recipe = replace(getattr(views, name), patches_per_class=300, **changes)
            stack.enter_context(patch.object(views, name, recipe))
        yield


def _scan(path: Path) -> None:
    """A slide of drawn tissue; its file does not say how large a pixel is."""
    from histodict.synthetic.tissue_generator import draw_stain, make_region_image
    from tests.images.files import save_slide

    rng = np.random.default_rng(7)
    pixels, _ = make_region_image(draw_stain(rng), rng, (512, 384), n_regions=1)
    save_slide(path, pixels)


# --- keeping it ---------------------------------------------------------------------------------


def recorded() -> list[Step]:
    return read_steps(TRANSCRIPT.read_text("utf-8"))


def recorded_on(steps: list[Step]) -> str:
    """The processor, which decides the figures; the first line names it."""
    return steps[0].typed.removeprefix(_RECORDED_ON)


def changes(folder: Path) -> str:
    """What is printed today beside what is kept, as a diff.

    On another processor figures are left out of both. Without PyTorch other models are learnt by
    default, and say other things: then it is how commands end that is compared.
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
    return replace(step, words=without_figures(step.words))


def _end(step: Step) -> Step:
    """Whether it went well; whether a threshold can be moved is a matter of the model's scores."""
    failed = [] if " adapt " in step.typed else re.findall(r"\[exit status \d+\]", step.words)
    return replace(step, words="".join(failed))


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
