"""The patterns by which an agent's rows come into a table (the guide, "Orchestration Patterns"). Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from icetower.contracts.regions import NOW, Extent, Range, Region
from icetower.contracts.slots import Turn


class Orchestration(StrEnum):
    """How an agent's rows come into a table (the guide, "Orchestration Patterns").

    direct      it commits to the table itself
    mediator    through the table's write-ahead log only; its own commits to the table are refused
    collector   likewise, through the table's delta table
    scheduler   it commits itself, into slots: every region that it owns moves with the clock
    """

    DIRECT = "direct"
    MEDIATOR = "mediator"
    COLLECTOR = "collector"
    SCHEDULER = "scheduler"


STRICTER = (Orchestration.DIRECT, Orchestration.SCHEDULER, Orchestration.MEDIATOR, Orchestration.COLLECTOR)
"""Of two patterns for one table, the later of these holds."""
THROUGH: Mapping[Orchestration, str] = {
    Orchestration.MEDIATOR: "write-ahead log",
    Orchestration.COLLECTOR: "delta table",
}
"""Patterns under which an agent commits to another table, from which a job takes its rows → the kind of that table."""


def all_move(regions: Sequence[Region] | None) -> bool:
    """Whether every region is bounded, on both sides, by the clock."""
    return bool(regions) and all(any(bounded_by_clock(extent) for _, extent in each.fields) for each in regions or ())


def bounded_by_clock(extent: Extent) -> bool:
    """Whether an extent is a slot: one that comes round, or a range whose both ends move."""
    if isinstance(extent, Turn):
        return True
    return isinstance(extent, Range) and all((side or "").startswith(NOW) for side in (extent.start, extent.end))
