"""What clients of a simulation want: kinds of commits, each prepared anew on the head that its client has read."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import orjson

from icetower.iceberg import metadata as table_metadata
from icetower.protocol.marks import BLIND, FILTER, ISOLATION, KEY
from icetower.table.head import HeadState
from verify.torture.judge import Judge
from verify.torture.ledger import Attempt, Intent
from verify.torture.writing import PARTITIONS, Pen, SnapshotPlan

JSON = Mapping[str, Any]
Prepare = Callable[[Intent, HeadState], Attempt | None]
KEPT_BY_EXPIRY = 3


class CommitKinds:
    """Makes the commits of one client.

    Args:
        own: the partition that it mostly writes to.
    """

    def __init__(self, pen: Pen, stream: random.Random, now_ms: Callable[[], int], judge: Judge, own: int) -> None:
        self._pen = pen
        self._stream = stream
        self._now_ms = now_ms
        self._judge = judge
        self._own = own

    def _commit(self, intent: Intent, head: HeadState, *plans: SnapshotPlan) -> Attempt:
        marks = {KEY: intent.key} if intent.key is not None and intent.number % 2 else {}
        marks |= {BLIND: "true"} if intent.blind else {}
        marked = [replace(plan, summary={**(plan.summary or {}), **marks}) for plan in plans]
        ids = [self._stream.getrandbits(62) + 1 for _ in marked]
        return self._pen.commit(intent, head.metadata, marked, ids, self._now_ms())

    def _new_files(self, intent: Intent, head: HeadState, count: int) -> dict[str, tuple[int, int]]:
        # The same names on every attempt: a client writes its data once, and its manifests as often as it must. Only a
        # rerun, by a scheduler that has heard nothing, writes its data again.
        reruns = sum(attempt.unknown for attempt in intent.attempts)
        names = [f"{intent.number}{'r' * reruns}-{at}" for at in range(count)]
        return self._pen.data_files(head.metadata, names, self._own % PARTITIONS, 1 + intent.number % 7)

    def _mine(self, head: HeadState, intent: Intent, count: int, *, anyones: bool) -> frozenset[str]:
        live = sorted(self._pen.live(head.metadata, intent.ref))
        near = [path for path in live if anyones or f"/p={self._own % PARTITIONS}/" in path]
        return frozenset(self._stream.sample(near, min(count, len(near))))

    # -- content --------------------------------------------------------------------------------------------------

    def append(self, intent: Intent, head: HeadState) -> Attempt:
        """One to three files."""
        return self._commit(intent, head, SnapshotPlan("append", self._new_files(intent, head, 1 + intent.number % 3)))

    def fast(self, intent: Intent, head: HeadState) -> Attempt:
        """An append by the fast path: only data files."""
        files = self._new_files(intent, head, 1 + intent.number % 2)
        spec = next(s for s in head.metadata["partition-specs"] if s["spec-id"] == head.metadata["default-spec-id"])
        return Attempt(intent, [], [], files=files, partitioned=bool(spec["fields"]))

    def merge_append(self, intent: Intent, head: HeadState) -> Attempt:
        """An append that folds all older manifests into its own."""
        return self._commit(intent, head, SnapshotPlan("append", self._new_files(intent, head, 1), merge=True))

    def overwrite(self, intent: Intent, head: HeadState) -> Attempt | None:
        """Files of its own partition replaced by a new one: a copy-on-write MERGE."""
        gone = self._mine(head, intent, 2, anyones=self._stream.random() < 0.2)
        if not gone:
            return None
        # Spark's marks: it found the files row by row, so that a list of files says all.
        marks = {"spark.merge-into.test": "1"} if intent.number % 4 else {}
        return self._commit(
            intent, head, self._scoped(SnapshotPlan("overwrite", self._new_files(intent, head, 1), gone, summary=marks))
        )

    def _scoped(self, plan: SnapshotPlan) -> SnapshotPlan:
        """Some say what they have read: their own partition."""
        own = self._own % PARTITIONS
        if self._stream.random() < 0.5 or not all(f"/p={own}/" in path for path in plan.remove):
            return plan
        marked = {FILTER: orjson.dumps({"type": "eq", "term": "p", "value": own}).decode(), ISOLATION: "serializable"}
        return replace(plan, summary={**(plan.summary or {}), **marked}, scope=own)

    def delete(self, intent: Intent, head: HeadState) -> Attempt | None:
        """One or two files removed."""
        gone = self._mine(head, intent, 2, anyones=self._stream.random() < 0.3)
        return self._commit(intent, head, self._scoped(SnapshotPlan("delete", {}, gone))) if gone else None

    def compact(self, intent: Intent, head: HeadState) -> Attempt | None:
        """Files of a partition rewritten as one, rows and sequence number kept."""
        live = self._pen.live(head.metadata, intent.ref)
        gone = self._mine(head, intent, 3, anyones=False)
        if len(gone) < 2:
            return None
        rows = sum(live[path][0].file.record_count for path in gone)
        name = f"{intent.number}c{len(intent.attempts)}"
        made = self._pen.data_files(head.metadata, [name], self._own % PARTITIONS, rows)
        return self._commit(intent, head, SnapshotPlan("replace", made, gone, keeps_number=True))

    def two_steps(self, intent: Intent, head: HeadState) -> Attempt | None:
        """Two snapshots in one commit, as PyIceberg's overwrite sends them: a delete, then an append."""
        gone = self._mine(head, intent, 1, anyones=False)
        if not gone:
            return None
        return self._commit(
            intent, head, SnapshotPlan("delete", {}, gone), SnapshotPlan("append", self._new_files(intent, head, 1))
        )

    # -- all but content ------------------------------------------------------------------------------------------

    def column(self, intent: Intent, head: HeadState) -> Attempt:
        """A new column."""
        metadata = head.metadata
        name, column_id = f"c{intent.number}", metadata["last-column-id"] + 1
        schema = dict(head.schema)
        fields = [*schema["fields"], {"id": column_id, "name": name, "type": "string", "required": False}]
        schema |= {"fields": fields, "schema-id": max(s["schema-id"] for s in metadata["schemas"]) + 1}
        updates = [
            {"action": "add-schema", "schema": schema, "last-column-id": column_id},
            {"action": "set-current-schema", "schema-id": -1},
        ]
        asserted = {"type": "assert-current-schema-id", "current-schema-id": metadata["current-schema-id"]}

        def effect(after: JSON) -> bool:
            return any(field["name"] == name for s in after["schemas"] for field in s["fields"])

        return Attempt(intent, [_uuid(metadata), asserted], updates, effect=effect)

    def property(self, intent: Intent, head: HeadState) -> Attempt:
        """A new table property."""
        name = f"note.{intent.number}"
        updates = [{"action": "set-properties", "updates": {name: "set"}}]
        return Attempt(intent, [_uuid(head.metadata)], updates, effect=lambda after: name in after["properties"])

    def upgrade(self, intent: Intent, head: HeadState) -> Attempt:
        """Format version 3."""
        updates = [{"action": "upgrade-format-version", "format-version": 3}]
        return Attempt(intent, [_uuid(head.metadata)], updates, effect=lambda after: after["format-version"] == 3)

    def branch(self, intent: Intent, head: HeadState) -> Attempt | None:
        """The branch `audit`, at the head of main."""
        at = table_metadata.ref_head(head.metadata, "main")
        if at is None or "audit" in head.metadata["refs"]:
            return None
        update = {"action": "set-snapshot-ref", "ref-name": "audit", "type": "branch", "snapshot-id": at}
        asserted = {"type": "assert-ref-snapshot-id", "ref": "audit", "snapshot-id": None}
        return Attempt(intent, [_uuid(head.metadata), asserted], [update], moves={"audit": at})

    def rollback(self, intent: Intent, head: HeadState) -> Attempt | None:
        """Main set back by one or two snapshots."""
        metadata = head.metadata
        at = table_metadata.ref_head(metadata, "main")
        line = list(table_metadata.ancestors(metadata, at)) if at is not None else []
        if len(line) < 3:
            return None
        target = line[self._stream.choice((1, 2))]["snapshot-id"]
        update = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": target}
        asserted = {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": at}
        return Attempt(intent, [_uuid(metadata), asserted], [update], moves={"main": target})

    def expire(self, intent: Intent, head: HeadState) -> Attempt | None:
        """Old snapshots removed: only such as nobody can still be asking for."""
        metadata = head.metadata
        kept: set[int] = set()
        for ref in metadata["refs"].values():
            line = table_metadata.ancestors(metadata, ref["snapshot-id"])
            kept |= {snapshot["snapshot-id"] for snapshot, _ in zip(line, range(KEPT_BY_EXPIRY), strict=False)}
        sent_by = self._judge.tables[intent.table].sent_by
        finished = {i for i, intents in sent_by.items() if all(other.done for other in intents)}
        ids = [s["snapshot-id"] for s in metadata["snapshots"]]
        gone = [i for i in ids if i not in kept and i in finished]
        if not gone:
            return None
        updates = [{"action": "remove-snapshots", "snapshot-ids": gone}]

        def effect(after: JSON) -> bool:
            return not {s["snapshot-id"] for s in after["snapshots"]} & set(gone)

        return Attempt(intent, [_uuid(metadata)], updates, expires=frozenset(gone), effect=effect)


def reachable(judge: Judge, metadata: JSON, intent: Intent) -> set[str]:
    """Every file that the snapshots of a table name."""
    seen = judge.tables[intent.table].snapshots
    return {path for s in metadata["snapshots"] if s["snapshot-id"] in seen for path in seen[s["snapshot-id"]].named}


def _uuid(metadata: JSON) -> dict[str, Any]:
    return {"type": "assert-table-uuid", "uuid": metadata["table-uuid"]}


__all__ = ["CommitKinds", "Prepare", "reachable"]
