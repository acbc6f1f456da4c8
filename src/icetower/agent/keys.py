"""What an agent says of a write in its snapshot's summary: its idempotency key, and what it has read."""

from __future__ import annotations

import json
from typing import Any, Literal

from icetower.ambient import Ambient, SystemAmbient
from icetower.protocol.marks import BLIND, FILTER, ISOLATION, KEY, READ_SNAPSHOT


def new_key(ambient: Ambient | None = None) -> str:
    """A fresh key: a UUID of version 7, as the header `Idempotency-Key` wants it.

    Keep it with the work that it stands for, and send it again with every retry of that work, after a crash too.
    """
    return (ambient or SystemAmbient()).uuid7()


def keyed(key: str, *, blind: bool = False) -> dict[str, str]:
    """Snapshot properties that make a write exactly-once, for PyIceberg's `snapshot_properties` and the like.

    Args:
        key: the same for every attempt at the same write.
        blind: this append depends on nothing that was read from the table, so the server may rebase it. The writer's
            word: an append that replaces rows it has looked up is not blind.
    """
    properties = {KEY: key}
    if blind:
        properties[BLIND] = "true"
    return properties


def having_read(
    snapshot_id: int | None, where: Any, *, isolation: Literal["snapshot", "serializable"] = "serializable"
) -> dict[str, str]:
    """Snapshot properties that say what a write depends on, beside those of `keyed`.

    The tower validates by them what the client's engine would, so that a stale commit is rebased instead of sent back.
    It refuses a write that has missed something, also when its client has written it anew on a newer version; then run
    the statement again, with a new declaration (`carry_out`). An auditor goes by them, too.

    Args:
        snapshot_id: of the table as it was read; None where it had no snapshot yet.
        where: the filter of what was read, in Iceberg's expression JSON, such as ``{"type": "eq", "term": "region",
            "value": 1}``; True for the whole table. It covers all that the write depends on, subqueries too.
        isolation: what the write is owed. Under ``snapshot`` only what both have written counts.
    """
    return {
        READ_SNAPSHOT: "none" if snapshot_id is None else str(snapshot_id),
        FILTER: json.dumps(where, separators=(",", ":")),
        ISOLATION: isolation,
    }


def reads(
    table: Any, where: Any = True, *, isolation: Literal["snapshot", "serializable"] = "serializable"
) -> dict[str, str]:
    """As `having_read`, of a PyIceberg table and one of PyIceberg's own filters.

    `table.upsert(rows, snapshot_properties=keyed(key) | reads(table, "region = 'eu'"))` is then put on a newer head by
    the tower, where nothing came into that region meanwhile.

    Args:
        table: as it was loaded before anything was read of it.
        where: a text such as ``"region = 'eu' and day >= '2026-01-01'"``, an expression of `pyiceberg.expressions`, or
            True for the whole table. It covers all that the write depends on: of an upsert every row that its keys may
            match, and of an overwrite all rows of its `overwrite_filter`.
        isolation: what the write is owed. Under ``snapshot`` only what both have written counts.
    """
    # A scan parses the text, so that nothing of PyIceberg is imported here; its expressions write Iceberg's JSON.
    expression = table.scan(row_filter=where).row_filter if isinstance(where, str) else where
    snapshot = table.current_snapshot()
    return having_read(
        None if snapshot is None else snapshot.snapshot_id,
        expression if isinstance(expression, bool) else json.loads(expression.model_dump_json()),
        isolation=isolation,
    )
