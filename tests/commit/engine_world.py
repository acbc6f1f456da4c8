"""A whole tower in memory: the real engine, plan, SQL upstream and manifests, with faults on request.

`Writer` stands for an Iceberg client: it reads a head, writes manifests and a manifest list of its own into the
storage, and sends a commit. So every case here is bytes in, bytes out, as over the wire.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from icetower.admission.admitted import Admitted
from icetower.admission.facts import Facts
from icetower.admission.gate import judge
from icetower.admission.identity import Identity
from icetower.commit.engine import Committed, Engine, Limits
from icetower.commit.head import Heads
from icetower.database import Database
from icetower.errors import IcetowerError
from icetower.files.changes import Manifests, read_changes
from icetower.iceberg.change import Change
from icetower.iceberg.manifest_writing import assign_first_row_ids, manifest_row, write_manifest, write_manifest_list
from icetower.iceberg.manifests import ADDED, DELETED, EXISTING, DataFile, Entry, ManifestFile, read_manifest
from icetower.protocol.names import Identifier
from icetower.protocol.updates import Updates
from icetower.registry.principals import Principal, administrator
from icetower.service.lifecycle import Lifecycle
from icetower.table.head import HeadState
from icetower.upstream.port import SwapLost
from icetower.upstream.sql import SqlUpstream
from verify.kit.clock import Clock
from verify.kit.storage import MemoryStorage
from verify.kit.upstream import FaultyUpstream

T = TypeVar("T")
TABLE = Identifier(("db",), "t")
SCHEMA = {"type": "struct", "fields": [{"id": 1, "name": "id", "type": "long", "required": False}]}


class Gate:
    """A gatekeeper that refuses whom it is told to, at the last moment."""

    def __init__(self) -> None:
        self.revoked: dict[str, IcetowerError] = {}
        self.asked = 0
        self.kept: list[frozenset[int]] = []
        self.cannot_keep: IcetowerError | None = None

    async def still_admits(self, members: Sequence[Admitted]) -> Mapping[int, IcetowerError]:
        self.asked += 1
        return {i: self.revoked[m.principal] for i, m in enumerate(members) if m.principal in self.revoked}

    async def last_word(self, members: Sequence[tuple[Admitted, HeadState]]) -> Mapping[int, IcetowerError]:
        return await self.still_admits([member for member, _ in members])

    async def landed_meanwhile(self, old: HeadState, members: Sequence[Admitted]) -> Mapping[int, IcetowerError]:
        return {}

    async def keep_keys(
        self, identifier: Identifier, old: HeadState, new: HeadState, snapshot_ids: Collection[int]
    ) -> None:
        assert set(snapshot_ids) <= old.snapshots.keys()
        assert not set(snapshot_ids) & new.snapshots.keys()
        if self.cannot_keep is not None:
            raise self.cannot_keep
        self.kept.append(frozenset(snapshot_ids))


@dataclass
class World:
    clock: Clock = field(default_factory=Clock)
    storage: MemoryStorage = field(default_factory=MemoryStorage)
    gate: Gate = field(default_factory=Gate)
    limits: Limits = field(default_factory=lambda: Limits(deadline_s=5, settle_s=1))

    def __post_init__(self) -> None:
        self.database = Database("sqlite://")
        self.upstream = FaultyUpstream(SqlUpstream(self.database, "test"))
        self.restart()

    def restart(self) -> None:
        """A new engine that remembers nothing, over the same catalog and storage: what a crash leaves."""
        self.heads = Heads(self.upstream, self.storage)
        self.manifests = Manifests(self.storage)
        self.engine = Engine(
            self.upstream, self.storage, self.heads, self.manifests, self.clock, self.gate, self.limits
        )
        self.tables = Lifecycle(
            self.upstream, self.storage, self.heads, self.manifests, self.clock, warehouse="file:///w"
        )

    async def create(self, version: int = 2, table: Identifier = TABLE, **properties: str) -> HeadState:
        """An empty table of a format version."""
        if not await self.upstream.namespace_exists(table.namespace):
            await self.upstream.create_namespace(table.namespace, {})
        metadata = await self.tables.new_metadata(
            table,
            schema=SCHEMA,
            spec=None,
            sort_order=None,
            location=None,
            properties={"format-version": str(version), **properties},
        )
        return await self.tables.create(table, metadata)

    async def head(self, table: Identifier = TABLE) -> HeadState:
        return await self.heads.load(table)

    def writer(self, name: str = "ann") -> Writer:
        return Writer(self, name)

    async def live(self, table: Identifier = TABLE, ref: str = "main") -> list[str]:
        """The names of the live data files, as a stranger reads them from storage, sorted."""
        head = await Heads(self.upstream, self.storage).load(table)
        entries = await self.live_entries(head, ref)
        return sorted(entry.file.path.rsplit("/", 1)[-1] for entry in entries)

    async def live_entries(self, head: HeadState, ref: str = "main") -> list[Entry]:
        ids = {name: r["snapshot-id"] for name, r in head.metadata["refs"].items()}
        if ref not in ids:
            return []
        rows = await Manifests(self.storage).list_at(head.snapshots[ids[ref]]["manifest-list"])
        read = [read_manifest(self.storage.files[row.path]) for row in rows]
        return [entry for manifest in read for entry in manifest.entries if entry.status != DELETED]

    async def rows(self, snapshot: Mapping[str, Any]) -> tuple[ManifestFile, ...]:
        return await Manifests(self.storage).list_at(snapshot["manifest-list"])


@dataclass
class Writer:
    """An Iceberg client. `base`: the head that it has read; its commits are written on it until it refreshes."""

    world: World
    name: str
    base: HeadState | None = None

    async def refresh(self, table: Identifier = TABLE) -> Writer:
        self.base = await self.world.head(table)
        return self

    def data_file(self, name: str, rows: int = 1) -> DataFile:
        assert self.base is not None
        path = f"{self.base.metadata['location']}/data/{name}"
        record = {
            "content": 0,
            "file_path": path,
            "file_format": "PARQUET",
            "record_count": rows,
            "file_size_in_bytes": 100,
        }
        return DataFile(0, path, "PARQUET", (), rows, 100, None, None, record)

    async def append(self, *names: str, **options: Any) -> Request:
        """An append of one-row files, prepared on the base."""
        return await self.snapshot(add=names, **options)

    async def snapshot(
        self,
        *,
        add: Sequence[str] = (),
        remove: Sequence[str] = (),
        merge: bool = False,
        operation: str = "append",
        summary: Mapping[str, str] | None = None,
        ref: str | None = "main",
        assert_ref: bool = True,
        table: Identifier = TABLE,
        parent: dict[str, Any] | None = None,
        parent_rows: tuple[ManifestFile, ...] | None = None,
        key: str | None = None,
        sequence_number: int | None = None,
    ) -> Request:
        """One snapshot on the base (or on `parent`, a snapshot of the same commit).

        `merge`: all older manifests are folded into the new one, as a merge append does.
        """
        base = self.base or await self.world.head(table)
        self.base = base
        metadata, version = base.metadata, base.metadata["format-version"]
        head_id = metadata["refs"].get(ref or "main", {}).get("snapshot-id")
        if parent is None and head_id is not None:
            parent = dict(base.snapshots[head_id])
        old = parent_rows if parent_rows is not None else (await self.world.rows(parent) if parent else ())
        number = sequence_number or metadata.get("last-sequence-number", 0) + 1
        snapshot_id = self.world.clock.snapshot_id()
        entries = [Entry(ADDED, None, None, None, self.data_file(name)) for name in add]
        kept: list[ManifestFile] = []
        for row in old:
            read = [e for e in read_manifest(self.world.storage.files[row.path]).entries if e.status != DELETED]
            gone = [e for e in read if e.file.path.rsplit("/", 1)[-1] in remove]
            if not gone and not merge:
                kept.append(row)
                continue
            row_id = row.first_row_id
            for entry in read:
                file = entry.file
                if row_id is not None:  # version 3: what a manifest's entries inherit goes with them
                    file = replace(file, first_row_id=row_id if file.first_row_id is None else file.first_row_id)
                    row_id += file.record_count
                seq = row.sequence_number if entry.sequence_number is None else entry.sequence_number
                entries.append(
                    replace(
                        entry,
                        status=DELETED if entry in gone else EXISTING,
                        snapshot_id=entry.snapshot_id or row.added_snapshot_id,
                        sequence_number=seq,
                        file_sequence_number=seq,
                        file=file,
                    )
                )
        new = self._manifest(entries, snapshot_id, number, base) if entries else ()
        rows: tuple[ManifestFile, ...] = (*new, *kept)
        first_row_id = metadata.get("next-row-id") if version >= 3 else None
        extra: dict[str, Any] = {}
        if first_row_id is not None:
            rows, after = assign_first_row_ids(rows, first_row_id)
            extra = {"first-row-id": first_row_id, "added-rows": after - first_row_id}
        path = f"{metadata['location']}/metadata/snap-{snapshot_id}-client.avro"
        parent_id = parent["snapshot-id"] if parent else None
        self.world.storage.files[path] = write_manifest_list(
            rows,
            format_version=version,
            snapshot_id=snapshot_id,
            parent_id=parent_id,
            sequence_number=number,
            first_row_id=first_row_id,
        )
        snapshot: dict[str, Any] = {
            "snapshot-id": snapshot_id,
            "timestamp-ms": self.world.clock.now_ms(),
            "manifest-list": path,
            "summary": {"operation": operation, "total-records": "12", **(summary or {})},
            "schema-id": 0,
            **extra,
        }
        if version > 1:
            snapshot["sequence-number"] = number
        if parent_id is not None:
            snapshot["parent-snapshot-id"] = parent_id
        updates: list[dict[str, Any]] = [{"action": "add-snapshot", "snapshot": snapshot}]
        requirements: list[dict[str, Any]] = [{"type": "assert-table-uuid", "uuid": metadata["table-uuid"]}]
        if ref is not None:
            updates.append(
                {"action": "set-snapshot-ref", "ref-name": ref, "type": "branch", "snapshot-id": snapshot_id}
            )
            if assert_ref:
                requirements.append({"type": "assert-ref-snapshot-id", "ref": ref, "snapshot-id": head_id})
        return Request(self, table, requirements, updates, rows, key)

    def _manifest(
        self, entries: Sequence[Entry], snapshot_id: int, number: int, base: HeadState
    ) -> tuple[ManifestFile, ...]:
        path = f"{base.metadata['location']}/metadata/{snapshot_id}-m0.avro"
        shape: dict[str, Any] = {"spec_fields": (), "spec_id": 0, "schema": base.metadata["schemas"][0], "content": 0}
        data = write_manifest(entries, format_version=base.metadata["format-version"], snapshot_id=snapshot_id, **shape)
        self.world.storage.files[path] = data
        seq = number if base.metadata["format-version"] > 1 else 0
        return (manifest_row(path, data, entries, snapshot_id=snapshot_id, sequence_number=seq, **shape),)


@dataclass
class Request:
    """A commit, ready to be sent, as often as one likes."""

    writer: Writer
    table: Identifier
    requirements: list[dict[str, Any]]
    updates: list[dict[str, Any]]
    rows: tuple[ManifestFile, ...]
    key: str | None = None

    @property
    def snapshot(self) -> dict[str, Any]:
        return next(u["snapshot"] for u in reversed(self.updates) if u["action"] == "add-snapshot")

    @property
    def snapshot_id(self) -> int:
        return self.snapshot["snapshot-id"]

    async def admitted(self) -> Admitted:
        world = self.writer.world
        head = await world.head(self.table)
        changes = await read_changes(world.manifests, head.metadata, Updates(self.updates))
        who, now_ms = administrator(self.writer.name), world.clock.now_ms()
        return judged(who, self.table, head.metadata, changes, self.requirements, self.updates, self.key, now_ms)

    async def send(self) -> Committed:
        return await self.writer.world.engine.submit(await self.admitted())

    def then(self, other: Request) -> Request:
        """This commit and another's snapshots in one."""
        return Request(
            self.writer, self.table, self.requirements, [*self.updates, *other.updates], other.rows, self.key
        )


def judged(
    principal: Principal,
    table: Identifier,
    metadata: Mapping[str, Any] | None,
    changes: Sequence[Change],
    requirements: Sequence[Mapping[str, Any]],
    updates: Sequence[Mapping[str, Any]],
    key: str | None = None,
    now_ms: int = 0,
) -> Admitted:
    """A commit as the gate admits it."""
    identity = Identity.of_commit(principal.name, Updates(updates), key, None)
    facts = Facts(principal, table, metadata, requirements, Updates(updates), identity, now_ms)
    return judge(facts.with_files(changes, {}))


def run(story: Awaitable[T]) -> T:
    """Run one story to its end."""

    async def inner() -> T:
        return await story

    return asyncio.run(inner())


def creation(
    staged: Mapping[str, Any], *, uuid: str | None = None, location: str | None = None
) -> list[dict[str, Any]]:
    """The updates by which a transaction of Iceberg's Java client creates a table, before those of its snapshots.

    Args:
        staged: the metadata that the server has staged for it.
        uuid, location: others than the staged ones.
    """
    return [
        {"action": "assign-uuid", "uuid": staged["table-uuid"] if uuid is None else uuid},
        {"action": "upgrade-format-version", "format-version": 2},
        {"action": "add-schema", "schema": staged["schemas"][0]},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": staged["partition-specs"][0]},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": staged["sort-orders"][0]},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-location", "location": staged["location"] if location is None else location},
    ]


async def outcomes(*requests: Request) -> list[str]:
    """Send all at once, in this order; what became of each: an outcome, or the error's status and rule."""
    admitted = [await request.admitted() for request in requests]
    results = await asyncio.gather(
        *(request.writer.world.engine.submit(a) for request, a in zip(requests, admitted, strict=True)),
        return_exceptions=True,
    )
    return [told(result) for result in results]


def told(result: object) -> str:
    if isinstance(result, IcetowerError):
        return f"{result.status} {result.rule}"
    if isinstance(result, Committed):
        return result.outcome
    if isinstance(result, BaseException):
        raise result
    raise AssertionError(result)


__all__ = ["TABLE", "SwapLost", "World", "creation", "outcomes", "run", "told"]
