"""Test of the demonstration command."""

from __future__ import annotations

import re

from typer.testing import CliRunner

from histodict.cli import app
from histodict.synthetic import demo


def test_demo_writes_a_self_contained_page(tmp_path, monkeypatch):
    small = {"n_atoms": "20", "n_iter": "3", "patches_per_class": "500"}
    for name in ("DEMO_RECIPE", "REGION_RECIPE"):
        monkeypatch.setattr(demo, name, getattr(demo, name).parse_settings(small))
    monkeypatch.setitem(demo._DATASET_OPTIONS, "size", (240, 180))
    result = CliRunner().invoke(app, ["demo", "--output", str(tmp_path)])
    assert result.exit_code == 0, result.output
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert page.count("data:image/jpeg;base64,") == 12
    assert "<svg" in page and "<script" not in page
    assert not re.findall(r'(?:src|href)="(?!data:|#)', page)
    accuracy = float(result.output.split("patients: ")[1].split()[0])
    assert accuracy >= 0.8
