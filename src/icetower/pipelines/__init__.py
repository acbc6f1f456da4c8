"""PySpark jobs: the only room that imports pyspark. DataFrame in, DataFrame out; jobs own the Spark session.

`session` starts Spark, `wal_mediator` is pattern 1 of the isolation document, `orphans` reports files that nothing
refers to. `tables` is what they know of Iceberg's tables; the other modules that begin with `wal_` are parts of the
mediator. `sweep` spreads the simulator's runs over executors, `audits` the histories of
many tables.
"""
