"""A case as the tower meets it: files in a storage, metadata, and a commit; and what the gate says.

The gate is the tower's own (`admission.gate`), over a storage that holds what a case says: manifest lists, manifests,
deletion vectors and delete files as bytes. Appends by the fast path are Parquet files.
"""

from __future__ import annotations

import asyncio
import io
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from icetower.admission import gate
from icetower.admission.identity import Identity
from icetower.admission.quotas import RateLimits
from icetower.admission.shadow import ShadowRecorder
from icetower.ambient import SystemAmbient
from icetower.contracts import model, regions
from icetower.contracts.model import Contract
from icetower.errors import IcetowerError
from icetower.files.changes import Manifests
from icetower.files.deletes import Contents, Vectors
from icetower.files.footers import Footers
from icetower.iceberg import manifests as avro
from icetower.iceberg import puffin
from icetower.iceberg.manifest_writing import row_of, summarise
from icetower.iceberg.partitions import resolve_fields
from icetower.iceberg.vectors import POSITION_FIELD_ID, Vector, as_blob
from icetower.protocol.appends import AppendRequest, FileDescriptor
from icetower.protocol.commits import CommitRequest
from icetower.protocol.names import Identifier
from icetower.protocol.updates import Updates
from icetower.registry.principals import Principal
from icetower.storage.port import Storage
from icetower.table.head import HeadState
from verify.kit.storage import MemoryStorage
from verify.oracle import values
from verify.oracle.cases import (
    ADDED,
    DATA,
    DELETED,
    EXISTING,
    LOCATION,
    POSITIONS,
    Case,
    Column,
    Entry,
    File,
    Manifest,
    Row,
    Rule,
    Snapshot,
)

JSON = dict[str, Any]
TABLE = Identifier(("ns",), "t")
PATH_FIELD_ID = 2147483546
_SIZE_BYTES = 1_000


@dataclass(frozen=True, slots=True)
class Refused:
    """What the gate said instead of yes."""

    rule: str
    message: str


class World:
    """One case in bytes."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.storage = MemoryStorage()
        self._rows: dict[str, avro.ManifestFile] = {}
        self._row_ids: dict[tuple[str, int, str], int] = {}
        self._next_row_id = 0
        self._sizes: dict[str, int] = {}
        self._lists: dict[int, JSON] = {}
        self._schema = _merged_schema(case.columns)
        self._fields = [[_field_json(case.columns, field) for field in spec] for spec in case.specs]
        self.kinds = [[f.result_type for f in resolve_fields(fields, [self._schema])] for fields in self._fields]
        for snapshot in case.history:
            self._write(snapshot)
        self.metadata = self._metadata()
        for snapshot in case.commit:
            self._write(snapshot)

    # -------------------------------------------------------------------------------------------------- the request

    @property
    def updates(self) -> list[JSON]:
        added = [{"action": "add-snapshot", "snapshot": self._lists[snapshot.id]} for snapshot in self.case.commit]
        last = self.case.commit[-1].id
        return [*added, {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": last}]

    @property
    def requirements(self) -> list[JSON]:
        return [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": self.case.asserted}]

    # -------------------------------------------------------------------------------------------------- the table

    def _metadata(self) -> JSON:
        case = self.case
        head = case.head
        schemas = [_schema_json(0, [(c.id, c.before, c.kind) for c in case.columns])]
        if any(column.name != column.before for column in case.columns):
            schemas.append(_schema_json(1, [(c.id, c.name, c.kind) for c in case.columns]))
        made: JSON = {
            "format-version": case.version,
            "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1",
            "location": LOCATION,
            "last-updated-ms": case.now_ms,
            "last-column-id": len(case.columns),
            "current-schema-id": len(schemas) - 1,
            "schemas": schemas,
            "default-spec-id": len(case.specs) - 1,
            "partition-specs": [{"spec-id": at, "fields": fields} for at, fields in enumerate(self._fields)],
            "last-partition-id": max((field.id for spec in case.specs for field in spec), default=999),
            "default-sort-order-id": 0,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "properties": {},
            "snapshots": list(self._lists.values()),
            "refs": {} if head is None else {"main": {"type": "branch", "snapshot-id": head.id}},
            "snapshot-log": [],
            "metadata-log": [],
        }
        if head is not None:
            made["current-snapshot-id"] = head.id
        if case.version > 1:
            made["last-sequence-number"] = 0 if head is None else head.number
        if case.version > 2:
            made["next-row-id"] = self._next_row_id
        return made

    # -------------------------------------------------------------------------------------------------- snapshots

    def _write(self, snapshot: Snapshot) -> None:
        """The snapshot's manifest list and manifests, and what it says of itself."""
        case = self.case
        rows = [self._row(manifest, snapshot) for manifest in snapshot.manifests]
        first = self._next_row_id if case.version > 2 else None
        extra: JSON = {}
        if first is not None:
            assigned, self._next_row_id = avro.assign_first_row_ids(rows, first)
            extra = {"first-row-id": first, "added-rows": self._next_row_id - first}
            for manifest, row in zip(snapshot.manifests, assigned, strict=True):
                self._rows.setdefault(manifest.path, row)
                self._number_rows(manifest, row)
            rows = list(assigned)
        number = snapshot.number if case.version > 1 else 0
        path = f"{LOCATION}/metadata/snap-{snapshot.id}.avro"
        self.storage.files[path] = avro.write_manifest_list(
            rows,
            format_version=case.version,
            snapshot_id=snapshot.id,
            parent_id=snapshot.parent,
            sequence_number=number,
            first_row_id=first,
        )
        made: JSON = {
            "snapshot-id": snapshot.id,
            "timestamp-ms": case.now_ms,
            "manifest-list": path,
            "summary": {"operation": snapshot.operation},
            "schema-id": 0,
            **extra,
        }
        if case.version > 1:
            made["sequence-number"] = number
        if snapshot.parent is not None:
            made["parent-snapshot-id"] = snapshot.parent
        self._lists[snapshot.id] = made

    def _number_rows(self, manifest: Manifest, row: avro.ManifestFile) -> None:
        """Row ids that data files inherit (specification, "Row Lineage"), for whoever carries them on."""
        at = row.first_row_id
        for entry in manifest.live() if at is not None else ():
            key = _row_id_key(entry.file)
            if key not in self._row_ids:
                self._row_ids[key] = at or 0
                at = (at or 0) + entry.file.records

    def _row(self, manifest: Manifest, snapshot: Snapshot) -> avro.ManifestFile:
        """A manifest's row in the list of a snapshot; the manifest is written when it is first met."""
        known = self._rows.get(manifest.path)
        if known is None:
            known = self._rows[manifest.path] = self._written(manifest)
            if self.case.version > 2:
                del self._rows[manifest.path]  # until it has a row id
        lies = manifest.lies
        if lies.bounds is not None:
            kinds = self.kinds[manifest.spec]
            bounds = (summarise([tuple_[at] for tuple_ in lies.bounds], kind) for at, kind in enumerate(kinds))
            known = replace(known, partitions=tuple(bounds))
        if lies.unbounded:
            known = replace(known, partitions=None)
        if lies.empty:
            known = replace(known, added_files=0, existing_files=0, added_rows=0, existing_rows=0)
        if lies.short:
            known = replace(known, length_bytes=known.length_bytes // 2)
        named = {"spec_id": lies.spec, "content": lies.content, "added_snapshot_id": lies.snapshot}
        known = replace(known, **{name: value for name, value in named.items() if value is not None})
        if lies.number is not None:
            known = replace(known, sequence_number=lies.number, min_sequence_number=min(lies.number, snapshot.number))
        return known

    def _written(self, manifest: Manifest) -> avro.ManifestFile:
        """The row of a manifest. One that was there before the commit is written when it is read."""
        entries = [self._entry(manifest, entry) for entry in manifest.entries]
        number = manifest.number if self.case.version > 1 else 0

        def bytes_of_it() -> bytes:
            return self._bytes(manifest, entries)

        length_bytes = _SIZE_BYTES
        if any(snapshot.id == manifest.snapshot for snapshot in self.case.commit):
            self.storage.files[manifest.path] = data = bytes_of_it()
            length_bytes = len(data)
        else:
            self.storage.later[manifest.path] = bytes_of_it
        return row_of(
            manifest.path,
            length_bytes,
            entries,
            kinds=self.kinds[manifest.spec],
            spec_id=manifest.spec,
            content=manifest.content,
            snapshot_id=manifest.snapshot,
            sequence_number=number,
        )

    def _bytes(self, manifest: Manifest, entries: Sequence[avro.Entry]) -> bytes:
        order = manifest.lies.order or tuple(range(len(self.case.specs[manifest.spec])))
        files = (replace(e.file, partition=tuple(e.file.partition[at] for at in order)) for e in entries)
        return avro.write_manifest(
            [replace(entry, file=file) for entry, file in zip(entries, files, strict=True)],
            format_version=self.case.version,
            spec_fields=[self._fields[manifest.spec][at] for at in order],
            spec_id=manifest.spec,
            schema=self._schema,
            content=manifest.content,
            snapshot_id=manifest.snapshot,
        )

    def _entry(self, manifest: Manifest, entry: Entry) -> avro.Entry:
        versioned = self.case.version > 1
        snapshot = self.case.snapshot(entry.snapshot)
        if entry.status == DELETED:  # the snapshot that has removed it is not the one that had added it
            snapshot = next((s for s in self.case.history if any(e.file == entry.file for _, e in s.live())), None)
        number = entry.number if versioned else 0
        file_number = (entry.number if snapshot is None else snapshot.number) if versioned else 0
        row_id = None
        if self.case.version > 2 and entry.status == EXISTING and entry.file.content == DATA:
            row_id = self._row_ids.get(_row_id_key(entry.file))
        added = entry.status == ADDED and any(each.id == manifest.snapshot for each in self.case.commit)
        if added and entry.file.path not in self.storage.files:
            if self.case.proves and entry.file.content == DATA:
                self._keep(entry.file.path, _parquet(self.case.columns, entry.file.rows))
            elif entry.file.content == POSITIONS and not entry.file.vector:
                self._keep(entry.file.path, _position_deletes(entry.file), entry.file.shorter)
        file = replace(self._file(entry.file), first_row_id=row_id)
        return avro.Entry(entry.status, entry.snapshot, number, file_number, file)

    def _keep(self, path: str, data: bytes, shorter: bool = False) -> None:
        self.storage.files[path] = data
        self._sizes[path] = len(data) - shorter

    def _file(self, file: File) -> avro.DataFile:
        record: JSON = {
            "content": file.content,
            "file_path": file.path,
            "file_format": "PUFFIN" if file.vector else "PARQUET",
            "record_count": file.records,
            "file_size_in_bytes": self._sizes.get(file.path, _SIZE_BYTES),
        }
        if file.reference is not None:
            record["referenced_data_file"] = file.reference
        if file.bounds is not None:
            bound = [{"key": PATH_FIELD_ID, "value": file.bounds.encode()}]
            record |= {"lower_bounds": bound, "upper_bounds": bound}
        if file.hides:
            bound = [{"key": 1, "value": b""}]
            record |= {"lower_bounds": bound, "upper_bounds": bound}
        if file.equality:
            record["equality_ids"] = [self.case.columns[at].id for at in file.equality]
        if file.vector:
            vectors = [as_blob(Vector.of(positions), path) for path, positions in file.positions]
            data, (blob, *_) = puffin.write(vectors, created_by="oracle")
            self.storage.files[file.path] = data
            record |= {"content_offset": blob.offset, "content_size_in_bytes": blob.length_bytes}
            record["file_size_in_bytes"] = len(data) - file.shorter
        return avro.DataFile(
            file.content,
            file.path,
            record["file_format"],
            file.partition,
            file.records,
            record["file_size_in_bytes"],
            None,
            file.reference,
            record,
        )


def _row_id_key(file: File) -> tuple[str, int, str]:
    return file.path, file.spec, repr(file.partition)


def _field_json(columns: Sequence[Column], field: Any) -> JSON:
    return {
        "name": field.name,
        "transform": field.transform,
        "source-id": columns[field.column].id,
        "field-id": field.id,
    }


def _schema_json(schema_id: int, columns: Iterable[tuple[int, str | None, str]]) -> JSON:
    fields = [{"id": i, "name": n, "type": kind, "required": False} for i, n, kind in columns if n is not None]
    return {"type": "struct", "schema-id": schema_id, "fields": fields}


def _merged_schema(columns: Sequence[Column]) -> JSON:
    """Every column that there ever was, as some manifest's header may have it."""
    return _schema_json(0, [(column.id, f"column_{column.id}", column.kind) for column in columns])


# ------------------------------------------------------------------------------------------------------ the contract


def contract_of(rules: Sequence[Rule]) -> Contract:
    """The rules as the tower has them."""
    return Contract(
        "agent",
        tables=tuple(
            model.Rule(
                regions.Pattern(("ns",), "t"),
                rule.operations,
                None if rule.regions is None else tuple(map(_region, rule.regions)),
                excluded=tuple(map(_region, rule.excluded)),
                prove_partitions=rule.prove,
                own_location=False,
            )
            for rule in rules
        ),
    )


def _region(region: Any) -> regions.Region:
    fields = sorted((str(term), extent) for term, extent in region)
    return regions.Region(
        tuple(
            (name, regions.Range(e.start, e.end) if e.values is None else regions.Values(e.values))
            for name, e in fields
        )
    )


# ------------------------------------------------------------------------------------------------------ the gate


class Gate:
    """Asks the tower's gate; one event loop for many cases. To be closed."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()

    def close(self) -> None:
        self._runner.close()

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, world: World) -> Refused | None:
        """None: the commit may go on. Other errors than the tower's own are let through."""
        asked = _appended(world) if world.case.appended else _committed(world)
        try:
            self._runner.run(asked)
        except IcetowerError as error:
            return Refused(error.rule, error.message)
        return None


class _Now(SystemAmbient):
    """A clock that stands at a case's time."""

    def __init__(self, now_ms: int) -> None:
        super().__init__()
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms


class _Elsewhere:
    """What a case says nothing of: no principal is stopped, there are no others, and no table is created."""

    async def require_free(self, principal: Principal, table: Identifier) -> None:
        del principal, table

    async def bindings(self, names: Sequence[str]) -> dict[str, tuple[str, int]]:
        del names
        return {}

    async def default_location(self, identifier: Identifier, uuid: str) -> str:
        del identifier, uuid
        return LOCATION


def gate_of(world: World) -> gate.Gate:
    """The tower's gate over the storage of a case."""
    storage: Storage = world.storage
    ambient, elsewhere = _Now(world.case.now_ms), _Elsewhere()
    shadow = ShadowRecorder(ambient, lambda _: None)
    return gate.Gate(
        gate.Files(Manifests(storage), Footers(storage), Vectors(storage), Contents(storage)),
        elsewhere,
        RateLimits(ambient, shadow, deadline_s=0),
        shadow,
        elsewhere,
        elsewhere,
        ambient,
    )


async def _committed(world: World) -> None:
    principal = Principal("agent", contract_of(world.case.rules), 1)
    request = CommitRequest(TABLE, tuple(world.requirements), Updates(world.updates))
    identity = Identity.of_commit(principal.name, request.updates, None, None)
    head = HeadState(f"{LOCATION}/metadata/v1.json", world.metadata)
    await gate_of(world).admit(principal, request, identity, head, since_s=0)


async def _appended(world: World) -> None:
    case = world.case
    head = HeadState(f"{LOCATION}/metadata/v1.json", world.metadata)
    described: list[FileDescriptor] = []
    for file in case.appended:
        data = world.storage.files[file.path] = _parquet(case.columns, file.rows)
        kinds = zip(file.partition, world.kinds[file.spec], strict=True)
        partition = [_json_value(value, kind) for value, kind in kinds]
        described.append(FileDescriptor(file.path, len(file.rows), len(data), file.spec, partition, None, {}))
    principal = Principal("agent", contract_of(case.rules), 1)
    request = AppendRequest("main", tuple(described), None, None)
    identity = Identity.of_append(principal.name, request.ref, None, None)
    await gate_of(world).admit_append(principal, TABLE, request, identity, head, since_s=0)


def _json_value(value: Any, kind: str) -> Any:
    """A partition value in Iceberg's JSON, as far as that matters here."""
    if kind == "uuid" and value is not None:
        return str(uuid.UUID(bytes=value))
    if isinstance(value, Decimal):
        return str(value)
    if kind.endswith("_ns") and value is not None:
        seconds, nanos = divmod(value, 10**9)
        zone = "+00:00" if kind == "timestamptz_ns" else ""
        return f"{values.text_of('identity', 'timestamp', seconds * 10**6)}.{nanos:09d}{zone}"
    return value


_ARROW = {
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "timestamp_ns": pa.timestamp("ns"),
    "timestamptz_ns": pa.timestamp("ns", "UTC"),
    "date": pa.date32(),
    "int": pa.int32(),
    "long": pa.int64(),
    "string": pa.string(),
    "decimal(9, 2)": pa.decimal128(9, 2),
    "uuid": pa.binary(16),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "fixed[4]": pa.binary(4),
    "time": pa.time64("us"),
}


def _parquet(columns: Sequence[Column], rows: Sequence[Row]) -> bytes:
    """A data file with the columns that the table has now."""
    arrays: list[pa.Array] = []
    fields: list[pa.Field] = []
    for at, column in enumerate(columns):
        if column.name is None:
            continue
        kind = _ARROW[column.kind]
        some = [row[at] for row in rows]
        plain = pa.int32() if kind == pa.date32() else pa.int64()
        counted = pa.types.is_temporal(kind)
        arrays.append(pa.array(some, plain).cast(kind) if counted else pa.array(some, kind))
        fields.append(pa.field(column.name, kind, metadata={"PARQUET:field_id": str(column.id)}))
    out = io.BytesIO()
    pq.write_table(pa.Table.from_arrays(arrays, schema=pa.schema(fields)), out)
    return out.getvalue()


_PATHS = pa.schema(
    [
        pa.field("file_path", pa.string(), False, {"PARQUET:field_id": str(PATH_FIELD_ID)}),
        pa.field("pos", pa.int64(), False, {"PARQUET:field_id": str(POSITION_FIELD_ID)}),
    ]
)


def _position_deletes(file: File) -> bytes:
    """A position delete file (specification: "Position Delete Files")."""
    rows = [(path, position) for path, positions in file.positions for position in positions]
    out = io.BytesIO()
    pq.write_table(pa.Table.from_arrays([pa.array(column) for column in zip(*rows, strict=True)], schema=_PATHS), out)
    return out.getvalue()
