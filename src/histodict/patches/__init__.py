"""Pixels to vectors: where patches lie, which of them train, and what stands for a patch."""
