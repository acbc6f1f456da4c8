"""What a client writes before it commits: manifests and manifest lists of its own, on the head that it has read.

Plain Iceberg: an append adds a manifest; a delete rewrites the manifests that hold what it removes; a merging writer
folds older manifests into its new one; a compaction keeps the rows of what it replaces under their sequence number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from icetower.iceberg import metadata as table_metadata
from icetower.iceberg.manifests import (
    ADDED,
    DELETED,
    EXISTING,
    DataFile,
    Entry,
    ManifestFile,
    assign_first_row_ids,
    manifest_row,
    write_manifest,
    write_manifest_list,
)
from verify.torture.ledger import Attempt, Intent, Step
from verify.torture.memory import manifest_list_of, manifest_of

JSON = Mapping[str, Any]
PARTITIONS = 4


@dataclass(frozen=True, slots=True)
class SnapshotPlan:
    """What one snapshot of a commit is to do.

    Attributes:
        add: new data files → (partition, rows).
        remove: data files.
        merge: whether all older manifests are folded into the new one.
        keeps_number: whether added files keep the lowest sequence number of the removed ones (compaction).
        scope: the partition that it declares to have read, under serializable isolation.
    """

    operation: str
    add: Mapping[str, tuple[int, int]]
    remove: frozenset[str] = frozenset()
    merge: bool = False
    keeps_number: bool = False
    summary: Mapping[str, str] | None = None
    scope: int | None = None


@dataclass(slots=True)
class _Base:
    """What the next snapshot of a commit is written on."""

    snapshot_id: int | None
    rows: tuple[ManifestFile, ...]
    totals: Mapping[str, str]
    number: int
    next_row_id: int | None


class Gone(Exception):
    """A file of the head that a client has read is not there any more: it was expired meanwhile."""


class Pen:
    """Writes a client's files straight into the storage: a client whose own writes fail has nothing to commit."""

    def __init__(self, files: dict[str, bytes], written: set[str]) -> None:
        self.files = files
        self._written = written

    def data_files(self, metadata: JSON, names: Sequence[str], partition: int, rows: int) -> dict[str, tuple[int, int]]:
        """New data files: path → (partition, rows)."""
        made: dict[str, tuple[int, int]] = {}
        for name in names:
            path = f"{metadata['location']}/data/p={partition}/{name}.parquet"
            self.files[path] = name.encode()
            self._written.add(path)
            made[path] = (partition, rows)
        return made

    def live(self, metadata: JSON, ref: str) -> dict[str, tuple[Entry, ManifestFile]]:
        """The live data files of a branch, as its client reads them."""
        head_id = table_metadata.ref_head(metadata, ref)
        found: dict[str, tuple[Entry, ManifestFile]] = {}
        for row in self._rows(metadata, head_id):
            for entry in manifest_of(self._read(row.path)).entries:
                if entry.status != DELETED:
                    found[entry.file.path] = (entry, row)
        return found

    def _rows(self, metadata: JSON, snapshot_id: int | None) -> tuple[ManifestFile, ...]:
        snapshot = None if snapshot_id is None else table_metadata.snapshot(metadata, snapshot_id)
        return () if snapshot is None else manifest_list_of(self._read(snapshot["manifest-list"]))

    def _read(self, path: str) -> bytes:
        if path not in self.files:
            raise Gone(path)
        return self.files[path]

    def commit(
        self, intent: Intent, metadata: JSON, plans: Sequence[SnapshotPlan], snapshot_ids: Sequence[int], now_ms: int
    ) -> Attempt:
        """One commit of one or several snapshots to the intent's branch. Raises `Gone`."""
        head_id = table_metadata.ref_head(metadata, intent.ref)
        start = table_metadata.snapshot(metadata, head_id) if head_id is not None else None
        base = _Base(
            head_id,
            self._rows(metadata, head_id),
            {} if start is None else start["summary"],
            metadata["last-sequence-number"] + 1,
            metadata.get("next-row-id"),
        )
        updates: list[dict[str, Any]] = []
        steps: list[Step] = []
        own: list[str] = []
        for plan, snapshot_id in zip(plans, snapshot_ids, strict=True):
            snapshot, step, base = self._snapshot(intent, metadata, plan, base, snapshot_id, now_ms, own)
            updates.append({"action": "add-snapshot", "snapshot": snapshot})
            steps.append(step)
        updates.append(
            {
                "action": "set-snapshot-ref",
                "ref-name": intent.ref,
                "type": "branch",
                "snapshot-id": steps[-1].snapshot_id,
            }
        )
        requirements = [
            {"type": "assert-table-uuid", "uuid": metadata["table-uuid"]},
            {"type": "assert-ref-snapshot-id", "ref": intent.ref, "snapshot-id": head_id},
        ]
        self._written.update(own)
        return Attempt(intent, requirements, updates, tuple(steps), tuple(own))

    def _snapshot(
        self,
        intent: Intent,
        metadata: JSON,
        plan: SnapshotPlan,
        base: _Base,
        snapshot_id: int,
        now_ms: int,
        own: list[str],
    ) -> tuple[dict[str, Any], Step, _Base]:
        version: int = metadata["format-version"]
        gone: list[Entry] = []
        kept: list[ManifestFile] = []
        by_spec: dict[int, list[Entry]] = {}
        for row in base.rows:
            live = _inherited(row, manifest_of(self._read(row.path)).entries)
            removed = [entry for entry in live if entry.file.path in plan.remove]
            gone += removed
            if not removed and not plan.merge:
                kept.append(row)
                continue
            by_spec.setdefault(row.spec_id, []).extend(
                replace(entry, status=DELETED if entry in removed else EXISTING) for entry in live
            )
        number = min((entry.sequence_number or 0 for entry in gone), default=0) if plan.keeps_number else None
        spec_id: int = metadata["default-spec-id"]
        spec = next(spec for spec in metadata["partition-specs"] if spec["spec-id"] == spec_id)
        for path, (partition, rows) in plan.add.items():
            file = data_file(path, (partition,) if spec["fields"] else (), rows, len(self.files[path]))
            by_spec.setdefault(spec_id, []).append(Entry(ADDED, None, number, None, file))
        new = [
            self._manifest(metadata, snapshot_id, at, entries, of, base.number, own)
            for at, (of, entries) in enumerate(by_spec.items())
        ]
        rows = (*new, *kept)
        extra: dict[str, Any] = {}
        next_row_id = base.next_row_id
        if version > 2 and next_row_id is not None:
            rows, after = assign_first_row_ids(rows, next_row_id)
            extra = {"first-row-id": next_row_id, "added-rows": after - next_row_id}
            next_row_id = after
        path = f"{metadata['location']}/metadata/snap-{snapshot_id}-client.avro"
        own.append(path)
        self.files[path] = write_manifest_list(
            rows,
            format_version=version,
            snapshot_id=snapshot_id,
            parent_id=base.snapshot_id,
            sequence_number=base.number,
            first_row_id=extra.get("first-row-id"),
        )
        totals = _totals(base.totals, plan.add.values(), [e.file for e in gone], self._sizes(plan))
        snapshot: dict[str, Any] = {
            "snapshot-id": snapshot_id,
            "sequence-number": base.number,
            "timestamp-ms": now_ms,
            "manifest-list": path,
            "summary": {"operation": plan.operation, **totals, **(plan.summary or {})},
            "schema-id": metadata["current-schema-id"],
            **extra,
        }
        if base.snapshot_id is not None:
            snapshot["parent-snapshot-id"] = base.snapshot_id
        adds = {path: rows for path, (_, rows) in plan.add.items()}
        step = Step(snapshot_id, base.snapshot_id, adds, frozenset(e.file.path for e in gone), number, path, plan.scope)
        return snapshot, step, _Base(snapshot_id, rows, totals, base.number + 1, next_row_id)

    def _sizes(self, plan: SnapshotPlan) -> int:
        return sum(len(self.files[path]) for path in plan.add)

    def _manifest(
        self,
        metadata: JSON,
        snapshot_id: int,
        at: int,
        entries: Sequence[Entry],
        spec_id: int,
        number: int,
        own: list[str],
    ) -> ManifestFile:
        path = f"{metadata['location']}/metadata/{snapshot_id}-m{at}.avro"
        spec = next(spec for spec in metadata["partition-specs"] if spec["spec-id"] == spec_id)
        schema = next(s for s in metadata["schemas"] if s["schema-id"] == metadata["current-schema-id"])
        shape: dict[str, Any] = {
            "spec_fields": tuple(spec["fields"]),
            "spec_id": spec_id,
            "schema": schema,
            "content": 0,
            "snapshot_id": snapshot_id,
        }
        data = write_manifest(entries, format_version=metadata["format-version"], **shape)
        self.files[path] = data
        own.append(path)
        return manifest_row(path, data, entries, sequence_number=number, **shape)


def data_file(path: str, partition: tuple[Any, ...], rows: int, size_bytes: int) -> DataFile:
    """A data file as a manifest names it."""
    record = {
        "content": 0,
        "file_path": path,
        "file_format": "PARQUET",
        "record_count": rows,
        "file_size_in_bytes": size_bytes,
    }
    return DataFile(0, path, "PARQUET", partition, rows, size_bytes, None, None, record)


def _inherited(row: ManifestFile, entries: Sequence[Entry]) -> list[Entry]:
    """The live entries of a manifest with all that they inherit."""
    live: list[Entry] = []
    next_row_id = row.first_row_id
    for entry in entries:
        if entry.status == DELETED:
            continue
        file = entry.file
        if next_row_id is not None and file.first_row_id is None:
            file = replace(file, first_row_id=next_row_id)
            next_row_id += file.record_count
        number = row.sequence_number if entry.sequence_number is None else entry.sequence_number
        file_number = row.sequence_number if entry.file_sequence_number is None else entry.file_sequence_number
        owner = row.added_snapshot_id if entry.snapshot_id is None else entry.snapshot_id
        live.append(Entry(entry.status, owner, number, file_number, file))
    return live


def _totals(
    before: Mapping[str, str], added: Sequence[tuple[int, int]] | Any, removed: Sequence[DataFile], added_bytes: int
) -> dict[str, str]:
    rows = [rows for _, rows in added]
    deltas = {
        "added-data-files": len(rows),
        "added-records": sum(rows),
        "deleted-data-files": len(removed),
        "deleted-records": sum(file.record_count for file in removed),
    }
    totals = {
        "total-data-files": deltas["added-data-files"] - deltas["deleted-data-files"],
        "total-records": deltas["added-records"] - deltas["deleted-records"],
        "total-files-size": added_bytes - sum(file.size_bytes for file in removed),
    }
    found = {key: str(value) for key, value in deltas.items() if value}
    return found | {key: str(int(before.get(key, "0")) + delta) for key, delta in totals.items()}
