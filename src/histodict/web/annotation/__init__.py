"""Annotations drawn on the page: storage, edits, quick predictions and suggestions."""
