"""Entry point of `python -m histodict.cli`."""

from . import app

app(prog_name="histodict")
