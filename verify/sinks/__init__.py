"""Flink's own committer against a tower."""
