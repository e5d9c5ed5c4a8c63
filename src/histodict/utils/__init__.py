"""Files, caches, parallel execution, progress display and validation."""
