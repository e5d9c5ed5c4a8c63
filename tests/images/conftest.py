from __future__ import annotations

import pytest

from histodict.images import slide_process


@pytest.fixture
def slide_library(tmp_path, monkeypatch):
    """Puts another module in the place of openslide, for slides opened from then on."""

    def replace(source):
        slide_process.end_idle()
        folder = tmp_path / "library"
        folder.mkdir(exist_ok=True)
        (folder / "openslide.py").write_text(source)
        monkeypatch.syspath_prepend(folder)

    yield replace
    slide_process.end_idle()
