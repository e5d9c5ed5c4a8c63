"""The kernels compiled before tests need them: `python -m attacks.ahead`.

Test files that begin side by side would each compile the same ones.
"""

from __future__ import annotations

from .kernel_problems import Settings
from .kernel_trials import KERNELS


def main() -> None:
    for kernel in KERNELS.values():
        for single in (False, True):
            settings = Settings(single=single)
            kernel.solve(kernel.make(settings), settings)


if __name__ == "__main__":
    main()
