"""Audits many tables in parallel: each executor walks the histories of its tables.

An audit is bound by reading, and one table's audit by the order of its commits; tables are independent of each other.
So the tables are distributed, not the snapshots. Executors read manifests through PyIceberg's FileIO, as `icetower
audit` does; the job gets the properties for that (`s3.endpoint`, …).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession

from icetower.audit.auditor import Options, audit
from icetower.audit.checkpoint import Checkpoint
from icetower.errors import IcetowerError, NoSuchTable
from icetower.iceberg.metadata import parse
from icetower.pipelines.tables import iceberg_table
from icetower.storage.file_io import FileIOStorage
from icetower.storage.port import ON_OWN_ACCOUNT
from icetower.table.head import HeadState

if TYPE_CHECKING:
    import pyarrow as pa

TABLES = "table STRING, metadata_location STRING, checkpoint STRING"
"""The tables to audit: a name, the metadata file, and the checkpoint of an earlier audit, or null."""

RESULTS = (
    "table STRING, head BIGINT, snapshots BIGINT, "
    "violations ARRAY<STRUCT<rule: STRING, verdict: STRING, snapshots: ARRAY<BIGINT>, witness: ARRAY<STRING>, "
    "files: ARRAY<STRING>>>, undeterminable ARRAY<STRING>, checkpoint STRING, error STRING"
)
"""One row for each table. `checkpoint`: for the next audit. `error`: why it could not be audited; others continue."""


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """How the tables are audited.

    Attributes:
        options: the options for all tables; `after` is set for each from its checkpoint.
        storage: properties as for PyIceberg's FileIO.
    """

    options: Options = field(default_factory=Options)
    storage: Mapping[str, str] = field(default_factory=dict[str, str])


def heads(spark: SparkSession, tables: Mapping[str, str | None] | Iterable[str]) -> DataFrame:
    """The current metadata files of tables (``catalog.namespace.table``), as `TABLES`.

    Args:
        tables: each with its checkpoint, or names alone. A table that does not exist has no metadata file.

    Raises:
        UpstreamFailed: the catalog failed.
    """
    kept = tables if isinstance(tables, Mapping) else dict.fromkeys(tables)
    rows = [(table, _metadata_location(spark, table), checkpoint) for table, checkpoint in kept.items()]
    return spark.createDataFrame(rows, TABLES)


def _metadata_location(spark: SparkSession, table: str) -> str | None:
    try:
        return str(iceberg_table(spark, table).operations().current().metadataFileLocation())
    except NoSuchTable:
        return None


def audit_tables(tables: DataFrame, settings: AuditSettings | None = None, *, side_by_side: int = 16) -> DataFrame:
    """Audit the histories of tables: `TABLES` in, `RESULTS` out.

    Args:
        side_by_side: the number of partitions into which the tables are divided.
    """
    chosen = settings or AuditSettings()

    def audited(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return _audited(batches, chosen)

    return tables.repartition(side_by_side).mapInArrow(audited, RESULTS)


def _audited(batches: Iterable[pa.RecordBatch], settings: AuditSettings) -> Iterator[pa.RecordBatch]:
    """The part that runs in an executor."""
    import pyarrow as pa

    for batch in batches:
        rows = [_row(table, settings) for table in batch.to_pylist()]
        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema=_schema())


def _schema() -> pa.Schema:
    import pyarrow as pa

    texts, numbers = pa.list_(pa.string()), pa.list_(pa.int64())
    violation = pa.struct(
        [("rule", pa.string()), ("verdict", pa.string()), ("snapshots", numbers), ("witness", texts), ("files", texts)]
    )
    return pa.schema(
        [
            ("table", pa.string()),
            ("head", pa.int64()),
            ("snapshots", pa.int64()),
            ("violations", pa.list_(violation)),
            ("undeterminable", texts),
            ("checkpoint", pa.string()),
            ("error", pa.string()),
        ]
    )


def _row(table: Mapping[str, Any], settings: AuditSettings) -> dict[str, Any]:
    found: dict[str, Any] = {"table": table["table"], "violations": [], "undeterminable": []}
    if table["metadata_location"] is None:
        return found | {"error": "there is no such table"}
    try:
        return found | asyncio.run(_audit(table["metadata_location"], table["checkpoint"], settings))
    except (IcetowerError, OSError) as error:  # one table that cannot be read is no reason to stop the others
        return found | {"error": str(error)}


async def _audit(location: str, kept: str | None, settings: AuditSettings) -> dict[str, Any]:
    before = None if kept is None else Checkpoint.of_text(kept, name="the checkpoint")
    storage = FileIOStorage(settings.storage)
    try:
        head = HeadState(location, parse(await storage.read(location, ON_OWN_ACCOUNT)))
        after = None if before is None else before.resume(head, settings.options.branch)
        report = await audit(head, storage, replace(settings.options, after=after))
    finally:
        await storage.close()
    checkpoint = Checkpoint.after(report, before)
    lost = () if before is None or after is not None else (before.lost,)
    return {
        "head": report.checked.head,
        "snapshots": report.checked.snapshots,
        "violations": [violation.to_json() for violation in report.violations],
        "undeterminable": [*lost, *report.checked.undeterminable],
        "checkpoint": None if checkpoint is None else checkpoint.to_text(),
    }
