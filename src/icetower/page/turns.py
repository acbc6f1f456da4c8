"""Slots of contracts on a timeline: whose turn it was, is and will be. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from icetower.contracts.model import Contract
from icetower.contracts.slots import Turn
from icetower.page.axis import Axis
from icetower.page.times import clock_text

ROWS_MAX = 100
SLOTS_MAX = 60
"""Slots of one row that are drawn."""
WIDTH, NAMES_WIDTH, MARGIN = 960, 230, 10
BEFORE_SHARE = 0.25
"""So much of the time that is drawn lies before now."""
PERIODS = 3


@dataclass(frozen=True, slots=True)
class Bar:
    """One slot, in the units of the drawing; `now`: it goes on."""

    x: float
    width: float
    now: bool
    words: str


@dataclass(frozen=True, slots=True)
class TurnRow:
    """The slots of one contract at one table."""

    contract: str
    tables: str
    term: str
    turn: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Turns:
    """The drawing: `now_x` is where now is."""

    rows: tuple[TurnRow, ...]
    left_out: int
    now_x: float
    from_text: str
    to_text: str


def turns_of(contracts: Iterable[Contract], now_ms: int) -> Turns:
    """The slots of some contracts around now: three of the longest periods, or as much as can be drawn."""
    found = list(_turns(contracts))
    span_ms = max((turn.every_ms for _, _, _, turn in found[:ROWS_MAX]), default=60_000) * PERIODS
    start_ms = now_ms - int(span_ms * BEFORE_SHARE)
    axis = Axis(start_ms, start_ms + span_ms, NAMES_WIDTH, WIDTH - MARGIN)
    rows = tuple(
        TurnRow(contract, tables, term, str(turn), tuple(_bars(turn, axis, now_ms)))
        for contract, tables, term, turn in found[:ROWS_MAX]
    )
    return Turns(
        rows,
        max(0, len(found) - ROWS_MAX),
        axis.across(now_ms),
        clock_text(axis.start_ms),
        clock_text(axis.end_ms),
    )


def _turns(contracts: Iterable[Contract]) -> Iterator[tuple[str, str, str, Turn]]:
    for contract in contracts:
        for rule in contract.tables:
            for region in rule.partitions or ():
                for term, extent in region.fields:
                    if isinstance(extent, Turn):
                        yield contract.name, str(rule.pattern), term, extent


def _bars(turn: Turn, axis: Axis, now_ms: int) -> Iterator[Bar]:
    for begin, end in islice(axis.slots(turn), SLOTS_MAX):
        words = f"from {clock_text(begin)} to {clock_text(end)} UTC"
        yield Bar(*axis.stretch(begin, end), begin <= now_ms < end, words)
