"""Tests of the run cache: a run is repeated only if something that affects its result changed."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from histodict.datasets.manifest import read_manifest
from histodict.models import EnsembleClassifier, RegionDetector, TissueClassifier, cross_validation
from histodict.models.cross_validation import RunCache, TrainTestRun
from histodict.models.recipe import Recipe, preset
from histodict.synthetic.dataset import write_synthetic_dataset
from histodict.utils.text_io import read_checked_json, write_checked_json

RECIPE = replace(preset("fast", "nearest-mean"), patch_px=8, patches_per_class=100)


@pytest.fixture
def sides(tmp_path):
    folder = write_synthetic_dataset(tmp_path / "t", 4, 2, size=(120, 90))
    manifest = read_manifest(folder / "manifest.csv")
    return manifest.select(range(0, 8, 2)), manifest.select(range(1, 8, 2))


def run_of(sides, model=None, **options):
    return TrainTestRun(model or TissueClassifier(RECIPE, n_jobs=1), *sides, **options)


def rewritten(path, value):
    """Write another image of the same size and modification time to the same file."""
    state = path.stat()
    with Image.open(path) as image:
        pixels = np.asarray(image).copy()
    pixels[:20] = value
    Image.fromarray(pixels).save(path)
    data = path.read_bytes()
    path.write_bytes(data[: state.st_size].ljust(state.st_size, b"\0"))
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


def test_key_changes_with_everything_that_affects_the_result(sides, monkeypatch):
    train, test = sides
    keys = [run_of(sides).key]
    assert keys[0] == run_of(sides, TissueClassifier(RECIPE, n_jobs=2)).key
    assert keys[0] == run_of((train.select([1, 0, 2, 3]), test)).key  # training sorts the images
    others = [
        run_of(sides, adapts_threshold=True),
        run_of(sides, TissueClassifier(RECIPE, random_state=1)),
        run_of(sides, TissueClassifier(replace(RECIPE, stain="none"))),
        run_of(sides, EnsembleClassifier([RECIPE], folds=2)),
        run_of(sides, EnsembleClassifier([RECIPE], folds=3)),
        run_of(sides, RegionDetector(RECIPE, region="inflamed")),
        run_of((train, test.select([1, 0, 2, 3]))),
        run_of((train.select([0, 1, 2]), test)),
        run_of((train, test.select([0, 1, 2]))),
        run_of((replace(train, records=(replace(train.records[0], mpp=9.0),)), test)),
        run_of((replace(train, records=(replace(train.records[0], label="x"),)), test)),
    ]
    keys += [train_test.key for train_test in others]
    monkeypatch.setattr(cross_validation, "version", lambda name: "next")
    keys.append(run_of(sides).key)
    assert len(set(keys)) == len(keys)


def test_method_defaults_and_encoder_weights_change_the_key(sides, monkeypatch):
    from histodict.methods.linear_baselines import NearestMeanClassifier
    from histodict.patches.vectors import PixelFeatures

    before = run_of(sides).key
    with monkeypatch.context() as change:
        change.setattr(
            NearestMeanClassifier, "get_params", lambda self, deep=True: {"another": "default"}
        )
        assert run_of(sides).key != before
    with monkeypatch.context() as change:
        change.setattr(PixelFeatures, "weights_digest", lambda self: "other weights")
        assert run_of(sides).key != before
    assert run_of(sides).key == before


def test_content_changes_the_key_and_names_do_not(sides, tmp_path):
    before = run_of(sides).key
    moved = tmp_path / "elsewhere.jpg"
    moved.write_bytes(sides[0].records[0].path.read_bytes())
    first = replace(sides[0].records[0], path=moved)
    train = replace(sides[0], records=(first, *sides[0].records[1:]))
    assert run_of((train, sides[1])).key == before
    rewritten(sides[1].records[0].path, 250)
    assert run_of(sides).key != before


def test_cached_run_is_loaded_and_a_changed_one_repeated(sides, tmp_path, monkeypatch):
    fitted = []
    original = TissueClassifier.fit

    def fit(self, data, **more):
        fitted.append(data)
        return original(self, data, **more)

    monkeypatch.setattr(TissueClassifier, "fit", fit)
    cache = RunCache(tmp_path / "kept")
    one = cache.run(run_of(sides))
    two = cache.run(run_of(sides))
    assert len(fitted) == 1 and one == two
    assert RunCache(None).run(run_of(sides)).scores == one.scores and len(fitted) == 2
    rewritten(sides[1].records[0].path, 250)
    three = cache.run(run_of(sides))
    assert len(fitted) == 3 and three.scores[0] != one.scores[0]


def test_rows_in_another_order_are_matched(sides, tmp_path):
    cache = RunCache(tmp_path / "kept")
    one = cache.run(run_of(sides)).scores
    turned = sides[0], sides[1].select([3, 2, 1, 0])
    assert cache.run(run_of(turned)).scores == one[::-1]


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"labels": []}', "\0\0", "fewer", "flip"])
def test_damaged_file_is_warned_of_and_replaced(sides, tmp_path, content):
    cache = RunCache(tmp_path / "kept")
    one = cache.run(run_of(sides))
    (file,) = (tmp_path / "kept").glob("*.json")
    content_before, bits = read_checked_json(file), file.read_text()
    if content == "fewer":  # fewer predictions than images
        write_checked_json(file, content_before | {"labels": content_before["labels"][:2]})
    elif content == "flip":  # for example, a digit of a score
        digit = bits.index(".", bits.index("scores")) + 1
        file.write_text(bits[:digit] + chr(ord(bits[digit]) ^ 1) + bits[digit + 1 :])
    else:
        file.write_text(content)
    with pytest.warns(UserWarning, match="damaged predictions in the cache are computed again"):
        again = cache.run(run_of(sides))
    assert again.scores == one.scores
    assert read_checked_json(file)["labels"] == content_before["labels"]


def test_maps_of_wrong_predictions_are_stored(sides, tmp_path):
    train, test = sides
    other = {"healthy": "inflamed", "inflamed": "healthy"}
    wrong = replace(test, records=tuple(replace(r, label=other[r.label]) for r in test.records))
    right, turned = (
        RunCache(tmp_path / "kept").run(run_of((train, side))) for side in (test, wrong)
    )
    for place, (label, record) in enumerate(zip(right.labels, test.records, strict=True)):
        found = (right if label != record.label else turned).load_map(place)
        assert found.path == record.path and found.classes == ("healthy", "inflamed")
        assert (right if label == record.label else turned).load_map(place) is None


def test_run_with_a_damaged_map_is_repeated(sides, tmp_path):
    train, test = sides
    other = {"healthy": "inflamed", "inflamed": "healthy"}
    wrong = replace(test, records=tuple(replace(r, label=other[r.label]) for r in test.records))
    made = RunCache(tmp_path / "kept").run(run_of((train, wrong)))
    file = sorted(made.map_folder.iterdir())[0]
    content_before = file.read_bytes()
    file.write_bytes(content_before[:-9])
    with pytest.warns(UserWarning, match=f"{file.name} was changed"):
        RunCache(tmp_path / "kept").run(run_of((train, wrong)))
    assert file.read_bytes() == content_before


def test_whole_image_method_is_trained_in_this_process(sides, tmp_path):
    """Executors are for patch methods; whole-image methods ignore them in a run."""

    class Nowhere:
        def map(self, *arguments, **options):
            raise AssertionError("nothing is to be sent")

    train_test = run_of(sides, TissueClassifier(Recipe(method="lbp-colour")))
    assert len(RunCache(None).run(train_test, Nowhere()).labels) == 4


def test_peak_memory_includes_inner_runs(sides, monkeypatch):
    """An ensemble first trains in folds; their memory is part of its peak."""
    forgotten = []
    monkeypatch.setattr(cross_validation, "_reset_peak_memory", lambda: forgotten.append(1))
    ensemble = EnsembleClassifier([RECIPE], folds=2, n_jobs=1)
    assert RunCache(None).run(run_of(sides, ensemble)).peak_mib is not None
    assert len(forgotten) == 1


def test_damaged_map_is_treated_as_missing(sides, tmp_path):
    made = RunCache(tmp_path / "kept").run(run_of(sides))
    made.map_folder.mkdir(exist_ok=True)
    (made.map_folder / "0.npz").write_bytes(b"no map")
    with pytest.warns(UserWarning, match="damaged map is not shown"):
        assert made.load_map(0) is None
