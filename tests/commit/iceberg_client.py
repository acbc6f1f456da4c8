"""A client that prepares its commits as Iceberg's own does, by the conflict model's `Producer`.

The model is held against the jar (docs/conflicts.md).

It reads a head, prepares an operation on it, and writes its manifests and manifest list into the world's storage; what
it sends is what Spark or Iceberg's Java API would send.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from icetower.iceberg.change import Touched
from icetower.iceberg.entries import Files, NeedsFile, inherit
from icetower.iceberg.manifest_writing import write_manifest, write_manifest_list
from icetower.iceberg.manifests import DELETED, DataFile, Entry, Manifest, ManifestFile
from icetower.iceberg.records import referenced_file
from icetower.table.head import HeadState
from icetower_client_model.history import branch_head
from icetower_client_model.operations import Flag, Kind, Operation, Removal
from icetower_client_model.producer import Draft, Producer
from tests.commit.engine_world import TABLE, Request, World

SCHEMA = {
    "type": "struct",
    "fields": [
        {"id": 1, "name": "id", "type": "long", "required": True},
        {"id": 2, "name": "category", "type": "string", "required": False},
    ],
}
SPEC = {"spec-id": 0, "fields": [{"source-id": 2, "field-id": 1000, "name": "category", "transform": "identity"}]}
SNAPSHOT = {f"write.{command}.isolation-level": "snapshot" for command in ("merge", "update", "delete")}
MERGE = {"spark.merge-into.num-target-rows-updated": "1"}


async def create(world: World, version: int = 2, **properties: str) -> HeadState:
    """An empty table that is partitioned by category."""
    if not await world.upstream.namespace_exists(TABLE.namespace):
        await world.upstream.create_namespace(TABLE.namespace, {})
    metadata = await world.tables.new_metadata(
        TABLE,
        schema=SCHEMA,
        spec=SPEC,
        sort_order=None,
        location=None,
        properties={"format-version": str(version), **properties},
    )
    return await world.tables.create(TABLE, metadata)


def data(name: str, category: str | None = "a", rows: int = 10) -> Touched:
    """A data file."""
    return Touched(_file(name, 0, "PARQUET", category, rows, {}), 0, None)


def vector(name: str, target: Touched, rows: int = 1, offset: int = 4) -> Touched:
    """A deletion vector."""
    extra = {"content_offset": offset, "content_size_in_bytes": 40, "referenced_data_file": target.file.path}
    return Touched(_file(name, 1, "PUFFIN", target.file.partition[0], rows, extra), 0, None)


def positions(name: str, category: str, rows: int = 1, target: Touched | None = None) -> Touched:
    """Position deletes of a partition; of one file where `target` is given."""
    extra = {} if target is None else {"referenced_data_file": target.file.path}
    return Touched(_file(name, 1, "PARQUET", category, rows, extra), 0, None)


def equalities(name: str, category: str, rows: int = 1) -> Touched:
    return Touched(_file(name, 2, "PARQUET", category, rows, {"equality_ids": [1]}), 0, None)


def _file(name: str, content: int, kind: str, category: str | None, rows: int, extra: dict[str, Any]) -> DataFile:
    path = f"file:///w/db/t/data/{name}"
    record = {
        "content": content,
        "file_path": path,
        "file_format": kind,
        "record_count": rows,
        "file_size_in_bytes": 100,
        **extra,
    }
    return DataFile(content, path, kind, (category,), rows, 100, None, extra.get("referenced_data_file"), record)


@dataclass
class Client:
    """One writer, with the table as it last read it."""

    world: World
    name: str = "ann"
    base: HeadState | None = None
    ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    async def refresh(self) -> Client:
        self.base = await self.world.head()
        return self

    async def live(self, head: HeadState | None = None) -> dict[str, tuple[Touched, str]]:
        """Live files by name, each with the manifest that holds it."""
        head = head or self.base
        assert head is not None
        snapshot = branch_head(head, "main")
        found: dict[str, tuple[Touched, str]] = {}
        for row in () if snapshot is None else await self.world.manifests.list_at(snapshot["manifest-list"]):
            for live in inherit(row, await self.world.manifests.manifest_at(row.path)):
                if live.status != DELETED:
                    touched = Touched(live.entry.file, row.spec_id, live.sequence_number)
                    found[live.path.rsplit("/", 1)[-1]] = (touched, row.path)
        return found

    async def removals(self, *names: str) -> tuple[Removal, ...]:
        """Files as this client found them when it read the table."""
        live = await self.live()
        return tuple(Removal(*live[name]) for name in names)

    async def prepare(self, operation: Operation, *, key: str | None = None, **summary: str) -> Request:
        """The commit of an operation on the base, written and ready to be sent."""
        assert self.base is not None
        world, base = self.world, self.base
        snapshot_id = world.clock.snapshot_id()
        metadata = base.metadata
        location = metadata["location"]
        paths = (f"{location}/metadata/{snapshot_id}-m{at}.avro" for at in itertools.count())
        if operation.start is None and base.ref("main") is not None:
            operation = replace(operation, start=base.ref("main"))
        producer = Producer(operation, snapshot_id, base, lambda: next(paths))
        list_path = f"{location}/metadata/snap-{snapshot_id}-client.avro"
        draft = await self._attempt(producer, base, list_path)
        rows = tuple([self._stored(row, draft.manifests, base, snapshot_id) for row in draft.rows])
        number = draft.snapshot.get("sequence-number", 0)
        parent = draft.snapshot.get("parent-snapshot-id")
        world.storage.files[list_path] = write_manifest_list(
            rows,
            format_version=base.format_version,
            snapshot_id=snapshot_id,
            parent_id=parent,
            sequence_number=number,
            first_row_id=draft.snapshot.get("first-row-id"),
        )
        snapshot = {**draft.snapshot, "summary": {**draft.snapshot["summary"], **summary}}
        updates = [
            {"action": "add-snapshot", "snapshot": snapshot},
            {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": snapshot_id},
        ]
        requirements = [
            {"type": "assert-table-uuid", "uuid": metadata["table-uuid"]},
            {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": base.ref("main")},
        ]
        return Request(self, TABLE, requirements, updates, rows, key)  # type: ignore[arg-type]

    async def _attempt(self, producer: Producer, base: HeadState, list_path: str) -> Draft:
        lists: dict[str, tuple[ManifestFile, ...]] = {}
        manifests: dict[str, Manifest] = {}
        while True:
            try:
                made = producer.attempt(
                    base, Files(lists, manifests), list_path=list_path, now_ms=self.world.clock.now_ms()
                )
            except NeedsFile as need:
                if need.is_list:
                    lists[need.path] = await self.world.manifests.list_at(need.path)
                else:
                    manifests[need.path] = await self.world.manifests.manifest_at(need.path)
                continue
            assert isinstance(made, Draft), made
            return made

    def _stored(
        self, row: ManifestFile, manifests: dict[str, Manifest], base: HeadState, snapshot_id: int
    ) -> ManifestFile:
        """A new manifest's bytes go into the storage; its row learns how long they are."""
        manifest = manifests.get(row.path)
        if manifest is None:
            return row
        spec = next(s for s in base.metadata["partition-specs"] if s["spec-id"] == row.spec_id)
        bytes_ = write_manifest(
            manifest.entries,
            spec_fields=tuple(spec["fields"]),
            spec_id=row.spec_id,
            schema=base.schema,
            format_version=base.format_version,
            content=row.content,
            snapshot_id=snapshot_id,
        )
        self.world.storage.files[row.path] = bytes_
        return replace(row, length_bytes=len(bytes_))

    # -- what agents do -------------------------------------------------------------------------------------------

    async def append(self, *files: Touched, **summary: str) -> Request:
        return await self.prepare(Operation(Kind.FAST_APPEND, added=files), **summary)

    async def merge(
        self,
        *,
        add: Iterable[Touched] = (),
        remove: Iterable[str] = (),
        deletes: Iterable[Touched] = (),
        supersedes: Iterable[str] = (),
        key: str | None = None,
        **summary: str,
    ) -> Request:
        """MERGE: copy-on-write where data files are removed, merge-on-read where deletes are added."""
        added, deletes = tuple(add), tuple(deletes)
        removed = await self.removals(*remove)
        gone_deletes = await self.removals(*supersedes)
        if deletes:
            about = (referenced_file(touched.file) for touched in deletes)
            operation = Operation(
                Kind.ROW_DELTA,
                added,
                deletes,
                removed,
                gone_deletes,
                references=tuple(path for path in about if path is not None),
                flags=frozenset({Flag.DELETED_FILES, Flag.NO_CONFLICTING_DELETES}),
            )
        else:
            flags = frozenset({Flag.NO_CONFLICTING_DELETES})
            operation = Operation(Kind.OVERWRITE, added, (), removed, gone_deletes, flags=flags)
        return await self.prepare(operation, key=key, **{**MERGE, **summary})

    async def compact(self, into: Touched, *names: str, **summary: str) -> Request:
        """Several data files become one."""
        removed = await self.removals(*names)
        number = max(removal.touched.sequence_number or 0 for removal in removed) or None
        return await self.prepare(Operation(Kind.REWRITE, (into,), (), removed, data_sequence_number=number), **summary)


def entries_named(entries: Iterable[Entry]) -> list[str]:
    return sorted(entry.file.path.rsplit("/", 1)[-1] for entry in entries)
