"""Time the encoder on one core, from pixels to features, relative to the limit of the core.

    python -m benchmarks.encoder [--areas 224 512 1024 1152] [--repeats 15] [--output FILE.json]

The limit is the rate of a product of two large matrices by the same library on one thread. Calls of
both alternate. Operations are those of the layers, two per multiply-add; repeated computations at
the borders of strips are not counted. Times are CPU seconds of one thread, which other processes
affect less. The pixels are noise, on which the time does not depend.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from histodict.encoders import efficientnet_lite as efficientnet
from histodict.encoders import load_encoder

from . import report
from .machine import describe_machine

NAMES = ("efficientnet-lite0", "efficientnet-lite0-half", "efficientnet-lite0-both")
_SIDE = 1024  # side of the matrices


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--areas", type=int, nargs="+", default=[224, 512, 1024, 1152])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--output", type=Path, help="JSON file for the figures")
    options = parser.parse_args()
    torch.set_num_threads(1)
    machine = describe_machine() | {"torch": torch.__version__}
    report.print_machine(machine)
    rows = [measure(name, side, options.repeats) for name in NAMES for side in options.areas]
    print()
    report._print_table([_cells(row) for row in rows])
    if options.output:
        options.output.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1))


def measure(name: str, side: int, repeats: int) -> dict[str, Any]:
    """Time the encoder on areas of side × side pixels, alternating with the product."""
    encoder = load_encoder(name)
    pixels = np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)
    matrix = torch.rand(_SIDE, _SIDE)
    cases: tuple[Callable[[], Any], ...] = (
        lambda: encoder.feature_map(pixels),
        lambda: matrix @ matrix,
    )
    for case in cases:
        case()
    times = np.array([[_seconds(case) for case in cases] for _ in range(repeats)])
    n_flop = flop(name, side)
    rates = np.array([n_flop, 2 * _SIDE**3]) / times / 1e9
    return {
        "network": name,
        "side": side,
        "gflop": n_flop / 1e9,
        "ms": 1e3 * statistics.median(times[:, 0]),
        "gflop_per_s": statistics.median(rates[:, 0]),
        "product_gflop_per_s": statistics.median(rates[:, 1]),
        "share": statistics.median(rates[:, 0] / rates[:, 1]),
    }


def flop(name: str, side: int) -> int:
    """Return the operations of the convolutions of an encoder."""
    module = efficientnet.Lite0(efficientnet._load_pretrained_weights()).to(
        "meta"
    )  # shapes without values
    total = 0

    def count(layer: efficientnet.Convolution, _: Any, out: torch.Tensor) -> None:
        nonlocal total
        kernel = layer.weight.shape[-1]
        kernel -= kernel % 2 == 0  # without the row and column of zeros
        total += 2 * out[0].numel() * layer.weight.shape[1] * kernel**2

    for layer in module.modules():
        if isinstance(layer, efficientnet.Convolution):
            layer.register_forward_hook(count)
    part = module.first_half if name.endswith("-half") else module
    part(torch.empty(1, 3, side, side, device="meta"))
    return total


def _seconds(case: Callable[[], Any]) -> float:
    start = time.thread_time()
    case()
    return time.thread_time() - start


def _cells(row: dict[str, Any]) -> dict[str, str]:
    return {
        "network": row["network"],
        "pixels": f"{row['side']}²",
        "GFLOP": f"{row['gflop']:.2f}",
        "ms": f"{row['ms']:.1f}",
        "ms per megapixel": f"{row['ms'] / row['side'] ** 2 * 1e6:.0f}",
        "GFLOP/s": f"{row['gflop_per_s']:.1f}",
        "of the product": f"{row['share']:.2f} of {row['product_gflop_per_s']:.0f}",
    }


if __name__ == "__main__":
    main()
