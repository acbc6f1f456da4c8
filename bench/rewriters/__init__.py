"""Agents that rewrite partitions for minutes while others append: whose work is in vain? See `run`."""
