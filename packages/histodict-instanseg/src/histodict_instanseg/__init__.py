"""Encoder weights of InstanSeg `brightfield_nuclei`, version 0.1.1 (Apache licence 2.0)."""

from __future__ import annotations

from pathlib import Path

WEIGHTS_FILE = Path(__file__).with_name("encoder.safetensors")
