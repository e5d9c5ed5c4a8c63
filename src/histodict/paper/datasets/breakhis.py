"""BreakHis: …/SOB_B_A_14-22549AB/40X/SOB_B_A-14-22549AB-40-001.png, however deep.

A name tells class (B or M), tumour, year and slide, magnification and number. Year and slide are
the patient; one patient, 14-13412, has images of two tumours.
"""

from __future__ import annotations

import re
from pathlib import Path

from ...images.manifest import Record
from .dataset import Dataset, images_under, manifest_of, named

_NAME = re.compile(r"SOB_([BM])_[A-Z]+-(\d+-\w+)-(\d+)-\d+$")
_CLASSES = {"B": "benign", "M": "malignant"}


def find(root: Path) -> list[Dataset]:
    """Benign and malignant breast tumours, one task per magnification."""
    if not root.is_dir():
        return []
    by_scale: dict[int, list[Record]] = {}
    for path in images_under(root):
        name = _NAME.match(path.stem)
        if name:
            record = Record(path, _CLASSES[name[1]], name[2], slide=name[2])
            by_scale.setdefault(int(name[3]), []).append(record)
    return [
        named(f"breakhis-{scale}x", manifest_of(root, records))
        for scale, records in sorted(by_scale.items())
    ]
