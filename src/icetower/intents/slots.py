"""Slots that are handed out: each is an intent on its rows, which ends with the slot. Pure.

Nobody holds a slot beside another, since their intents conflict; and whoever overruns is fenced, since the intent has
ended. Who may take which slot, and from when on, the calendar says (`contracts/calendars.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from icetower.contracts.calendars import Opening, Part
from icetower.contracts.deliveries import Slot, moment_text
from icetower.contracts.regions import Range, Region, Values
from icetower.errors import Conflict, IcetowerError, KeyMisused
from icetower.intents.book import Book, fenced, held_text
from icetower.intents.model import Claim, Intent, Wanted
from icetower.intents.regions import boxes_of_slot
from icetower.protocol.names import Identifier

LATELY_SLOTS = 100
"""Who has had least time is told from so many of the slots before."""


@dataclass(frozen=True, slots=True)
class Taker:
    """Who wants the next slot of a table.

    Attributes:
        id: of the intent.
        ttl_ms: it ends unless it is renewed within this time; None: it lives to the end of its slot.
        least_ms: of a slot, so much must be left; else it is the next one.
    """

    id: str
    principal: str
    contract: str
    table: Identifier
    ttl_ms: int | None = None
    least_ms: int = 0


@dataclass(frozen=True, slots=True)
class Later:
    """There is no slot to take yet.

    Attributes:
        from_ms: when the taker may take one, unless somebody before it does.
        in_the_way: who holds those that go on.
        behind: that slot it comes too late for: so many before it in line may take longer than the slot lasts.
    """

    slot: Slot
    from_ms: int
    in_the_way: Sequence[Intent] = ()
    behind: int = 0


def take(book: Book, now_ms: int, taker: Taker, openings: Sequence[Opening], metadata: Any) -> Intent | Later:
    """The intent of the first slot that may be taken now and is free.

    Args:
        openings: by when they may be taken; the last of them is still to come.

    Raises:
        Forbidden: the slot that was taken under this id is over (``intent.fenced``).
        KeyMisused: the id is another intent's.
        TooManyRequests: as of `Book.declare`.
    """
    uuid, known = str(metadata["table-uuid"]), book.find(taker.id)
    if known is not None:
        if known.principal != taker.principal or known.slot is None or not known.claims_on(uuid):
            raise KeyMisused(f"the id {taker.id} is another intent's; take the slot under a new id", rule="intent.id")
        if not known.live:
            raise fenced(known)
        return known
    in_the_way: list[Intent] = []
    if openings[0].from_ms >= openings[0].slot.ends_ms:
        return Later(openings[0].slot, max(now_ms, openings[0].slot.ends_ms), behind=openings[0].before)
    for opening in openings:
        slot = opening.slot
        if slot.starts_ms > now_ms:
            return Later(slot, opening.from_ms, in_the_way)
        left_ms = slot.ends_ms - now_ms
        if left_ms <= 0 or left_ms < taker.least_ms <= slot.ends_ms - slot.starts_ms:
            continue
        claims = tuple(_claim(part, slot, taker.table, metadata) for part in opening.parts)
        boxes = [box for claim in claims for box in claim.boxes]
        held = book.near(uuid, boxes)
        if not held and opening.from_ms > now_ms:
            return Later(slot, opening.from_ms, in_the_way)
        if held:
            in_the_way += [each for each in held if each not in in_the_way]
            continue
        ttl_ms = slot.until_ms - now_ms if taker.ttl_ms is None else taker.ttl_ms
        return book.declare(Wanted(taker.id, taker.principal, taker.contract, claims, ttl_ms), now_ms)
    last = openings[-1].slot
    return Later(last, max(now_ms, last.ends_ms), in_the_way)


def _claim(part: Part, slot: Slot, table: Identifier, metadata: Any) -> Claim:
    base = (metadata.get("refs") or {}).get("main", {}).get("snapshot-id")
    return Claim(
        str(table),
        str(metadata["table-uuid"]),
        boxes_of_slot(part.regions, metadata, slot.starts_ms),
        frozenset(operation.value for operation in part.operations),
        _said(part.regions, slot),
        exclusive=True,
        base=base,
        slot=slot,
    )


def _said(regions: Sequence[Region], slot: Slot) -> str:
    """The rows of a slot as intents declare theirs; by the clock alone, the rest of the region."""
    said: list[dict[str, Any]] = []
    for region in regions:
        held: dict[str, Any] = {}
        for name, extent in region.fields:
            if isinstance(extent, Values):
                held[name] = list(extent.values)
            elif isinstance(extent, Range):
                held[name] = {side: at for side, at in (("from", extent.start), ("to", extent.end)) if at is not None}
            elif slot.term != "now":
                held[name] = {"from": moment_text(slot.starts_ms), "to": moment_text(slot.ends_ms)}
        said.append(held)
    return "all" if {} in said else json.dumps(said, sort_keys=True)


def had_ms(intents: Iterable[Intent], uuid: str, before_ms: int, length_ms: int) -> Mapping[str, int]:
    """How long each contract has held slots of a table lately, before a moment."""
    since_ms = before_ms - LATELY_SLOTS * length_ms
    found: dict[str, int] = {}
    for intent in intents:
        if intent.slot is None or intent.granted_ms is None or not intent.claims_on(uuid):
            continue
        ended_ms = intent.expires_ms if intent.ended_ms is None else min(intent.ended_ms, intent.slot.until_ms)
        held_ms = min(ended_ms, before_ms) - max(intent.granted_ms, since_ms)
        if held_ms > 0:
            found[intent.contract] = found.get(intent.contract, 0) + held_ms
    return found


def waiting(later: Later, table: Identifier) -> IcetowerError:
    """The refusal of who has waited for long enough."""
    if later.behind:
        return Conflict(
            f"{later.behind} contracts come before this one in the line of {later.slot}, the next slot of {table}, and "
            "their claim_within lasts longer than the slot; whoever has had least time lately is first in the next "
            f"line, that of {moment_text(later.from_ms)} UTC. Have claim_within shortened, or the slots lengthened",
            rule="slot.waiting",
            next_step="wait_until",
            wait_until_ms=later.from_ms,
        )
    held = f"; rows of the slot that goes on are held: {held_text(later.in_the_way)}" if later.in_the_way else ""
    return Conflict(
        f"the next slot of {table} that may be taken is {later.slot}, and it may be from "
        f"{moment_text(later.from_ms)} UTC on, by the tower's clock, unless somebody before takes it{held}",
        rule="slot.waiting",
        next_step="wait_until",
        wait_until_ms=later.from_ms,
    )
