"""Tissue detection, tissue quality and stain normalisation."""
