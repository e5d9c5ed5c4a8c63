"""Explanation of predictions by atoms and concepts."""
