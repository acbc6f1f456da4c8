"""Settings of Spark for tests, which have a handful of rows."""

from __future__ import annotations

from collections.abc import Mapping

LIGHT: Mapping[str, str] = {
    # Compiling queries, and planning them anew while they run, would take longer than answering them.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
}
