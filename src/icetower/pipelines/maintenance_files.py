"""What a table has, for `maintenance_plan`: the files of each partition, by the manifests of the head.

Manifests are read here and not on Spark: a job would take longer than all of them. Counts of a manifest are kept, since
manifests never change; so a run that follows reads new ones only.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pyspark.sql import SparkSession

from icetower.errors import BadRequest
from icetower.iceberg.manifests import DATA, DELETED, ManifestFile, read_manifest, read_manifest_list
from icetower.iceberg.metadata import current_snapshot_id, snapshot
from icetower.iceberg.partitions import partition_key
from icetower.iceberg.records import is_vector
from icetower.pipelines.maintenance_plan import KEEP_MS, FileTimes, Partition, recent_snapshots, small_below
from icetower.pipelines.own_tables import fields_of
from icetower.pipelines.tables import (
    active,
    java_session,
    jvm,
    metadata_of,
    quoted_levels,
    read_bytes,
    translating_errors,
)
from icetower.protocol.names import Identifier

COUNTS_KEPT = 10_000
Metadata = Mapping[str, Any]
Key = tuple[Any, ...]


@dataclass(slots=True)
class Count:
    """The files of one partition in one manifest.

    Attributes:
        values: of the partition's fields.
        snapshots: that added or removed files.
    """

    values: tuple[Any, ...]
    small: int = 0
    vectors: int = 0
    deletes: int = 0
    snapshots: set[int] = field(default_factory=set[int])


@dataclass(frozen=True, slots=True)
class Listed:
    """A table of the catalog. `java`: its name, as Java has it."""

    catalog: str
    identifier: Identifier
    java: Any = field(compare=False)

    @property
    def name(self) -> str:
        """As `catalog.namespace.table`, for people."""
        return f"{self.catalog}.{self.identifier}"

    @property
    def sql(self) -> str:
        return quoted_levels((self.catalog, *self.identifier.namespace, self.identifier.name))


class Catalog:
    """The catalog's tables by Java's client: one request lists a namespace, and one loads a table."""

    def __init__(self, spark: SparkSession, name: str) -> None:
        self._spark = spark
        self.name = name
        load = jvm(spark).org.apache.iceberg.spark.Spark3Util.loadIcebergCatalog
        with active(spark):
            self._java: Any = translating_errors(f"opening {name}", lambda: load(java_session(spark), name))
        self._counts: dict[tuple[str, int], tuple[Count, ...]] = {}

    def tables(self) -> list[Listed]:
        """Every table that the session's principal may see."""

        def walk() -> list[Listed]:
            found: list[Listed] = []
            waiting = list(self._java.listNamespaces())
            while waiting:
                namespace = waiting.pop()
                waiting.extend(self._java.listNamespaces(namespace))
                levels = tuple(namespace.levels())
                its = self._java.listTables(namespace)
                found += [Listed(self.name, Identifier(levels, each.name()), each) for each in its]
            return found

        return sorted(translating_errors(f"listing the tables of {self.name}", walk), key=lambda each: each.identifier)

    def load(self, listed: Listed) -> State:
        """A table as it is now. Raises `NoSuchTable`, `UpstreamFailed`."""

        def load() -> State:
            java = self._java.loadTable(listed.java)
            return State(listed, java, metadata_of(self._spark, java), self._counts)

        return translating_errors(f"loading {listed.name}", load)


@dataclass(frozen=True)
class State:
    """One version of a table. `java`: Iceberg's own object."""

    listed: Listed
    java: Any
    metadata: Metadata
    _counts: dict[tuple[str, int], tuple[Count, ...]]

    @property
    def uuid(self) -> str:
        return str(self.metadata["table-uuid"])

    @cached_property
    def manifests(self) -> tuple[ManifestFile, ...]:
        """Of the head."""
        head = current_snapshot_id(self.metadata)
        found = None if head is None else snapshot(self.metadata, head)
        if found is None or "manifest-list" not in found:
            return ()
        return read_manifest_list(read_bytes(self.java, found["manifest-list"]))

    @property
    def manifest_lengths(self) -> list[int]:
        """Of the manifests of data files that `rewrite_manifests` rewrites: those of the current spec."""
        spec = self.metadata["default-spec-id"]
        return [row.length_bytes for row in self.manifests if row.content == 0 and row.spec_id == spec]

    def partitions(self, now_ms: int) -> list[Partition]:
        """The partitions of the current spec."""
        recent = {*recent_snapshots(self.metadata, now_ms)}
        spec, small = self.metadata["default-spec-id"], small_below(self.metadata)
        sums: dict[Key, Count] = {}
        for row in self.manifests:
            if row.spec_id != spec:
                continue
            for each in self._counted(row, small):
                total = sums.setdefault(partition_key(each.values), Count(each.values))
                total.small += each.small
                total.vectors += each.vectors
                total.deletes += each.deletes
                total.snapshots |= each.snapshots & recent
        return [
            Partition(each.values, each.small, each.vectors, each.deletes, busy=bool(each.snapshots))
            for each in sums.values()
        ]

    def _counted(self, row: ManifestFile, small: int) -> tuple[Count, ...]:
        known = self._counts.get((row.path, small))
        if known is not None:
            return known
        found: dict[Key, Count] = {}
        for entry in read_manifest(read_bytes(self.java, row.path)).entries:
            file = entry.file
            count = found.setdefault(partition_key(file.partition), Count(file.partition))
            count.snapshots.add(row.added_snapshot_id if entry.snapshot_id is None else entry.snapshot_id)
            if entry.status == DELETED:
                continue
            if file.content == DATA:
                count.small += file.size_bytes < small
            elif is_vector(file):
                count.vectors += 1
            else:
                count.deletes += 1
        if len(self._counts) >= COUNTS_KEPT:
            self._counts.clear()
        self._counts[row.path, small] = counted = tuple(found.values())
        return counted

    def times(self, column: str) -> list[FileTimes]:
        """The times in a column of each data file whose bounds are known.

        Raises `BadRequest` for a column that is not of timestamps: anything else would pass for times of long ago.
        """
        its = fields_of(self.metadata).get(column)
        if its is None or its["type"] not in ("timestamptz", "timestamp"):
            raise BadRequest(
                f"{self.listed.name} has no column {column} of type TIMESTAMP, by which its rows go by age: rename it "
                f"back, or ALTER TABLE … SET TBLPROPERTIES ('{KEEP_MS}' = '0')",
                rule="system.columns",
            )
        field_id = its["id"]
        found: list[FileTimes] = []
        for row in self.manifests:
            for entry in () if row.content != 0 else read_manifest(read_bytes(self.java, row.path)).entries:
                least, greatest = (_time_ms(entry.file.record.get(name), field_id) for name in _BOUNDS)
                if entry.status != DELETED and least is not None and greatest is not None:
                    found.append(FileTimes(entry.file.path, least, greatest))
        return found


_BOUNDS = ("lower_bounds", "upper_bounds")


def _time_ms(bounds: Any, field_id: int) -> int | None:
    """A bound of a timestamp in microseconds, as a manifest has it."""
    for each in bounds or ():
        if each["key"] == field_id and len(each["value"]) == 8:
            return int(struct.unpack("<q", each["value"])[0]) // 1000
    return None
