"""Icetower beside plain Iceberg, over the wire."""
