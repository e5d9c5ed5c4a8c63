"""Which atoms would other patients give as well? Dictionaries and their rivals on the same vectors.

    python -m benchmarks.concepts --output concepts [--repeats 3] [--sets ucsb glas camelyon]
    python -m benchmarks.concepts --output concepts --tables docs

Cells of a network (EfficientNet-Lite0, as `histodict features` computes them) of three sets; 128
atoms, 8 at a time. The patients are parted into halves, several times; `concept_measures` says what
is measured, `concept_learners` of whom. `HISTODICT_DATA` names the folder of the sets. What is
finished is a file in the output folder and is not done again. About one CPU hour.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .concept_cells import FOLDERS, read_cells
from .concept_learners import IDEAS, RIVALS
from .concept_measures import measure
from .concept_page import write_page

_OTHER = {"ucsb": "glas", "glas": "ucsb", "camelyon": "ucsb"}
_SLOW = ("TopK autoencoder",)  # fewer repeats
_IDEAS_ON = ("ucsb", "glas")  # whose images have labels
_FEW_OF = ("ODL λ 0.3", "axis-anchored (`histodict concepts`)", "k-means")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", choices=sorted(FOLDERS), default=list(_OTHER))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="+", help="of these names alone")
    parser.add_argument("--tables", type=Path, metavar="DIR", help="write page and figure to it")
    options = parser.parse_args()
    if options.tables:
        write_page(options.tables, _stored_results(options.output))
        return
    for repeat in range(options.repeats):
        for name in options.sets:
            learners = RIVALS | (IDEAS if name in _IDEAS_ON else {})
            chosen = [word for word in learners if not options.only or word in options.only]
            _measure_all(name, repeat, chosen, options.output)


def _measure_all(name: str, repeat: int, chosen: Iterable[str], folder: Path) -> None:
    for word in chosen:
        file = folder / f"{name}-{repeat}-{_plain(word)}.json"
        if file.exists() or (word in _SLOW and repeat > 1):
            continue
        cells, other = (read_cells(own, folder) for own in (name, _OTHER[name]))
        few = name in _IDEAS_ON and word in _FEW_OF
        results = measure((RIVALS | IDEAS)[word], cells, other, repeat, few)
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
