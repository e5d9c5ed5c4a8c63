"""How good an answer is, and how sure we may be of it: splits, metrics, intervals, comparison."""
