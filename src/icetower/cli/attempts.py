"""Attempts to commit as people read them: repeated refusals folded into one row, and new ones as they come."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

REFUSED = frozenset({"refused", "conflict", "unknown"})
SHOWN_AGAIN_MS = 60_000
"""An attempt is logged after it has ended: one that began earlier may turn up so much later."""

Row = Mapping[str, Any]


def folded(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Refusals that differ only in their time and their request, as one row at the place of the newest.

    Args:
        rows: attempts, newest first.

    Each row has `times`, how many there are, and `first_ms`, when the oldest of them was.
    """
    found: dict[object, dict[str, Any]] = {}
    for position, row in enumerate(rows):
        same: object = position
        if row["outcome"] in REFUSED:
            same = (row["principal"], row["table"], row["operation"], row["outcome"], row["rule"], *row["partitions"])
        first = found.get(same)
        if first is None:
            found[same] = {**row, "times": 1, "first_ms": row["at_ms"]}
        else:
            first["times"] += 1
            first["first_ms"] = row["at_ms"]
    return list(found.values())


def followed(ask: Callable[[int], Sequence[Row]], since_ms: int, wait: Callable[[], bool]) -> Iterator[list[Row]]:
    """The attempts that turn up, oldest first, in a list for each time of asking.

    Args:
        ask: the attempts since a time, newest first.
        wait: waits between two times of asking; false ends it.
    """
    seen: dict[object, int] = {}
    newest_ms = since_ms
    while True:
        rows = ask(max(since_ms, newest_ms - SHOWN_AGAIN_MS))
        fresh = [row for row in reversed(rows) if _id_of(row) not in seen]
        seen |= {_id_of(row): row["at_ms"] for row in fresh}
        newest_ms = max([newest_ms, *(row["at_ms"] for row in fresh)])
        seen = {each: at_ms for each, at_ms in seen.items() if at_ms >= newest_ms - 2 * SHOWN_AGAIN_MS}
        yield fresh
        if not wait():
            return


def _id_of(row: Row) -> object:
    return row["at_ms"], row["request_id"], row["principal"], row["table"], row["operation"], row["outcome"]
