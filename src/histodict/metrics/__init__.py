"""Metrics, confidence intervals from resampling of patients, and tests of confounding."""
