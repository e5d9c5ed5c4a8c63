"""Where blocks of work run."""
