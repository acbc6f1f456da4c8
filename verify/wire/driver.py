"""Run jobs with Iceberg's own Java client: on Iceberg alone, in memory, and through a REST catalog.

    with Driver() as driver:
        plain, tower = driver.run_many([job, through(job, catalog, ("wire", "t1"))])

A job is a case of the differential test (`icetower_client_model.cases`, `verify.differential.oracle`) with more in it:

- an operation may have a `summary`; it may be staged (`"stage": true`); it may have a validation of its client's own
  (`"validate_with"`: a property of summaries whose newest value must stay what it was when the writer began);
- `{"kind": "cherry-pick", "source": id}` picks a staged snapshot, as `cherrypick_snapshot` and `publish_changes` do;
- a step `{"do": "race", "ids": […]}` commits writers that have begun, all at once;
- a step `{"do": "manage", "what": …}` is a commit without a snapshot: branches, tags, columns, order, properties;
- `contract`: what the contract of whoever commits through the tower declares.

An outcome is that of a case with: `events` (begins, commits and changes of the table, in the order in which they
ended), the `base` of every verdict (the head that the last swap was tried on), and for each snapshot what readers find:
`plan` (path, sequence number, first row id, records, deletes that apply), `appended` (the same, of an incremental scan
of the snapshot alone), `summary`, `first_row_id`, `added_rows`, `timestamp_ms`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from verify.differential import oracle

HERE = Path(__file__).resolve().parent

Job = dict[str, Any]


class Driver(oracle.Oracle):
    """A Java process that runs jobs, one after the other."""

    main = "org.apache.iceberg.WireDriver"
    sources: ClassVar[list[Path]] = [*oracle.SOURCES, *sorted((HERE / "java").glob("*.java"))]

    def libraries(self) -> list[Path]:
        """Iceberg's runtime for Spark, and PySpark's jars: what reads local files is Hadoop's. Raises `OracleError`."""
        return [*super().libraries(), *(place / "jars" / "*" for place in oracle.pyspark())]


def through(
    job: Mapping[str, Any], catalog: Mapping[str, str], owner: Mapping[str, str], table: tuple[str, str]
) -> Job:
    """The job, to be run on a new table of a REST catalog.

    Args:
        catalog: Iceberg's properties (``uri``, ``token``, …) of who commits.
        owner: those of who makes the table.
    """
    return {**alone(job), "catalog": dict(catalog), "owner": dict(owner), "table": list(table)}


def alone(job: Mapping[str, Any]) -> Job:
    """The job, to be run on Iceberg alone, which knows of no contracts."""
    return {key: value for key, value in job.items() if key != "contract"}
