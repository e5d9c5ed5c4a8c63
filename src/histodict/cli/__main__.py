"""`python -m histodict.cli`."""

from . import app

app()
