"""Takes back the commits of one agent: what that takes, who has built on them, and the one commit that does it.

`agents` reads the history; the rest is pure.
"""
