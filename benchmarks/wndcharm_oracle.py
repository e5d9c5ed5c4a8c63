"""Compare the WND-CHARM features of histodict with those of the original program, by family.

    python -m benchmarks.wndcharm_oracle [FOLDER] [--planes]

FOLDER contains images (.tif) with the features of the original (.sig), one per line: value, tab,
`family (transform) [index]`. Default: `wndcharm` beside `$HISTODICT_DATA`. A feature agrees if it
differs by less than one part in 10,000, or by less than a millionth of the largest of its family.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from skimage.io import imread

from histodict.image_features.wndcharm import grey_planes, plane_features

FAMILIES = {
    "Edge Features": "edges",
    "Otsu Object Features": "bright objects",
    "Inverse-Otsu Object Features": "dark objects",
    "Gabor Textures": "gabor",
    "Chebyshev-Fourier Coefficients": "chebyshev-fourier",
    "Chebyshev Coefficients": "chebyshev",
    "Zernike Coefficients": "zernike",
    "Comb Moments": "comb",
    "Haralick Textures": "haralick",
    "Multiscale Histograms": "histograms",
    "Tamura Textures": "tamura",
    "Radon Coefficients": "radon",
    "Fractal Features": "fractal",
    "Pixel Intensity Statistics": "intensity",
    "Gini Coefficient": "gini",
}
_LINE = re.compile(r"(\S+)\t(.+?) \((.*)\) \[(\d+)\]")
Key = tuple[str, str]  # family, plane
Numbers = dict[Key, NDArray[np.float64]]


def images(folder: Path) -> Iterator[tuple[Path, Path]]:
    """Yield the images of a folder with their feature files."""
    for path in sorted(folder.glob("*.tif*")):
        signatures = sorted(folder.glob(f"{path.stem}*.sig"))
        if signatures:
            yield path, signatures[0]


def original(path: Path) -> Numbers:
    """Return the features of a .sig file."""
    found: dict[Key, list[float]] = defaultdict(list)
    for line in path.read_text().splitlines()[2:]:
        match = _LINE.fullmatch(line.strip())
        if match:
            value, family, transform, _ = match.groups()
            plane = transform.replace(" ()", "").replace(" ", "").lower() or "grey"
            found[FAMILIES[family], plane].append(float(value))
    return {key: np.array(values) for key, values in found.items()}


def ours(path: Path) -> Numbers:
    """Return the features of histodict for a grey image."""
    grey = np.asarray(imread(path), np.float64)
    found: dict[Key, list[float]] = defaultdict(list)
    for name, value in plane_features(grey_planes(grey)).items():
        entry, plane = name.rsplit(" of ", 1)
        found[family_of(entry), plane].append(value)
    return {key: np.array(values) for key, values in found.items()}


def family_of(entry: str) -> str:
    """Return the family of a feature of histodict by its name; "" for colour fractions."""
    families = [family for family in FAMILIES.values() if entry.startswith(f"{family} ")]
    return max(families, key=len, default="")


def relative_errors(mine: NDArray[np.float64], theirs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return |difference| over the original, or over a hundredth of the family's largest value."""
    floor = np.maximum(np.abs(theirs), max(1e-300, 0.01 * np.abs(theirs).max()))
    errors: NDArray[np.float64] = np.abs(mine - theirs) / floor
    return errors


def agreeing(mine: NDArray[np.float64], theirs: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which features equal the original, to one part in 10,000."""
    agree: NDArray[np.bool_] = relative_errors(mine, theirs) <= 1e-4
    return agree


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    data = os.environ.get("HISTODICT_DATA")
    parser.add_argument("folder", nargs="?", type=Path, default=data and Path(data, "../wndcharm"))
    parser.add_argument("--planes", action="store_true", help="a row per family and plane")
    arguments = parser.parse_args(argv)
    pairs = list(images(arguments.folder)) if arguments.folder else []
    if not pairs:
        where = arguments.folder or "HISTODICT_DATA is not set"
        print(f"{where}: no images with .sig files; state their folder", file=sys.stderr)
        return 1
    for path, signatures in pairs:
        table(path, ours(path), original(signatures), arguments.planes)
    return 0


def table(path: Path, mine: Numbers, theirs: Numbers, planes: bool) -> None:
    """Print a row per family, or per family and plane."""
    print(f"\n{path.name}")
    print("| family | plane | numbers | agree | median error | greatest | correlation |")
    print("|---|---|---|---|---|---|---|")
    groups: dict[Key, list[Key]] = defaultdict(list)
    for family, plane in theirs:
        groups[family, plane if planes else "all"].append((family, plane))
    for (family, plane), keys in groups.items():
        a, b = (np.concatenate([side[key] for key in keys]) for side in (mine, theirs))
        errors = np.concatenate([relative_errors(mine[key], theirs[key]) for key in keys])
        agree = int(sum(agreeing(mine[key], theirs[key]).sum() for key in keys))
        moves = len(a) > 1 and a.std() > 0 and b.std() > 0
        correlation = f"{np.corrcoef(a, b)[0, 1]:.4f}" if moves else "-"
        figures = f"{np.median(errors):.1e} | {errors.max():.1e} | {correlation}"
        print(f"| {family} | {plane} | {len(a)} | {agree} | {figures} |")
    keys = list(theirs)
    total = sum(len(theirs[key]) for key in keys)
    print(f"{sum(int(agreeing(mine[k], theirs[k]).sum()) for k in keys)} of {total} agree")


if __name__ == "__main__":
    sys.exit(main())
