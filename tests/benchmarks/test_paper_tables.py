"""The page of the paper's comparison: verdicts from planted tables, and a page that is filled."""

from __future__ import annotations

from pathlib import Path

import pytest

tables = pytest.importorskip("benchmarks.paper_tables", reason="the benchmarks are not here")
PAGE = Path(__file__).parents[2] / "docs" / "paper.md"


def write(folder: Path, name: str, lines: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def accuracy(folder: Path, name: str, values: dict[str, float]) -> None:
    own = [f"{name},histodict,{method},{v},{v - 5},{v + 5}" for method, v in values.items()]
    published = "IBL,published,DFDL,97.75,,"
    write(folder / name, "accuracy", ["data,source,method,accuracy,low,high", *own, published])


def test_who_is_best_is_counted_over_the_sets(tmp_path):
    accuracy(tmp_path, "easy", {"DFDL": 90.0, "LC-KSVD": 80.0})
    accuracy(tmp_path, "hard", {"DFDL": 60.0, "LC-KSVD": 70.0, "FDDL": 60.0})
    block = tables.accuracy_block(tables.Written(tmp_path))
    assert "It holds on 1 of 2 public sets" in block
    assert "easy: DFDL 90.0 %, the best of 2" in block
    assert "hard: LC-KSVD 70.0 %, DFDL 60.0 %, place 2 of 3" in block
    assert "| **DFDL** | 97.75 |" in block and "90.0 (85.0 to 95.0)" in block


def test_best_with_the_fewest_and_loses_least_are_two_things(tmp_path):
    axis = "training images per class"
    values = {"DFDL": (70, 75, 90), "SRC": (50, 50, 50)}
    rows = [
        f"s,histodict,{method},{size},{value},{value},{value}"
        for method, own in values.items()
        for size, value in zip((2, 10, 20), own, strict=True)
    ]
    header = f"data,source,method,{axis},accuracy,low,high"
    write(tmp_path / "s", "training-images", [header, *rows])
    (tmp_path / "s" / "training-images.json").write_text("{}")
    block = tables.BLOCKS["training-images"](tables.Written(tmp_path))
    assert "*Best with the fewest training images:* **It holds on 1 of 1" in block
    assert "*Loses least on the way there:* **It holds on 0 of 1" in block
    assert "SRC 0.0 points, DFDL 20.0 points" in block


def test_the_area_below_a_curve(tmp_path):
    """A method that is never wrong, and one that guesses."""
    rows = ["s,DFDL,θ,0.5,0,0", "s,FDDL,θ,0.5,0.5,0.5"]
    write(tmp_path / "s", "roc", ["data,method,moved,value,false_alarm,miss", *rows])
    points = "data,source,method,moved,mean_value,false_alarm,miss"
    write(tmp_path / "s", "roc-points", [points, "s,histodict,DFDL,θ,0.5,0,0"])
    accuracy(tmp_path, "s", {"DFDL": 90.0})
    block = tables.roc_block(tables.Written(tmp_path))
    assert "| 0.00 / 0.00 | 0.000 |" in block and "| 0.500 |" in block
    assert "It holds on 1 of 1 public sets" in block


def test_the_page_has_a_place_for_every_block_and_is_filled_twice_alike(tmp_path):
    accuracy(tmp_path, "easy", {"DFDL": 90.0, "LC-KSVD": 80.0})
    blocks = {name: make(tables.Written(tmp_path)) for name, make in tables.BLOCKS.items()}
    once = tables.filled(PAGE.read_text(encoding="utf-8"), blocks)
    assert once == tables.filled(once, blocks)
    assert blocks["accuracy"] in once
    assert tables.NOT_MEASURED in blocks["bases"]  # what is missing is said to be


def test_a_page_without_a_place_is_refused():
    with pytest.raises(ValueError, match="roc"):
        tables.filled("<!-- accuracy -->\n<!-- /accuracy -->", {"roc": "curves"})
