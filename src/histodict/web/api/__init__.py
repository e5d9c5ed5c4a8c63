"""Handlers of the web API, one module per page."""
