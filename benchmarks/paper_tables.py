"""The paper's comparison in one place: its tables beside ours, from what `reproduce` wrote.

    python -m benchmarks.paper_tables OUTPUT                       # prints them
    python -m benchmarks.paper_tables OUTPUT --page docs/paper.md  # puts them into the page

OUTPUT is the folder of `histodict reproduce`, with a folder of every set. The page has pairs of
lines `<!-- NAME -->` and `<!-- /NAME -->`; what stands between them is made here, and by no hand.
What was not measured is said to be missing. Whether a claim holds is counted over the sets that
were measured; what a claim is taken to say stands on the page.
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
from histodict.paper.setting import PAPER_NAMES, accuracies, confusion, operating_points

Rows = list[dict[str, str]]
OURS, DFDL = "histodict", "DFDL"
NOTHING = "\N{EN DASH}"
NOT_MEASURED = "*Not measured yet.*"


# --- what was written ---------------------------------------------------------------------------


class Written:
    """Tables of a folder of `reproduce`, by set."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sets = [p.parent.name for p in sorted(folder.glob("*/accuracy.csv"))]
        others = {p.parent.name for p in folder.glob("*/*.json")} - {*self.sets, "pool"}
        self.sets += sorted(name for name in others if any((folder / name).glob("*.csv")))

    def rows(self, table: str, name: str) -> Rows:
        """Of a set; of all where `name` is empty. Nothing where it was not made."""
        file = self.folder / name / f"{table}.csv"
        if not file.is_file():
            return []
        with file.open(newline="", encoding="utf-8") as text:
            return list(csv.DictReader(text))

    def ours(self, table: str) -> dict[str, Rows]:
        """By set, without the published rows and the sets that lack it."""
        found = {name: self.rows(table, name) for name in self.sets}
        own = {n: [r for r in rows if r.get("source", OURS) == OURS] for n, rows in found.items()}
        return {name: rows for name, rows in own.items() if rows}


def by_data(found: dict[str, Rows]) -> dict[str, Rows]:
    """The same by what the rows say they are of: a set's images, or its regions."""
    parts: dict[str, Rows] = {}
    for row in (row for rows in found.values() for row in rows):
        parts.setdefault(row["data"], []).append(row)
    return parts


def by_method(rows: Iterable[dict[str, str]], value: Callable[[Any], Any]) -> dict[str, Any]:
    return {row["method"]: value(row) for row in rows}


def in_order(names: Iterable[str]) -> list[str]:
    """The paper's order of methods, then others; DFDL last, as there."""
    known = list(PAPER_NAMES.values())
    return sorted(set(names), key=lambda name: (known.index(name) if name in known else 99, name))


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def holds(said: dict[str, tuple[bool, str]]) -> str:
    """On how many sets a claim holds, and what was found on each."""
    if not said:
        return NOT_MEASURED
    n_sets = sum(yes for yes, _ in said.values())
    text = "; ".join(f"{name}: {why}" for name, (_, why) in said.items())
    return f"**It holds on {n_sets} of {len(said)} public sets.** {text}."


def percent(row: dict[str, str]) -> float:
    return float(row["accuracy"])


# --- accuracy, confusion, curves ----------------------------------------------------------------


def accuracy_block(written: Written) -> str:
    ours = written.ours("accuracy")
    theirs: dict[str, dict[str, float]] = {}
    for row in accuracies():
        theirs.setdefault(row["data"], {})[row["method"]] = row["accuracy"]
    cells = {name: by_method(rows, _with_interval) for name, rows in ours.items()}
    methods = in_order({m for own in (*theirs.values(), *cells.values()) for m in own})
    heads = ["", *(f"{data}, published" for data in theirs), *(f"{data}, ours" for data in cells)]
    table = [
        [
            f"**{m}**" if m == DFDL else m,
            *(f"{own[m]:.2f}" if m in own else NOTHING for own in theirs.values()),
            *(own.get(m, NOTHING) for own in cells.values()),
        ]
        for m in methods
    ]
    output = {name: _first(by_method(rows, percent)) for name, rows in ours.items()}
    return "\n\n".join([markdown(heads, table), holds(output), _apart(written)])


def _with_interval(row: dict[str, str]) -> str:
    value, low, high = (float(row[name]) for name in ("accuracy", "low", "high"))
    return f"{value:.1f} ({low:.1f} to {high:.1f})"


def _first(values: dict[str, float], unit: str = " %", *, least: bool = False) -> tuple[bool, str]:
    """Whether DFDL has the best value, and who has."""
    sign = -1 if least else 1
    best = max(values, key=lambda method: (sign * values[method], method == DFDL))
    own = values.get(DFDL)
    if own is None:
        return False, f"without {DFDL}"
    rank = 1 + sum(sign * value > sign * own for value in values.values())
    if best == DFDL:
        equal = [m for m, value in values.items() if m != DFDL and value == own]
        beside = f", level with {', '.join(equal)}" if equal else ""
        return True, f"{DFDL} {_number(own, unit)}, the best of {len(values)}{beside}"
    text = f"{best} {_number(values[best], unit)}, {DFDL} {_number(own, unit)}"
    return False, f"{text}, place {rank} of {len(values)}"


def _number(value: float, unit: str) -> str:
    return f"{value:.1f}{unit}" if unit else f"{value:.3f}"


def _apart(written: Written) -> str:
    """Which differences to DFDL are beyond their interval, paired by patient."""
    lines = []
    for name in written.sets:
        for row in written.rows("comparisons", name):
            low, high = float(row["low"]), float(row["high"])
            if row["method"] == "dfdl" and (low > 0 or high < 0):
                other = PAPER_NAMES.get(row["against"], row["against"])
                side = "ahead of" if low > 0 else "behind"
                ends = " to ".join(f"{100 * abs(x):.1f}" for x in sorted((low, high), key=abs))
                lines.append(f"{name}: {side} {other} by {ends}")
    if not any(written.rows("comparisons", name) for name in written.sets):
        return ""
    found = "; ".join(lines) if lines else "none"
    return (
        "Differences of DFDL in balanced accuracy that are beyond their 95 % interval, paired by "
        f"patient and not corrected for their number, in points: {found}."
    )


def confusion_block(written: Written) -> str:
    """Per method and data, the share of each class that is right, healthy first."""
    ours = written.ours("confusion")
    parts: dict[str, dict[str, list[str]]] = {}
    published: dict[str, Rows] = {}
    for row in confusion():
        published.setdefault(f"{row['data']}, published", []).append(row)
    for title, rows in [*published.items(), *((f"{n}, ours", own) for n, own in ours.items())]:
        for row in rows:
            if row["truth"] == row["answer"]:
                odd = str(row["sums_to_100"]).lower() == "false"
                cell = f"{float(row['percent']):.1f}{'*' if odd else ''}"
                parts.setdefault(title, {}).setdefault(row["method"], []).append(cell)
    methods = in_order({m for own in parts.values() for m in own})
    table = [[m, *(" / ".join(own.get(m, [NOTHING])) for own in parts.values())] for m in methods]
    note = "Right, in percent: healthy / diseased. \\* A printed row that does not sum to 100."
    missing = "" if ours else NOT_MEASURED
    return "\n\n".join(filter(None, [markdown(["", *parts], table), note, missing]))


def roc_block(written: Written) -> str:
    curves, points = by_data(written.ours("roc")), by_data(written.ours("roc-points"))
    theirs: dict[str, dict[str, str]] = {}
    learners = {row["method"] for rows in curves.values() for row in rows} or {DFDL}
    for point in operating_points():
        if point["method"] in learners:
            theirs.setdefault(point["data"], {})[point["method"]] = _rates(point)
    areas = {name: _areas(rows) for name, rows in curves.items()}
    heads = [""]
    heads += [f"{data}, published" for data in theirs]
    heads += [f"{name}, ours: {what}" for name in areas for what in ("at work", "area")]
    table = []
    for m in in_order(learners):
        row = [m, *(own.get(m, NOTHING) for own in theirs.values())]
        for name, own in areas.items():
            at = by_method(points.get(name, []), _rates)
            row += [at.get(m, NOTHING), f"{own[m]:.3f}" if m in own else NOTHING]
        table.append(row)
    note = (
        "False alarms / misses where the methods work, and the area below the curve of misses "
        "against false alarms: the less, the better."
    )
    output = {name: _first(own, "", least=True) for name, own in areas.items()}
    return "\n\n".join([markdown(heads, table), note, holds(output)])


def _rates(point: Any) -> str:
    return f"{float(point['false_alarm']):.2f} / {float(point['miss']):.2f}"


def _areas(rows: Rows) -> dict[str, float]:
    """Below each method's curve, from no false alarm to nothing but."""
    found: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        at = float(row["false_alarm"]), -float(row["miss"])
        found.setdefault(row["method"], [(0.0, -1.0), (1.0, 0.0)]).append(at)
    areas = {}
    for method, points in found.items():
        alarm, miss = np.array(sorted(points)).T
        areas[method] = float(trapezoid(-miss, alarm))
    return areas


# --- sweeps -------------------------------------------------------------------------------------


def sweep_block(written: Written, table: str, axis: str, few: str) -> str:
    """A table per set: accuracy by size, and what is lost from the most to the fewest."""
    blocks, best, least = [], {}, {}
    for name, rows in written.ours(table).items():
        sizes = sorted({int(row[axis]) for row in rows})
        values: dict[str, dict[int, float]] = {}
        shown: dict[str, dict[int, str]] = {}
        for row in rows:
            values.setdefault(row["method"], {})[int(row[axis])] = percent(row)
            shown.setdefault(row["method"], {})[int(row[axis])] = _with_interval(row)
        whole = {m: own for m, own in values.items() if len(own) == len(sizes)}
        lost = {m: own[sizes[-1]] - own[sizes[0]] for m, own in whole.items()}
        lines = [
            [
                m,
                *(shown[m].get(size, NOTHING) for size in sizes),
                f"{lost[m]:+.1f}" if m in lost else NOTHING,
            ]
            for m in in_order(values)
        ]
        heads = [f"{name}: {axis}", *map(str, sizes), "most less fewest"]
        blocks.append(markdown(heads, lines))
        if whole:
            best[name] = _first({m: own[sizes[0]] for m, own in whole.items()})
            least[name] = _first(lost, " points", least=True)
    if not blocks:
        return NOT_MEASURED
    blocks.append(f"*Best with the fewest {few}:* {holds(best)}")
    blocks.append(f"*Loses least on the way there:* {holds(least)}")
    return "\n\n".join(blocks)


# --- time and bases -----------------------------------------------------------------------------


def complexity_block(written: Written) -> str:
    rows = written.rows(COMPLEXITY, "")
    if not rows:
        return NOT_MEASURED
    kinds = {
        "published time": ("published seconds", "published time"),
        "operations, q = 1": ("operations q=1", "published q=1"),
        "operations, q = 10": ("operations q=10", "published q=10"),
        "ours at that size, s": ("recorded seconds", "recorded seconds"),
        "ours at a small size, s": ("measured seconds", "measured seconds"),
    }
    table = [[row["method"], *(_short(row[shown]) for _, shown in kinds.values())] for row in rows]
    orders = []
    for title, (key, _) in kinds.items():
        known = [row for row in rows if row[key]]
        ordered = sorted(known, key=lambda row: float(row[key]))
        orders.append(f"- {title}: {' < '.join(row['method'] for row in ordered)}")
    return "\n\n".join([markdown(["", *kinds], table), "\n".join(orders)])


def _short(text: str) -> str:
    """A number of seconds with three digits; other words as they are."""
    try:
        return f"{float(text):.3g}" if "e" not in text else text
    except ValueError:
        return text or NOTHING


def bases_block(written: Written) -> str:
    closest = written.ours("bases")
    shares = written.ours("codes-shares")
    if not closest:
        return NOT_MEASURED
    reference: dict[str, dict[str, float]] = {}
    for name, rows in closest.items():
        methods = in_order(row["method"] for row in rows)
        reference[name] = {
            m: median(float(row["closest_other"]) for row in rows if row["method"] == m)
            for m in methods
        }
    heads = ["", *(f"{name}: {what}" for name in reference for what in ("cosine", "own share"))]
    table = []
    for m in in_order({m for own in reference.values() for m in own}):
        row = [m]
        for name, own in reference.items():
            parts = [s["own_class_fraction"] for s in shares.get(name, []) if s["method"] == m]
            share = ", ".join(f"{float(part):.0%}" for part in parts)
            row += [f"{own[m]:.2f}" if m in own else NOTHING, share or NOTHING]
        table.append(row)
    output = {name: _first(own, "", least=True) for name, own in reference.items()}
    note = (
        "Cosine: median over the atoms of the largest |cosine| to an atom of the other class. Own "
        "share: of the codes' magnitude, what falls on the image's own class, for one unseen image "
        "of each class."
    )
    return "\n\n".join([markdown(heads, table), note, holds(output)])


BLOCKS: dict[str, Callable[[Written], str]] = {
    "accuracy": accuracy_block,
    "confusion": confusion_block,
    "roc": roc_block,
    "training-images": lambda w: sweep_block(
        w, "training-images", "training images per class", "training images"
    ),
    "training-patches": lambda w: sweep_block(
        w, "training-patches", "patches per class", "training patches"
    ),
    "bases-count": lambda w: sweep_block(w, "bases-count", "bases per class", "bases"),
    "complexity": complexity_block,
    "bases": bases_block,
}


def filled(page: str, blocks: dict[str, str]) -> str:
    """The page with every block between its lines; one without a place is an error."""
    for name, text in blocks.items():
        first, last = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        if (page.count(first), page.count(last)) != (1, 1):
            raise ValueError(f"the page must have one line {first.strip()} and one {last}")
        before, rest = page.split(first)
        page = f"{before}{first}\n{text}\n\n{last}{rest.split(last)[1]}"
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="written by `histodict reproduce`")
    parser.add_argument("--page", type=Path, help="Markdown to put the tables into")
    options = parser.parse_args()
    written = Written(options.folder)
    if not written.sets and not written.rows(COMPLEXITY, ""):
        sys.exit(f"{options.folder}: `histodict reproduce` has written nothing there")
    blocks = {name: make(written) for name, make in BLOCKS.items()}
    if options.page:
        text = options.page.read_text(encoding="utf-8")
        options.page.write_text(filled(text, blocks), encoding="utf-8")
    else:
        for name, block in blocks.items():
            print(f"## {name}\n\n{block}\n")


if __name__ == "__main__":
    main()
