"""Tables of the paper's comparison: claims counted on planted tables, and a filled page."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.optional_modules import import_lazily

tables = import_lazily("benchmarks.paper_tables", "the benchmarks are not here")
PAGE = Path(__file__).parents[2] / "docs" / "paper.md"


def write(folder: Path, name: str, lines: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def accuracy(folder: Path, name: str, values: dict[str, float]) -> None:
    own = [f"{name},histodict,{method},{v},{v - 5},{v + 5}" for method, v in values.items()]
    published = "IBL,published,DFDL,97.75,,"
    write(folder / name, "accuracy", ["data,source,method,accuracy,low,high", *own, published])


def test_best_method_is_counted_over_the_sets(tmp_path):
    accuracy(tmp_path, "easy", {"DFDL": 90.0, "LC-KSVD": 80.0})
    accuracy(tmp_path, "hard", {"DFDL": 60.0, "LC-KSVD": 70.0, "FDDL": 60.0})
    block = tables.accuracy_block(tables.ReproduceTables(tmp_path))
    assert "Holds on 1 of 2 sets" in block
    assert "Rank of DFDL: easy 1 of 2, hard 2 of 3 (tied)" in block
    assert "| **DFDL** | 97.75 |" in block and f"90.0 (85.0{tables.NOTHING}95.0)" in block


def test_accuracy_at_the_smallest_size_and_loss_are_separate_claims(tmp_path):
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
    block = tables.BLOCKS["training-images"](tables.ReproduceTables(tmp_path))
    assert "| training images per class | s, 2 | s, 20 |" in block
    assert "| DFDL | 70.0 | 90.0 |" in block
    assert "Most accurate at the smallest size: **Holds on 1 of 1" in block
    assert "Smallest loss between the two sizes: **Holds on 0 of 1" in block
    assert "s 2 of 2." in block


def test_equal_losses_are_tied_whatever_their_rounding():
    values = {"s": {"DFDL": 0.1 + 0.2, "SRC": 0.3}}
    assert values["s"]["DFDL"] != values["s"]["SRC"]
    assert "s 1 of 2 (tied)" in tables.count_claim(values, is_least=True)


def test_area_below_a_curve(tmp_path):
    """A perfect method, and one at chance."""
    rows = ["s,DFDL,θ,0.5,0,0", "s,FDDL,θ,0.5,0.5,0.5"]
    write(tmp_path / "s", "roc", ["data,method,moved,value,false_alarm,miss", *rows])
    accuracy(tmp_path, "s", {"DFDL": 90.0})
    block = tables.roc_block(tables.ReproduceTables(tmp_path))
    assert "| DFDL | 0.000 |" in block and "| FDDL | 0.500 |" in block
    assert "Holds on 1 of 1 sets" in block


def test_page_has_a_place_for_every_block_and_filling_is_idempotent(tmp_path):
    accuracy(tmp_path, "easy", {"DFDL": 90.0, "LC-KSVD": 80.0})
    blocks = {name: make(tables.ReproduceTables(tmp_path)) for name, make in tables.BLOCKS.items()}
    once = tables.filled(PAGE.read_text(encoding="utf-8"), blocks)
    assert once == tables.filled(once, blocks)
    assert blocks["accuracy"] in once
    assert tables.NOT_MEASURED in blocks["bases"]


def test_page_without_a_place_is_refused():
    with pytest.raises(ValueError, match="roc"):
        tables.filled("<!-- accuracy -->\n<!-- /accuracy -->", {"roc": "curves"})
