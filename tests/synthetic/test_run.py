"""Test of the demonstration command."""

from __future__ import annotations

import re

from typer.testing import CliRunner

from histodict.cli import app


def test_demo_writes_a_self_contained_page(tmp_path):
    result = CliRunner().invoke(app, ["demo", "--output", str(tmp_path)])
    assert result.exit_code == 0, result.output
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert page.count("data:image/jpeg;base64,") == 12
    assert "<svg" in page and "<script" not in page
    assert not re.findall(r'(?:src|href)="(?!data:|#)', page)
    accuracy = float(result.output.split("patients: ")[1].split()[0])
    assert accuracy >= 0.8
