"""Makes the tables that jobs write for themselves, and upgrades those of earlier versions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from icetower.errors import BadRequest, IcetowerError
from icetower.pipelines.own_tables import lacking, names_of
from icetower.pipelines.tables import find, load_metadata, quoted, translating_errors

AGED = "'format-version' = '2', 'history.expire.max-snapshot-age-ms' = '86400000'"
"""Properties: maintenance lets snapshots go that are older than a day."""


@dataclass(frozen=True, slots=True)
class OwnTable:
    """A table that a job writes for itself.

    Attributes:
        name: with the catalog and the namespace.
        columns: as a DDL statement has them.
        partitions: what is in the brackets of PARTITIONED BY; empty: none.
        properties: what is in the brackets of TBLPROPERTIES; empty: none.
        later: the columns that earlier versions did not have; None: any may be one. A table that has never had another
            column is no such table.
    """

    name: str
    columns: str
    partitions: str = ""
    properties: str = ""
    later: Collection[str] | None = None

    @property
    def statement(self) -> str:
        """That creates it."""
        partitions = f" PARTITIONED BY ({self.partitions})" if self.partitions else ""
        properties = f" TBLPROPERTIES ({self.properties})" if self.properties else ""
        return f"CREATE TABLE IF NOT EXISTS {quoted(self.name)} ({self.columns}) USING iceberg{partitions}{properties}"

    def lacks(self, metadata: Mapping[str, Any]) -> list[str]:
        """The columns that are to be added. Raises `BadRequest` if that would not do (`system.columns`)."""
        never = lacking(metadata, self.name, self.columns)
        foreign = [] if self.later is None else [name for name in names_of(never) if name not in self.later]
        if foreign:
            raise BadRequest(
                f"{self.name} is another table than the one of this name that jobs write: it has never had "
                f"{', '.join(foreign)}. Rename it, or use another namespace (--system)",
                rule="system.columns",
            )
        return never


def make(spark: SparkSession, wanted: Sequence[OwnTable]) -> None:
    """Create what is missing, and add the columns that tables of earlier versions lack.

    Args:
        wanted: tables of one namespace.

    Raises:
        BadRequest: somebody has changed the columns of a table (`system.columns`), or one of an earlier version could
            not be upgraded (`system.upgrade`).
    """
    found = {table.name: find(spark, table.name) for table in wanted}
    if None in found.values():
        system = wanted[0].name.rpartition(".")[0]
        _run(spark, f"creating {system}", f"CREATE NAMESPACE IF NOT EXISTS {quoted(system)}")
    for table in wanted:
        metadata = found[table.name]
        if metadata is None:
            _run(spark, f"creating {table.name}", table.statement)
        elif later := table.lacks(metadata):
            _upgrade(spark, table, later)


def require(spark: SparkSession, wanted: Sequence[OwnTable]) -> None:
    """Raises `BadRequest` if somebody has changed the columns of a table (`system.columns`)."""
    for table in wanted:
        metadata = find(spark, table.name)
        if metadata is not None:
            table.lacks(metadata)


def _upgrade(spark: SparkSession, table: OwnTable, later: Sequence[str]) -> None:
    statement = f"ALTER TABLE {quoted(table.name)} ADD COLUMNS ({', '.join(later)})"
    try:
        _run(spark, f"upgrading {table.name}", statement)
    except IcetowerError as error:
        if table.lacks(load_metadata(spark, quoted(table.name))):  # else another job was faster
            raise BadRequest(
                f"{table.name} is of an earlier version and could not be upgraded: {error.message}. Run once, as a "
                f"principal that may alter it: {statement}",
                rule="system.upgrade",
            ) from error


def _run(spark: SparkSession, what: str, statement: str) -> None:
    translating_errors(what, lambda: spark.sql(statement))
