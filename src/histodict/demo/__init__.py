"""Drawn tissue, and the demonstration on it."""
