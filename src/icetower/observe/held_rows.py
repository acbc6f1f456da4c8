"""What `intents: required` would have refused: commits that landed in rows which another's intent held.

They are counted by table and principal since the tower was started, in memory, for `GET /icetower/v1/intents/ignored`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from icetower.ambient import Ambient

KEPT_MAX = 10_000
"""Counts that are kept; the one that has not grown for the longest time gives way."""
HOLDERS_MAX = 5


@dataclass(slots=True)
class _Count:
    first_ms: int
    landed: int = 0
    last_ms: int = 0
    holders: dict[str, None] = field(default_factory=dict[str, None])


class HeldRows:
    """Commits that have ignored intents."""

    def __init__(self, ambient: Ambient) -> None:
        self._ambient = ambient
        self._counts: OrderedDict[tuple[str, str], _Count] = OrderedDict()

    def ignored(self, table: str, principal: str, holders: Sequence[str]) -> None:
        """A commit has landed in rows that these principals held."""
        now_ms = self._ambient.now_ms()
        count = self._counts.setdefault((table, principal), _Count(now_ms))
        self._counts.move_to_end((table, principal))
        if len(self._counts) > KEPT_MAX:
            self._counts.popitem(last=False)
        count.landed += 1
        count.last_ms = now_ms
        for holder in holders:
            if len(count.holders) < HOLDERS_MAX:
                count.holders[holder] = None

    def to_json(self, principal: str | None, table: str | None, limit: int) -> list[dict[str, Any]]:
        """The counts as the control API shows them, the highest first.

        Args:
            principal: only this one's; None: everybody's.
            table: only this one's; None: of all tables.
        """
        wanted = [
            (key, count)
            for key, count in self._counts.items()
            if table in (None, key[0]) and principal in (None, key[1])
        ]
        wanted.sort(key=lambda each: (-each[1].landed, each[0]))
        return [
            {
                "table": table,
                "principal": principal,
                "landed": count.landed,
                "holders": list(count.holders),
                "first_ms": count.first_ms,
                "last_ms": count.last_ms,
                "command": f"icetower tables set {table} --intents required",
            }
            for (table, principal), count in wanted[:limit]
        ]
