"""Icetower's own view of a table: one version of it, and its keys, groups, branches and sinks. Pure."""
