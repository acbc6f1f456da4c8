"""The commit engine: a queue a table, a pure plan for a group, one swap, and the only retry loop."""
