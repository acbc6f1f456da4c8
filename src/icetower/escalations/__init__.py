"""Agents that fail over and over are stopped, partitions are asked for, and people hear of both.

Nothing here holds a commit up: what has happened is counted in memory, what waits for a person is kept in the
registry's database, and the messages about it are sent afterwards.
"""
