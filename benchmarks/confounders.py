"""Detection of planted confounders among the atoms, and the effect of disabling these atoms.

    python -m benchmarks.confounders                      synthetic tissue
    python -m benchmarks.confounders --set ucsb-breast    a set in the folder HISTODICT_DATA

Patients are randomly assigned to two sites. The training images of one class from one site get an
artefact: a tint, strong JPEG compression, a pen stroke or a blur, five times each. Confounded atoms
of the model are found as by `histodict atoms`. They are disabled, and the aggregator is fitted
again on the same images, as by `histodict edit --disable … --refit-rule …`; no dictionary is
trained again. Accuracy is measured on other patients without the artefact, and with the artefact in
the other class. Atoms that are flagged in the model of the unchanged images are false alarms. There
are two models, as the default ensemble has both kinds: of encoder features and of pixels. Stain
correction and quality filters are disabled, because they would remove much of the artefacts.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from histodict.datasets.manifest import ImageRecord, Manifest, read_manifest
from histodict.decision.atom_annotations import AtomAnnotations
from histodict.explain.atom_statistics import collect_atom_report
from histodict.models import TissueClassifier
from histodict.models.recipe import preset
from histodict.synthetic.dataset import write_synthetic_dataset

from .machine import describe_machine
from .report import print_machine

_RECIPE = {"stain": "none", "quality_filters": "none"}
_SMALL = {"n_atoms": "60", "n_iter": "10", "patches_per_class": "3000"}
# Encoder features; or pixels at full resolution, with codes that are less sparse than those of the
# preset, as the artefacts are fine structures.
_SETTINGS = {
    "embeddings": _SMALL | {"n_components": "60"},
    "fast": _SMALL | {"downsample": "1", "context_scale": "1", "penalty": "0.15"},
}
MODELS = ("clean", "planted", "off", "line")


# --- artefacts ----------------------------------------------------------------------------------


def tint(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Change the colour balance."""
    pixels = np.asarray(image, np.float64) * [0.88, 1.0, 0.80]
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def jpeg(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Compress strongly, with visible blocks."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=8)
    return Image.open(buffer).convert("RGB")


def pen(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Draw a pen stroke across the image."""
    with_pen = image.copy()
    width, height = with_pen.size
    points = [(0, rng.uniform(0, height)), (width / 2, rng.uniform(0, height))]
    points.append((width, rng.uniform(0, height)))
    ImageDraw.Draw(with_pen).line(points, fill=(30, 60, 190), width=max(8, height // 6))
    return Image.blend(image, with_pen, 0.8)


def blur(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Blur the image."""
    return image.filter(ImageFilter.GaussianBlur(3.0))


KINDS: dict[str, Callable[[Image.Image, np.random.Generator], Image.Image]] = {
    "tint": tint,
    "jpeg": jpeg,
    "pen": pen,
    "blur": blur,
}


def planted(
    manifest: Manifest, folder: Path, kind: str, where: Callable[[ImageRecord], bool], seed: int
) -> Manifest:
    """Return copies of the images, with the artefact where `where` is true."""
    folder.mkdir(parents=True)
    rng, records = np.random.default_rng(seed), []
    for place, record in enumerate(manifest.records):
        with Image.open(record.path) as opened:
            image = opened.convert("RGB")
        if where(record):
            image = KINDS[kind](image, rng)
        path = folder / f"{place}.png"
        image.save(path)
        records.append(replace(record, path=path))
    return replace(manifest, records=tuple(records), root=folder)


# --- one artefact -------------------------------------------------------------------------------


def with_sites(manifest: Manifest, seed: int) -> Manifest:
    """Assign half of the patients at random to site B."""
    patients = np.random.default_rng(seed).permutation(sorted(set(manifest.patients)))
    at_b = set(patients[: len(patients) // 2].tolist())
    records = [replace(r, site="B" if r.patient in at_b else "A") for r in manifest.records]
    return replace(manifest, records=tuple(records))


def accuracy(model: TissueClassifier, manifest: Manifest) -> float:
    predictions = model.predict(manifest)
    pairs = zip(predictions.top_labels, manifest.labels, strict=True)
    return float(np.mean([output == truth for output, truth in pairs]))


def trained(
    manifest: Manifest, seed: int, preset_name: str, cache: Path | None = None
) -> TissueClassifier:
    recipe = preset(preset_name).with_changes(**_RECIPE).parse_settings(_SETTINGS[preset_name])
    return TissueClassifier(recipe, random_state=seed, n_jobs=2, cache=cache).fit(manifest)


def confounded_atoms(model: TissueClassifier, manifest: Manifest) -> list[Any]:
    return collect_atom_report(model, manifest, n_atoms=1).confounded_atoms


def try_planting(
    clean: TissueClassifier,
    learn: Manifest,
    test: Manifest,
    kind: str,
    seed: int,
    preset_name: str,
    folder: Path,
) -> dict[str, Any]:
    """Train with the artefact, find confounded atoms with and without it, and disable those found.

    clean : the model of the same images without the artefact
    """
    other, positive = learn.classes
    dirty = planted(
        learn, folder / f"{kind}-dirty", kind, lambda r: r.label == positive and r.site == "B", seed
    )
    swapped = planted(test, folder / f"{kind}-swapped", kind, lambda r: r.label == other, seed)
    harmed = trained(dirty, seed, preset_name, folder / "cache")
    flagged = confounded_atoms(harmed, dirty)
    off = [atom.atom for atom in flagged]
    mended = (
        harmed.with_atom_annotations(AtomAnnotations().with_changes(off, disabled=True))
        if off
        else harmed
    )
    found: dict[str, Any] = {"kind": kind, "seed": seed, "preset": preset_name}
    found["flagged"] = len(flagged)
    found["of_b"] = sum(atom.site == "B" for atom in flagged)
    found["false"] = len(confounded_atoms(clean, learn))
    with_line = mended.refit_decision_rule(dirty) if off else mended
    for name, model in zip(MODELS, (clean, harmed, mended, with_line), strict=True):
        found[f"{name}_on_clean"] = accuracy(model, test)
        found[f"{name}_on_swapped"] = accuracy(model, swapped)
    return found


def synthetic_patients(seed: int, folder: Path) -> tuple[Manifest, Manifest]:
    """Return images of sixteen synthetic patients for training and of eight for testing."""
    sets = []
    for name, n_patients, own in (("learn", 16, seed), ("test", 8, seed + 1000)):
        made = write_synthetic_dataset(folder / name, n_patients, 2, size=(480, 360), seed=own)
        sets.append(read_manifest(made / "manifest.csv"))
    return sets[0], sets[1]


def real(name: str, seed: int) -> tuple[Manifest, Manifest]:
    """Return two thirds of the patients of each class for training and the others for testing."""
    manifest = read_manifest(Path(os.environ["HISTODICT_DATA"]) / name / "manifest.csv")
    rng, learn = np.random.default_rng(seed), set()
    for label in manifest.classes:
        own = sorted({r.patient for r in manifest.records if r.label == label} - learn)
        learn |= set(rng.permutation(own)[: 2 * len(own) // 3].tolist())
    sides = [
        [p for p, r in enumerate(manifest.records) if (r.patient in learn) == s] for s in (1, 0)
    ]
    return manifest.select(sides[0]), manifest.select(sides[1])


# --- all artefacts ------------------------------------------------------------------------------


def tables(rows: Sequence[dict[str, Any]]) -> None:
    for name in dict.fromkeys(row["preset"] for row in rows):
        print(f"\n{name}\n")
        _table([row for row in rows if row["preset"] == name])
    tried = {(row["kind"], row["seed"]) for row in rows}
    for key, text in (("flagged", "found"), ("false", "clean sets flagged")):
        either = {(row["kind"], row["seed"]) for row in rows if row[key]}
        print(f"\nBy either model: {text} {len(either)} of {len(tried)}")


def _table(rows: Sequence[dict[str, Any]]) -> None:
    print(
        "| artefact | found | false alarms | accuracy on clean patients: clean model, confounded, "
        "atoms disabled, aggregator fitted again | on patients with it in the other class |"
    )
    print("|---|---|---|---|---|")
    for kind in (*KINDS, "all"):
        own = [row for row in rows if kind in (row["kind"], "all")]
        if not own:
            continue
        means = {key: np.mean([row[key] for row in own]) for key in own[0] if "_on_" in key}
        cells = [
            ", ".join(f"{means[f'{name}_on_{side}']:.3f}" for name in MODELS)
            for side in ("clean", "swapped")
        ]
        found, false = (sum(row[key] > 0 for row in own) for key in ("flagged", "false"))
        print(f"| {kind} | {found} of {len(own)} | {false} of {len(own)} | {' | '.join(cells)} |")


def try_all(
    name: str | None, preset_name: str, kinds: list[str], seed: int, output: Path | None
) -> list[Any]:
    """Train a clean model for one split of the patients, and test every artefact."""
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        learn, test = real(name, seed) if name else synthetic_patients(seed, folder)
        clean = trained(learn, seed, preset_name, folder / "cache")
        for place, kind in enumerate(KINDS):
            if kind not in kinds:
                continue
            sites = with_sites(learn, 100 * seed + place)
            rows.append(try_planting(clean, sites, test, kind, seed, preset_name, folder))
            print(json.dumps(rows[-1]), flush=True)
            if output:
                with output.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--set", help="folder name of a set; default: synthetic tissue")
    parser.add_argument("--presets", nargs="+", default=list(_SETTINGS), choices=list(_SETTINGS))
    parser.add_argument("--times", type=int, default=5, help="repetitions per artefact")
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--output", type=Path, help="JSON lines of results; resumed")
    specified = parser.parse_args()
    print_machine(describe_machine())
    rows = []
    if specified.output and specified.output.exists():
        rows = [json.loads(line) for line in specified.output.read_text().splitlines()]
    done = {(row["kind"], row["seed"], row["preset"]) for row in rows}
    seeds = range(specified.seed, specified.seed + specified.times)
    for seed, preset_name in product(seeds, specified.presets):
        left = [kind for kind in specified.kinds if (kind, seed, preset_name) not in done]
        if left:
            rows += try_all(specified.set, preset_name, left, seed, specified.output)
    tables(rows)


if __name__ == "__main__":
    main()
