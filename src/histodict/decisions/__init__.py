"""Patch answers to image answers."""
