"""Leases on a timeline, table by table: who holds which rows, from when until when, and who waits for whom. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from icetower.contracts.model import Contract
from icetower.contracts.slots import Turn
from icetower.errors import BadRequest
from icetower.intents.model import Claim, End, Intent, State
from icetower.page.axis import Axis
from icetower.page.times import clock_text
from icetower.protocol.names import Identifier

TABLES_MAX = 20
ROWS_MAX = 60
"""Leases of one table that are shown."""
SLOTS_MAX, SLOT_BARS_MAX = 10, 60
WIDTH, NAMES_WIDTH, MARGIN, ROW_HEIGHT, TOP = 960, 190, 34, 22, 6
"""Of the drawing, in its own units."""
TICKS = 4
BEFORE_MAX_MS, AFTER_MAX_MS = 60 * 60_000, 5 * 60_000
"""So much before and after now is drawn at most; after it as much as before it, where that is more."""
BEFORE_MIN_MS, AFTER_MIN_MS = 2 * 60_000, 60_000
NAME_CHARACTERS_MAX = 26
ROWS_CHARACTERS_MAX = 300


@dataclass(frozen=True, slots=True)
class LeaseSeen:
    """An intent, and what is known beside it.

    Attributes:
        waits_for: the intents that it waits for, as far as they may be named.
        warnings: how many commits of others have landed in its rows.
    """

    intent: Intent
    waits_for: tuple[Intent, ...] = ()
    warnings: int = 0


@dataclass(frozen=True, slots=True)
class LeaseBar:
    """A stretch of time, in the units of the drawing.

    Attributes:
        kind: ``held``, ``ahead`` (until it expires), ``queued``, ``ended``, ``lost`` (not released by its holder),
            ``slot`` or ``turn`` (a slot that goes on).
    """

    x: float
    width: float
    kind: str
    words: str


@dataclass(frozen=True, slots=True)
class LeaseLine:
    """One line of the drawing: a lease, or the slots of a contract. `id_`: of the lease; "" for slots."""

    id_: str
    name: str
    whole_name: str
    y: int
    bars: tuple[LeaseBar, ...]


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """One lease on one table, in words.

    Attributes:
        rows: which ones, as they were declared.
        since_ms: of the grant, or of the declaration of one that waits.
        until_ms: when it ends unless it is renewed; of one that has ended, when that was.
        how: it has ended.
    """

    seen: LeaseSeen
    rows: str
    operations: str
    since_ms: int
    until_ms: int
    left: str
    how: str

    @property
    def intent(self) -> Intent:
        return self.seen.intent


@dataclass(frozen=True, slots=True)
class TableLeases:
    """The leases of one table, as a drawing and in words."""

    table: str
    rows: tuple[LeaseRow, ...]
    left_out: int
    lines: tuple[LeaseLine, ...]
    ticks: tuple[tuple[float, str], ...]
    now_x: float
    height: int
    words: str


@dataclass(frozen=True, slots=True)
class Leases:
    """All tables. `more_tables`: that have leases, too, and are left out."""

    tables: tuple[TableLeases, ...]
    more_tables: int
    held: int
    queued: int
    lost: int


def leases_of(seen: Sequence[LeaseSeen], contracts: Iterable[Contract], now_ms: int) -> Leases:
    """The page of some leases: tables first where somebody waits, then by name.

    Args:
        seen: held ones, those that wait, and some that have ended lately.
        contracts: that may have slots.
    """
    contracts = list(contracts)
    by_table: dict[str, list[LeaseSeen]] = {}
    for each in seen:
        for table in dict.fromkeys(claim.table for claim in each.intent.claims):
            by_table.setdefault(table, []).append(each)
    waited = {table for table, some in by_table.items() if any(one.intent.state is State.QUEUED for one in some)}
    names = sorted(by_table, key=lambda table: (table not in waited, table))
    states = [each.intent.state for each in seen]
    return Leases(
        tuple(_table(name, by_table[name], contracts, now_ms) for name in names[:TABLES_MAX]),
        max(0, len(names) - TABLES_MAX),
        states.count(State.HELD),
        states.count(State.QUEUED),
        sum(each.intent.ended in (End.EXPIRED, End.BROKEN, End.OVERTAKEN) for each in seen),
    )


_ORDER = {State.HELD: 0, State.QUEUED: 1, State.ENDED: 2}


def _table(name: str, seen: Sequence[LeaseSeen], contracts: Sequence[Contract], now_ms: int) -> TableLeases:
    def order(each: LeaseSeen) -> tuple[int, int]:
        intent = each.intent
        return _ORDER[intent.state], -(intent.ended_ms or 0) if intent.state is State.ENDED else intent.number

    ordered = sorted(seen, key=order)
    rows = tuple(_row(name, each, now_ms) for each in ordered[:ROWS_MAX])
    start_ms = max(now_ms - BEFORE_MAX_MS, min([now_ms - BEFORE_MIN_MS, *(row.since_ms for row in rows)]))
    ends = (row.until_ms for row in rows if row.intent.live)
    after_ms = max(AFTER_MAX_MS, now_ms - start_ms)
    end_ms = min(now_ms + after_ms, max([now_ms + AFTER_MIN_MS, *ends]))
    axis = Axis(start_ms, end_ms, NAMES_WIDTH, WIDTH - MARGIN)
    lines = [
        *(_slot_line(contract, turn, axis, now_ms) for contract, turn in _turns(name, contracts)),
        *(_lease_line(row, axis, now_ms) for row in rows if row.until_ms >= start_ms),
    ]
    placed = tuple(
        LeaseLine(id_, _short(label), label, TOP + ROW_HEIGHT * at, bars) for at, (id_, label, bars) in enumerate(lines)
    )
    held, queued = (sum(row.intent.state is state for row in rows) for state in (State.HELD, State.QUEUED))
    return TableLeases(
        name,
        rows,
        max(0, len(ordered) - ROWS_MAX),
        placed,
        axis.ticks(TICKS),
        axis.across(now_ms),
        TOP + ROW_HEIGHT * len(placed) + 18,
        f"{held} held and {queued} waiting, from {clock_text(start_ms)} to {clock_text(end_ms)} UTC",
    )


def _row(table: str, seen: LeaseSeen, now_ms: int) -> LeaseRow:
    intent = seen.intent
    claims = [claim for claim in intent.claims if claim.table == table]
    since_ms = intent.granted_ms or intent.declared_ms
    until_ms = intent.expires_ms if intent.ended_ms is None else intent.ended_ms
    return LeaseRow(
        seen,
        "; ".join(dict.fromkeys(map(rows_text, claims))),
        "; ".join(dict.fromkeys(map(_operations_text, claims))),
        since_ms,
        until_ms,
        left_text(until_ms - now_ms) if intent.live else "",
        how_text(intent),
    )


def rows_text(claim: Claim) -> str:
    """Which rows a claim is about, as it was declared: ``day 2017-01-02, region eu or as``."""
    try:
        said: Any = "all" if claim.said == "all" else json.loads(claim.said)
    except ValueError:
        said = claim.said
    if said == "all":
        return "all rows that are its"
    if isinstance(said, list):
        text = " or ".join(_region_text(each) for each in said)
    else:
        text = f"where {json.dumps(said.get('filter') if isinstance(said, dict) else said, ensure_ascii=False)}"
    return text if len(text) <= ROWS_CHARACTERS_MAX else text[: ROWS_CHARACTERS_MAX - 1] + "…"


def _region_text(region: Any) -> str:
    if not isinstance(region, Mapping):
        return json.dumps(region, ensure_ascii=False)
    return ", ".join(f"{field} {_extent_text(extent)}" for field, extent in region.items())


def _extent_text(extent: Any) -> str:
    if isinstance(extent, list):
        return " or ".join(map(_value_text, extent))
    if isinstance(extent, Mapping):
        return " ".join(f"{word} {_value_text(value)}" for word, value in extent.items())
    return _value_text(extent)


def _value_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _operations_text(claim: Claim) -> str:
    return ", ".join(sorted(claim.operations)) + (", exclusive" if claim.exclusive else "")


def left_text(ms: int) -> str:
    """How long something goes on: ``42 s``, ``12 min``, ``1 h 5 min``."""
    seconds = max(0, ms) // 1000
    if seconds < 120:
        return f"{seconds} s"
    minutes = seconds // 60
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def how_text(intent: Intent) -> str:
    """How an intent has ended; "" while it is live."""
    if intent.ended is None:
        return ""
    by = f" by {intent.ended_by}" if intent.ended is End.BROKEN and intent.ended_by else ""
    return f"{intent.ended.value}{by}" if intent.granted_ms is not None else f"{intent.ended.value}{by}, never held"


def _lease_line(row: LeaseRow, axis: Axis, now_ms: int) -> tuple[str, str, tuple[LeaseBar, ...]]:
    intent, name = row.intent, row.intent.principal

    def bar(start_ms: int, end_ms: int, kind: str, words: str) -> LeaseBar:
        return LeaseBar(*axis.stretch(start_ms, end_ms, 1.5), kind, f"{name} {words}")

    when = f"since {clock_text(row.since_ms)}"
    if intent.state is State.ENDED:
        kind = "ended" if intent.ended is End.RELEASED else "lost"
        return intent.id, name, (bar(row.since_ms, row.until_ms, kind, f"{row.how}: {row.rows}, {when}"),)
    if intent.state is State.QUEUED:
        return intent.id, name, (bar(row.since_ms, now_ms, "queued", f"waits for {row.rows} {when}"),)
    until = f"until {clock_text(row.until_ms)} UTC unless it renews"
    return (
        intent.id,
        name,
        (
            bar(row.since_ms, now_ms, "held", f"holds {row.rows} {when}"),
            bar(now_ms, row.until_ms, "ahead", f"holds {row.rows} {until}"),
        ),
    )


def _turns(table: str, contracts: Sequence[Contract]) -> Iterator[tuple[str, Turn]]:
    """The slots of contracts at a table; the first few of them."""
    shown = 0
    try:
        identifier = Identifier.parse(table)
    except BadRequest:  # a name whose levels hold dots: contracts cannot name it
        return
    for contract in contracts:
        for rule in contract.rules_for(identifier):
            for region in rule.partitions or ():
                for _, extent in region.fields:
                    if isinstance(extent, Turn) and shown < SLOTS_MAX:
                        shown += 1
                        yield contract.name, extent


def _slot_line(contract: str, turn: Turn, axis: Axis, now_ms: int) -> tuple[str, str, tuple[LeaseBar, ...]]:
    seen = ((begin, end) for begin, end in axis.slots(turn) if axis.across(end) > axis.across(begin))
    bars = tuple(
        LeaseBar(
            *axis.stretch(begin, end),
            "turn" if begin <= now_ms < end else "slot",
            f"slot of {contract} from {clock_text(begin)} to {clock_text(end)} UTC",
        )
        for begin, end in islice(seen, SLOT_BARS_MAX)
    )
    return "", f"slot: {contract}", bars


def _short(name: str) -> str:
    return name if len(name) <= NAME_CHARACTERS_MAX else name[: NAME_CHARACTERS_MAX - 1] + "…"
