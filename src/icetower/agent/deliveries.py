"""How an agent's rows come into a table, as the tower tells it: the pattern, the table to append to, and the slot."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from icetower.errors import UsageError
from icetower.protocol.marks import AGENT_COLUMN, CHANGE_COLUMN, EVENT_TIME_COLUMN, KEY_COLUMN, WRITTEN_COLUMN

DIRECT, SCHEDULER, MEDIATOR, COLLECTOR = "direct", "scheduler", "mediator", "collector"

Act = Literal["append", "upsert", "delete"]
"""What an agent does with rows: add them; put them in place of those with the same keys; remove those with the same
keys."""
GRANTS: Mapping[Act, str] = {"append": "append", "upsert": "overwrite", "delete": "delete"}
"""Act → the operation that contracts grant for it."""

KEY, AGENT, WRITTEN = KEY_COLUMN, AGENT_COLUMN, WRITTEN_COLUMN
CHANGE, EVENT_TIME = CHANGE_COLUMN, EVENT_TIME_COLUMN
"""Columns that `send` fills in where a table has them and the rows do not."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A time in which an agent may commit, by the tower's clock.

    Attributes:
        column: the column whose value must lie in it; None: any rows may be written in that time.
        starts_ms, ends_ms: half open, milliseconds since 1970.
        until_ms: the end of its grace: for so long a commit of this slot is let in.
        now_ms: the tower's clock when it was asked.
        clock_s: of a slot that is held, the agent's monotonic clock, which showed `asked_s` then.
    """

    column: str | None
    starts_ms: int
    ends_ms: int
    until_ms: int
    now_ms: int
    clock_s: Callable[[], float] | None = field(default=None, compare=False, repr=False)
    asked_s: float = field(default=0.0, compare=False, repr=False)

    @property
    def value(self) -> dt.datetime:
        """What to write into its column: its beginning, in UTC."""
        return dt.datetime.fromtimestamp(self.starts_ms / 1000, dt.UTC)

    @property
    def starts_in_s(self) -> float:
        """How long to wait for it, whatever the agent's own clock says."""
        return max(0, self.starts_ms - self.now_ms) / 1000

    @property
    def left_s(self) -> float:
        """How long it still lasts, grace included: from now on if it is held, else from when the tower was asked."""
        gone_s = 0.0 if self.clock_s is None else max(0.0, self.clock_s() - self.asked_s)
        return max(0.0, self.until_ms - max(self.now_ms + gone_s * 1000, self.starts_ms)) / 1000


@dataclass(frozen=True, slots=True)
class Delivery:
    """The way of an operation's rows.

    Attributes:
        agent: the name of the contract.
        pattern: ``direct``, ``scheduler``, ``mediator`` or ``collector``.
        through: the log or delta table that the rows are appended to; None: the table itself.
        blind: whether the contract promises that what is appended there depends on nothing that was read.
        key_columns: the identifier fields of the table's schema.
        slot: the slot that goes on or comes next; None: any time is right.
    """

    table: str
    operation: str
    agent: str
    pattern: str
    through: str | None
    blind: bool
    key_columns: tuple[str, ...]
    slot: Slot | None

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Delivery:
        """A delivery of the tower's answer."""
        slot = answer["slot"]
        return cls(
            answer["table"],
            answer["operation"],
            answer["agent"],
            answer["pattern"],
            answer["through"],
            answer["blind"],
            tuple(answer["key_columns"]),
            None if slot is None else Slot(**slot, now_ms=answer["now_ms"]),
        )

    @property
    def written(self) -> str:
        """The table that the rows are written to."""
        return self.through or self.table

    def seed(self, key: str) -> str:
        """What the keys of rows sent under a key are made of: equal rows of two agents are not one that came twice."""
        return f"{self.agent}\n{key}"


@dataclass(frozen=True, slots=True)
class Sent:
    """Rows are where their pattern takes them.

    Attributes:
        pattern, table: how they went, and the table that they were written to.
        key: under which they are there once.
        slot: in which they were written, if they were.
        again: whether they were there already, from an earlier send under the key.
        snapshot_id: in which they are there, as far as the table tells.
    """

    pattern: str
    table: str
    key: str
    slot: Slot | None = None
    again: bool = False
    snapshot_id: int | None = None


def require_taken(delivery: Delivery, act: str) -> None:
    """Raises `UsageError` where the pattern does not take what is to be done with the rows."""
    if delivery.pattern == MEDIATOR and act == "delete":
        raise UsageError(
            f"a write-ahead log takes no deletes, and the rows of {delivery.table} come through {delivery.through}; "
            "the patterns direct, scheduler and collector delete"
        )
    if delivery.pattern in (MEDIATOR, COLLECTOR) and act == "overwrite_partition":
        raise UsageError(
            f"no partition is overwritten through {delivery.through}, by which the rows of {delivery.table} come; the "
            "patterns direct and scheduler overwrite"
        )
