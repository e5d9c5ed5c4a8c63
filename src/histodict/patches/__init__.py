"""Patches of images: grids, sampling, features, maps and rendering."""
