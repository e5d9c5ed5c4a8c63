"""Outlines of regions in image coordinates, from GeoJSON, ASAP and ImageScope files."""
