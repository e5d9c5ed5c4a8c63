"""Benchmarks behind the figures in the documentation; not part of the package."""
