"""The columns that an agent fills in where a table has them and its rows do not (docs/patterns.md)."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from itertools import chain
from typing import Any

from icetower.agent.asking import Columns
from icetower.agent.deliveries import AGENT, CHANGE, EVENT_TIME, KEY, WRITTEN, Delivery
from icetower.agent.journal import Way
from icetower.agent.keys import line_keys
from icetower.agent.rows import Filling, Piece, Rows, together
from icetower.errors import UsageError


@dataclass(frozen=True, slots=True)
class Route:
    """How the rows of a call go.

    Attributes:
        delivery: as the tower has told it last.
        way: by which they go.
        columns: of the table that they are written to.
    """

    delivery: Delivery
    way: Way
    columns: Columns

    @property
    def through(self) -> bool:
        """Whether they go through a log or a delta table."""
        return self.way.to != self.delivery.table


def filled(pieces: tuple[Piece, ...], route: Route, key: str, moment: dt.datetime) -> Rows:
    """The rows of a request with the columns that they lack.

    Args:
        key: of the request, as it was made first: the rows' own keys follow from it.
        moment: when the rows were made, so far as nothing else says so.
    """
    wanted: dict[str, Any] = {EVENT_TIME: moment}
    if route.through:
        wanted |= {AGENT: route.delivery.agent, WRITTEN: moment}
    slot = None if route.through else route.delivery.slot
    if slot is not None and slot.column is not None:
        wanted[slot.column] = slot.value
    keys = line_keys(chain.from_iterable(rows.lines() for _, rows in pieces), key) if KEY in route.columns else []
    found: list[Rows] = []
    for act, rows in pieces:
        if act == "upsert":
            _require_whole(rows, {*wanted, KEY, CHANGE}, route)
        constant = wanted | ({CHANGE: "delete" if act == "delete" else "upsert"} if route.through else {})
        columns = {
            name: Filling(kind, [_fitting(value, kind, name)] * rows.count)
            for name, value in constant.items()
            if (kind := route.columns.get(name)) is not None and rows.lacking([name])
        }
        if KEY in route.columns and rows.lacking([KEY]):
            columns[KEY] = Filling(
                route.columns[KEY], [_fitting(each, route.columns[KEY], KEY) for each in keys[: rows.count]]
            )
        keys = keys[rows.count :]
        found.append(rows.with_columns(columns) if columns else rows)
    return together(found)


def _require_whole(rows: Rows, filled_in: set[str], route: Route) -> None:
    missing = rows.lacking(name for name in route.columns if name not in filled_in)
    if missing:
        raise UsageError(
            f"an upsert replaces whole rows, and these lack {', '.join(missing)} of {route.delivery.table}"
        )


def _fitting(value: Any, kind: Any, name: str) -> Any:
    """A text or a moment as a column takes it: one of times without a zone has it in UTC."""
    if not isinstance(value, dt.datetime):
        if kind == "string":
            return value
    elif kind == "date":
        return value.date()
    elif isinstance(kind, str) and kind.startswith("timestamp"):
        return value if kind.startswith("timestamptz") else value.replace(tzinfo=None)
    raise UsageError(f"the column {name} of type {kind} cannot be filled in; send its values with the rows")
