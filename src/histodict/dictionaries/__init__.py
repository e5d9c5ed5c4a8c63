"""Dictionary learning algorithms shared by several methods."""
