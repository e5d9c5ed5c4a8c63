"""Synthetic tissue and the demonstration."""
