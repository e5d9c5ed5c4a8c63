"""Compile the kernels before the tests run: `python -m attacks.ahead`.

Parallel test processes would otherwise compile the same kernels several times.
"""

from __future__ import annotations

from .kernel_cases import KERNELS
from .kernel_problems import Settings


def main() -> None:
    for kernel in KERNELS.values():
        for single in (False, True):
            settings = Settings(single=single)
            kernel.solve(kernel.make(settings), settings)


if __name__ == "__main__":
    main()
