"""The system tables that an export writes: their columns, how they are made and upgraded, how far they are written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from icetower.iceberg.metadata import ancestors, current_snapshot_id
from icetower.pipelines.making import AGED, OwnTable, make
from icetower.pipelines.tables import commit_nothing, find, load_metadata, quoted
from icetower.pipelines.wal_logs import DEDUP_COLUMNS
from icetower.protocol.marks import EXPORT

THROUGH = EXPORT + "through"
"""The number of the last attempt that is in the table."""

REFUSED = EXPORT + "refused"
"""How many of a snapshot's attempts were refused or in conflict: whoever counts those need not read the others."""

COMMITS = (
    "attempt_id BIGINT, at TIMESTAMP, contract STRING, principal STRING, table_name STRING, operation STRING, "
    "outcome STRING, rule STRING, partitions ARRAY<STRING>, snapshots ARRAY<BIGINT>, idempotency_key_hash STRING, "
    "request_id STRING, queue_wait_ms DOUBLE, latency_ms DOUBLE, message STRING, write_id STRING, retries INT, "
    "base_snapshot BIGINT, head_snapshot BIGINT, decided_at TIMESTAMP, group_size INT, metadata_bytes BIGINT, "
    "manifests DOUBLE, judge_ms DOUBLE, plan_ms DOUBLE, write_ms DOUBLE, swap_ms DOUBLE"
)
METRICS = (
    "principal STRING, table_name STRING, window_start TIMESTAMP, attempts BIGINT, landed BIGINT, refused BIGINT, "
    "retries BIGINT, commit_success_rate DOUBLE, retry_rate DOUBLE, snapshots BIGINT, latency_p50_ms DOUBLE, "
    "latency_p99_ms DOUBLE, latency_max_ms DOUBLE, first_tries BIGINT, first_try_landed BIGINT, "
    "first_try_success_rate DOUBLE, metadata_versions DOUBLE, manifests DOUBLE, metadata_bytes BIGINT, "
    "end_to_end_p50_ms DOUBLE, end_to_end_p99_ms DOUBLE, mediated_rows BIGINT, mediated_p50_ms DOUBLE, "
    "mediated_p99_ms DOUBLE, orphaned_files BIGINT, orphaned_bytes BIGINT"
)
CONTRACTS = (
    "contract STRING, version INT, text STRING, applied_by STRING, message STRING, in_force_from TIMESTAMP, "
    "in_force_until TIMESTAMP"
)

LANDED = "outcome IN ('direct', 'rebased', 'appended')"


@dataclass(frozen=True, slots=True)
class SystemTables:
    """The tables in the namespace `system` (with its catalog in front)."""

    spark: SparkSession
    system: str

    @property
    def commits(self) -> str:
        return f"{self.system}.iceberg_commits"

    @property
    def metrics(self) -> str:
        return f"{self.system}.agent_write_metrics"

    @property
    def contracts(self) -> str:
        return f"{self.system}.contract_history"

    @property
    def keys(self) -> str:
        """The mediators write it, too (`wal_logs`)."""
        return f"{self.system}.agent_dedup_log"

    @property
    def mediations(self) -> str:
        """Written by mediators."""
        return f"{self.system}.wal_mediations"

    @property
    def orphans(self) -> str:
        """Written by maintenance."""
        return f"{self.system}.iceberg_orphan_files"

    def create(self) -> None:
        """Create what is missing, and add the columns that tables of earlier versions lack.

        Raises:
            BadRequest: somebody has changed the columns of a table (`system.columns`), or one of an earlier version
                could not be upgraded (`system.upgrade`).
        """
        wanted = [
            OwnTable(self.commits, COMMITS, "days(at)", AGED),
            OwnTable(self.metrics, METRICS, "days(window_start)", AGED),
            OwnTable(self.contracts, CONTRACTS, "", AGED),
            OwnTable(self.keys, DEDUP_COLUMNS, "days(committed_at)", AGED),
        ]
        make(self.spark, wanted)

    def load(self, table: str) -> Mapping[str, Any]:
        """The table's metadata. Raises `NoSuchTable`."""
        return load_metadata(self.spark, quoted(table))

    def rows(self, table: str) -> DataFrame:
        """All rows of a table."""
        return self.spark.table(quoted(table))

    def find(self, table: str) -> Mapping[str, Any] | None:
        """The table's metadata; None where there is no such table."""
        return find(self.spark, table)

    def note(self, table: str, properties: Mapping[str, str]) -> None:
        """Commit how far a table is written, where there is nothing to write. Raises `CommitConflict`."""
        commit_nothing(self.spark, quoted(table), self.load(table), properties)

    def progress(self, table: str, numbers: str | None = None) -> int:
        """The last attempt that is in the table, by its head's history.

        Args:
            numbers: the column by which to tell where that has expired.
        """
        metadata = self.load(table)
        through = mark_of(metadata, THROUGH)
        if through is not None:
            return int(through)
        if numbers is None or current_snapshot_id(metadata) is None:
            return 0
        newest = self.rows(table).agg(f.max(numbers)).collect()
        return int(newest[0][0] or 0)


def mark_of(metadata: Mapping[str, Any], name: str) -> str | None:
    """The newest value of a property of snapshots, in the history of a table's head."""
    head = current_snapshot_id(metadata)
    summaries = () if head is None else (each["summary"] for each in ancestors(metadata, head))
    return next((summary[name] for summary in summaries if name in summary), None)
