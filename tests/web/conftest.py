from __future__ import annotations

import pytest

MISSING = "the web app is not installed: pip install 'histodict[web]'"


@pytest.fixture(scope="session")
def tissue(tmp_path_factory):
    """A folder with a small drawn set in `tissue`."""
    from histodict.demo.sets import write_synthetic_set

    folder = tmp_path_factory.mktemp("folder")
    write_synthetic_set(folder / "tissue", 4, 2, size=(160, 120))
    return folder
