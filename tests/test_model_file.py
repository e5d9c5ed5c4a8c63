"""Model files contain the complete model, are written atomically, and other files are refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from histodict.models import (
    EnsembleClassifier,
    RegionDetector,
    TissueClassifier,
    load_model,
    save_model,
)
from histodict.models.model_file import (
    ARRAY_SPECS,
    SCHEMA,
    ModelFileError,
    read_header,
    read_model_data,
    serialize,
)
from tests.small_models import TRAIN

KINDS = {
    "calibrated": EnsembleClassifier,
    "ensemble": EnsembleClassifier,
    "regions": RegionDetector,
}


def arrays_of(patch_map):
    return (
        None
        if patch_map is None
        else [patch_map.predicted_classes.tobytes(), patch_map.margins.tobytes()]
    )


@pytest.mark.parametrize("name", TRAIN)
def test_loaded_model_gives_the_same_predictions(small_models, name, tmp_path):
    trained, loaded = small_models.model(name), load_model(small_models.path(name))
    assert type(loaded) is KINDS.get(name, TissueClassifier)
    again = load_model(save_model(loaded, tmp_path / "m.histodict"))
    for image in small_models.images:
        first, *others = (model.predict_one(image, mpp=0.5) for model in (trained, loaded, again))
        assert np.isfinite(first.score)
        for other in others:
            assert other.row() == first.row()
            assert arrays_of(other.patch_map) == arrays_of(first.patch_map)


@pytest.mark.parametrize("name", TRAIN)
def test_every_array_of_a_file_is_declared(small_models, name):
    for array in read_model_data(small_models.path(name)).arrays:
        assert array in ARRAY_SPECS or array.startswith(("method.", "rule."))


@pytest.mark.parametrize("schema", [0, SCHEMA + 1, 99])
def test_other_schema_version_is_refused(small_models, schema, tmp_path):
    path = tmp_path / "other.histodict"
    header = read_header(small_models.path("dfdl")) | {"schema": schema}
    path.write_bytes(serialize(header, {"x": np.zeros(3)}))
    text = rf"has schema {schema}, .*reads schema {SCHEMA}: train .* again, or update histodict"
    with pytest.raises(ModelFileError, match=text):
        load_model(path)


def test_model_file_is_written_atomically(small_models, tmp_path):
    model = load_model(small_models.path("dfdl"))
    path = save_model(model, tmp_path / "größe.histodict")
    assert [p.name for p in tmp_path.iterdir()] == ["größe.histodict"]
    assert read_header(path)["schema"] == SCHEMA
    nested = save_model(model, tmp_path / "new" / "folder" / "model.histodict")
    assert nested.read_bytes() == path.read_bytes()


def test_damaged_foreign_and_newer_files_are_distinguished(small_models, tmp_path):
    path = small_models.path("dfdl")
    cut = tmp_path / "cut.histodict"
    cut.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    text = tmp_path / "text.histodict"
    text.write_text("not a model")
    foreign = tmp_path / "foreign.histodict"
    save_file({"x": np.zeros(3)}, foreign)
    newer = tmp_path / "newer.histodict"
    save_file({"x": np.zeros(3)}, newer, {"histodict": json.dumps({"schema": 99})})
    lacking = tmp_path / "lacking.histodict"
    save_file({"x": np.zeros(3)}, lacking, {"histodict": json.dumps({"schema": SCHEMA})})
    for file, message in (
        (tmp_path / "none.histodict", "file not found"),
        (cut, "damaged"),
        (text, "not a model file"),
        (foreign, "another program"),
        (newer, "schema 99"),
        (lacking, "damaged"),
    ):
        with pytest.raises(ModelFileError, match=message):
            load_model(file)
