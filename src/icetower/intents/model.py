"""An intent, as it is declared and as it stands. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from icetower.contracts.boxes import Box
from icetower.contracts.deliveries import Slot
from icetower.intents.regions import meet

APPENDS = frozenset({"append"})
REVOCATION = "a revocation"
"""Ends the intents of a principal that is revoked, or whose contract is. No principal has a name with a space."""
KEPT_CHARACTERS_MAX = 2_000


class State(StrEnum):
    """What an intent is."""

    QUEUED = "queued"
    HELD = "held"
    ENDED = "ended"


class End(StrEnum):
    """How an intent has ended.

    released    by its holder
    expired     it was not renewed in time
    broken      by a person, or since its principal may not act any more (`REVOCATION`)
    overtaken   its table knows of a later fence than the control database has given: that was lost, or restored
    """

    RELEASED = "released"
    EXPIRED = "expired"
    BROKEN = "broken"
    OVERTAKEN = "overtaken"


@dataclass(frozen=True, slots=True)
class Claim:
    """Rows of one table, and what is to be done to them.

    Attributes:
        table: its name when the intent was declared.
        said: the regions or the filter as they were declared, as JSON.
        exclusive: nothing of others comes into the rows, appends that are known to be blind included.
        base: the snapshot at which ``main`` stood when it was declared.
        slot: the slot that the rows are of, where it was handed out; held until the end of its grace at most.
    """

    table: str
    uuid: str
    boxes: tuple[Box, ...]
    operations: frozenset[str]
    said: str = "all"
    exclusive: bool = False
    base: int | None = None
    slot: Slot | None = None

    @property
    def pieces(self) -> int:
        """Of how many stretches of values its rows are made: what it costs to compare them."""
        return sum(len(spans.pieces) + spans.null for box in self.boxes for spans in box.values())

    def ended(self) -> Claim:
        """What is kept of it when its intent has ended: long ones without what they said."""
        return self if len(self.said) <= KEPT_CHARACTERS_MAX else replace(self, said="null", boxes=())

    @property
    def shares(self) -> bool:
        """Whether others may append beside it."""
        return self.operations == APPENDS and not self.exclusive

    def conflicts(self, other: Claim) -> bool:
        """Whether only one of the two may be held."""
        apart = self.uuid != other.uuid or (self.shares and other.shares)
        return not apart and meet(self.boxes, other.boxes)


@dataclass(frozen=True, slots=True)
class Intent:
    """A lease on rows of some tables, or a wish for one.

    Attributes:
        number: its place in the queue of all.
        fence: given with the grant.
        granted_ms, renewed_ms: milliseconds since 1970.
        ended_by: who has released or broken it.
        changed: the change of the book that it was changed by last.
    """

    id: str
    number: int
    principal: str
    contract: str
    claims: tuple[Claim, ...]
    ttl_ms: int
    state: State
    declared_ms: int
    renewed_ms: int
    fence: int | None = None
    granted_ms: int | None = None
    ended: End | None = None
    ended_ms: int | None = None
    ended_by: str = ""
    changed: int = 0

    @property
    def slot(self) -> Slot | None:
        """The slot that was handed out by it."""
        return self.claims[0].slot

    @property
    def expires_ms(self) -> int:
        lived_ms, slot = self.renewed_ms + self.ttl_ms, self.slot
        return lived_ms if slot is None else min(lived_ms, slot.until_ms)

    @property
    def live(self) -> bool:
        return self.state is not State.ENDED

    def holds(self, now_ms: int) -> bool:
        """Whether it is held, and its time has not passed."""
        return self.state is State.HELD and now_ms < self.expires_ms

    def claims_on(self, uuid: str) -> list[Claim]:
        return [claim for claim in self.claims if claim.uuid == uuid]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What somebody wants to hold.

    Attributes:
        id: chosen by the caller: the same intent, declared again, is the one that is there.
        queue: wait where another holds the rows; else be refused.
    """

    id: str
    principal: str
    contract: str
    claims: tuple[Claim, ...]
    ttl_ms: int
    queue: bool = False


@dataclass(frozen=True, slots=True)
class News:
    """What the database has that a book does not know.

    Attributes:
        whole: this is all there is, and not only what has changed.
        number, fence, order: the counters as they stand.
        granted: by table, the highest fence, where that has changed.
        warnings: intent and warning.
    """

    whole: bool
    number: int
    fence: int
    order: int
    intents: Sequence[Intent] = ()
    granted: Mapping[str, int] = field(default_factory=dict[str, int])
    warnings: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class Size:
    """How much some intents are.

    Attributes:
        pieces: stretches of values of which their rows are made.
        text: characters in which they say so.
    """

    intents: int = 0
    pieces: int = 0
    text: int = 0

    @classmethod
    def of(cls, claims: Sequence[Claim]) -> Size:
        """Of one intent."""
        return cls(1, sum(claim.pieces for claim in claims), sum(len(claim.said) for claim in claims))

    def __add__(self, other: Size) -> Size:
        return Size(self.intents + other.intents, self.pieces + other.pieces, self.text + other.text)

    def __sub__(self, other: Size) -> Size:
        return Size(self.intents - other.intents, self.pieces - other.pieces, self.text - other.text)
