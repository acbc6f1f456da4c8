"""The patterns by which an agent's rows come into a table (the guide, "Orchestration Patterns"). Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from icetower.contracts.reading import duration_text
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


def why_no_calendar(regions: Sequence[Region] | None, claim_within_ms: int) -> str | None:
    """Why slots cannot be handed out; None where they can: all regions have slots, which part the time evenly."""
    turns = [[extent for _, extent in region.fields if isinstance(extent, Turn)] for region in regions or ()]
    if not turns or not all(turns):
        return (
            "hands out slots, and a region of this entry has none; give each one, such as {every: 2m, from: 0s, to: 1m}"
        )
    for turn in (turn for several in turns for turn in several):
        if turn.every_ms % turn.length_ms or turn.start_ms % turn.length_ms:
            return (
                f"hands out slots of one length, one after another, and {turn} is none of these: 'every' and 'from' "
                "must be multiples of the length of the slot"
            )
        if claim_within_ms >= turn.length_ms:
            return f"must be shorter than the slot, and the slot is {turn}"
    return None


def handed_out(regions: tuple[Region, ...]) -> tuple[Region, ...]:
    """Regions with every slot of the calendar that theirs are slots of."""
    return tuple(
        Region(
            tuple((name, every_slot(extent) if isinstance(extent, Turn) else extent) for name, extent in each.fields)
        )
        for each in regions
    )


def every_slot(turn: Turn) -> Turn:
    """All slots of the length of a turn's, one after another, with its grace."""
    return Turn(turn.length_ms, 0, turn.length_ms, turn.grace_ms)


def claims_changed(_: int | None, now: int | None) -> str:
    """What a review says where `claim_within` changes."""
    if now is None:
        return "has its own slots of {} alone, and needs not take them (claim_within)"
    return f"takes slots of {{}} as they are handed out, those that others miss after {duration_text(now / 1000)}"
