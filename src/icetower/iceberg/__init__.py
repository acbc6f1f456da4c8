"""Iceberg's structures, and how Iceberg evaluates them. Pure: bytes and JSON in, records and verdicts out."""
