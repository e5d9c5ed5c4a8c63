"""A module as a process that ends with the one that started it, from its first moment on:

    python -m histodict.execution.child PARENT MODULE [ARGUMENT …]

A module that imports much would notice seconds late that PARENT, a process number, has gone.
"""

from __future__ import annotations

import runpy
import sys

from .leaving import end_with


def main() -> None:
    parent, module = sys.argv[1:3]
    end_with(int(parent))
    del sys.argv[1:3]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
