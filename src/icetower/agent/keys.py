"""An agent's declarations in a snapshot's summary: the idempotency key, and what the write has read."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, Literal

from icetower.ambient import Ambient, SystemAmbient
from icetower.protocol.marks import BLIND, FILTER, ISOLATION, KEY, READ_SNAPSHOT


def new_key(ambient: Ambient | None = None) -> str:
    """A new key: a UUID of version 7, as the header `Idempotency-Key` requires it.

    Keep it with the work that it identifies, and send it with every retry of that work, also after a crash.
    """
    return (ambient or SystemAmbient()).uuid7()


def next_key(key: str) -> str:
    """The key for a write whose own key stands for something else by now, or was rolled back.

    Always the same one: the write is sent once more under its own key by whoever has lost the answer, and must come by
    the same way to the key under which it has landed. Of a UUID of version 7 it is one of the same time.
    """
    digest = _digest(f"icetower: the key after {key}")
    return digest[:32] if _UUID7.fullmatch(key) is None else _uuid7(key, digest)


def request_key(key: str, number: int, of: int) -> str:
    """The key of one of the requests in which rows are sent under a key: always the same one, a UUID of version 7.

    The only request of rows goes under their own key, if that is such a UUID. Of several, the last has a key that tells
    it from the others: they are sent one after the other, so that all have landed where the last one has.
    """
    is_uuid = _UUID7.fullmatch(key) is not None
    if of == 1 and is_uuid:
        return key
    name = "request 0" if of == 1 else "the last request" if number == of - 1 else f"part {number}"
    # The time of a text that is no UUID is not known. A key must never look newer than it is.
    return _uuid7(key if is_uuid else "00000000-0000-7000-8000-", _digest(f"icetower: {name} of {key}"))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _uuid7(like: str, digest: str) -> str:
    """A UUID of version 7 of the same time as another one, with the bits of a digest."""
    return f"{like[:15]}{digest[:3]}-{like[19]}{digest[3:6]}-{digest[6:18]}"


_UUID7 = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-7[0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}")


def keyed(key: str, *, blind: bool = False) -> dict[str, str]:
    """Snapshot properties that make a write exactly-once, for PyIceberg's `snapshot_properties` and the like.

    Args:
        key: the same for every attempt at the same write.
        blind: declares that this append depends on nothing that was read from the table, so the server may rebase it.
            An append that replaces rows it has looked up is not blind.
    """
    properties = {KEY: key}
    if blind:
        properties[BLIND] = "true"
    return properties


def having_read(
    snapshot_id: int | None, where: Any, *, isolation: Literal["snapshot", "serializable"] = "serializable"
) -> dict[str, str]:
    """Snapshot properties that declare what a write depends on, in addition to those of `keyed`.

    With them the tower validates what the client's engine would, so a stale commit is rebased instead of refused. It
    refuses a write that has missed a change, also when its client has rewritten it on a newer version; then run the
    statement again, with a new declaration (`carry_out`). The audit uses the declarations, too.

    Args:
        snapshot_id: the snapshot of the table that was read; None if it had none yet.
        where: the filter of the read, in Iceberg's expression JSON, such as ``{"type": "eq", "term": "region",
            "value": 1}``; True for the whole table. It must cover everything that the write depends on, including
            subqueries.
        isolation: the level that the write requires. Under ``snapshot`` only rows that both commits write conflict.
    """
    return {
        READ_SNAPSHOT: "none" if snapshot_id is None else str(snapshot_id),
        FILTER: json.dumps(where, separators=(",", ":")),
        ISOLATION: isolation,
    }


def reads(
    table: Any, where: Any = True, *, isolation: Literal["snapshot", "serializable"] = "serializable"
) -> dict[str, str]:
    """Like `having_read`, for a PyIceberg table and one of PyIceberg's own filters.

    The tower then rebases `table.upsert(rows, snapshot_properties=keyed(key) | reads(table, "region = 'eu'"))` onto a
    newer head if nothing was added to that region meanwhile.

    Args:
        table: the table as loaded before anything was read from it.
        where: a text such as ``"region = 'eu' and day >= '2026-01-01'"``, an expression of `pyiceberg.expressions`, or
            True for the whole table. It must cover everything that the write depends on: for an upsert every row that
            its keys may match, and for an overwrite all rows of its `overwrite_filter`.
        isolation: the level that the write requires. Under ``snapshot`` only rows that both commits write conflict.
    """
    # A scan parses the text, so PyIceberg is not imported here; its expressions write Iceberg's JSON.
    expression = table.scan(row_filter=where).row_filter if isinstance(where, str) else where
    snapshot = table.current_snapshot()
    return having_read(
        None if snapshot is None else snapshot.snapshot_id,
        expression if isinstance(expression, bool) else json.loads(expression.model_dump_json()),
        isolation=isolation,
    )
