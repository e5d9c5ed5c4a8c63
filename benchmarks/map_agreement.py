"""Fraction of images in which the majority of patches contradicts the label.

    python -m benchmarks.map_agreement FOLDER … [--column patient=source_image] [--preset NAME …]

A model is trained on every second patient of each class and predicts the others. Counts images in
which most patches have another class than the label: for the class closest to each patch (before),
and for the displayed map, which is centred as the aggregator decides (after).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from histodict.datasets.manifest import Manifest, read_manifest
from histodict.images.pixel_size import PixelSizeOption
from histodict.models import Plan


def halves(manifest: Manifest) -> tuple[Manifest, Manifest]:
    """Return every second patient of each class, and the others."""
    chosen: set[str] = set()
    for name in manifest.classes:
        own = sorted({r.patient for r in manifest.records if r.label == name})
        chosen.update(own[::2])
    train = [i for i, patient in enumerate(manifest.patients) if patient in chosen]
    test = [i for i, patient in enumerate(manifest.patients) if patient not in chosen]
    return manifest.select(train), manifest.select(test)


def contradictions(manifest: Manifest, preset: str) -> tuple[int, int, int]:
    """Return the counts before and after, and the number of images."""
    train, test = halves(manifest)
    model = Plan.named(preset).build_model(random_state=0).fit(train)
    before = after = 0
    for record in test.records:
        prediction = model.predict_one(record.path, mpp=PixelSizeOption(table=record.mpp))
        raw = model.model_.score_image(record.path, record.mpp).patch_map
        assert raw is not None
        for place, shares in enumerate((raw.proportions, prediction.proportions)):
            against = prediction.top_label is not None and shares[prediction.top_label] < max(
                shares.values()
            )
            before, after = before + (against and place == 0), after + (against and place == 1)
    return before, after, len(test.records)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--column", action="append", default=[], metavar="NAME=COLUMN")
    parser.add_argument("--preset", action="append")
    options = parser.parse_args()
    columns = dict(pair.split("=", 1) for pair in options.column)
    for folder in options.folders:
        for preset in options.preset or ["fast", "paper"]:
            before, after, n = contradictions(read_manifest(folder, columns), preset)
            print(f"{folder.name} {preset}: {before} before, {after} after, of {n}", flush=True)


if __name__ == "__main__":
    main()
