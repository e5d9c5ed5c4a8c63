"""Accuracy of tissue detection methods on images with manual masks and on synthetic images.

    HISTODICT_DATA=… python -m benchmarks.tissue
    … --only ucsb,synthetic --no-shifts --overlays FOLDER --output FILE.json

Every image is also tested with another white balance (gains of ±20 % on red and blue) and with
lower brightness; its mask stays the same. The mask of a rule is compared at the size of the manual
mask: tissue where at least half of the pixels are. The intersection over union (IoU) excludes
pixels that the manual mask leaves open. An image without tissue has no IoU: the fraction detected
as tissue is reported.

The last table needs no masks: for every image of every set, the fraction detected by histodict.
Without `HISTODICT_DATA`, the folder of the sets, only synthetic images are used.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .machine import describe_machine
from .tissue_images import (
    BACKGROUND,
    EMPTY,
    SETS,
    TISSUE,
    UNUSABLE,
    Case,
    Mask,
    Pixels,
    Truth,
    images_of,
    overlay,
    read_pixels,
    real_cases,
    synthetic_cases,
)
from .tissue_rules import RULES, ours

_PATCH_PX, _STRIDE_PX = 20, 10
_LEAST_TISSUE = 0.5
_GOOD_IOU = 0.7
_NO_VALUE = "-"
AS_IT_IS = "as it is"
# Name to gains of red, green and blue.
SHIFTS: dict[str, tuple[float, float, float]] = {
    AS_IT_IS: (1, 1, 1),
    "red 120 %, blue 120 %": (1.2, 1, 1.2),
    "red 80 %, blue 80 %": (0.8, 1, 0.8),
    "red 120 %, blue 80 %": (1.2, 1, 0.8),
    "red 80 %, blue 120 %": (0.8, 1, 1.2),
    "lamp 85 %": (0.85, 0.85, 0.85),
    "lamp 70 %": (0.7, 0.7, 0.7),
}


@dataclass(frozen=True)
class Score:
    """Result of one rule on one image under one shift.

    iou is None without tissue; background_found and unusable_found are None if the image has none.
    """

    set: str
    image: str
    shift: str
    rule: str
    is_full: bool
    iou: float | None
    tissue_found: float | None
    background_found: float | None
    unusable_found: float | None


def shifted(pixels: Pixels, gains: Sequence[float]) -> Pixels:
    """Return the image with gains of its channels, clipped at 255."""
    tables = [np.clip(np.rint(gain * np.arange(256)), 0, 255).astype(np.uint8) for gain in gains]
    return np.stack([table[pixels[..., i]] for i, table in enumerate(tables)], axis=-1)


def at_size_of(mask: Mask, truth: Truth) -> Mask:
    """Return a mask at another size: set where at least half of the area was set."""
    share = Image.fromarray(254 * mask.astype(np.uint8))  # even, so that half of it is an integer
    small = share.resize(truth.shape[::-1], Image.Resampling.BOX)
    return np.asarray(small) >= round(254 * _LEAST_TISSUE)


def iou(found: Mask, truth: Truth) -> float | None:
    """Return the intersection over union of TISSUE, without open pixels; None without tissue."""
    tissue = truth == TISSUE
    if not tissue.any():
        return None
    union = tissue | (found & (truth == BACKGROUND))
    return float((found & tissue).sum() / union.sum())


def share_of(found: Mask, truth: Truth, value: int) -> float | None:
    """Return the fraction of pixels of this value that were found; None if there are none."""
    where = truth == value
    return float(found[where].mean()) if where.any() else None


def score(case: Case, shift: str, rule: str) -> tuple[Score, Mask]:
    found = at_size_of(RULES[rule](shifted(case.pixels, SHIFTS[shift])), case.truth)
    shares = (share_of(found, case.truth, value) for value in (TISSUE, BACKGROUND, UNUSABLE))
    agreement = iou(found, case.truth)
    return Score(case.set, case.name, shift, rule, case.is_full, agreement, *shares), found


# --- tables -------------------------------------------------------------------------------------

Summary = Callable[[list[Score]], str]


def _of_ious(summary: Callable[[NDArray[np.float64]], float]) -> Summary:
    def made(scores: list[Score]) -> str:
        values = np.array([s.iou for s in scores if s.iou is not None])
        return f"{summary(values):.3f}" if len(values) else _NO_VALUE

    return made


def _full_missed(scores: list[Score]) -> str:
    full = [s.tissue_found for s in scores if s.is_full and s.tissue_found is not None]
    missed = sum(found < _LEAST_TISSUE for found in full)
    return f"{missed} of {len(full)}" if full else _NO_VALUE


def _mean_share(of: Callable[[Score], float | None]) -> Summary:
    def made(scores: list[Score]) -> str:
        values = [value for value in map(of, scores) if value is not None]
        return f"{np.mean(values):.3f}" if values else _NO_VALUE

    return made


SUMMARIES: dict[str, Summary] = {
    "IoU, median": _of_ious(lambda values: float(np.median(values))),
    "IoU, 5th percentile": _of_ious(lambda values: float(np.percentile(values, 5))),
    f"Share of images with an IoU of at least {_GOOD_IOU}": _of_ious(
        lambda values: float((values >= _GOOD_IOU).mean())
    ),
    "Images full of tissue of which less than half was found": _full_missed,
    "Share of the background called tissue, mean": _mean_share(lambda s: s.background_found),
    "Share of what is unusable (pen, frame, rims, dust) called tissue, mean": _mean_share(
        lambda s: s.unusable_found
    ),
}


def print_table(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    print(f"\n{title}\n\n| {' | '.join(header)} |\n|{'---|' * len(header)}")
    for row in rows:
        print(f"| {' | '.join(map(str, row))} |")


def print_scores(scores: list[Score], title: str) -> None:
    """Print one table per summary, with a row per set and for all, and a column per rule."""
    rules, sets = (list(dict.fromkeys(getattr(s, of) for s in scores)) for of in ("rule", "set"))
    for name, summary in SUMMARIES.items():
        rows = []
        for label, of in [*((f, [f]) for f in sets), ("all", sets)]:
            cells = [
                summary([s for s in scores if s.rule == rule and s.set in of]) for rule in rules
            ]
            if any(cell != _NO_VALUE for cell in cells):
                rows.append([label, *cells])
        if rows:
            print_table(f"{name} ({title})", ["set", *rules], rows)


def print_shifts(scores: list[Score]) -> None:
    """Print the median IoU of all images by shift and rule."""
    rules = list(dict.fromkeys(s.rule for s in scores))
    for name in ("IoU, median", "IoU, 5th percentile"):
        rows = [
            [
                shift,
                *(
                    SUMMARIES[name]([s for s in scores if s.rule == rule and s.shift == shift])
                    for rule in rules
                ),
            ]
            for shift in dict.fromkeys(s.shift for s in scores)
        ]
        print_table(f"{name}, by shift", ["shift", *rules], rows)


def print_worst(scores: list[Score], n_worst: int = 15) -> None:
    """Print the images with the lowest IoU of histodict, under their worst shift."""
    worst: dict[str, Score] = {}
    for s in scores:
        if s.rule != next(iter(RULES)) or s.iou is None:
            continue
        known = worst.get(s.image)
        if known is None or known.iou is None or s.iou < known.iou:
            worst[s.image] = s
    rows = [
        [s.set, s.image, s.shift, f"{s.iou:.3f}"]
        for s in sorted(worst.values(), key=lambda s: s.iou or 0)[:n_worst]
    ]
    print_table("The lowest IoU of ours", ["set", "image", "shift", "IoU"], rows)


# --- all images, without masks ------------------------------------------------------------------


def has_patch(mask: Mask) -> bool:
    """Return whether at least half of any patch on a grid is tissue."""
    sums = np.pad(mask.cumsum(axis=0).cumsum(axis=1), ((1, 0), (1, 0)))
    high, low = sums[_PATCH_PX::_STRIDE_PX], sums[:-_PATCH_PX:_STRIDE_PX]
    counts = (high[:, _PATCH_PX::_STRIDE_PX] - high[:, :-_PATCH_PX:_STRIDE_PX]) - (
        low[:, _PATCH_PX::_STRIDE_PX] - low[:, :-_PATCH_PX:_STRIDE_PX]
    )
    return bool((counts >= _LEAST_TISSUE * _PATCH_PX**2).any())


def print_rejected(data: Path, only: Sequence[str]) -> list[dict[str, object]]:
    """Print per set and class the images with hardly any tissue, and those without a patch."""
    rows, stored = [], []
    for name in SETS:
        if only and not any(word in name for word in only):
            continue
        classes: dict[str, list[tuple[float, bool]]] = {}
        for path in images_of(data / name).values():
            mask = ours(read_pixels(path))
            found = float(mask.mean()), has_patch(mask)
            classes.setdefault(path.relative_to(data / name).parent.as_posix(), []).append(found)
            stored.append({"image": path.relative_to(data).as_posix(), "tissue": found[0]})
        everything = [found for part in classes.values() for found in part]
        for label, part in {**classes, **({"all": everything} if len(classes) > 1 else {})}.items():
            share = np.array([found for found, _ in part])
            rejected = sum(not patch for _, patch in part)
            rows.append(
                [
                    name,
                    label,
                    len(part),
                    f"{np.median(share):.2f}",
                    *(
                        f"{(share < most).sum()} ({(share < most).mean():.1%})"
                        for most in (0.1, 0.3)
                    ),
                    f"{rejected} ({rejected / len(part):.1%})",
                ]
            )
    header = ["set", "class", "images", "median share of tissue", "under 0.1", "under 0.3"]
    if rows:
        title = f"All images, our rule; rejected: no patch of {_PATCH_PX} px is tissue by half"
        print_table(title, [*header, "rejected"], rows)
    return stored


def write_overlay(folder: Path, case: Case, rule: str, found: Mask) -> None:
    """Write the image, the manual mask and the mask of the rule."""
    by_rule = np.where(found, TISSUE, BACKGROUND).astype(np.uint8)
    name = f"{case.set}__{Path(case.name).stem}__{rule}.png".replace(" ", "-")
    overlay(case.pixels, [case.truth, by_rule]).save(folder / name)


def _wanted(case: Case, only: Sequence[str]) -> bool:
    return not only or any(word in f"{case.set}/{case.name}" for word in only)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="comma-separated parts of set or image names")
    parser.add_argument("--rules", default="", help="comma-separated names of rules; default: all")
    parser.add_argument("--shifts", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--output", type=Path, help="JSON file for the score of every image")
    parser.add_argument("--overlays", type=Path, help="folder for overlays of unshifted images")
    arguments = parser.parse_args()
    only = [word for word in arguments.only.split(",") if word]
    names = arguments.rules.split(",") if arguments.rules else list(RULES)
    if unknown := [name for name in names if name not in RULES]:
        parser.error(f"--rules: no rule {unknown[0]!r}; there are {', '.join(RULES)}")
    data = Path(os.environ["HISTODICT_DATA"]) if "HISTODICT_DATA" in os.environ else None
    if arguments.overlays:
        arguments.overlays.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    cases = [*(real_cases(data) if data else ()), *synthetic_cases()]
    cases = [case for case in cases if _wanted(case, only)]
    if not cases:
        parser.error(f"--only {arguments.only}: no name of an image or set contains it")
    scores = []
    for case in cases:
        for shift in SHIFTS if arguments.shifts else [AS_IT_IS]:
            for rule in names:
                result, found = score(case, shift, rule)
                scores.append(result)
                if arguments.overlays and shift == AS_IT_IS:
                    write_overlay(arguments.overlays, case, rule, found)
    n_full, n_empty = sum(case.is_full for case in cases), sum(case.set == EMPTY for case in cases)
    print(f"{len(cases)} images, {n_full} of them full of tissue and {n_empty} empty")
    print_scores([s for s in scores if s.shift == AS_IT_IS], AS_IT_IS)
    if arguments.shifts:
        print_scores(scores, f"{len(SHIFTS)} white balances and lamps")
        print_shifts(scores)
    print_worst(scores)
    rejected = print_rejected(data, only) if data else []
    print(f"\n{time.perf_counter() - begin:.0f} s")
    if arguments.output:
        record = {"scores": [asdict(s) for s in scores], "all images": rejected}
        results = {"machine": describe_machine(), **record}
        arguments.output.write_text(json.dumps(results, default=str, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
