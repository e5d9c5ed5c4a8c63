"""Change of predictions when an image is padded, shifted, rotated or mirrored.

    HISTODICT_DATA=… python -m benchmarks.invariance --presets fast,embeddings --symmetries

Trains on half of the patients of UCSB and predicts images of the others: unchanged, with a white
margin of 64 pixels, without 7 pixels at the left and top, rotated by 90°, and mirrored. The table
gives the mean change of the score, the same in standard deviations of the scores, and the number of
predicted classes that change. The first row is without detection of the margin. `--symmetries` adds
the accuracy of the mean score over the eight rotations and mirror images, and its duration.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from histodict.datasets.manifest import read_manifest
from histodict.metrics.scores import balanced_accuracy
from histodict.models import Plan, prepared_image
from histodict.preprocessing import tissue

from .machine import describe_machine
from .report import print_machine

Pixels = NDArray[np.uint8]
Change = Callable[[Pixels], Pixels]
_MARGIN, _SHIFT = 64, 7
_UNDETECTED = f"white margin of {_MARGIN} px, not detected"


def _padded(pixels: Pixels) -> Pixels:
    return np.pad(pixels, ((_MARGIN, _MARGIN), (_MARGIN, _MARGIN), (0, 0)), constant_values=255)


CHANGES: dict[str, Change] = {
    _UNDETECTED: _padded,
    f"white margin of {_MARGIN} px": _padded,
    f"shifted by {_SHIFT} px": lambda pixels: pixels[_SHIFT:, _SHIFT:],
    "turned by 90°": np.rot90,
    "mirrored": lambda pixels: pixels[:, ::-1],
}


def _whole(source: tissue.Source) -> tissue.Box:
    return 0, 0, *source.size


def scores_of(model: Any, images: list[Pixels], change: Change) -> NDArray[np.float64]:
    return np.array([model.predict(np.ascontiguousarray(change(p))).score for p in images])


def measure(name: str, settings: dict[str, str], n_images: int | None, symmetries: bool) -> None:
    """Train one preset, and print its rows."""
    manifest = read_manifest(
        Path(os.environ["HISTODICT_DATA"]) / "ucsb-breast" / "manifest.csv",
        columns={"patient": "group"},
    )
    patients = sorted(set(manifest.patients))
    is_train = np.isin(manifest.patients, patients[::2])
    train = manifest.select(np.flatnonzero(is_train).tolist())
    records = manifest.select(np.flatnonzero(~is_train).tolist()).records
    records = [records[i] for i in np.random.default_rng(0).permutation(len(records))[:n_images]]
    model = Plan.named(name).parse_settings(settings).build_model(random_state=0).fit(train)
    images = [np.asarray(Image.open(record.path).convert("RGB")) for record in records]
    truth = [record.label for record in records]

    def accuracy(scores: NDArray[np.float64]) -> float:
        return balanced_accuracy(truth, np.array(model.classes_)[(scores > 0).astype(int)])

    start = time.perf_counter()
    reference = scores_of(model, images, lambda pixels: pixels)
    seconds = time.perf_counter() - start
    deviation = reference.std(ddof=1)
    print(f"\n{name}: {len(train.records)} training images, {len(records)} test images")
    print(f"standard deviation of the scores {deviation:.2f}, accuracy {accuracy(reference):.2f}")
    print("\n| change | mean change | in sd | largest in sd | classes changed |")
    print("|---|---|---|---|---|")
    for text, change in CHANGES.items():
        if text == _UNDETECTED:
            with patch.object(prepared_image, "content_box", _whole):
                found = scores_of(model, images, change)
        else:
            found = scores_of(model, images, change)
        moved, flips = np.abs(found - reference), int(((found > 0) != (reference > 0)).sum())
        print(
            f"| {text} | {moved.mean():.3f} | {moved.mean() / deviation:.2f} "
            f"| {moved.max() / deviation:.2f} | {flips} |",
            flush=True,
        )
    if symmetries:
        start = time.perf_counter()
        every = [
            scores_of(model, images, lambda p, n=n, m=m: np.rot90(p[:, :: 1 - 2 * m], n))
            for n in range(4)
            for m in (0, 1)
        ]
        ratio = (time.perf_counter() - start) / seconds
        mean = accuracy(np.mean(every, axis=0))
        print(f"mean of eight symmetries: accuracy {mean:.2f}, {ratio:.1f} times the time")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--presets", default="fast,embeddings,pixels")
    parser.add_argument("--settings", default="patches_per_class=2000")
    parser.add_argument("--images", type=int, help="test images at most")
    parser.add_argument("--symmetries", action="store_true")
    options = parser.parse_args()
    settings = dict(pair.split("=") for pair in options.settings.split(","))
    for name in options.presets.split(","):
        measure(name, settings, options.images, options.symmetries)
    print_machine(describe_machine())


if __name__ == "__main__":
    main()
