"""HTML reports and model cards."""
