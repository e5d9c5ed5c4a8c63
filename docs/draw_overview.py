"""Draw docs/figures/overview.png: a slide region, its patch map, and the atoms behind the map.

    python docs/draw_overview.py             needs PyTorch; about a minute

The tissue is synthetic. The images of training and test come from different patients.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("agg")

import numpy as np
from matplotlib import pyplot
from PIL import Image

from histodict import RegionDetector
from histodict.patches.patch_map import class_rgb
from histodict.synthetic.demo import write_demo_images

PICTURE = Path(__file__).parent / "figures" / "overview.png"
N_ATOMS, N_POSITIVE, N_EXAMPLES, MARGIN_PX = 5, 3, 4, 12


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for seed, subset in enumerate(("train", "test")):
            write_demo_images(folder / subset, seed=seed)
        detector = RegionDetector(region="inflamed").fit(folder / "train/regions/manifest.csv")
        path = folder / "test/regions/patient10_1.jpg"
        mask = Image.open(folder / "test/regions/masks/patient10_1.png").convert("L")
        explanation = detector.explain(path, mpp=0.5)
        draw(np.asarray(Image.open(path)), np.asarray(mask) > 0, explanation)


def draw(image: Any, mask: Any, explanation: Any) -> None:
    """Write the figure with the three panels."""
    patch_map = explanation.prediction.patch_map
    figure = pyplot.figure(figsize=(12, 3.75), layout="constrained")
    panels: Any = figure.subfigures(1, 3, width_ratios=(1, 1, 1.12))
    left, middle, right = panels
    for panel, title in (
        (left, "Image of a new patient"),
        (middle, "Predicted map, true outline"),
        (right, "Patches that use an atom, its contribution"),
    ):
        panel.suptitle(title, fontsize=12)

    left.subplots().imshow(image)
    ax = middle.subplots()
    explanation.prediction.plot(ax)
    ax.set_title("")
    ax.contour(mask, levels=[0.5], colors="black", linewidths=1.6, linestyles="dashed")
    for ax in (left.axes[0], middle.axes[0]):
        ax.set_axis_off()
        ax.set_anchor("N")

    rows = right.subplots(N_ATOMS, N_EXAMPLES + 1, width_ratios=(*[1] * N_EXAMPLES, 2.4))
    ordered = sorted(explanation.contributions, key=lambda part: -part.contribution[0])
    parts = ordered[:N_POSITIVE] + ordered[N_POSITIVE - N_ATOMS :]
    longest = max(abs(part.contribution[0]) for part in parts)
    for part, axes in zip(parts, rows, strict=True):
        for ax, patch in zip(axes, examples(image, patch_map, part.usage_map), strict=False):
            ax.imshow(patch)
        colour = np.divide(class_rgb(int(part.contribution[0] > 0)), 255)
        axes[-1].barh([0], [part.contribution[0]], color=colour, height=0.5)
        axes[-1].axvline(0, ymax=0.7, color="black", linewidth=0.8)
        axes[-1].set(xlim=(-1.1 * longest, 1.1 * longest), ylim=(-1, 1))
        axes[-1].text(0, 0.5, f"{part.name}: {part.contribution[0]:+.4f}", fontsize=9, ha="center")
        for ax in axes:
            ax.set_axis_off()
    figure.savefig(PICTURE, dpi=110)
    with Image.open(PICTURE) as opened:
        opened.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(PICTURE, optimize=True)


def examples(image: Any, patch_map: Any, positions: Any) -> list[Any]:
    """Return the patches of the image that use an atom most, with some tissue around them."""
    order = np.argsort(-np.nan_to_num(positions, nan=-1), axis=None)[:N_EXAMPLES]
    found = []
    for row, column in zip(*np.unravel_index(order, positions.shape), strict=True):
        corners = np.array(patch_map.patch_ring(row, column))
        x0, y0 = np.maximum(corners.min(axis=0).astype(int) - MARGIN_PX, 0)
        x1, y1 = corners.max(axis=0).astype(int) + MARGIN_PX
        found.append(image[y0:y1, x0:x1])
    return found


if __name__ == "__main__":
    main()
