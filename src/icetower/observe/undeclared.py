"""What declarations would have spared: stale commits that were refused since nothing says what they depend on.

Without a declaration the server cannot judge a stale commit, and sends it back as every catalog does. Clients that do
not try again lose it. So the refusals are counted, by table, principal and declaration, for
`GET /icetower/v1/undeclared`, and the first, the tenth, the hundredth and so on is a line on the server's log. The
counts are kept in memory.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from icetower.ambient import Ambient
from icetower.errors import MissingDeclaration
from icetower.observe.events import Event, Events
from icetower.protocol.declarations import Declaration, command_of

KEPT_MAX = 10_000
"""Counts that are kept; the one that has not grown for the longest time gives way."""


@dataclass(slots=True)
class _Count:
    refused: int
    first_ms: int
    last_ms: int


class Undeclared:
    """Refusals for want of a declaration, since the tower was started."""

    def __init__(self, ambient: Ambient, events: Events) -> None:
        self._ambient = ambient
        self._events = events
        self._counts: OrderedDict[tuple[str, str, Declaration], _Count] = OrderedDict()

    def refused(self, principal: str, missing: MissingDeclaration) -> None:
        """A commit was refused."""
        declaration, now_ms = Declaration(missing.declaration), self._ambient.now_ms()
        key = (missing.table, principal, declaration)
        count = self._counts.setdefault(key, _Count(0, now_ms, now_ms))
        self._counts.move_to_end(key)
        if len(self._counts) > KEPT_MAX:
            self._counts.popitem(last=False)
        count.refused += 1
        count.last_ms = now_ms
        if _power_of_ten(count.refused):
            self._events.say(
                Event.UNDECLARED,
                principal=principal,
                table=missing.table,
                declaration=declaration.value,
                refused=count.refused,
                command=command_of(declaration, missing.table),
            )

    def to_json(self, principal: str | None, table: str | None, limit: int) -> list[dict[str, Any]]:
        """The counts as the control API shows them, the highest first.

        Args:
            principal: only this one's; None: everybody's.
            table: only this one's; None: of all tables.
        """
        wanted = [
            (key, count)
            for key, count in self._counts.items()
            if (principal is None or key[1] == principal) and (table is None or key[0] == table)
        ]
        wanted.sort(key=lambda each: (-each[1].refused, each[0]))
        return [
            {
                "table": table,
                "principal": principal,
                "declaration": declaration.value,
                "refused": count.refused,
                "first_ms": count.first_ms,
                "last_ms": count.last_ms,
                "command": command_of(declaration, table),
            }
            for (table, principal, declaration), count in wanted[:limit]
        ]


def _power_of_ten(number: int) -> bool:
    return str(number).strip("0") == "1"
