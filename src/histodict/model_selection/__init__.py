"""Splits by patient, and evaluation protocols."""
