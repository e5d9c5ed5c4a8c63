"""Compare how well dictionaries and other methods find atoms that occur in other patients too.

    python -m benchmarks.concepts --output concepts [--repeats 3] [--sets ucsb glas camelyon]
    python -m benchmarks.concepts --output concepts --tables docs

Input are feature vectors of EfficientNet-Lite0, as `histodict features` computes them, of three
sets. Dictionaries have 128 atoms, of which codes use 8. The patients are split into halves several
times; `concept_measures` has the measures and `concept_learners` the methods. `HISTODICT_DATA` is
the folder of the sets. Finished results are files in the output folder and are not computed again.
Takes about one CPU hour.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .concept_cells import FOLDERS, read_cells
from .concept_learners import METHODS, VARIANTS
from .concept_measures import measure
from .concept_page import write_page

_OTHER = {"ucsb": "glas", "glas": "ucsb", "camelyon": "ucsb"}
_SLOW = ("TopK autoencoder",)  # fewer repeats
_VARIANT_SETS = ("ucsb", "glas")  # sets whose images have labels
_FEW_OF = ("ODL λ 0.3", "axis-anchored (`histodict concepts`)", "k-means")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True, help="folder of the results")
    parser.add_argument("--sets", nargs="+", choices=sorted(FOLDERS), default=list(_OTHER))
    parser.add_argument("--repeats", type=int, default=3, help="splits of the patients")
    parser.add_argument("--only", nargs="+", help="names of the only methods")
    parser.add_argument("--tables", type=Path, metavar="DIR", help="folder for page and figure")
    options = parser.parse_args()
    if options.tables:
        write_page(options.tables, _stored_results(options.output))
        return
    for repeat in range(options.repeats):
        for name in options.sets:
            learners = METHODS | (VARIANTS if name in _VARIANT_SETS else {})
            chosen = [word for word in learners if not options.only or word in options.only]
            _measure_all(name, repeat, chosen, options.output)


def _measure_all(name: str, repeat: int, chosen: Iterable[str], folder: Path) -> None:
    for word in chosen:
        file = folder / f"{name}-{repeat}-{_plain(word)}.json"
        if file.exists() or (word in _SLOW and repeat > 1):
            continue
        cells, other = (read_cells(own, folder) for own in (name, _OTHER[name]))
        few = name in _VARIANT_SETS and word in _FEW_OF
        results = measure((METHODS | VARIANTS)[word], cells, other, repeat, few)
        file.write_text(json.dumps({"set": name, "learner": word, "repeat": repeat} | results))
        shown = {key: round(value, 3) for key, value in results.items() if key != "atoms"}
        print(name, repeat, word, shown, flush=True)


def _plain(text: str) -> str:
    return "".join(c if c.isalnum() or c == "." else "-" for c in text)


def _stored_results(folder: Path) -> list[dict[str, Any]]:
    files = sorted(folder.glob("*-*-*.json"))
    assert files, f"{folder}: nothing was measured yet"
    return [json.loads(file.read_text()) for file in files]


if __name__ == "__main__":
    main()
