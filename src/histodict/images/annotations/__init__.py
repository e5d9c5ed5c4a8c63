"""Outlines that people have drawn elsewhere, as regions of an image.

file ─► outlines with class names ─► level-0 pixels of an image ─► runs of pixels ─► which patches
"""
