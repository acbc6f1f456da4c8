"""PySpark jobs: the only package that imports pyspark. DataFrame in, DataFrame out; jobs own the Spark session.

`session` starts Spark; `wal_mediator` merges write-ahead logs, `collector` folds delta tables in, and the other modules
that begin with `wal_` are their parts; `orphans` reports unreferenced files, and `cleanup` deletes some of them;
`sweep` spreads the simulator's runs over executors, `audits` the histories of many tables. `tables` has what they share
about Iceberg's tables.
"""
