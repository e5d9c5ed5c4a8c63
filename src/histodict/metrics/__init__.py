"""Metrics, confidence intervals by patient and tests of confounding."""
