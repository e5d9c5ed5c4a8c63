"""Which preset is best where: every set, as it is and as another scanner would show it.

    python -m benchmarks.presets --presets default,pixels,fast,embeddings,paper --output presets
    python -m benchmarks.presets --sets ucsb --presets embeddings+stain=reinhard --output presets

Trained on half of the patients (lung: on ten images of each class) and tested on the others; then
on the same images with their colours drawn anew, the same way for all images of a test: what a
model meets in another laboratory. A preset is never told of that. `HISTODICT_DATA` names the
folder of the sets. What is finished is a file in the output folder and is not done again.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from histodict.evaluation.metrics import auc, balanced_accuracy
from histodict.evaluation.protocols import hold_outs, k_folds
from histodict.evaluation.splits import Split
from histodict.images.in_memory import MemoryImage
from histodict.images.manifest import Manifest, read_manifest
from histodict.images.stain import Macenko
from histodict.pipeline import Plan

from . import report
from .machine import machine_facts

# By name: the folder, the column of who must not stand on both sides, and repeats.
SETS: dict[str, tuple[str, str, int]] = {
    "ucsb": ("ucsb-breast", "group", 2),
    "glas": ("glas-colon", "patient", 1),
    "lung": ("lc25000-lung", "source_image", 3),
    "lymphoma": ("lymphoma", "case", 1),
}
_PER_CLASS = {"lung": 10}
_FIRST_SCANNER = 1000  # seed
_PLAIN = "as it is"


def drawn_scanner(seed: int) -> Any:
    """Pixels to pixels, as another laboratory would stain and another scanner show them.

    Amounts of both stains up to 1.4 times more or less, their colours turned by some degrees, the
    light up to a tenth weaker.
    """
    rng = np.random.default_rng(seed)
    h, e = (np.array(stain) / np.linalg.norm(stain) for stain in Macenko.TARGET_STAINS)
    rest = np.cross(h, e)
    before = np.stack([h, e, rest / np.linalg.norm(rest)])
    after = before.copy()
    for row in (0, 1):
        turned = before[row] + rng.normal(0, 0.04, 3)
        after[row] = turned / np.linalg.norm(turned) * np.exp(rng.uniform(-0.35, 0.35))
    change = np.linalg.inv(before) @ after
    light = rng.uniform(0.9, 1.0) + rng.normal(0, 0.01, 3)

    def scan(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        density = -np.log((pixels.astype(np.float64) + 1) / 256)
        return np.clip(256 * light * np.exp(-density @ change) - 1, 0, 255).round().astype(np.uint8)

    return scan


def plan_of(words: str) -> Plan:
    """A preset, with settings changed: PRESET+NAME=VALUE+…"""
    name, *changes = words.split("+")
    pairs = (change.split("=") for change in changes)
    return Plan.named(name).with_settings({key: value for key, value in pairs})


def splits_of(name: str) -> tuple[Manifest, list[Split]]:
    folder, patient, n_repeats = SETS[name]
    manifest = read_manifest(Path(os.environ["HISTODICT_DATA"]) / folder, {"patient": patient})
    if name in _PER_CLASS:
        return manifest, list(hold_outs(manifest, [_PER_CLASS[name]], n_repeats=n_repeats))
    return manifest, list(k_folds(manifest, 2, n_repeats=n_repeats))


def held(preset: str, name: str, place: int, scanners: list[int], file: Path) -> dict[str, Any]:
    """What a preset says of the test images of a split, from its file or now."""
    if file.exists():
        found: dict[str, Any] = json.loads(file.read_text())
        return found
    manifest, splits = splits_of(name)
    train, test = (manifest.select(side) for side in (splits[place].train, splits[place].test))
    started, spent = time.perf_counter(), time.process_time()
    model = plan_of(preset).model().fit(train)
    facts: dict[str, Any] = {
        "seconds": time.perf_counter() - started,
        "processor": time.process_time() - spent,
        "classes": manifest.classes,
        "labels": list(test.labels),
        "patients": [record.patient for record in test.records],
        "weights": [m.get("weight") for m in model.training_.get("members", [])],
        _PLAIN: [_said(model.predict(record.path, mpp=record.mpp)) for record in test.records],
    }
    for seed in scanners:
        scan, said = drawn_scanner(seed), []
        for record in test.records:
            pixels = scan(np.asarray(Image.open(record.path).convert("RGB")))
            image = MemoryImage.of_array(pixels, record.path.name)
            said.append(_said(model.predict(image, mpp=record.mpp)))
        facts[f"scanner {seed}"] = said
    partial = file.with_suffix(".part")
    partial.write_text(json.dumps(facts))
    partial.replace(file)
    return facts


def _said(answer: Any) -> dict[str, Any]:
    return {"label": answer.label or "", "scores": list(answer.scores)}


def measures(facts: dict[str, Any], kinds: list[str]) -> tuple[float, float]:
    """Means of balanced accuracy and AUC over some kinds of test."""
    labels, classes = np.array(facts["labels"]), facts["classes"]
    found = []
    for kind in kinds:
        said = facts[kind]
        scores = np.nan_to_num(np.array([row["scores"] for row in said], dtype=float))
        two = scores.shape[1] == 1
        area = auc(labels, scores[:, 0], positive=classes[1]) if two else auc(labels, scores)
        found.append((balanced_accuracy(labels, np.array([row["label"] for row in said])), area))
    right, area = np.mean(found, axis=0)
    return float(right), float(area)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--presets", default="default,pixels,fast,embeddings,paper")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--scanners", type=int, default=2, help="how many other ones")
    parser.add_argument("--output", type=Path, required=True, help="folder of what is finished")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    scanners = [_FIRST_SCANNER + place for place in range(options.scanners)]
    report.print_facts(machine_facts())
    heads = f"{_PLAIN:>18s}" + f"{'other scanners':>18s}" * bool(scanners)
    print(f"{'balanced accuracy, AUC':40s}{heads}{'seconds':>9s}")
    for preset in options.presets.split(","):
        for name in options.sets.split(","):
            files = [
                options.output / f"{preset}-{name}-{place}.json"
                for place in range(len(splits_of(name)[1]))
            ]
            all_facts = [held(preset, name, i, scanners, file) for i, file in enumerate(files)]
            line = f"{preset + ' ' + name:40s}"
            for kinds in filter(None, ([_PLAIN], [f"scanner {seed}" for seed in scanners])):
                right, area = np.mean([measures(facts, kinds) for facts in all_facts], axis=0)
                line += f"{right:11.3f}{area:7.3f}"
            seconds = np.mean([facts["seconds"] for facts in all_facts])
            print(f"{line}{seconds:9.0f}", flush=True)


if __name__ == "__main__":
    main()
