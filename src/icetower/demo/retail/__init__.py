"""The three agents of a retail lakehouse, as PySpark programs to run and to copy (docs/pipeline.md).

`pricing.py` updates prices hourly by MERGE, `inventory.py` records stock movements by a stream, `recommendation.py`
writes interactions through the write-ahead log. `agents.py` runs them in one process, and `run.py` the whole: a tower,
its tables (`tables.sql`), the contracts, the agents, the mediator beside them, and the reconciliation of every row.
"""
