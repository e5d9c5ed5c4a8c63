"""UCSB breast benchmark: ytma10_010704_benign1_ccd.tif, whichever folders they lie in.

The slide array and date, ytma10_010704, tell what was stained and scanned together: images of one
such group stay on one side of a split.
"""

from __future__ import annotations

import re
from pathlib import Path

from ...images.manifest import Record
from .dataset import Dataset, images_under, manifest_of, named

_NAME = re.compile(r"(ytma\d+_\d+)_(benign|malignant)\d+_ccd$", re.IGNORECASE)


def find(root: Path) -> list[Dataset]:
    """Benign and malignant breast tissue."""
    if not root.is_dir():
        return []
    told = [(path, _NAME.match(path.stem)) for path in images_under(root)]
    records = [
        Record(path, name[2].lower(), name[1].lower()) for path, name in told if name is not None
    ]
    return [named("ucsb-breast", manifest_of(root, records))] if records else []
