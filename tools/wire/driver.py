"""Run jobs with Iceberg's own Java client: on Iceberg alone, in memory, and through a REST catalog.

    with Driver() as driver:
        plain, tower = driver.run_many([job, through(job, catalog, ("wire", "t1"))])

A job is a case of the differential test (`icetower.conflicts.cases`, `differential.oracle`) with two things more: an
operation may have a `summary`, and a step `{"do": "race", "ids": […]}` commits writers that have begun, all at once.

An outcome is that of a case with: `events` (begins, commits and changes of the table, in the order in which they
ended), the `base` of every verdict (the head that the last swap was tried on), and for each snapshot what readers find:
`plan` (path, sequence number, first row id, records, deletes that apply), `appended` (the same, of an incremental scan
of the snapshot alone), `summary`, `first_row_id`, `added_rows`, `timestamp_ms`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from differential import oracle

HERE = Path(__file__).resolve().parent

Job = dict[str, Any]


class Driver(oracle.Oracle):
    """A Java process that runs jobs, one after the other."""

    main = "org.apache.iceberg.WireDriver"
    sources: ClassVar[list[Path]] = [*oracle.SOURCES, *sorted((HERE / "java").glob("*.java"))]

    def libraries(self) -> list[Path]:
        """Iceberg's runtime for Spark, and PySpark's jars: what reads local files is Hadoop's. Raises `OracleError`."""
        return [*super().libraries(), *(place / "jars" / "*" for place in oracle.pyspark())]


def through(job: Mapping[str, Any], catalog: Mapping[str, str], table: tuple[str, str]) -> Job:
    """The job, to be run on a new table of a REST catalog. `catalog`: Iceberg's properties (``uri``, ``token``, …)."""
    return {**job, "catalog": dict(catalog), "table": list(table)}
