"""Publishing: what a branch has and another branch lacks is validated against what came to that one, and put on it."""
