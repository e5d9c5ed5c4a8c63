"""Answers as files: tables, pictures, outlines for other programs."""
