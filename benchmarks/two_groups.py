"""False and true detections of two groups of scores by `adapt`.

Simulated scores: one group of several shapes, or two normal groups d standard deviations apart.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from histodict.decision.threshold import is_bimodal

N_SETS = 1000
Draw = Callable[[np.random.Generator, int], NDArray[np.float64]]
ONE: dict[str, Draw] = {
    "normal": lambda rng, n: rng.normal(size=n),
    "heavy tails (t, 4 d.f.)": lambda rng, n: rng.standard_t(4, size=n),
    "skewed (Gumbel)": lambda rng, n: rng.gumbel(size=n),
    "very skewed (exponential)": lambda rng, n: rng.exponential(size=n),
    "shares of 25 patches, 2 % wrong": lambda rng, n: rng.binomial(25, 0.02, n) / 25,
    "flat (uniform)": lambda rng, n: rng.uniform(size=n),
}


def two(distance: float, share: float) -> Draw:
    return lambda rng, n: rng.normal(size=n) + distance * (np.arange(n) < round(share * n))


def main() -> None:
    cases = ONE | {
        f"two, {distance} apart, {share:.0%} in one": two(distance, share)
        for distance in (2, 3, 4, 5)
        for share in (0.5, 0.25)
    }
    argparse.ArgumentParser(description=__doc__).parse_args()
    print("| scores | " + " | ".join(f"n = {n}" for n in (10, 20, 40, 80)) + " |")
    for name, draw in cases.items():
        rng = np.random.default_rng(1)
        rates = [
            np.mean([is_bimodal(draw(rng, n)) for _ in range(N_SETS)]) for n in (10, 20, 40, 80)
        ]
        print(f"| {name} | " + " | ".join(f"{rate:.2f}" for rate in rates) + " |", flush=True)


if __name__ == "__main__":
    main()
