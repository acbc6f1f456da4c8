"""Icetower: the control tower for agents that write to Apache Iceberg."""

__version__ = "0.1.0"
