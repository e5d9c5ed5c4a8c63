"""Dictionary learning shared by several methods."""
