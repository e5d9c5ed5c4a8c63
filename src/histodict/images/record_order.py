"""Order of images by content, so that the order of rows and the names of files decide nothing.

Training draws patches image by image, and sums over them; both depend on the order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..execution.files import content_digest, sampled_digest
from .manifest import Manifest
from .records import Record


def training_content(record: Record, digest: Callable[[Path], str] = content_digest) -> list[Any]:
    """All of a record that a model may learn from, whatever its files are called."""
    mask = digest(record.mask) if record.mask else None
    annotations = {"drawn": record.drawn, "within": record.within}
    facts = [[name, each.facts()] for name, each in annotations.items() if each is not None]
    return [digest(record.path), record.label, record.patient, record.mpp, mask, *facts]


def content_order(records: Sequence[Record]) -> list[int]:
    """Places of the records, sorted by image content, then label, patient, pixel size and mask.

    Copies that agree in all of these are interchangeable: a model learns the same from each.
    """
    keys = [json.dumps(training_content(record, sampled_digest)) for record in records]
    return sorted(range(len(records)), key=keys.__getitem__)


def sorted_by_content(manifest: Manifest) -> Manifest:
    """The same images in the order of `content_order`."""
    return manifest.select(content_order(manifest.records))
