"""Named experiments, from data to a page."""
