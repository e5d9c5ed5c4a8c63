"""A DataFrame is checked like a CSV file and gives the same manifest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from histodict.datasets.manifest import ManifestError, read_manifest
from tests.optional_modules import import_lazily

pandas = import_lazily("pandas", "pandas is not installed")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name in ("a.png", "b.png", "c.png", "m.png"):
        (tmp_path / name).write_bytes(b"x")
    monkeypatch.chdir(tmp_path)
    return tmp_path


TABLE = {
    "File": ["a.png", "b.png", "c.png"],
    "diagnosis": ["tumour", "normal", "tumour"],
    "patient": [7, None, 9],
    "mpp": [0.5, None, 1],
    "mask": [None, "m.png", float("nan")],
}


def test_dataframe_equals_its_csv_file(folder):
    frame = pandas.DataFrame(TABLE)
    frame.to_csv("t.csv", index=False)
    one, two = read_manifest(frame), read_manifest("t.csv")
    stored = [replace(record, patient="") for record in two.records]
    assert [replace(record, patient="") for record in one.records] == stored
    # A column of numbers with a gap contains 7.0, meaning 7.
    assert one.patients == ["7", "b.png", "9"]
    assert [warning.partition(": ")[2] for warning in one.warnings] == [
        warning.partition(": ")[2] for warning in two.warnings
    ]


def test_two_columns_of_one_name(folder):
    """They are refused as in a CSV file, but only if the column is used."""
    rows = [[f"{name}.png", label, "z", "", "1"] for name, label in zip("abc", "xyx", strict=True)]
    frame = pandas.DataFrame(rows, columns=["path", "label", "label", "note", "note"])
    frame.to_csv("t.csv", index=False)
    output = []
    for source in (frame, "t.csv"):
        with pytest.raises(
            ManifestError, match="all match the field 'label'; choose one"
        ) as caught:
            read_manifest(source)
        output.append(str(caught.value).partition(": ")[2])
    assert output[0] == output[1]
    frame.columns = ["path", "label", "other", "note", "note"]
    assert read_manifest(frame).labels == ["x", "y", "x"]


def test_paths_missing_values_and_other_columns(folder):
    frame = pandas.DataFrame(
        {
            "path": [Path("a.png"), folder / "b.png"],
            "y": pandas.array([1, 0], dtype="Int64"),
            "site": pandas.array(["here", pandas.NA], dtype="string"),
        }
    )
    found = read_manifest(frame, {"label": "y"})
    assert found.labels == ["1", "0"]
    assert [record.site for record in found.records] == ["here", None]
    assert [Path(record.path).name for record in found.records] == ["a.png", "b.png"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"File": ["a.png", "a.png", "c.png"]},
            "DataFrame, line 1: a.png is already listed in line 0",
        ),
        ({"File": ["a.png", "gone.png", "c.png"]}, r"gone.png \(line 1\)"),
        ({"diagnosis": ["tumour", "Tumour", "x"]}, "differ only in case"),
        ({"diagnosis": ["tumour", None, "x"]}, "line 1: the field 'label' is empty"),
        ({"mpp": [0.5, -1, 1]}, "line 1: mpp must be .* not '-1'"),
    ],
)
def test_values_refused_in_a_csv_file_are_refused(folder, change, message):
    with pytest.raises(ManifestError, match=message):
        read_manifest(pandas.DataFrame(TABLE | change))


def test_missing_path_rows_or_table_are_refused(folder):
    with pytest.raises(ManifestError, match="DataFrame: no column for path"):
        read_manifest(pandas.DataFrame({"label": ["a"]}))
    with pytest.raises(ManifestError, match="no rows below the header"):
        read_manifest(pandas.DataFrame({"path": [], "label": []}))
    with pytest.raises(TypeError, match="a DataFrame or a Manifest, not list"):
        read_manifest(["a.png"])
