"""The state of the engine at one table: its queue, its lock, and the groups that are in flight."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from icetower.commit.landed import Landed
from icetower.commit.limits import Limits
from icetower.commit.plan import Member
from icetower.commit.queue import FairQueue, Waiting
from icetower.commit.steps import PlanCache, Step, Version
from icetower.errors import IcetowerError
from icetower.protocol.names import Identifier
from icetower.recent import Budget


class GroupOutcome(Enum):
    """What became of a group; `engine.py` says what each means."""

    LANDED = auto()
    LOST = auto()
    REFUSED_LATE = auto()
    FAILED = auto()
    PREDECESSOR_LOST = auto()


@dataclass(eq=False, slots=True)
class InFlightGroup:
    """A group that was planned and is being committed. `error`: why it failed."""

    waiting: tuple[Waiting, ...]
    planned_on: Version
    step: Step | None
    error: IcetowerError | None
    landing: asyncio.Task[GroupOutcome] | None = None

    async def landed(self) -> GroupOutcome:
        """Its outcome; any number may await it."""
        assert self.landing is not None
        return await asyncio.shield(self.landing)


class TableState:
    """A table's queue, and the lock that a commit to the table holds."""

    def __init__(
        self, identifier: Identifier, limits: Limits, budget: Budget | None = None, landed: Landed | None = None
    ) -> None:
        """`landed`: names of the commits that landed last, or may have, with their tables."""
        self.identifier = identifier
        self._prefix = f"{identifier}\n"
        self.lock = asyncio.Lock()
        self.queue = FairQueue(limits.queue_max, limits.held_max)
        self.wake = asyncio.Event()
        """Set whenever the worker may have something to do."""
        self.worker: asyncio.Task[None] | None = None
        self.transaction_members: list[Waiting] = []
        """Members of transactions that wait for the lock or hold it."""
        self.in_flight: deque[InFlightGroup] = deque()
        self.cache = PlanCache(budget)
        self.version: tuple[str, int | None] | None = None
        """Location of the last head that was seen, and since when it has asked for snapshot isolation."""
        self.appended_s: float | None = None
        """When the last group with appends by the fast path, or rows, began."""
        self.appends = 0
        """How many of these it had."""
        self.linger_s = 0.0
        """How long after that the next group of nothing else begins, at the earliest."""
        self.under_way: Counter[str] = Counter()
        """How many commits that were not answered yet go by a name."""
        self._landed = Landed() if landed is None else landed
        """A client that got 504 sends again, while the first may land yet."""
        self.swaps_lost = 0
        self.expires = True
        """Whether snapshots may expire; not for a while after their keys could not be kept."""

    def begun(self, names: frozenset[str]) -> None:
        """A commit that goes by these names is under way."""
        self.under_way.update(names)

    def ended(self, names: frozenset[str]) -> None:
        """It was answered."""
        self.under_way.subtract(names)
        for name in names:
            if not self.under_way[name]:
                del self.under_way[name]

    def has_under_way(self, names: frozenset[str]) -> bool:
        """Whether any commit with one of these names was not answered yet."""
        return not self.under_way.keys().isdisjoint(names)

    @property
    def wanted(self) -> bool:
        """Whether a transaction waits for the lock."""
        return any(guest.taken_s is None for guest in self.transaction_members)

    def bases(self, *groups: Sequence[Waiting]) -> frozenset[int]:
        """The snapshots that commits on their way to the table were written on (trap H1)."""
        on_the_way = (
            self.queue,
            self.transaction_members,
            *(pending.waiting for pending in self.in_flight),
            *groups,
        )
        return frozenset(i for waiting in on_the_way for w in waiting for i in w.bases)

    def knows(self, member: Member) -> bool:
        """Whether a commit that is not here yet is under way by another request, or may have landed."""
        return self._more_than(0, member.identity.in_flight)

    def twice(self, waiting: Waiting) -> bool:
        """Whether the same commit is under way, or may have landed, by another request."""
        return self._more_than(1, waiting.names)

    def may_have_landed(self, members: Iterable[Waiting]) -> None:
        """These are in the table, or it is unknown whether they are."""
        for waiting in members:
            for name in waiting.names:
                self._landed.add(self._prefix + name)

    def _more_than(self, times: int, names: frozenset[str]) -> bool:
        return any(self.under_way[name] > times or self._prefix + name in self._landed for name in names)

    def saw(self, version: Version) -> None:
        """This version is the head now."""
        self.version = (version.head.location, version.isolation_since)
