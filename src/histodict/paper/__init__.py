"""Experiments of the paper, by name.

Each experiment takes a `Setting` (data set, methods, sizes) and returns an `Outcome`: tables, text
and a figure. The experiment `complexity` needs no data.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..datasets.manifest import read_manifest
from ..reports.html import write_page
from ..synthetic.dataset import cached_synthetic_dataset
from ..utils.parallel import ExecutionOptions
from ..utils.progress import STAGE_LABELS, Progress
from ..utils.text_io import read_checked_json, write_checked_json, write_table
from . import complexity
from .accuracy import (
    ACCURACY,
    BASES_SWEEP,
    CONFUSION,
    IMAGE_SWEEP,
    PATCH_SWEEP,
    ROC,
    run_accuracy,
    run_bases_count,
    run_confusion,
    run_roc,
    run_training_images,
    run_training_patches,
)
from .codes import ATOMS, CODES, run_atoms, run_codes
from .image_sets import Dataset, load_datasets
from .setting import (
    FULL,
    QUICK,
    ExperimentOptions,
    ExperimentSizes,
    NotPossibleError,
    Outcome,
    Setting,
    save_figure,
)

__all__ = [
    "EXPERIMENTS",
    "EXPERIMENT_NAMES",
    "FULL",
    "QUICK",
    "ExperimentOptions",
    "ExperimentSizes",
    "NotPossibleError",
    "Outcome",
    "Setting",
    "complexity",
    "reproduce",
]

# Experiments on a data set, in the order of the paper.
EXPERIMENTS: dict[str, Callable[[Setting], Outcome]] = {
    ATOMS: run_atoms,
    CODES: run_codes,
    ACCURACY: run_accuracy,
    CONFUSION: run_confusion,
    ROC: run_roc,
    PATCH_SWEEP.name: run_training_patches,
    IMAGE_SWEEP.name: run_training_images,
    BASES_SWEEP.name: run_bases_count,
}


SYNTHETIC = "synthetic"
ALL = "all"
EXPERIMENT_NAMES = (*EXPERIMENTS, complexity.NAME, ALL)
_PAGE_NAME = "index.html"
_INTRODUCTION = (
    "Made with histodict. Published figures are hollow and are from Vu, Mousavi, Monga, Rao, "
    "Rao, IEEE Transactions on Medical Imaging, 2016; the others were measured on other "
    "images."
)


def reproduce(
    experiment: str = ALL,
    data: Path | str = SYNTHETIC,
    output: Path | str = "histodict-paper",
    *,
    sizes: ExperimentSizes = FULL,
    part: str | None = None,
    options: ExperimentOptions | None = None,
    execution: ExecutionOptions = ExecutionOptions(),  # noqa: B008 (it is frozen)
) -> list[Outcome]:
    """Run one experiment, or all, and write figures, tables and an HTML page into a folder.

    Parameters
    ----------
    experiment : one of EXPERIMENT_NAMES; with "all", experiments that the data does not allow are
        skipped
    data : folder, name of a folder in $HISTODICT_DATA, or "synthetic"
    output : folder to write to; several runs share its page
    sizes : FULL, as in the paper, or QUICK, for a preview in minutes
    part : use only the tasks whose name contains this text; None for all
    options : methods, preset, settings and repeats of the experiments; None for the defaults
    execution : number of threads, and progress callback
    """
    if experiment not in EXPERIMENT_NAMES:
        raise ValueError(
            f"experiment {experiment!r} does not exist; choose from {', '.join(EXPERIMENT_NAMES)}"
        )
    output = Path(output)
    outcomes: list[Outcome] = []
    if experiment != complexity.NAME:
        for dataset in _load_datasets(data, output, sizes, part):
            folder = output / dataset.name
            cached = replace(execution, cache=folder / "cache")
            setting = Setting(dataset, folder, sizes, options or ExperimentOptions(), cached)
            for outcome in _run_experiments(setting, experiment):
                outcomes.append(replace(outcome, warnings=dataset.warnings))
                _write_outcome(outcomes[-1], output, dataset.name)
    if experiment in (complexity.NAME, ALL):
        execution = _with_experiment_name(execution, complexity.NAME)
        outcomes.append(complexity.run(sizes.timed_problem, execution))
        _write_outcome(outcomes[-1], output, "")
    return outcomes


def _load_datasets(
    data: Path | str, output: Path, sizes: ExperimentSizes, part: str | None
) -> list[Dataset]:
    if data != SYNTHETIC:
        return load_datasets(data, part)
    n_patients, n_images, (width, height) = sizes.synthetic
    folder = output / f"synthetic-{n_patients}x{n_images}-{width}x{height}"
    tables = folder / "manifest.csv", folder / "regions" / "manifest.csv"
    cached_synthetic_dataset(folder, *sizes.synthetic)
    images, regions = map(read_manifest, tables)
    return [Dataset(SYNTHETIC, images, regions, region="inflamed")]


def _run_experiments(setting: Setting, experiment: str) -> Iterator[Outcome]:
    for name, run_experiment in EXPERIMENTS.items():
        if experiment not in (name, ALL):
            continue
        try:
            yield run_experiment(
                replace(setting, execution=_with_experiment_name(setting.execution, name))
            )
        except NotPossibleError:
            if experiment != ALL:
                raise


def _with_experiment_name(execution: ExecutionOptions, experiment: str) -> ExecutionOptions:
    """Return options whose progress stages begin with the name of the experiment."""

    def report(progress: Progress) -> None:
        name = STAGE_LABELS.get(progress.stage, progress.stage).lower()
        execution.callback(replace(progress, stage=f"{experiment}: {name}"))

    return replace(execution, callback=report)


# --- files --------------------------------------------------------------------------------------


def _write_outcome(outcome: Outcome, output: Path, dataset: str) -> None:
    """Write figure, tables, metadata and page; `dataset` is "" if the experiment needs no data."""
    folder = output / dataset
    folder.mkdir(parents=True, exist_ok=True)
    files = save_figure(outcome, folder / outcome.name)
    for suffix, rows in {"": outcome.rows, **outcome.extra_tables}.items():
        table = folder / "-".join(filter(None, (outcome.name, suffix)))
        write_table(table, rows)
        files += [table.with_suffix(kind) for kind in (".csv", ".parquet")]
    entry = {
        "experiment": outcome.name,
        "dataset": dataset,
        "title": outcome.title,
        "note": outcome.note,
        "table": outcome.text if outcome.name == complexity.NAME else "",
        "files": [path.relative_to(output).as_posix() for path in files],
        "failures": outcome.failures,
        "warnings": outcome.warnings,
        "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "version": version("histodict"),
    }
    write_checked_json(folder / f"{outcome.name}.json", entry)
    content = {
        "title": "The paper's experiments",
        "lead": _INTRODUCTION,
        "entries": _page_entries(output),
    }
    write_page(output / _PAGE_NAME, "paper/page.html.j2", content)


def _read_entry(file: Path) -> dict[str, Any] | None:
    """Return the metadata of an experiment; None if it is missing or damaged."""
    try:
        entry: dict[str, Any] = read_checked_json(file)
        if not entry["files"] or not {"experiment", "dataset", "title"} <= entry.keys():
            raise ValueError("incomplete entry")
    except FileNotFoundError:
        return None
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        warnings.warn(
            f"{file}: the record is damaged and its experiment is not shown; run it again "
            f"({error})",
            stacklevel=2,
        )
        return None
    return entry


def _page_entries(output: Path) -> list[dict[str, Any]]:
    """Return the page entries of all finished experiments, sorted by data set and experiment."""
    folders = [output, *sorted(path for path in output.iterdir() if path.is_dir())]
    files = [
        folder / f"{name}.json" for folder in folders for name in (*EXPERIMENTS, complexity.NAME)
    ]
    entries = [entry for file in files if (entry := _read_entry(file))]
    for entry in entries:
        entry["anchor"] = "-".join(filter(None, (entry["dataset"], entry["experiment"])))
        entry["picture"] = entry["files"][0]
    return entries
