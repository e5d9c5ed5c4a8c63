"""Robustness of a pixel dictionary to another scanner, and the cost on images of the same scanner.

    python -m benchmarks.stains --output stains --jobs 16
    python -m benchmarks.stains --output stains --tables

The first member of the preset `pixels` alone: without stain normalisation, with Reinhard's and
Macenko's; with training images that are also added in the colours of simulated scanners (a
different one for each); and with scores averaged over an image and two simulated scans of it.
Training and test are as in `presets`, on unchanged images and on those of two other scanners. The
scanners in training are simulated like those of the test, from other seeds, so the gain is an upper
limit. `HISTODICT_DATA` is the folder of the sets.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from histodict.datasets.manifest import ImageRecord, Manifest
from histodict.decision.aggregation import count_scores
from histodict.images.memory_image import MemoryImage
from histodict.metrics.scores import balanced_accuracy
from histodict.models import TissueClassifier

from .machine import describe_machine
from .other_scanners import PLAIN, Pixels, kinds_of_test, pixels_of, simulated_scanner
from .presets import plan_of, results_of, splits_of
from .report import print_machine
from .result_store import (
    NOTHING,
    SETS,
    Done,
    Results,
    add_options,
    area,
    mean_shown,
    print_table,
    run_or_load,
    scores_of,
    sides,
)

_PRESET = "pixels+ensemble=false+calibration_folds=0"
_REPEATS = 2  # of the splits of `presets`
_FIRST_SEED = 5000  # first seed of simulated scanners of training images
_AVERAGED_SEEDS = (None, _FIRST_SEED - 1, _FIRST_SEED - 2)  # None: unchanged
_KINDS = kinds_of_test(2)
ONCE, AVERAGED = "once", "averaged"
# Title: stain normalisation, whether training images are augmented, and the scores.
ROWS = {
    "none": ("none", False, ONCE),
    "Reinhard's": ("reinhard", False, ONCE),
    "Macenko's": ("macenko", False, ONCE),
    "none, augmented training images": ("none", True, ONCE),
    "Reinhard's, augmented training images": ("reinhard", True, ONCE),
    "none, averaged scores": ("none", False, AVERAGED),
    "none, both": ("none", True, AVERAGED),
}


@dataclass(frozen=True)
class Trained:
    """One model, and its results for each kind of test images."""

    set_name: str
    place: int
    stain: str
    augmented: bool
    averages: bool = field(repr=False)  # follows from the other fields

    @property
    def name(self) -> str:
        return f"{self.set_name}-{self.place}-{self.stain}{'-augmented' if self.augmented else ''}"

    @property
    def cost(self) -> float:
        n_images = len(splits_of(self.set_name)[0].records)
        return n_images * (1 + self.augmented + 3 * self.averages)

    def work(self) -> Results:
        manifest, splits = splits_of(self.set_name)
        split = splits[self.place]
        train, test = sides(manifest, split)
        recipe = plan_of(f"{_PRESET}+stain={self.stain}").recipe
        with tempfile.TemporaryDirectory() as folder:
            if self.augmented:
                train = with_simulated_scans(train, Path(folder))
            model = TissueClassifier(recipe, n_jobs=1).fit(train)
        abstaining = np.full(count_scores(len(manifest.classes)), np.nan)

        def scores_of_image(record: ImageRecord, pixels: Pixels) -> NDArray[np.float64]:
            image = MemoryImage.from_array(pixels, record.path.name)
            found = model._score_image(image, record.mpp).scores
            return abstaining if found is None else found

        output: Results = {ONCE: {}, AVERAGED: {}}
        for kind in _KINDS:
            shown = [(record, pixels_of(record, kind)) for record in test.records]
            predictions = [[scores_of_image(*one) for one in shown]]
            if self.averages:
                for seed in _AVERAGED_SEEDS[1:]:
                    scan = simulated_scanner(seed)
                    predictions.append(
                        [scores_of_image(record, scan(pixels)) for record, pixels in shown]
                    )
                mean = np.mean(predictions, axis=0)
                output[AVERAGED][kind] = results_of(mean, manifest.classes, test, split)
            output[ONCE][kind] = results_of(np.array(predictions[0]), manifest.classes, test, split)
        return output


def with_simulated_scans(train: Manifest, folder: Path) -> Manifest:
    """Add a copy of each image in the colours of a scanner of its own, with the same patient."""
    copies = []
    for place, record in enumerate(train.records):
        pixels = simulated_scanner(_FIRST_SEED + place)(pixels_of(record, PLAIN))
        path = folder / f"{place}.png"
        Image.fromarray(pixels).save(path, compress_level=1)
        copies.append(replace(record, path=path))
    return replace(train, records=(*train.records, *copies))


def pieces_of(sets: list[str]) -> list[Trained]:
    pairs = dict.fromkeys((stain, synthetic) for stain, synthetic, _ in ROWS.values())
    return [
        Trained(name, place, stain, synthetic, (stain, synthetic, AVERAGED) in ROWS.values())
        for name in sets
        for place, split in enumerate(splits_of(name)[1])
        if split.repeat < _REPEATS
        for stain, synthetic in pairs
    ]


def cells_of(row: str, set_name: str, pieces: list[Trained], done: Done) -> list[str]:
    """Return balanced accuracy with its interval, and AUC: unchanged, and other scanners."""
    stain, synthetic, prediction = ROWS[row]
    own = [p for p in pieces if (p.set_name, p.stain, p.augmented) == (set_name, stain, synthetic)]
    if any(piece.name not in done.found for piece in own):
        return [NOTHING] * 4
    cells = []
    for kinds in (_KINDS[:1], _KINDS[1:]):
        results = []
        for place, kind in enumerate(kinds):
            for piece in own:
                result = done.found[piece.name][prediction][kind]
                results.append(result | {"repeat": (place, result["repeat"])})
        areas = [area([result])(result["truth"], scores_of(result)) for result in results]
        cells += [mean_shown(balanced_accuracy, results), f"{np.mean(areas):.3f}"]
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", default=",".join(SETS))
    add_options(parser)
    options = parser.parse_args()
    sets = options.sets.split(",")
    pieces = pieces_of(sets)
    print_machine(describe_machine())
    done = run_or_load(pieces, options)
    heads = ["stain normalisation", "set", "balanced accuracy", "AUC"]
    rows = [[row, name, *cells_of(row, name, pieces, done)] for row in ROWS for name in sets]
    print_table([*heads, "other scanners: balanced accuracy", "AUC"], rows)
    sys.exit(done.report_status())


if __name__ == "__main__":
    # Other processes unpickle tasks by the name of this module, which is not __main__.
    from benchmarks.stains import main as by_name

    by_name()
