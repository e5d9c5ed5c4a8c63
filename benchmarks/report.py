"""Figures of a run, and their output on a terminal."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import Any

from .problem import Problem, Size
from .quality import GAP_LIMIT, Quality


@dataclass
class Row:
    """One implementation of one case. Seconds are for all samples: scaled up if some were coded."""

    title: str
    case: str
    seconds: list[float] = field(default_factory=list)
    first: float = 0.0
    n_rows: int = 0
    scale: float = 1.0
    ratio: float | None = None
    ratio_range: tuple[float, float] | None = None
    quality: Quality | None = None
    our_loss: float | None = None
    n_warnings: int = 0
    warning: str = ""
    version: str = ""
    note: str = ""
    error: str = ""

    @property
    def median(self) -> float:
        return median(self.seconds)


@dataclass
class CaseResult:
    """Rows of a case; the first one is histodict, and ratios are relative to it."""

    case: str
    rows: list[Row]


def compare(rows: list[Row]) -> None:
    """Set the ratio of medians of every row to the first row, with the range over paired repeats.

    Rows with alternating calls have as many repeats as the first row, which form pairs. Other rows
    are compared with the median of the first row.
    """
    ours = rows[0]
    if ours.error:
        raise RuntimeError(f"{ours.title} {ours.case}: {ours.error}")
    for row in rows:
        if row.seconds:
            paired = len(row.seconds) == len(ours.seconds)
            base = ours.seconds if paired else [ours.median] * len(row.seconds)
            ratios = [a / b for a, b in zip(row.seconds, base, strict=True)]
            row.ratio = row.median / ours.median
            row.ratio_range = (min(ratios), max(ratios))


def print_machine(machine: dict[str, str]) -> None:
    print("\n".join(f"{name:14} {value}" for name, value in machine.items()))


def print_problem(size: Size, problem: Problem, source: str) -> None:
    print(f"\ndata: {source}")
    print(
        f"{len(problem.Y)} unit-norm patches of {problem.Y.shape[1]} features, float32; "
        f"2 learnt dictionaries of {size.n_atoms} atoms; L = {size.n_nonzero}, "
        f"penalty = {problem.penalty}",
        flush=True,
    )


def print_first_calls(times: dict[str, dict[str, float]]) -> None:
    print("\nfirst calls of histodict in a process, on a few rows (excluded below):")
    for name, by_case in times.items():
        print(f"  {name:16}", "  ".join(f"{case} {s:.2f} s" for case, s in by_case.items()))


def print_case(result: CaseResult) -> None:
    print(f"\n{result.case}: {_MEANING[result.case]}")
    rows = [row for row in result.rows if not row.error]
    _print_table([_cells(row, result.rows[0].title) for row in rows])
    for row in result.rows:
        if row.error:
            print(f"  {row.title}: {row.error}")
    for note in _notes(rows):
        print(f"  {note}")
    print(end="", flush=True)


def print_training(trained: dict[str, Any]) -> None:
    print(f"\nDFDL training, n_nonzero={trained['n_nonzero']}:", end=" ")
    if "error" in trained:
        print(trained["error"])
        return
    print(
        f"{trained['seconds']:.1f} s = initialise {trained['initialise_s']:.1f} s"
        f" + train {trained['train_s']:.1f} s ({trained['n_iter']} iterations,"
        f" L = {trained['n_nonzero_']}); peak memory {trained['peak_mib']:.0f} MiB, of which"
        f" {trained['samples_mib']:.0f} MiB samples ({trained['peak_before_mib']:.0f} MiB before)",
        flush=True,
    )


_MEANING = {
    "omp": "pursuit with one class's atoms; loss ‖y - sD‖², missed where it is above ‖y‖²",
    "lasso": "l1 codes with both classes' atoms; loss ½‖y - sD‖² + λ‖s‖₁, missed where the relative"
    f" gap is above {GAP_LIMIT:g}",
    "dfdl": "one iteration of one class: coding of all samples, E and F, atoms",
}


def _cells(row: Row, our_title: str) -> dict[str, str]:
    name = row.title if row.title != our_title else f"{row.title}: {row.case}"
    cells = {
        "method": name + (f" [{row.n_rows} rows, scaled]" if row.scale != 1 else ""),
        "seconds (min..max)": _spread(row.median, (min(row.seconds), max(row.seconds)), "8.3f"),
        "first call": f"{row.first:.3f}",
        "/ ours (min..max)": _spread(row.ratio, row.ratio_range, "7.2f"),
    }
    if row.quality:
        cells |= _quality_cells(row, row.quality)
    return cells


def _quality_cells(row: Row, quality: Quality) -> dict[str, str]:
    cells = {
        "mean loss": f"{quality.loss:.6f}",
        "median": f"{quality.median_loss:.6f}",
        "largest": f"{quality.largest_loss:.4g}",
        "our loss, same rows": f"{row.our_loss:.6f}",
        "missed rows": str(quality.missed),
        "NaN rows": str(quality.nan_rows),
        "non-zeros": f"{quality.nonzeros:.2f}",
        "warnings": str(row.n_warnings),
    }
    if quality.largest_gap is not None:
        cells["largest gap"] = f"{quality.largest_gap:.1e}"
    return cells


def _spread(middle: float | None, ends: tuple[float, float] | None, form: str) -> str:
    if middle is None or ends is None:
        return ""
    low, high = (format(end, form).strip() for end in ends)
    return f"{middle:{form}} ({low}..{high})"


def _print_table(table: list[dict[str, str]]) -> None:
    names = list(dict.fromkeys(name for cells in table for name in cells))
    widths = {
        name: max(len(name), *(len(cells.get(name, "")) for cells in table)) for name in names
    }
    for cells in [dict(zip(names, names, strict=True)), *table]:
        first, *rest = (cells.get(name, "") for name in names)
        padded = (cell.rjust(widths[name]) for name, cell in zip(names[1:], rest, strict=True))
        print("  " + "  ".join([first.ljust(widths[names[0]]), *padded]).rstrip())


def _notes(rows: list[Row]) -> list[str]:
    """Return the ratio to the product, versions and settings of the libraries, and warnings."""
    ours = rows[0]
    notes = [
        f"{ours.title} takes {ours.median / row.median:.2f} times the bare product Y·Dᵀ"
        " (numpy, all cores)"
        for row in rows
        if "product" in row.case
    ]
    for row in rows:
        if row.title != ours.title:
            notes.append(f"{row.title}: version {row.version}; {row.note}")
            if row.warning:
                notes.append(f"{row.title} warned {row.n_warnings} times: {row.warning[:100]}")
    return notes
