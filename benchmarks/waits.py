"""Time typical tasks relative to lower limits.

    python -m benchmarks.waits [--quick] [--check | --record]

Lower limits are the matrix product of a kernel, the decoding of the tiles of a slide, a matrix
product with as many operations as the encoder, and the start of Python. Times are CPU seconds of
one thread. The task and its limit alternate, and the minimum of each counts, to reduce the effect
of other load.

With --quick, sizes are small, and the run takes less than a minute. --check does the same, reports
ratios more than a fifth above those that --record has stored for this kind of machine in
`recorded/KIND.json`, and fails if one is more than half above: ratios differ by up to a quarter
between machines of one kind and with their load. Increased ratios are measured again first.
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

WORSE = 1.2  # times the recorded ratio: reported
FAILS = 1.5  # above the difference between machines of one kind (1.24 was observed)
_ROUNDS = 5  # the median is recorded
_AGAIN = 2  # repetitions before an increased ratio is reported
_RECORDED = Path(__file__).with_name("recorded")


@dataclass(frozen=True)
class Line:
    """Row of the table: seconds, or the reason why there are none."""

    wait: Wait
    ours: float = 0.0
    limit: float = 0.0
    missing: str = ""

    @property
    def ratio(self) -> float:
        return self.ours / self.limit

    def times(self, recorded: dict[str, float]) -> float:
        """Return the ratio relative to the recorded one; 0 if none is recorded."""
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
    """Return the lines with a ratio above the limit."""
    return [line for line in lines if not line.missing and line.times(recorded) > WORSE]


def check(
    lines: list[Line], recorded: dict[str, float], again: Callable[[list[Wait]], list[Line]]
) -> list[Line]:
    """Return the lines whose ratio stays above the limit when measured again."""
    found = worse(lines, recorded)
    for _ in range(_AGAIN):
        if found:
            found = worse(again([line.wait for line in found]), recorded)
    return found


def recorded_file(kind: str) -> Path:
    return _RECORDED / f"{kind}.json"


def read_recorded(kind: str) -> dict[str, float] | None:
    """Return recorded ratios by name; None if there are none for this kind of machine."""
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
    parser.add_argument("--check", action="store_true", help="fail if a ratio has increased")
    parser.add_argument("--record", action="store_true", help="store the ratios of this machine")
    specified = parser.parse_args()
    is_quick = specified.quick or specified.check or specified.record
    # Generated patches, so that ratios are comparable between machines.
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
            print(f"No ratios are recorded for this kind of machine ({kind}): not compared.")
        elif specified.check:
            bad = check(lines, recorded or {}, lambda ws: measure(ws, 3 * size.seconds))
            sys.exit(exit_status(bad, recorded or {}))


def exit_status(bad: list[Line], recorded: dict[str, float]) -> int:
    """Print increased ratios; return 1 if one exceeds the variation between machines."""
    for line in bad:
        fails = line.times(recorded) > FAILS
        print(
            f"{'Error' if fails else 'Warning'}: {line.wait.name}: {line.ratio:.2f} times its "
            f"limit; {recorded[line.wait.name]:.2f} is recorded"
        )
    return int(any(line.times(recorded) > FAILS for line in bad))


def _record(kind: str, rounds: list[list[Line]]) -> None:
    """Store the medians of several rounds."""
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
