from __future__ import annotations

import asyncio

import pytest

MISSING = "the web app is not installed: pip install '.[web]'"


@pytest.fixture(scope="session")
def tissue(tmp_path_factory):
    """A folder with a small synthetic set in `tissue`."""
    from histodict.synthetic.dataset import write_synthetic_dataset

    folder = tmp_path_factory.mktemp("folder")
    write_synthetic_dataset(folder / "tissue", 4, 2, size=(160, 120))
    return folder


@pytest.fixture(scope="session")
def recipe():
    from histodict.models.recipe import Recipe

    return Recipe(
        method_parameters={"n_atoms": 20, "n_iter": 3},
        patch_px=12,
        patches_per_class=300,
        features="centred",
        aggregation="proportion",
    )


@pytest.fixture(scope="session")
def manifest(tissue):
    from histodict.datasets.manifest import read_manifest

    return read_manifest(tissue / "tissue" / "manifest.csv")


@pytest.fixture(scope="session")
def model(recipe, manifest):
    from histodict.models import TissueClassifier

    return TissueClassifier(recipe).fit(manifest)


@pytest.fixture(scope="session")
def gallery(model, manifest):
    from histodict.explain.patch_sample import PatchSample

    return PatchSample.from_records(model.model_, manifest.records, 0)


@pytest.fixture(scope="session")
def chromium():
    """The only browser of this process, for the fixture `browser`."""
    from tests.web.browser import open_browser

    with open_browser() as browser:
        asyncio._set_running_loop(None)  # see event_loop_of
        yield browser
        asyncio._set_running_loop(browser._loop)


@pytest.fixture(scope="module")
def browser(chromium):
    """A Chromium that the tests of all files share; its pages are closed after each file."""
    from tests.web.browser import event_loop_of

    with event_loop_of(chromium):
        yield chromium
        for context in chromium.contexts:
            context.close()


@pytest.fixture(autouse=True)
def reset_logged_messages():
    """Reset messages that are logged once per process before each test."""
    from histodict.web.workspace import warn_once

    warn_once.cache_clear()
