"""Does Iceberg's server-side scan planning carry Spark's row-level statements? See `run`."""
