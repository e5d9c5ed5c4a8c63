"""The process that looks at HDF5 files first: on a damaged one the library may hang or abort, and
ends this process alone. A path comes in a line, as JSON; an empty line says that it was survived.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from .feature_anndata import open_h5ad_here
from .feature_formats import open_hdf5_here

_OTHERS = {".h5ad": open_h5ad_here}


def main() -> None:
    for line in sys.stdin:
        try:
            path = Path(json.loads(line))
            opened = _OTHERS.get(path.suffix.lower(), open_hdf5_here)
            with opened(path) as content:
                content.vectors[:1]
                if content.coords is not None:
                    content.coords[...]
        except Exception:  # whoever opens it next is told
            pass
        print(flush=True)


if __name__ == "__main__":
    main()
