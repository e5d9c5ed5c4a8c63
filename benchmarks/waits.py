"""What users wait for, each beside its limit, in one table.

    python -m benchmarks.waits [--quick] [--check | --record]

A limit is what cannot be saved: the bare product of a kernel, bare decoding of a slide's tiles, a
product of as many operations as a network's layers, bare Python. Seconds are of CPU on one thread,
ours and the limit in turns and the best of each, so that other work on the machine shows little.

--quick is of small sizes, under a minute. --check does the same, says what is more than a fifth
further from its limit than it was recorded for this kind of machine (`recorded/KIND.json`, which
--record writes), and fails if something is more than half further: machines of one kind, and what
else runs on them, differ by up to a quarter. What seems worse is measured again before it is
believed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from . import report
from .machine import describe_machine, machine_kind
from .turns import Turns
from .waits_cases import FULL, QUICK, Wait, waits

WORSE = 1.2  # times the recorded ratio: said
FAILS = 1.5  # more than a machine of the same kind differs by (1.24 was seen)
_ROUNDS = 5  # of which the median is recorded
_AGAIN = 2  # times before a ratio that is worse is believed
_RECORDED = Path(__file__).with_name("recorded")


@dataclass(frozen=True)
class Line:
    """Of the table: seconds, or why there are none."""

    wait: Wait
    ours: float = 0.0
    limit: float = 0.0
    missing: str = ""

    @property
    def ratio(self) -> float:
        return self.ours / self.limit

    def times(self, recorded: dict[str, float]) -> float:
        """As far from its limit as recorded: 1; 0 if it is not recorded."""
        return self.ratio / recorded.get(self.wait.name, float("inf"))


def measure(found: Iterable[Wait], seconds: float) -> list[Line]:
    lines = []
    for wait in found:
        try:
            ours, limit = wait.prepare()
        except ImportError as error:
            lines.append(Line(wait, missing=f"not measured: {error.name} is not installed"))
            continue
        lines.append(Line(wait, *Turns(ours, limit).best_within(seconds)))
    return lines


def worse(lines: list[Line], recorded: dict[str, float]) -> list[Line]:
    """Those further from their limit than they may be."""
    return [line for line in lines if not line.missing and line.times(recorded) > WORSE]


def check(
    lines: list[Line], recorded: dict[str, float], again: Callable[[list[Wait]], list[Line]]
) -> list[Line]:
    """Those that stay worse however often they are measured again."""
    found = worse(lines, recorded)
    for _ in range(_AGAIN):
        if found:
            found = worse(again([line.wait for line in found]), recorded)
    return found


def recorded_file(kind: str) -> Path:
    return _RECORDED / f"{kind}.json"


def read_recorded(kind: str) -> dict[str, float] | None:
    """Ratios by name; None: nothing is recorded of this kind of machine."""
    path = recorded_file(kind)
    if not path.is_file():
        return None
    ratios: dict[str, float] = json.loads(path.read_text("utf-8"))["ratios"]
    return ratios


def print_lines(lines: list[Line], recorded: dict[str, float] | None) -> None:
    rows = []
    for line in lines:
        known = (recorded or {}).get(line.wait.name)
        rows.append(
            {
                "waiting for": line.wait.name,
                "s of CPU": line.missing or f"{line.ours:.3f}",
                "limit": line.wait.limit,
                "s": "" if line.missing else f"{line.limit:.3f}",
                "times the limit": "" if line.missing else f"{line.ratio:.2f}",
                "recorded": "" if known is None else f"{known:.2f}",
            }
        )
    report._print_table(rows)


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.waits", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--check", action="store_true", help="fail if something is worse")
    parser.add_argument("--record", action="store_true", help="for this kind of machine")
    specified = parser.parse_args()
    is_quick = specified.quick or specified.check or specified.record
    # The same patches everywhere, or the ratios would not be comparable.
    os.environ.pop("HISTODICT_DATA", None)
    size, kind = QUICK if is_quick else FULL, machine_kind()
    recorded = read_recorded(kind) if is_quick else None
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        found = waits(size, folder)
        lines = measure(found, size.seconds)
        print_lines(lines, recorded)
        if specified.record:
            _record(kind, [lines, *(measure(found, size.seconds) for _ in range(_ROUNDS - 1))])
        if specified.check and recorded is None:
            print(f"Nothing is recorded for machines like this one ({kind}): not compared.")
        elif specified.check:
            bad = check(lines, recorded or {}, lambda ws: measure(ws, 3 * size.seconds))
            sys.exit(exit_status(bad, recorded or {}))


def exit_status(bad: list[Line], recorded: dict[str, float]) -> int:
    """Say what is worse; 1 if it is so much worse that no machine's mood explains it."""
    for line in bad:
        fails = line.times(recorded) > FAILS
        print(
            f"{'Error' if fails else 'Warning'}: {line.wait.name}: {line.ratio:.2f} times its "
            f"limit; {recorded[line.wait.name]:.2f} is recorded"
        )
    return int(any(line.times(recorded) > FAILS for line in bad))


def _record(kind: str, rounds: list[list[Line]]) -> None:
    """The medians of several rounds."""
    ratios = {
        lines[0].wait.name: round(median(line.ratio for line in lines), 3)
        for lines in zip(*rounds, strict=True)
        if not lines[0].missing
    }
    content = {"machine": describe_machine(), "ratios": ratios}
    _RECORDED.mkdir(exist_ok=True)
    recorded_file(kind).write_text(json.dumps(content, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
