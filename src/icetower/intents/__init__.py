"""Intents: leases on rows of tables, declared before the work and checked at its commit.

Pure: `regions` (from what a request or a file says to boxes), `occupied` (whose boxes lie near others), `book` (who
holds, who waits, in which order), `fencing` (may this commit go on). `store` keeps the book in the control database.
"""
