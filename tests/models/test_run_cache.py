"""A trial is held once, and again as soon as anything that decides its answers has changed."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from histodict.datasets.manifest import read_manifest
from histodict.models import EnsembleClassifier, RegionDetector, TissueClassifier
from histodict.models import cross_validation as trials
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


def trial_of(sides, model=None, **options):
    return TrainTestRun(model or TissueClassifier(RECIPE, n_jobs=1), *sides, **options)


def rewritten(path, value):
    """Another picture of the same size and the same time of change under the same name."""
    state = path.stat()
    with Image.open(path) as image:
        pixels = np.asarray(image).copy()
    pixels[:20] = value
    Image.fromarray(pixels).save(path)
    data = path.read_bytes()
    path.write_bytes(data[: state.st_size].ljust(state.st_size, b"\0"))
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


def test_the_key_changes_with_all_that_decides(sides, monkeypatch):
    train, test = sides
    keys = [trial_of(sides).key]
    assert keys[0] == trial_of(sides, TissueClassifier(RECIPE, n_jobs=2)).key
    assert keys[0] == trial_of((train.select([1, 0, 2, 3]), test)).key  # training sorts them
    others = [
        trial_of(sides, adapts=True),
        trial_of(sides, TissueClassifier(RECIPE, random_state=1)),
        trial_of(sides, TissueClassifier(replace(RECIPE, stain="none"))),
        trial_of(sides, EnsembleClassifier([RECIPE], folds=2)),
        trial_of(sides, EnsembleClassifier([RECIPE], folds=3)),
        trial_of(sides, RegionDetector(RECIPE, region="inflamed")),
        trial_of((train, test.select([1, 0, 2, 3]))),
        trial_of((train.select([0, 1, 2]), test)),
        trial_of((train, test.select([0, 1, 2]))),
        trial_of((replace(train, records=(replace(train.records[0], mpp=9.0),)), test)),
        trial_of((replace(train, records=(replace(train.records[0], label="x"),)), test)),
    ]
    keys += [train_test.key for train_test in others]
    monkeypatch.setattr(trials, "version", lambda name: "next")
    keys.append(trial_of(sides).key)
    assert len(set(keys)) == len(keys)


def test_defaults_of_the_method_and_weights_of_a_network_count(sides, monkeypatch):
    from histodict.methods.linear_baselines import NearestMeanClassifier
    from histodict.patches.vectors import PixelFeatures

    before = trial_of(sides).key
    with monkeypatch.context() as change:
        change.setattr(
            NearestMeanClassifier, "get_params", lambda self, deep=True: {"another": "default"}
        )
        assert trial_of(sides).key != before
    with monkeypatch.context() as change:
        change.setattr(PixelFeatures, "weights", lambda self: "other weights")
        assert trial_of(sides).key != before
    assert trial_of(sides).key == before


def test_content_counts_and_names_do_not(sides, tmp_path):
    before = trial_of(sides).key
    moved = tmp_path / "elsewhere.jpg"
    moved.write_bytes(sides[0].records[0].path.read_bytes())
    first = replace(sides[0].records[0], path=moved)
    train = replace(sides[0], records=(first, *sides[0].records[1:]))
    assert trial_of((train, sides[1])).key == before
    rewritten(sides[1].records[0].path, 250)
    assert trial_of(sides).key != before


def test_what_is_kept_is_found_and_what_changed_is_held_again(sides, tmp_path, monkeypatch):
    fitted = []
    original = TissueClassifier.fit

    def fit(self, data, **more):
        fitted.append(data)
        return original(self, data, **more)

    monkeypatch.setattr(TissueClassifier, "fit", fit)
    keeper = RunCache(tmp_path / "kept")
    one = keeper.run(trial_of(sides))
    two = keeper.run(trial_of(sides))
    assert len(fitted) == 1 and one == two
    assert RunCache(None).run(trial_of(sides)).scores == one.scores and len(fitted) == 2
    rewritten(sides[1].records[0].path, 250)
    three = keeper.run(trial_of(sides))
    assert len(fitted) == 3 and three.scores[0] != one.scores[0]


def test_rows_in_another_order_are_not_mixed_up(sides, tmp_path):
    keeper = RunCache(tmp_path / "kept")
    one = keeper.run(trial_of(sides)).scores
    turned = sides[0], sides[1].select([3, 2, 1, 0])
    assert keeper.run(trial_of(turned)).scores == one[::-1]


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"labels": []}', "\0\0", "fewer", "flip"])
def test_a_damaged_file_is_said_and_made_anew(sides, tmp_path, content):
    keeper = RunCache(tmp_path / "kept")
    one = keeper.run(trial_of(sides))
    (file,) = (tmp_path / "kept").glob("*.json")
    whole, bits = read_checked_json(file), file.read_text()
    if content == "fewer":  # answers than images
        write_checked_json(file, whole | {"labels": whole["labels"][:2]})
    elif content == "flip":  # a digit of a score, for one
        digit = bits.index(".", bits.index("scores")) + 1
        file.write_text(bits[:digit] + chr(ord(bits[digit]) ^ 1) + bits[digit + 1 :])
    else:
        file.write_text(content)
    with pytest.warns(UserWarning, match="is damaged and made anew"):
        again = keeper.run(trial_of(sides))
    assert again.scores == one.scores
    assert read_checked_json(file)["labels"] == whole["labels"]


def test_maps_of_wrong_answers_are_kept(sides, tmp_path):
    train, test = sides
    other = {"healthy": "inflamed", "inflamed": "healthy"}
    wrong = replace(test, records=tuple(replace(r, label=other[r.label]) for r in test.records))
    right, turned = (
        RunCache(tmp_path / "kept").run(trial_of((train, side))) for side in (test, wrong)
    )
    for place, (label, record) in enumerate(zip(right.labels, test.records, strict=True)):
        found = (right if label != record.label else turned).map_of(place)
        assert found.path == record.path and found.classes == ("healthy", "inflamed")
        assert (right if label == record.label else turned).map_of(place) is None


def test_a_trial_whose_map_is_damaged_is_held_anew(sides, tmp_path):
    train, test = sides
    other = {"healthy": "inflamed", "inflamed": "healthy"}
    wrong = replace(test, records=tuple(replace(r, label=other[r.label]) for r in test.records))
    made = RunCache(tmp_path / "kept").run(trial_of((train, wrong)))
    file = sorted(made.maps.iterdir())[0]
    whole = file.read_bytes()
    file.write_bytes(whole[:-9])
    with pytest.warns(UserWarning, match=f"{file.name} is another file"):
        RunCache(tmp_path / "kept").run(trial_of((train, wrong)))
    assert file.read_bytes() == whole


def test_a_method_of_the_whole_image_trains_here(sides, tmp_path):
    """An executor is for those that have patches; the others do not refuse it in a trial."""

    class Nowhere:
        def map(self, *arguments, **options):
            raise AssertionError("nothing is to be sent")

    train_test = trial_of(sides, TissueClassifier(Recipe(method="lbp-colour")))
    assert len(RunCache(None).run(train_test, Nowhere()).labels) == 4


def test_the_peak_of_a_trial_is_not_that_of_its_inner_ones(sides, monkeypatch):
    """A panel trains in folds first; what it took then is part of what it takes."""
    forgotten = []
    monkeypatch.setattr(trials, "_forget_peak_memory", lambda: forgotten.append(1))
    ensemble = EnsembleClassifier([RECIPE], folds=2, n_jobs=1)
    assert RunCache(None).run(trial_of(sides, ensemble)).peak_mib is not None
    assert len(forgotten) == 1


def test_a_damaged_map_is_not_there(sides, tmp_path):
    made = RunCache(tmp_path / "kept").run(trial_of(sides))
    made.maps.mkdir(exist_ok=True)
    (made.maps / "0.npz").write_bytes(b"no map")
    with pytest.warns(UserWarning, match="is damaged"):
        assert made.map_of(0) is None
