"""Training from patches on disk equals training from memory, with bounded memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from histodict.methods.dfdl import DFDL
from histodict.patches.vectors import PATCH_FEATURES, StoredPatches


@pytest.fixture
def stored(tmp_path, rng):
    labels = rng.integers(0, 2, 3000)
    patches = rng.integers(0, 120, (3000, 5, 5, 3), dtype=np.uint8)
    patches[labels == 1, :2] *= 2
    np.save(tmp_path / "patches.npy", patches)
    np.save(tmp_path / "labels.npy", labels)
    return StoredPatches(tmp_path / "patches.npy", tmp_path / "labels.npy", "rgb"), patches, labels


def test_vectors_of_some_rows(stored):
    found, patches, labels = stored
    np.testing.assert_array_equal(found.read(slice(7, 50)), PATCH_FEATURES["rgb"](patches[7:50]))
    np.testing.assert_array_equal(found.labels, labels)


def test_training_from_disk_gives_the_bits_of_training_from_memory(stored):
    found, patches, labels = stored
    options = {"n_iter": 3, "random_state": 0}
    expected = DFDL(10, **options).fit(PATCH_FEATURES["rgb"](patches), labels)
    model = DFDL(10, **options).fit_blocks(found)
    np.testing.assert_array_equal(model.dictionaries_, expected.dictionaries_)
    np.testing.assert_array_equal(model.objective_, expected.objective_)
    np.testing.assert_array_equal(model.classes_, expected.classes_)


def test_continuing_with_patches_of_another_size_is_refused(stored, rng):
    found, _, labels = stored
    model = DFDL(10, n_iter=1, warm_start=True, random_state=0)
    model.fit(rng.standard_normal((len(labels), 12)), labels)
    with pytest.raises(ValueError, match="75 features, expected 12"):
        model.fit_blocks(found)


def test_invalid_files_are_refused(stored, tmp_path):
    found, patches, labels = stored
    np.save(tmp_path / "short.npy", labels[:-1])
    np.save(tmp_path / "grey.npy", patches[..., 0])
    with pytest.raises(ValueError, match=r"3000 patches, but .* 2999 labels"):
        StoredPatches(found.patches_file, tmp_path / "short.npy")
    with pytest.raises(ValueError, match="uint8 values of shape"):
        StoredPatches(tmp_path / "grey.npy", found.labels_file)
    with pytest.raises(ValueError, match="features must be one of"):
        StoredPatches(found.patches_file, found.labels_file, "efficientnet-lite0")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_memory_does_not_grow_with_the_number_of_patches():
    """150,000 patches are 110 MiB as vectors; 40,000 are kept for the first dictionaries."""
    command = [sys.executable, "-m", "benchmarks.out_of_core", "--patches", "150000"]
    run = subprocess.run(
        [*command, "--size", "8", "--atoms", "8", "--iterations", "1"],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    figures = json.loads(run.stdout)
    assert figures["as_vectors_mib"] > 109
    assert figures["peak_mib"][0] - figures["peak_before_mib"] < 75
