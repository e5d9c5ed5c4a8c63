"""Utilities: files, caches, parallel execution, progress display and validation."""
