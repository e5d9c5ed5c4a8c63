"""Accuracy of detected regions, with encoder features and with pixels.

    python -m benchmarks.regions FOLDER OUTPUT [--test] [--jobs N] [--preset NAME …] [--set …]

FOLDER has a manifest.csv of numbered tiles with masks, such as camelyon-tumour. Consecutive tiles
may be of one slide, so every four count as a patient. Settings are chosen on the first half of the
tiles, in folds of one such patient each. With --test, the models are trained on the first half and
tested on the other; use it once, for the chosen settings. Both are done by `histodict evaluate
--regions`.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from histodict.datasets.manifest import Manifest, read_manifest
from histodict.evaluation import choose_plans, evaluate
from histodict.model_selection.protocols import k_folds, predefined_split
from histodict.models.region_detector import relabel_by_region
from histodict.utils.parallel import ExecutionOptions

REGION = "tumour"
_TOGETHER = 4  # tiles that count as a patient


def tiles(folder: Path) -> Manifest:
    """Return the tiles by number, with a patient for every four, and a split into halves."""
    manifest = read_manifest(folder)
    ordered = sorted(manifest.records, key=lambda record: record.path.name)
    records = tuple(
        replace(
            record,
            patient=f"tiles {place // _TOGETHER}",
            split="train" if place < len(ordered) // 2 else "test",
        )
        for place, record in enumerate(ordered)
    )
    return relabel_by_region(replace(manifest, records=records), REGION)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--test", action="store_true", help="test on the second half")
    parser.add_argument("--preset", action="append")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--jobs", type=int, default=1, help="parallel trainings")
    options = parser.parse_args()
    manifest = tiles(options.folder)
    if not options.test:
        manifest = manifest.select(range(len(manifest.records) // 2))
    n_folds = len(set(manifest.patients))
    splits = predefined_split(manifest) if options.test else k_folds(manifest, n_folds)
    names = [f"{preset}:dfdl" for preset in options.preset or ("embeddings", "regions")]
    settings = dict(pair.split("=", 1) for pair in options.set)
    plans = choose_plans(names, "regions", settings, REGION)
    execution = ExecutionOptions(n_jobs=options.jobs)
    done = evaluate(manifest, plans, splits, options.output, execution=execution, region=REGION)
    for row in done.metric_rows:
        text = f"{row['value']:.3f} ({row['low']:.3f} to {row['high']:.3f})"
        print(f"{row['method']:20} {row['metric']:12} {text}", flush=True)
    for failure in done.failures:
        print(f"{failure.task.name}: {failure.error}", flush=True)


if __name__ == "__main__":
    main()
