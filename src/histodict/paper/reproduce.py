"""`histodict reproduce`: the paper's experiments by name, as figures, tables and one page.

OUTPUT/index.html                      everything made so far
OUTPUT/DATA/NAME.svg, .png, .csv, …    an experiment on a data set; complexity.* lie in OUTPUT
OUTPUT/DATA/runs, models, cache        trained models, reused by the next run
OUTPUT/DATA/results.csv, …             the tables of `histodict evaluate` behind `accuracy`
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..datasets.manifest import read_manifest
from ..reports.html import write_page
from ..synthetic.dataset import cached_synthetic_dataset
from ..utils.parallel import ExecutionOptions
from ..utils.progress import Progress
from ..utils.text_io import read_checked_json, write_checked_json, write_table
from . import EXPERIMENTS, FULL, Choice, NotPossibleError, Outcome, Setting, Sizes, complexity
from .image_sets import Dataset, load_datasets
from .plots import save_figure

SYNTHETIC = "synthetic"
ALL = "all"
EXPERIMENT_NAMES = (*EXPERIMENTS, complexity.NAME, ALL)
_PAGE = "index.html"
_LEAD = (
    "Made with histodict. Published figures are hollow and come from Vu, Mousavi, Monga, Rao, Rao, "
    "IEEE Transactions on Medical Imaging, 2016; ours were measured on other images."
)


def reproduce(
    what: str = ALL,
    data: Path | str = SYNTHETIC,
    output: Path | str = "histodict-paper",
    *,
    sizes: Sizes = FULL,
    part: str | None = None,
    choice: Choice | None = None,
    work: ExecutionOptions = ExecutionOptions(),  # noqa: B008 (it is frozen)
) -> list[Outcome]:
    """Run one experiment, or all, and write the files above.

    Parameters
    ----------
    what : one of WHAT; what the data cannot show is left out of "all", and else an error
    data : a folder, the name of one in $HISTODICT_DATA, or "synthetic" for drawn tissue
    output : folder to write to; several runs share its page
    sizes : FULL, as in the paper, or QUICK, for a look in minutes
    part : of data with several tasks, those whose name contains this
    choice : methods, preset, settings, repeats
    work : how many processes and threads, and who hears of it
    """
    if what not in EXPERIMENT_NAMES:
        raise ValueError(f"WHAT must be one of {', '.join(EXPERIMENT_NAMES)}, not {what!r}")
    output = Path(output)
    made: list[Outcome] = []
    if what != complexity.NAME:
        for dataset in _datasets(data, output, sizes, part):
            folder = output / dataset.name
            own = replace(work, cache=folder / "cache")
            setting = Setting(dataset, folder, sizes, choice or Choice(), own)
            for outcome in _on(setting, what):
                made.append(replace(outcome, warnings=dataset.warnings))
                _write(made[-1], output, dataset.name)
    if what in (complexity.NAME, ALL):
        made.append(complexity.run(sizes.timed, _named(work, complexity.NAME)))
        _write(made[-1], output, "")
    return made


def _datasets(data: Path | str, output: Path, sizes: Sizes, part: str | None) -> list[Dataset]:
    if data != SYNTHETIC:
        return load_datasets(data, part)
    n_patients, n_images, (width, height) = sizes.synthetic
    folder = output / f"drawn-{n_patients}x{n_images}-{width}x{height}"
    tables = folder / "manifest.csv", folder / "regions" / "manifest.csv"
    cached_synthetic_dataset(folder, *sizes.synthetic)
    images, regions = map(read_manifest, tables)
    return [Dataset(SYNTHETIC, images, regions, region="inflamed")]


def _on(setting: Setting, what: str) -> Iterator[Outcome]:
    for name, experiment in EXPERIMENTS.items():
        if what not in (name, ALL):
            continue
        try:
            yield experiment(replace(setting, work=_named(setting.work, name)))
        except NotPossibleError:
            if what != ALL:
                raise


def _named(work: ExecutionOptions, experiment: str) -> ExecutionOptions:
    """Progress goes by the experiment's name, so that each has a bar of its own."""

    def tell(progress: Progress) -> None:
        work.callback(replace(progress, stage=f"{experiment} ({progress.stage})"))

    return replace(work, callback=tell)


# --- files --------------------------------------------------------------------------------------


def _write(outcome: Outcome, output: Path, dataset: str) -> None:
    """`dataset` is its name; nothing for what needs no data."""
    folder = output / dataset
    folder.mkdir(parents=True, exist_ok=True)
    files = save_figure(outcome, folder / outcome.name)
    for suffix, rows in {"": outcome.rows, **outcome.more}.items():
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
    content = {"title": "The paper's experiments", "lead": _LEAD, "entries": _entries(output)}
    write_page(output / _PAGE, "paper/page.html.j2", content)


def _entry(file: Path) -> dict[str, Any] | None:
    """What was written beside an experiment's figure; None if it was not made, or is damaged."""
    try:
        entry: dict[str, Any] = read_checked_json(file)
        if not entry["files"] or not {"experiment", "dataset", "title"} <= entry.keys():
            raise ValueError("entries are missing")
    except FileNotFoundError:
        return None
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        warnings.warn(
            f"{file}: is damaged, and its experiment not shown: make it again ({error})",
            stacklevel=2,
        )
        return None
    return entry


def _entries(output: Path) -> list[dict[str, Any]]:
    """What is shown of all experiments so far, in the order of the paper on each data set."""
    places = [output, *sorted(path for path in output.iterdir() if path.is_dir())]
    files = [place / f"{name}.json" for place in places for name in (*EXPERIMENTS, complexity.NAME)]
    made = [entry for file in files if (entry := _entry(file))]
    for entry in made:
        entry["anchor"] = "-".join(filter(None, (entry["dataset"], entry["experiment"])))
        entry["picture"] = entry["files"][0]
    return made
