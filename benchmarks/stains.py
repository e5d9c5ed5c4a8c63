"""What protects a dictionary of pixels against another scanner, and what it costs without one.

    python -m benchmarks.stains --output stains --jobs 16
    python -m benchmarks.stains --output stains --tables

The first member of the preset `pixels` by itself: with no stain correction, with Reinhard's and
Macenko's; with training images that are also shown as drawn scanners would (each by one of its
own); and with answers averaged over an image and two drawn views of it. Trained and tested as in
`presets`, on the images as they are and as two other scanners show them. The drawn views of
training are of the same kind as those of the test, from other seeds: what they gain is the most
that could be hoped for. `HISTODICT_DATA` names the folder of the sets.
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
from histodict.decision.aggregation import n_scores
from histodict.images.memory_image import MemoryImage
from histodict.metrics.scores import balanced_accuracy
from histodict.models import TissueClassifier

from .kept_pieces import (
    NOTHING,
    SETS,
    Done,
    Facts,
    add_options,
    area,
    do_or_find,
    mean_shown,
    print_table,
    scores_of,
    sides,
)
from .machine import machine_facts
from .other_scanners import PLAIN, Pixels, drawn_scanner, kinds_of_test, pixels_of
from .presets import facts_of, plan_of, splits_of
from .report import print_facts

_PRESET = "pixels+ensemble=false+calibration_folds=0"
_REPEATS = 2  # of the presets' splits
_FIRST_VIEW = 5000  # seed of drawn views, of training images and of those to be judged
_VIEWS = (None, _FIRST_VIEW - 1, _FIRST_VIEW - 2)  # that an answer is averaged over
_KINDS = kinds_of_test(2)
ONCE, AVERAGED = "once", "averaged"
# What the tables call it: stain correction, whether training images are drawn anew, and the answer.
ROWS = {
    "none": ("none", False, ONCE),
    "Reinhard's": ("reinhard", False, ONCE),
    "Macenko's": ("macenko", False, ONCE),
    "none, training images also drawn anew": ("none", True, ONCE),
    "Reinhard's, training images also drawn anew": ("reinhard", True, ONCE),
    "none, answers averaged over drawn views": ("none", False, AVERAGED),
    "none, both": ("none", True, AVERAGED),
}


@dataclass(frozen=True)
class Trained:
    """One model, and what it says of the test images, of each kind."""

    set_name: str
    place: int
    stain: str
    drawn: bool
    averages: bool = field(repr=False)  # follows from the others

    @property
    def name(self) -> str:
        return f"{self.set_name}-{self.place}-{self.stain}{'-drawn' if self.drawn else ''}"

    @property
    def cost(self) -> float:
        n_images = len(splits_of(self.set_name)[0].records)
        return n_images * (1 + self.drawn + 3 * self.averages)

    def work(self) -> Facts:
        manifest, splits = splits_of(self.set_name)
        split = splits[self.place]
        train, test = sides(manifest, split)
        recipe = plan_of(f"{_PRESET}+stain={self.stain}").recipe
        with tempfile.TemporaryDirectory() as folder:
            if self.drawn:
                train = with_drawn_views(train, Path(folder))
            model = TissueClassifier(recipe, n_jobs=1).fit(train)
        abstaining = np.full(n_scores(len(manifest.classes)), np.nan)

        def look(record: ImageRecord, pixels: Pixels) -> NDArray[np.float64]:
            image = MemoryImage.of_array(pixels, record.path.name)
            found = model._score_image(image, record.mpp).scores
            return abstaining if found is None else found

        output: Facts = {ONCE: {}, AVERAGED: {}}
        for kind in _KINDS:
            shown = [(record, pixels_of(record, kind)) for record in test.records]
            predictions = [[look(*one) for one in shown]]
            if self.averages:
                for seed in _VIEWS[1:]:
                    view = drawn_scanner(seed)
                    predictions.append([look(record, view(pixels)) for record, pixels in shown])
                mean = np.mean(predictions, axis=0)
                output[AVERAGED][kind] = facts_of(mean, manifest.classes, test, split)
            output[ONCE][kind] = facts_of(np.array(predictions[0]), manifest.classes, test, split)
        return output


def with_drawn_views(train: Manifest, folder: Path) -> Manifest:
    """Every image, and once more as a scanner of its own shows it: of the same patient."""
    views = []
    for place, record in enumerate(train.records):
        pixels = drawn_scanner(_FIRST_VIEW + place)(pixels_of(record, PLAIN))
        path = folder / f"{place}.png"
        Image.fromarray(pixels).save(path, compress_level=1)
        views.append(replace(record, path=path))
    return replace(train, records=(*train.records, *views))


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
    """Balanced accuracy with its interval and AUC, as they are and under the other scanners."""
    stain, synthetic, prediction = ROWS[row]
    own = [p for p in pieces if (p.set_name, p.stain, p.drawn) == (set_name, stain, synthetic)]
    if any(piece.name not in done.found for piece in own):
        return [NOTHING] * 4
    cells = []
    for kinds in (_KINDS[:1], _KINDS[1:]):
        facts = []
        for place, kind in enumerate(kinds):
            for piece in own:
                fact = done.found[piece.name][prediction][kind]
                facts.append(fact | {"repeat": (place, fact["repeat"])})
        areas = [area([fact])(fact["truth"], scores_of(fact)) for fact in facts]
        cells += [mean_shown(balanced_accuracy, facts), f"{np.mean(areas):.3f}"]
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
    print_facts(machine_facts())
    done = do_or_find(pieces, options)
    heads = ["stain correction", "set", "balanced accuracy", "AUC"]
    rows = [[row, name, *cells_of(row, name, pieces, done)] for row in ROWS for name in sets]
    print_table([*heads, "other scanners: balanced accuracy", "AUC"], rows)
    sys.exit(done.tell())


if __name__ == "__main__":
    # Other processes find what they are sent under the module's own name alone.
    from benchmarks.stains import main as by_name

    by_name()
