"""Tests of progress within a large image, by windows that may contain tissue."""

from __future__ import annotations

import pytest

from histodict.models.prepared_image import chunk_progress

LARGE, SMALL = (20_000, 10_000), (2_000, 1_000)
WINDOWS = [
    (slice(0, 10), slice(0, 10)),
    (slice(10, 20), slice(0, 10)),
    (slice(0, 20), slice(10, 20)),
]


def test_windows_count_by_their_patches():
    reports = []
    report = chunk_progress(WINDOWS, LARGE, reports.append)
    for n_done in (1, 2, 3):
        report(n_done)
    assert [(p.stage, p.done, p.total) for p in reports] == [("slide", n, 3) for n in range(4)]
    assert [p.work for p in reports] == pytest.approx([0, 0.25, 0.5, 1])


@pytest.mark.parametrize(("windows", "size"), [(WINDOWS, SMALL), ([], LARGE)])
def test_small_or_empty_images_report_nothing(windows, size):
    reports = []
    report = chunk_progress(windows, size, reports.append)
    report(len(windows))
    assert reports == []
