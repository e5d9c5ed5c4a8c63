"""Decisions from patch scores: aggregation, calibration, thresholds."""
