"""Tables of the paper's comparison: published results and those of `histodict reproduce`.

    python -m benchmarks.paper_tables OUTPUT                       # print them
    python -m benchmarks.paper_tables OUTPUT --page docs/paper.md  # write them into the page

OUTPUT is the folder of `histodict reproduce`, with one folder per data set. The page has pairs of
lines `<!-- NAME -->` and `<!-- /NAME -->`; the text between them is generated. Results that are
missing are reported as not measured. Each claim of the paper is counted over the measured sets.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from scipy.integrate import trapezoid

from histodict.paper.complexity import NAME as COMPLEXITY
from histodict.paper.setting import PAPER_NAMES, published_accuracies

Rows = list[dict[str, str]]
OURS, DFDL = "histodict", "DFDL"
NOTHING = "\N{EN DASH}"
NOT_MEASURED = "*Not measured.*"


# --- output of `reproduce` ----------------------------------------------------------------------


class ReproduceTables:
    """Tables in the output folder of `reproduce`, by data set."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sets = [p.parent.name for p in sorted(folder.glob("*/accuracy.csv"))]
        others = {p.parent.name for p in folder.glob("*/*.json")} - {*self.sets, "pool"}
        self.sets += sorted(name for name in others if any((folder / name).glob("*.csv")))

    def rows(self, table: str, name: str) -> Rows:
        """Return the rows of a table of one set, or of all sets if `name` is empty."""
        file = self.folder / name / f"{table}.csv"
        if not file.is_file():
            return []
        with file.open(newline="", encoding="utf-8") as text:
            return list(csv.DictReader(text))

    def measured(self, table: str) -> dict[str, Rows]:
        """Return the rows of histodict by set, for sets that have the table."""
        found = {name: self.rows(table, name) for name in self.sets}
        own = {n: [r for r in rows if r.get("source", OURS) == OURS] for n, rows in found.items()}
        return {name: rows for name, rows in own.items() if rows}


def by_data(found: dict[str, Rows]) -> dict[str, Rows]:
    """Group rows by the column `data`: the images of a set, or its regions."""
    parts: dict[str, Rows] = {}
    for row in (row for rows in found.values() for row in rows):
        parts.setdefault(row["data"], []).append(row)
    return parts


def by_method(rows: Iterable[dict[str, str]], value: Callable[[Any], Any]) -> dict[str, Any]:
    return {row["method"]: value(row) for row in rows}


def in_order(names: Iterable[str]) -> list[str]:
    """Sort methods in the order of the paper, others last."""
    known = list(PAPER_NAMES.values())
    return sorted(set(names), key=lambda name: (known.index(name) if name in known else 99, name))


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def count_claim(
    values: dict[str, dict[str, float]], *, is_least: bool = False, n_digits: int = 9
) -> str:
    """Return on how many sets DFDL has the best value, and its rank on each.

    Parameters
    ----------
    values : for each set, the value of each method
    is_least : whether the smallest value is the best
    n_digits : digits after which values count as equal
    """
    ranks = {}
    for name, by_name in values.items():
        rounded = {m: round(-v if is_least else v, n_digits) for m, v in by_name.items()}
        if DFDL not in rounded:
            continue
        rank = 1 + sum(value > rounded[DFDL] for value in rounded.values())
        is_tied = list(rounded.values()).count(rounded[DFDL]) > 1
        ranks[name] = rank, f"{rank} of {len(rounded)}{' (tied)' if is_tied else ''}"
    if not ranks:
        return NOT_MEASURED
    n_sets = sum(rank == 1 for rank, _ in ranks.values())
    text = ", ".join(f"{name} {described}" for name, (_, described) in ranks.items())
    return f"**Holds on {n_sets} of {len(ranks)} sets.** Rank of {DFDL}: {text}."


def percent(row: dict[str, str]) -> float:
    return float(row["accuracy"])


# --- accuracy and ROC curves --------------------------------------------------------------------


def accuracy_block(tables: ReproduceTables) -> str:
    measured = tables.measured("accuracy")
    published: dict[str, dict[str, float]] = {}
    for row in published_accuracies():
        published.setdefault(row["data"], {})[row["method"]] = row["accuracy"]
    cells = {name: by_method(rows, _with_interval) for name, rows in measured.items()}
    methods = in_order({m for own in (*published.values(), *cells.values()) for m in own})
    heads = [
        "",
        *(f"{data}, published" for data in published),
        *(f"{data}, histodict" for data in cells),
    ]
    table = [
        [
            f"**{m}**" if m == DFDL else m,
            *(f"{own[m]:.2f}" if m in own else NOTHING for own in published.values()),
            *(own.get(m, NOTHING) for own in cells.values()),
        ]
        for m in methods
    ]
    output = {name: by_method(rows, percent) for name, rows in measured.items()}
    return "\n\n".join(
        [markdown(heads, table), count_claim(output), _significant_differences(tables)]
    )


def _format_accuracy(row: dict[str, str]) -> str:
    return f"{percent(row):.1f}"


def _with_interval(row: dict[str, str]) -> str:
    value, low, high = (float(row[name]) for name in ("accuracy", "low", "high"))
    return f"{value:.1f} ({low:.1f}{NOTHING}{high:.1f})"


def _significant_differences(tables: ReproduceTables) -> str:
    """Describe the differences to DFDL whose paired interval excludes 0."""
    lines = []
    for name in tables.sets:
        for row in tables.rows("comparisons", name):
            low, high = float(row["low"]), float(row["high"])
            if row["method"] == "dfdl" and (low > 0 or high < 0):
                other = PAPER_NAMES.get(row["against"], row["against"])
                side = "higher than" if low > 0 else "lower than"
                ends = " to ".join(f"{100 * abs(x):.1f}" for x in sorted((low, high), key=abs))
                lines.append(f"{name}, {DFDL} is {ends} points {side} {other}")
    if not any(tables.rows("comparisons", name) for name in tables.sets):
        return ""
    found = f"these cases: {'; '.join(lines)}" if lines else "no case"
    return (
        f"The 95 % interval of the difference in balanced accuracy between {DFDL} and another "
        f"method (paired by patient, not adjusted for multiplicity) excludes 0 in {found}."
    )


def roc_block(tables: ReproduceTables) -> str:
    areas = {name: _areas(rows) for name, rows in by_data(tables.measured("roc")).items()}
    if not areas:
        return NOT_MEASURED
    table = [
        [m, *(f"{own[m]:.3f}" if m in own else NOTHING for own in areas.values())]
        for m in in_order({m for own in areas.values() for m in own})
    ]
    return "\n\n".join([markdown(["", *areas], table), count_claim(areas, is_least=True)])


def _areas(rows: Rows) -> dict[str, float]:
    """Return the area below each method's curve of miss rate against false alarm rate."""
    found: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        point = float(row["false_alarm"]), -float(row["miss"])
        found.setdefault(row["method"], [(0.0, -1.0), (1.0, 0.0)]).append(point)
    areas = {}
    for method, points in found.items():
        alarm, miss = np.array(sorted(points)).T
        areas[method] = float(trapezoid(-miss, alarm))
    return areas


# --- sweeps -------------------------------------------------------------------------------------


def sweep_block(tables: ReproduceTables, table: str, axis: str) -> str:
    """Return the accuracy of each method at the smallest and the largest size, by set."""
    columns: dict[str, dict[str, str]] = {}
    accurate: dict[str, dict[str, float]] = {}
    lost: dict[str, dict[str, float]] = {}
    for name, rows in tables.measured(table).items():
        sizes = sorted({int(row[axis]) for row in rows})
        values: dict[str, dict[int, float]] = {}
        for row in rows:
            values.setdefault(row["method"], {})[int(row[axis])] = percent(row)
        for size in (sizes[0], sizes[-1]):
            at_size = [row for row in rows if int(row[axis]) == size]
            columns[f"{name}, {size}"] = by_method(at_size, _format_accuracy)
        complete = {m: own for m, own in values.items() if len(own) == len(sizes)}
        if complete:
            accurate[name] = {m: own[sizes[0]] for m, own in complete.items()}
            lost[name] = {m: own[sizes[-1]] - own[sizes[0]] for m, own in complete.items()}
    if not columns:
        return NOT_MEASURED
    methods = in_order({m for cells in columns.values() for m in cells})
    lines = [[m, *(cells.get(m, NOTHING) for cells in columns.values())] for m in methods]
    return "\n\n".join(
        [
            markdown([axis, *columns], lines),
            f"Most accurate at the smallest size: {count_claim(accurate)}",
            f"Smallest loss between the two sizes: {count_claim(lost, is_least=True)}",
        ]
    )


# --- time and bases -----------------------------------------------------------------------------


def complexity_block(tables: ReproduceTables) -> str:
    rows = tables.rows(COMPLEXITY, "")
    if not rows:
        return NOT_MEASURED
    kinds = {
        "published time": "published time",
        "operations, q = 1": "published q=1",
        "operations, q = 10": "published q=10",
        "histodict at the paper's size, in s": "recorded seconds",
    }
    table = [[row["method"], *(_short(row[shown]) for shown in kinds.values())] for row in rows]
    return markdown(["", *kinds], table)


def _short(text: str) -> str:
    """Format a number of seconds with three digits; return other text unchanged."""
    try:
        return f"{float(text):.3g}" if "e" not in text else text
    except ValueError:
        return text or NOTHING


def bases_block(tables: ReproduceTables) -> str:
    closest = tables.measured("bases")
    if not closest:
        return NOT_MEASURED
    similarity: dict[str, dict[str, float]] = {}
    for name, rows in closest.items():
        methods = in_order(row["method"] for row in rows)
        similarity[name] = {
            m: median(
                float(row["max_cosine_to_other_classes"]) for row in rows if row["method"] == m
            )
            for m in methods
        }
    table = [
        [m, *(f"{own[m]:.2f}" if m in own else NOTHING for own in similarity.values())]
        for m in in_order({m for own in similarity.values() for m in own})
    ]
    note = "Median over the atoms of the largest |cosine| to an atom of the other class."
    claim = count_claim(similarity, is_least=True)
    return "\n\n".join([markdown(["", *similarity], table), note, claim])


BLOCKS: dict[str, Callable[[ReproduceTables], str]] = {
    "accuracy": accuracy_block,
    "roc": roc_block,
    "training-images": lambda t: sweep_block(t, "training-images", "training images per class"),
    "complexity": complexity_block,
    "bases": bases_block,
}


def filled(page: str, blocks: dict[str, str]) -> str:
    """Return the page with each block between its two marker lines; both must exist."""
    for name, text in blocks.items():
        first, last = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        if (page.count(first), page.count(last)) != (1, 1):
            raise ValueError(f"the page must have one line {first.strip()} and one {last}")
        before, rest = page.split(first)
        page = f"{before}{first}\n{text}\n\n{last}{rest.split(last)[1]}"
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="output folder of `histodict reproduce`")
    parser.add_argument("--page", type=Path, help="Markdown file to write the tables into")
    options = parser.parse_args()
    tables = ReproduceTables(options.folder)
    if not tables.sets and not tables.rows(COMPLEXITY, ""):
        sys.exit(f"{options.folder}: contains no tables of `histodict reproduce`")
    blocks = {name: make(tables) for name, make in BLOCKS.items()}
    if options.page:
        text = options.page.read_text(encoding="utf-8")
        options.page.write_text(filled(text, blocks), encoding="utf-8")
    else:
        for name, block in blocks.items():
            print(f"## {name}\n\n{block}\n")


if __name__ == "__main__":
    main()
