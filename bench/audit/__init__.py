"""How long an audit takes, and by what its cost grows."""
