"""Mathematics shared by the dictionary learners."""
