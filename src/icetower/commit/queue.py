"""A table's queue: fair between principals, bounded, and held back rather than refused (trap A4).

Each principal's commits keep their order; the principals take turns. So one that sends a thousand commits delays
another's single commit by one, not by a thousand. When the queue is full, callers are held before it, and whoever
leaves it lets one of them in, again in turns: a principal with less than its share gets the next free place.

Commits that come back from a group that did not land stand before everybody else, in the order in which they left.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from icetower.admission.admitted import Admitted, AdmittedAppend
from icetower.commit.plan import Member
from icetower.counting import counted
from icetower.errors import CommitConflict, IcetowerError
from icetower.table.head import HeadState

ROWS_MAX_BYTES = 8 * 1024 * 1024
"""Rows of one group, in memory: they are made into files while other commits to the table wait."""
FILE_COST_BYTES = 16 * 1024
"""What a partition more counts for, each of which is a file: so a group has some hundred files at most."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What it took to commit something.

    Attributes:
        metadata_bytes: its share of what was written for its group: metadata file, manifest lists, manifests, keys.
        manifests: those that its snapshots added; appends that share a snapshot have equal shares of them.
        plan_ms, write_ms, swap_ms: of its group.
        plan_s, write_s, swap_s: when these began, monotonic.
        group: by what a trace names its group; None: nobody traces.
    """

    metadata_bytes: int
    manifests: float
    plan_ms: float
    write_ms: float
    swap_ms: float
    plan_s: float = 0.0
    write_s: float = 0.0
    swap_s: float = 0.0
    group: object = None


@dataclass(frozen=True, slots=True)
class Committed:
    """The answer to a commit: how it went in, and the table that it is in."""

    outcome: str
    """``direct``, ``rebased``, ``appended`` or ``replayed``."""
    head: HeadState
    snapshots: tuple[int, ...]
    queue_wait_ms: float
    group_size: int
    cost: Cost | None = None
    by_files: bool = False
    """It is a replay by its files alone: the table does not have its key."""


@dataclass(eq=False, slots=True)
class Waiting:
    """A member on its way, and the answer that its caller waits for.

    Attributes:
        bases: the snapshots that it was written on; they must not expire before it has had its turn (trap H1).
        taken_s: when its group was formed; None while it is in the queue.
        sealed: its swap has begun, and only the outcome may answer (trap A3).
        leaving: its caller waits no longer: it is withdrawn as soon as it is certain not to have landed.
        refused: why it is refused. It is answered so after a last look at the table.
        swaps_lost: how often its group was beaten by an outside writer.
        batch: stands for the members that are tried together, and without others, since their group has failed.
        names: what it goes by when it is sent again.
        request: the id of its request; empty where it has none.
    """

    member: Member
    answer: asyncio.Future[Committed]
    entered_s: float
    bases: frozenset[int]
    taken_s: float | None = None
    sealed: bool = False
    leaving: bool = False
    refused: IcetowerError | None = None
    swaps_lost: int = 0
    batch: object = None
    names: frozenset[str] = frozenset()
    request: str = ""

    @property
    def appends(self) -> bool:
        """Whether it is an append by the fast path, or rows."""
        return isinstance(self.member, AdmittedAppend)

    @property
    def rows_bytes(self) -> int:
        """What its rows take in memory, and for their files in it; 0 where it brings none."""
        rows = self.member.rows if isinstance(self.member, AdmittedAppend) else None
        return 0 if rows is None else rows.size_bytes + FILE_COST_BYTES * max(0, len(rows.parts) - 1)

    @property
    def over(self) -> bool:
        """Whether it is to be planned no more."""
        return self.refused is not None or self.answer.done()

    def settle(self, result: Committed | IcetowerError) -> None:
        """Answer, unless it was answered before."""
        if self.answer.done():
            return
        if isinstance(result, Committed):
            self.answer.set_result(result)
        else:
            self.answer.set_exception(result)


@dataclass(slots=True)
class _Ring:
    """FIFOs by principal, which take turns."""

    fifos: OrderedDict[str, deque[Waiting]] = field(default_factory=OrderedDict[str, "deque[Waiting]"])
    length: int = 0
    appends: int = 0

    def push(self, waiting: Waiting) -> None:
        self.fifos.setdefault(waiting.member.principal, deque()).append(waiting)
        self.length += 1
        self.appends += waiting.appends

    def pop(self, fits: Callable[[Waiting], bool]) -> Waiting | None:
        """The next in turn. A principal whose first one doesn't fit is passed over, and keeps its turn."""
        for principal, fifo in self.fifos.items():
            if fits(fifo[0]):
                return self._take(principal, fifo[0])
        return None

    def remove(self, waiting: Waiting) -> bool:
        """Take one out, wherever it stands. False if it isn't here."""
        principal = waiting.member.principal
        if waiting not in self.fifos.get(principal, ()):
            return False
        self._take(principal, waiting, rotate=False)
        return True

    def _take(self, principal: str, waiting: Waiting, *, rotate: bool = True) -> Waiting:
        fifo = self.fifos[principal]
        fifo.remove(waiting)
        if not fifo:
            del self.fifos[principal]
        elif rotate:
            self.fifos.move_to_end(principal)
        self.length -= 1
        self.appends -= waiting.appends
        return waiting

    def __iter__(self) -> Iterator[Waiting]:
        for fifo in self.fifos.values():
            yield from fifo


class FairQueue:
    """What waits for one table.

    Args:
        queue_max: so many are in the queue; further callers are held before it.
        held_max: so many are held.
    """

    def __init__(self, queue_max: int, held_max: int) -> None:
        self._queue_max = queue_max
        self._held_max = held_max
        self._again: deque[Waiting] = deque()
        self._ring = _Ring()
        self._held = _Ring()

    def put(self, waiting: Waiting, *, certainly: bool = False) -> None:
        """Let one in, or hold it before a full queue.

        Args:
            certainly: however many are held.

        Raises:
            CommitConflict: too many are held already.
        """
        if self._held.length >= self._held_max and not certainly:
            raise CommitConflict(
                f"{counted(len(self), 'commit')} for {waiting.member.identifier} waiting already; nothing of this one "
                "was committed; try again later",
                rule="queue.full",
                next_step="retry",
            )
        self._held.push(waiting)
        self._let_in()

    def put_back(self, group: Sequence[Waiting]) -> None:
        """Members that were taken and have not landed, before everybody else and in this order."""
        for waiting in group:
            waiting.taken_s, waiting.sealed = None, False
        self._again.extendleft(reversed(group))

    def take(
        self, commits_max: int, appends_max: int, now_s: float, rows_max_bytes: int = ROWS_MAX_BYTES
    ) -> tuple[Waiting, ...]:
        """The next group: so many commits, and so many appends, at most, with so many bytes of rows.

        A request with more rows than that is taken where it is the first one with any.
        """
        batch = self._again[0].batch if self._again else None
        left = {False: commits_max, True: appends_max}
        group: list[Waiting] = []
        rows_bytes = 0

        def fits(waiting: Waiting) -> bool:
            own = waiting.rows_bytes
            within = not own or not rows_bytes or rows_bytes + own <= rows_max_bytes
            return left[waiting.appends] > 0 and within

        def take(waiting: Waiting) -> None:
            nonlocal rows_bytes
            waiting.taken_s = now_s
            left[waiting.appends] -= 1
            rows_bytes += waiting.rows_bytes
            group.append(waiting)

        while self._again and self._again[0].batch is batch and (batch is not None or fits(self._again[0])):
            take(self._again.popleft())
        if batch is None and not self._again:  # members that come back go first
            while (found := self._ring.pop(fits)) is not None:
                take(found)
        self._let_in()
        return tuple(group)

    def withdraw(self, waiting: Waiting) -> bool:
        """Take one out of the queue. False if it isn't there: its group is on the way, or it was answered."""
        if waiting in self._again:
            self._again.remove(waiting)
            return True
        found = self._ring.remove(waiting) or self._held.remove(waiting)
        self._let_in()
        return found

    @property
    def may_linger(self) -> bool:
        """Whether nothing waits but appends by the fast path, in the queue for the first time."""
        return not self._again and self._ring.appends == self._ring.length

    def _let_in(self) -> None:
        while len(self._again) + self._ring.length < self._queue_max:
            found = self._held.pop(lambda _: True)
            if found is None:
                return
            self._ring.push(found)

    def __len__(self) -> int:
        """All that wait, those held before the queue included."""
        return len(self._again) + self._ring.length + self._held.length

    def __iter__(self) -> Iterator[Waiting]:
        yield from self._again
        yield from self._ring
        yield from self._held


def bases_of(member: Member) -> frozenset[int]:
    """The snapshots that a commit was written on: its first snapshot's parent, and what it asserts its refs to be."""
    if not isinstance(member, Admitted):
        return frozenset()
    asserted = (r.get("snapshot-id") for r in member.requirements if r["type"] == "assert-ref-snapshot-id")
    parents = (change.snapshot.parent_id for change in member.changes[:1])
    return frozenset(i for i in (*asserted, *parents) if isinstance(i, int))


def regrouped(failed: Iterable[Waiting]) -> list[Waiting]:
    """The members of a failed group in two halves, which are tried one after the other, each without others.

    So what spoils a group is found in a few steps, and no other commit fails with it.
    """
    members = list(failed)
    middle = (len(members) + 1) // 2
    for half in (members[:middle], members[middle:]):
        batch = object()
        for waiting in half:
            waiting.batch = batch
    return members
