"""One published method, one file, one class."""
