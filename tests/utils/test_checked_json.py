"""Tests of JSON files with a checksum: damage is detected on reading."""

import json
import math
from pathlib import Path

import pytest

from histodict.utils.text_io import read_checked_json, write_checked_json

CONTENT = {"row": {"path": "a\udcff ü.jpg", "score": -0.25, "n": 3}, "regions": [[1, 2.5e-308]]}


def test_written_value_is_read_back_and_is_plain_json(tmp_path):
    write_checked_json(tmp_path / "x.json", CONTENT)
    assert read_checked_json(tmp_path / "x.json") == CONTENT
    assert json.loads((tmp_path / "x.json").read_text())["content"] == CONTENT


@pytest.mark.parametrize("content", [[], "", None, 0, {}, "a line\nand another"])
def test_any_json_value_can_be_written(tmp_path, content):
    write_checked_json(tmp_path / "x.json", content)
    assert read_checked_json(tmp_path / "x.json") == content


def test_nan_and_paths_are_converted(tmp_path):
    write_checked_json(tmp_path / "x.json", [math.nan, Path("a")])
    nan, path = read_checked_json(tmp_path / "x.json")
    assert math.isnan(nan) and path == "a"


def test_every_flipped_bit_is_detected(tmp_path):
    file = tmp_path / "x.json"
    write_checked_json(file, CONTENT)
    content_bytes = file.read_bytes()
    for place in range(8 * len(content_bytes)):
        damaged = bytearray(content_bytes)
        damaged[place // 8] ^= 1 << place % 8
        file.write_bytes(damaged)
        with pytest.raises(ValueError):
            read_checked_json(file)


@pytest.mark.parametrize(
    "text",
    [
        *("", "{}", "[1]", '{"sha256": "', '{"sha256": "0"}', "{" * 10**5, '{"state": "done"}'),
        '{"sha256": "' + "0" * 64 + '", "content": {}}',
    ],
)
def test_file_without_valid_checksum_is_refused(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ValueError):
        read_checked_json(tmp_path / "x.json")
