"""Patches of an image: grid, sampling, features, maps and rendering."""
