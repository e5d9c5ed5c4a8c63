"""A sealed file is what was written, or says that it is not."""

import json
import math
from pathlib import Path

import pytest

from histodict.utils.text_io import read_checked_json, write_checked_json

CONTENT = {"row": {"path": "a\udcff ü.jpg", "score": -0.25, "n": 3}, "regions": [[1, 2.5e-308]]}


def test_what_was_written_is_read_and_is_plain_json(tmp_path):
    write_checked_json(tmp_path / "x.json", CONTENT)
    assert read_checked_json(tmp_path / "x.json") == CONTENT
    assert json.loads((tmp_path / "x.json").read_text())["content"] == CONTENT


@pytest.mark.parametrize("content", [[], "", None, 0, {}, "a line\nand another"])
def test_any_value_can_be_sealed(tmp_path, content):
    write_checked_json(tmp_path / "x.json", content)
    assert read_checked_json(tmp_path / "x.json") == content


def test_a_score_that_is_none_stays_so(tmp_path):
    write_checked_json(tmp_path / "x.json", [math.nan, Path("a")])
    nan, path = read_checked_json(tmp_path / "x.json")
    assert math.isnan(nan) and path == "a"


def test_every_flipped_bit_is_noticed(tmp_path):
    file = tmp_path / "x.json"
    write_checked_json(file, CONTENT)
    whole = file.read_bytes()
    for place in range(8 * len(whole)):
        spoilt = bytearray(whole)
        spoilt[place // 8] ^= 1 << place % 8
        file.write_bytes(spoilt)
        with pytest.raises(ValueError):
            read_checked_json(file)


@pytest.mark.parametrize(
    "text",
    [
        *("", "{}", "[1]", '{"sha256": "', '{"sha256": "0"}', "{" * 10**5, '{"state": "done"}'),
        '{"sha256": "' + "0" * 64 + '", "content": {}}',
    ],
)
def test_what_is_no_sealed_file_is_refused(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ValueError):
        read_checked_json(tmp_path / "x.json")
