"""Shared code of benchmarks on public sets: the sets, stored results of tasks, and tables.

A task is a frozen dataclass with a `name` and a method `work` that returns a dict of JSON values.
Each result is a file in the output folder, so that an interrupted run is resumed. The file contains
the settings of its task; with other settings the task runs again. After a change of the source, use
a new folder.

    done = run_all(pieces, folder, jobs)      # run missing tasks, the longest first
    done = load_all(pieces, folder)           # load results only
    sys.exit(done.report_status())            # print failures and the number of missing results
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from histodict.datasets.manifest import Manifest, read_manifest
from histodict.metrics import scores as metrics
from histodict.metrics.intervals import Metric, bootstrap_interval, paired_bootstrap
from histodict.model_selection.protocols import Repeat, k_folds
from histodict.model_selection.splits import Split
from histodict.utils.files import atomic_write
from histodict.utils.parallel import map_processes, single_blas_thread

Results = dict[str, Any]
NOTHING = "\N{EN DASH}"  # in a table

# --- tasks --------------------------------------------------------------------------------------


class Piece(Protocol):
    """Independent task; an optional `cost` is its duration, and the longest tasks start first."""

    @property
    def name(self) -> str: ...

    def work(self) -> Results: ...


@dataclass
class Done:
    """Results of tasks by name.

    found : results; missing : names without a result; failures : last line of the error of failed
    tasks; seconds : CPU seconds of finished tasks
    """

    found: dict[str, Results] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def report_status(self) -> int:
        """Print failures and the number of missing results; return the exit status."""
        for name, message in self.failures.items():
            print(f"{name}: failed: {message}", file=sys.stderr, flush=True)
        if self.missing:
            print(f"\n{len(self.missing)} of {self.n_pieces} results are missing.")
        return 1 if self.failures else 0

    @property
    def n_pieces(self) -> int:
        return len(self.found) + len(self.missing)

    def __or__(self, other: Done) -> Done:
        """Combine the results of two stages, which may have tasks in common."""
        return Done(
            self.found | other.found,
            list(dict.fromkeys([*self.missing, *other.missing])),
            self.failures | other.failures,
            self.seconds | other.seconds,
        )


def run_all(pieces: Sequence[Piece], folder: Path, jobs: int) -> Done:
    """Run tasks without a result in `jobs` processes of one thread each.

    A failed task does not stop the others; the next run repeats it.
    """
    missing = load_all(pieces, folder).missing
    by_name = {piece.name: piece for piece in pieces}
    todo = sorted((by_name[name] for name in missing), key=_cost, reverse=True)
    run = partial(_run, folder.absolute())
    failures: dict[str, str] = {}
    n_processes = min(jobs, len(todo))
    output: Iterable[str | None]
    if n_processes < 2:
        output = map(run, todo)
    else:
        from joblib import delayed

        output = map_processes(
            (delayed(run)(piece) for piece in todo), n_processes, one_thread=True
        )
    try:
        failures = {
            p.name: message for p, message in zip(todo, output, strict=True) if message is not None
        }
    except Exception as error:  # a process was killed; finished results are stored
        failures = {"a process": f"{type(error).__name__}: {error}".splitlines()[0]}
    done = load_all(pieces, folder)
    done.failures = failures
    return done


def load_all(pieces: Sequence[Piece], folder: Path) -> Done:
    """Load the stored results of these tasks."""
    names = [piece.name for piece in pieces]
    if len(set(names)) < len(names):
        raise ValueError(f"two tasks are called {max(names, key=names.count)!r}")
    done = Done()
    for piece in pieces:
        stored = _read(piece, folder)
        if stored is None:
            done.missing.append(piece.name)
        else:
            done.found[piece.name] = stored["found"]
            done.seconds[piece.name] = stored["processor"]
    return done


def _run(folder: Path, piece: Piece) -> str | None:
    """Run a task and store its result; return the error message or None."""
    started, spent = time.perf_counter(), time.process_time()
    try:
        with single_blas_thread():
            found = piece.work()
        results = {
            "piece": repr(piece),
            "seconds": time.perf_counter() - started,
            "processor": time.process_time() - spent,
            "found": found,
        }
        text = json.dumps(results)
        with atomic_write(_file(piece, folder)) as partial_file:
            partial_file.write_text(text, encoding="utf-8")
    except Exception as error:
        traceback.print_exc()
        return f"{type(error).__name__}: {error}"
    print(f"{piece.name}: {results['seconds']:.0f} s", file=sys.stderr, flush=True)
    return None


def _read(piece: Piece, folder: Path) -> Results | None:
    try:
        stored: Results = json.loads(_file(piece, folder).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return stored if stored.get("piece") == repr(piece) else None


def _file(piece: Piece, folder: Path) -> Path:
    return folder / f"{piece.name.replace('/', '-')}.json"


def _cost(piece: Piece) -> float:
    return float(getattr(piece, "cost", 0.0))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the output folder, parallel processes and tables."""
    parser.add_argument("--output", type=Path, required=True, help="folder of the results")
    parser.add_argument("--jobs", type=int, default=1, help="processes of one thread each")
    parser.add_argument("--tables", action="store_true", help="print tables of stored results only")


def run_or_load(pieces: Sequence[Piece], options: argparse.Namespace) -> Done:
    """Run the tasks, or only load results if `--tables` is set."""
    if options.tables:
        return load_all(pieces, options.output)
    return run_all(pieces, options.output, options.jobs)


# --- sets and splits ----------------------------------------------------------------------------

# By name: the folder in HISTODICT_DATA, and the column that is never split.
SETS = {
    "ucsb": ("ucsb-breast", "group"),
    "glas": ("glas-colon", "patient"),
    "lung": ("lc25000-lung", "source_image"),
    "lymphoma": ("lymphoma", "case"),
}


def manifest_of(name: str) -> Manifest:
    """Return the images of a set, without its own split into training and test images."""
    folder, patient = SETS[name]
    if not (data := os.environ.get("HISTODICT_DATA")):
        sys.exit("set HISTODICT_DATA to the folder of the sets (layout: docs/results.md)")
    place = Path(data) / folder
    return read_manifest(place, {"patient": patient}).without_splits()


def two_folds(manifest: Manifest, n_repeats: int) -> list[Split]:
    """Return halves by patient; each half is once the training set per repeat."""
    return list(k_folds(manifest, 2, n_repeats=n_repeats))


def sides(manifest: Manifest, split: Split) -> tuple[Manifest, Manifest]:
    """Return the training and the test images."""
    return manifest.select(split.train), manifest.select(split.test)


# --- results ------------------------------------------------------------------------------------


def results_of_model(model: Any, test: Manifest, split: Split) -> Results:
    """Return predictions and true labels of the test images, as JSON values."""
    predictions = [model.predict(record.path, mpp=record.mpp) for record in test.records]
    return {
        "repeat": split.repeat,
        "classes": list(model.classes_),
        "truth": test.labels,
        "patients": test.patients,
        "labels": [prediction.top_label or "" for prediction in predictions],
        "scores": [list(prediction.scores) for prediction in predictions],
    }


def repeats(results: Sequence[Results], kind: str) -> list[Repeat]:
    """Combine the folds of each repeat; `kind` is "labels" or "scores"."""
    together: dict[int, list[Results]] = {}
    for result in results:
        together.setdefault(result["repeat"], []).append(result)
    return [
        Repeat(
            np.concatenate([result["truth"] for result in own]),
            np.concatenate([result["patients"] for result in own]),
            np.concatenate(
                [scores_of(result) if kind == "scores" else result[kind] for result in own]
            ),
        )
        for _, own in sorted(together.items())
    ]


def scores_of(result: Results) -> NDArray[np.float64]:
    """Return scores for metrics; an image without tissue has no score and counts as 0."""
    scores = np.nan_to_num(np.array(result["scores"], dtype=float))
    return scores[:, 0] if scores.shape[1] == 1 else scores


def area(results: Sequence[Results]) -> Metric:
    """Return the AUC metric; with two classes, the second one is positive."""
    classes = results[0]["classes"]
    return partial(metrics.auc, positive=classes[1]) if len(classes) == 2 else metrics.auc


# --- tables -------------------------------------------------------------------------------------


def mean_shown(metric: Metric, results: Sequence[Results], kind: str = "labels") -> str:
    """Format the mean over repeats with its 95 % interval by patient; – without results."""
    if not results:
        return NOTHING
    made = repeats(results, kind)
    try:
        found = bootstrap_interval(metric, made)
    except ValueError:  # too few patients for an interval
        return f"{np.mean([metric(r.labels, r.predictions) for r in made]):.3f}"
    return f"{found.value:.3f} ({found.low:.3f} to {found.high:.3f})"


def difference_shown(
    metric: Metric,
    first: Mapping[Any, Results],
    second: Mapping[Any, Results],
    kind: str = "labels",
) -> str:
    """Format first minus second on common splits, paired by patient; bold if 0 is excluded."""
    common = [key for key in first if key in second]
    if not common:
        return NOTHING
    a, b = (repeats([side[key] for key in common], kind) for side in (first, second))
    try:
        found = paired_bootstrap(metric, a, b)
    except ValueError:
        return NOTHING
    value, low, high = (signed(number) for number in (found.difference, found.low, found.high))
    clear = found.low > 0 or found.high < 0
    return f"{f'**{value}**' if clear else value} ({low} to {high})"


def signed(number: float) -> str:
    return f"{number:+.3f}".replace("-", "\N{MINUS SIGN}")


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a Markdown table."""
    print(f"\n| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    print(end="", flush=True)
