"""Tests of `predict --anndata`: written tables, resumed runs, and refused models."""

from __future__ import annotations

import sys

import pytest
from typer.testing import CliRunner

from histodict.cli import app
from histodict.models import TissueClassifier
from histodict.synthetic.dataset import write_synthetic_dataset

h5py = pytest.importorskip("h5py")


@pytest.fixture(scope="module")
def tissue(tmp_path_factory):
    return write_synthetic_dataset(tmp_path_factory.mktemp("set") / "t", 2, 1, size=(120, 90))


@pytest.fixture(scope="module")
def trained(tissue, tmp_path_factory):
    model = TissueClassifier("fast", n_atoms=8, n_iter=1, patches_per_class=100).fit(tissue)
    return model.save(tmp_path_factory.mktemp("model") / "m.histodict")


@pytest.fixture
def predict(trained, tissue, tmp_path):
    def run(*options, images="manifest.csv", status=0):
        arguments = ["predict", trained, tissue / images, "-o", tmp_path / "out", *options]
        result = CliRunner().invoke(app, [str(word) for word in arguments])
        assert result.exit_code == status, result.output
        return result.output

    return run


def tables(folder):
    return sorted((folder / "out" / "anndata").glob("*.h5ad"))


def column(path, name):
    with h5py.File(path) as file:
        return set(file[f"obs/{name}/categories"].asstr()[()])


def times(folder):
    return [path.stat().st_mtime_ns for path in tables(folder)]


def test_table_per_image_under_the_key_of_the_image(predict, tmp_path):
    predict("--anndata")
    maps = sorted(path.stem for path in (tmp_path / "out" / "maps").iterdir())
    assert [path.stem for path in tables(tmp_path)] == maps
    for path in tables(tmp_path):
        assert column(path, "library_id") == {path.stem}
    assert [column(path, "patient") for path in tables(tmp_path)] == [{"patient01"}, {"patient02"}]
    assert [column(path, "truth") for path in tables(tmp_path)] == [{"healthy"}, {"inflamed"}]


def test_finished_images_are_skipped_with_or_without_the_option(predict, tmp_path):
    predict("--anndata")
    before = times(tmp_path)
    for options in (("--anndata",), ()):
        assert "2 already finished" in predict(*options)
        assert times(tmp_path) == before


def test_tables_are_added_to_an_earlier_run(predict, tmp_path):
    predict()
    assert tables(tmp_path) == []
    assert "done before" not in predict("--anndata")
    assert len(tables(tmp_path)) == 2


def test_damaged_table_is_replaced(predict, tmp_path):
    predict("--anndata")
    first = tables(tmp_path)[0]
    whole_image = first.read_bytes()
    first.write_bytes(whole_image[:1000])
    with pytest.warns(UserWarning, match="is damaged"):
        assert "1 already finished" in predict("--anndata")
    assert column(first, "patient") == {"patient01"}


def test_changed_patient_in_the_csv_updates_the_table(predict, tissue, tmp_path):
    predict("--anndata")
    text = (tissue / "manifest.csv").read_text()
    (tissue / "other.csv").write_text(text.replace("patient02,", "patient09,"))
    assert "1 already finished" in predict(images="other.csv")
    assert [column(path, "patient") for path in tables(tmp_path)] == [{"patient01"}, {"patient09"}]


def test_previous_metadata_remain_without_a_csv(predict, tmp_path):
    predict("--anndata")
    before = times(tmp_path)
    assert "done before" not in predict(images="healthy")
    assert column(tables(tmp_path)[0], "patient") == {"patient01"}
    assert times(tmp_path)[1] == before[1]


def test_whole_image_model_is_refused_before_the_work(tissue, tmp_path):
    whole_image = TissueClassifier("fast", method="mean-logistic").fit(tissue)
    path = whole_image.save(tmp_path / "w.histodict")
    arguments = ["predict", str(path), str(tissue), "-o", str(tmp_path / "out"), "--anndata"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2 and "has no patches for AnnData" in result.output
    assert not (tmp_path / "out" / "predictions.csv").exists()


def test_missing_h5py_is_reported_in_one_line(predict, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    assert 'pip install ".[anndata]"' in " ".join(predict("--anndata", status=2).split())
