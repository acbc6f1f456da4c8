"""The engine: a queue a table, groups, one swap a group, and the only retry loop of the server.

A commit waits in its table's queue (`queue.py`). One worker a table takes what waits as a group, plans it (`steps.py`),
writes the new manifest lists and the metadata file side by side, asks the gatekeeper once more, and swaps (`swaps.py`).
Meanwhile the next group is planned on the version that this one will leave, and written. What can happen to a group:

- *landed*: everybody in it is answered from the new head.
- *lost*: an outside writer was faster. The table is read anew, once, and its members are planned again.
- *late*: some of its members may not go on any more. They hear why; the others are planned again (trap S5).
- *failed*: its members are told, or tried again in halves where one of them may have spoiled it.
- *grounded*: the group before it did not land, on which it was planned.

Whoever is planned again stands at the front of the queue, in the old order, and nothing of the group stays in the
storage. An outcome that stays unknown is no failure: nobody hears 409 and nothing is deleted (trap A3).

A commit over several tables holds the turn of each, taken in name order, so that two of them never wait for each other.
Where one waits, the worker finishes what is on its way and lets go of the turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from icetower.admission.admitted import Admitted, AdmittedAppend
from icetower.ambient import Ambient
from icetower.commit.gatekeeper import Gatekeeper
from icetower.commit.head import Heads
from icetower.commit.landed import Landed
from icetower.commit.limits import Limits
from icetower.commit.queue import Committed, Member, Waiting, bases_of, regrouped
from icetower.commit.resolution import half_known
from icetower.commit.steps import Planner, Step, Version
from icetower.commit.swaps import Swaps, Timed
from icetower.commit.turned_away import SENT_BACK, LastLook, draining, lost_for_good, withdrawn
from icetower.commit.turns import Fate, Flight, Turn
from icetower.errors import (
    CommitConflict,
    CommitStateUnknown,
    DatabaseBusy,
    IcetowerError,
    Unavailable,
    UpstreamFailed,
)
from icetower.files.changes import Manifests
from icetower.protocol.names import Identifier
from icetower.storage.port import Storage
from icetower.table.head import HeadState
from icetower.upstream.port import Upstream

__all__ = ["Committed", "Engine", "Gatekeeper", "Limits", "Member"]

T = TypeVar("T")

log = logging.getLogger("icetower")


class Engine:
    """The queues of all tables, and whatever takes commits from them into the tables."""

    def __init__(
        self,
        upstream: Upstream,
        storage: Storage,
        heads: Heads,
        manifests: Manifests,
        ambient: Ambient,
        gatekeeper: Gatekeeper,
        limits: Limits | None = None,
        timed: Timed | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.atomic_multi_table = upstream.atomic_multi_table
        self._heads = heads
        self._ambient = ambient
        self._gatekeeper = gatekeeper
        self._planner = Planner(storage, manifests, ambient, self.limits)
        self._swaps = Swaps(upstream, storage, heads, ambient, settle_s=self.limits.settle_s, timed=timed)
        self._look = LastLook(heads, look_s=self.limits.look_s)
        self._budget = manifests.budget
        self._landed = Landed()
        self._turns: dict[Identifier, Turn] = {}
        self._transactions: set[asyncio.Task[None]] = set()
        self._chores: set[asyncio.Task[None]] = set()
        self._draining = False

    # -- the doors ------------------------------------------------------------------------------------------------

    async def submit(self, member: Admitted) -> Committed:
        """Queue one commit and wait for its answer.

        Raises:
            CommitConflict: stale and not to be rebased, or withdrawn from the queue at its deadline.
            CommitStateUnknown: it may or may not have landed.
            IcetowerError: whatever else refused it; nothing of it was committed.
        """
        return await self._submit(member)

    async def submit_append(self, member: AdmittedAppend, head: HeadState | None = None) -> Committed:
        """Queue one append by the fast path, in the same queue, and wait for its answer. Raises as `submit` does.

        Args:
            head: the table as it was admitted on: what must be known of its files is read before the queue.
        """
        if head is not None:
            newest = partial(self._heads.newer, head)
            await self._planner.live.warm(newest, member, within_s=self.limits.deadline_s)
        return await self._submit(member)

    async def _submit(self, member: Member) -> Committed:
        closed = self._closed_to([member])
        if closed is not None:
            return _told(await self._look.answer(member, closed))
        turn = self._turn(member.identifier)
        waiting = self._waiting(turn, member)
        self._enqueue(turn, waiting)
        deadline = asyncio.get_running_loop().call_later(self.limits.deadline_s, self._leave, turn, waiting)
        try:
            return await asyncio.shield(waiting.answer)
        except asyncio.CancelledError:
            # Its client hung up. In the queue it is not committed any more: that client looks, and may write again.
            waiting.leaving = True
            if turn.queue.withdraw(waiting):
                waiting.settle(withdrawn(self.limits.deadline_s, turn.identifier))
            raise
        finally:
            deadline.cancel()

    def _enqueue(self, turn: Turn, waiting: Waiting) -> None:
        """Let one into the table's queue, or turn it away where that is full, and see to it that somebody works."""
        try:
            turn.queue.put(waiting, certainly=turn.twice(waiting))
        except CommitConflict as full:
            self._turn_away(turn, waiting, full)
        turn.stirred.set()
        if turn.worker is None:
            turn.worker = asyncio.create_task(self._work(turn))

    def _leave(self, turn: Turn, waiting: Waiting) -> None:
        """Withdraw a commit past its deadline, now or as soon as it is certain not to have landed.

        A commit that was sent twice is not withdrawn: told 409, its client would delete the manifests under the other,
        or take for lost what the other appends.
        """
        waiting.leaving = True
        if not waiting.sealed and not waiting.over and not turn.twice(waiting):
            turn.queue.withdraw(waiting)
            self._turn_away(turn, waiting, withdrawn(self.limits.deadline_s, turn.identifier))

    def _turn_away(self, turn: Turn, waiting: Waiting, refusal: IcetowerError) -> None:
        """A commit is not committed any more. It hears why, after a last look whether it is in the table."""
        waiting.refused = refusal
        if waiting in turn.guests:  # its transaction is told as one
            return
        if refusal.status >= 500:
            waiting.settle(refusal)
            return

        async def tell() -> None:
            told = await self._look.answer(waiting.member, refusal)
            if told is not refusal or refusal.rule not in SENT_BACK or not turn.twice(waiting):
                waiting.settle(told)
                return
            # Sent again while this looked. A group that still has it in hand lands it, or brings it back.
            waiting.refused = None
            if waiting.taken_s is None:
                self._enqueue(turn, waiting)

        self._later(tell())

    async def submit_together(self, members: Sequence[Admitted]) -> list[Committed]:
        """Commit to several tables, all or nothing; the answers are in the order of the members.

        Raises as `submit` does.
        """
        if len({member.identifier for member in members}) != len(members):
            raise IcetowerError("a table was named twice in one transaction")  # the protocol has refused it before
        closed = self._closed_to(members)
        if closed is not None:
            return _told(await self._look.answers(members, closed))
        waiting = [self._waiting(self._turn(member.identifier), member) for member in members]
        # A task of its own: a caller that goes away must not let go of the turns half-way.
        task = asyncio.create_task(self._together(sorted(waiting, key=lambda w: w.member.identifier)))
        self._transactions.add(task)
        task.add_done_callback(self._transactions.discard)
        await asyncio.shield(task)
        return [w.answer.result() for w in waiting]

    def queued(self, identifier: Identifier) -> int:
        """How many commits wait for a table."""
        turn = self._turns.get(identifier)
        return len(turn.queue) if turn else 0

    async def drain(self) -> None:
        """Take no more commits, and finish those that wait and what is to be done after them."""
        self._draining = True
        while True:
            workers = [turn.worker for turn in self._turns.values() if turn.worker is not None]
            tasks = [*workers, *self._transactions, *self._chores]
            if not tasks:
                return
            for turn in self._turns.values():
                turn.stirred.set()
            await asyncio.gather(*tasks, return_exceptions=True)

    # -- a table's worker -----------------------------------------------------------------------------------------

    async def _work(self, turn: Turn) -> None:
        try:
            while turn.queue:
                async with turn.lock:
                    await self._run(turn)
        finally:
            # No await between the last look at the queue and this: whoever comes later starts a new worker.
            turn.worker = None
            turn.known.clear()

    async def _run(self, turn: Turn) -> None:
        """Group after group, until nothing waits or a transaction wants the turn. The caller holds the turn."""
        version: Version | None = None  # what the next group is planned on; None: the head is to be read
        started = False
        while True:
            turn.stirred.clear()
            if turn.flights and (first := turn.flights[0].landing) is not None and first.done():
                flight = turn.flights.popleft()
                if first.result() is not Fate.LANDED:
                    version = await self._grounded(turn, flight)
                continue
            room = len(turn.flights) < self.limits.pipeline_max and not (started and turn.wanted)
            # Nothing is planned on a group whose own plan failed.
            ready = room and bool(turn.queue) and (version is not None or not turn.flights)
            linger_s = self._linger_s(turn) if ready else 0.0
            if ready and linger_s <= 0:
                started = True
                version = await self._start(turn, version)
            elif turn.flights or (linger_s > 0 and not turn.wanted):
                await self._stirred(turn, linger_s)
            else:
                return

    def _linger_s(self, turn: Turn) -> float:
        """How long the next group is to wait yet: not at all, unless it would be nothing but fast-path appends."""
        if turn.appended_s is None or self._draining or not turn.queue.may_linger:
            return 0.0
        return turn.appended_s + self.limits.append_interval_s - self._ambient.monotonic_s()

    async def _stirred(self, turn: Turn, linger_s: float) -> None:
        """Wait until there may be something to do."""
        if linger_s <= 0:
            await turn.stirred.wait()
            return

        async def nap() -> None:
            await self._ambient.sleep(linger_s)
            turn.stirred.set()

        timer = asyncio.create_task(nap())
        await turn.stirred.wait()
        timer.cancel()

    async def _start(self, turn: Turn, version: Version | None) -> Version | None:
        """Take a group, plan it, and send it on its way. The version that it will leave; None if that is not known."""
        now_s = self._ambient.monotonic_s()
        group = turn.queue.take(self.limits.group_max, self.limits.appends_max, now_s)
        if any(waiting.appends for waiting in group):
            turn.appended_s = now_s
        if version is None:
            try:
                version = await self._load(turn)
            except Exception as raised:  # noqa: BLE001 - a worker that dies would leave its clients waiting for ever
                for waiting in group:
                    waiting.settle(_known(raised))
                return None
        flight = Flight(group, version, None, None)
        try:
            flight.step = await self._plan(turn, group, version)
        except Exception as raised:  # noqa: BLE001 - likewise
            flight.error = _known(raised)
        before = turn.flights[-1] if turn.flights else None
        flight.landing = asyncio.create_task(self._fly(turn, flight, before))
        flight.landing.add_done_callback(lambda _: turn.stirred.set())
        turn.flights.append(flight)
        return None if flight.step is None else flight.step.new

    async def _fly(self, turn: Turn, flight: Flight, before: Flight | None) -> Fate:
        """Take one group to its end; never raises."""
        try:
            if flight.step is not None:
                return await self._land([(turn, flight.step)], before)
            if before is not None and await before.landed() is not Fate.LANDED:
                return Fate.GROUNDED
        except Exception as raised:  # noqa: BLE001 - a worker that dies would leave its clients waiting for ever
            flight.error = _known(raised)
        return Fate.FAILED

    async def _grounded(self, turn: Turn, flight: Flight) -> Version | None:
        """Bring back the members of a group that did not land, and of those planned on it, to be planned again.

        Returns the version to plan them on, if the head that it was planned on still stands.
        """
        fate = await flight.landed()
        again = list(flight.waiting)
        going = [waiting for waiting in again if not waiting.over]
        if fate is Fate.FAILED and flight.error is not None:
            if isinstance(flight.error, DatabaseBusy):
                log.warning("%s: %s", turn.identifier, flight.error.message)  # held until its deadline (trap A4)
            elif len(going) > 1 and not isinstance(flight.error, CommitStateUnknown | UpstreamFailed | Unavailable):
                again = [*(waiting for waiting in again if waiting.over), *regrouped(going)]
            else:
                for waiting in going:
                    self._turn_away(turn, waiting, flight.error)
        if fate is Fate.LOST:
            turn.swaps_lost += 1
            for waiting in going:
                waiting.swaps_lost += 1
                if waiting.swaps_lost >= self.limits.rounds_max:
                    self._turn_away(turn, waiting, lost_for_good(self.limits.rounds_max))
        while turn.flights:
            later = turn.flights.popleft()
            await later.landed()
            again += later.waiting
        for waiting in again:
            waiting.taken_s, waiting.sealed = None, False
            if waiting.leaving:
                self._leave(turn, waiting)
        turn.queue.put_back([waiting for waiting in again if not waiting.over])
        if fate is Fate.LOST:
            await self._pause(turn.swaps_lost)
        return flight.planned_on if fate is Fate.LATE else None

    # -- transactions ---------------------------------------------------------------------------------------------

    async def _together(self, ordered: Sequence[Waiting]) -> None:
        """Commit to the tables of some members in one swap, and settle everybody; never raises."""
        turns = [self._turn(waiting.member.identifier) for waiting in ordered]
        while True:
            error = await self._attempt_together(turns, ordered)
            if all(waiting.answer.done() for waiting in ordered):
                return
            told = await self._look.answers([waiting.member for waiting in ordered], error)
            twice = any(turn.twice(waiting) for turn, waiting in zip(turns, ordered, strict=True))
            if told is not error or error.rule not in SENT_BACK or not twice:
                break
        for position, waiting in enumerate(ordered):
            waiting.settle(told if isinstance(told, IcetowerError) else told[position])

    async def _attempt_together(self, turns: Sequence[Turn], ordered: Sequence[Waiting]) -> IcetowerError:
        """Take all turns and commit. What to tell whoever was not answered; never raises."""
        for turn, waiting in zip(turns, ordered, strict=True):
            waiting.taken_s = None
            turn.guests.append(waiting)
        held: list[Turn] = []
        try:
            if await self._take_turns(turns, ordered, held):
                return await self._rounds(turns, ordered)
            return withdrawn(self.limits.deadline_s, ordered[len(held)].member.identifier)
        finally:
            for turn in held:
                turn.lock.release()
            for turn, waiting in zip(turns, ordered, strict=True):
                turn.guests.remove(waiting)

    async def _take_turns(self, turns: Sequence[Turn], ordered: Sequence[Waiting], held: list[Turn]) -> bool:
        """Whether all turns were taken within the deadline; as far as that went, they are added to those held.

        A transaction that was sent twice takes longer if it must: told 409, its client would delete the manifests under
        the other (trap A3). It keeps its place meanwhile.
        """

        async def take() -> None:
            for turn, waiting in zip(turns, ordered, strict=True):
                turn.stirred.set()
                await turn.lock.acquire()
                held.append(turn)
                waiting.taken_s = self._ambient.monotonic_s()

        taking = asyncio.create_task(take())
        try:
            await asyncio.wait([taking], timeout=self.limits.deadline_s)
            if taking.done() or any(turn.twice(w) for turn, w in zip(turns, ordered, strict=True)):
                await taking
                return True
        finally:
            taking.cancel()  # nothing, where it has ended
        await asyncio.wait([taking])
        return len(held) == len(turns)

    async def _rounds(self, turns: Sequence[Turn], ordered: Sequence[Waiting]) -> IcetowerError:
        """Try until it has landed and everybody was answered. What to tell whoever was not; never raises."""
        try:
            for attempt in range(self.limits.rounds_max):
                fate = await self._land(await self._planned_together(turns, ordered), None)
                if fate is Fate.LATE:
                    for waiting in ordered:
                        if waiting.refused is not None:
                            raise waiting.refused
                if fate is not Fate.LOST:
                    break
                await self._pause(attempt + 1)
        except DatabaseBusy as busy:  # only 409 says that it may be sent again (trap A4)
            return CommitConflict(busy.message, rule=busy.rule, next_step="retry")
        except Exception as raised:  # noqa: BLE001 - whoever waits must be told
            return _known(raised)
        return lost_for_good(self.limits.rounds_max)

    async def _planned_together(self, turns: Sequence[Turn], ordered: Sequence[Waiting]) -> Sequence[tuple[Turn, Step]]:
        steps = [
            await self._plan(turn, (waiting,), await self._load(turn))
            for turn, waiting in zip(turns, ordered, strict=True)
        ]
        for step in steps:
            for refusal in step.plan.refused:
                raise refusal.error
        if len({bool(step.plan.replayed) for step in steps}) > 1:
            raise half_known()
        return list(zip(turns, steps, strict=True))

    # -- one group, or one transaction ----------------------------------------------------------------------------

    async def _load(self, turn: Turn) -> Version:
        """The head as it stands now. Raises `NoSuchTable`, `NotFound`."""
        head = await self._heads.load(turn.identifier)
        if turn.version is not None and turn.version[0] == head.location:
            return Version(head, turn.version[1])
        version = Version.found(head)
        turn.saw(version)
        return version

    async def _plan(self, turn: Turn, group: tuple[Waiting, ...], version: Version) -> Step:
        keep = turn.bases(group) if turn.expires else frozenset(version.head.snapshots)
        return await self._planner.step(turn.identifier, group, version, turn.known, keep)

    async def _land(self, planned: Sequence[tuple[Turn, Step]], before: Flight | None) -> Fate:
        """Write, ask once more, swap, and answer everybody. `before`: the group that must have landed first.

        Raises:
            CommitStateUnknown: nobody could tell within the time for it. Files stay where they are.
            IcetowerError: it failed, and certainly nothing landed.
        """
        steps = [step for _, step in planned]
        changed = [(turn, step) for turn, step in planned if step.changes]
        unknown = False
        fate = Fate.FAILED
        try:
            failure = await self._swaps.write([step for _, step in changed])
            if before is not None and await before.landed() is not Fate.LANDED:
                fate = Fate.GROUNDED
            elif failure is not None:
                raise failure
            elif await self._refused_late(changed):
                fate = Fate.LATE
            elif changed:
                for step in steps:
                    step.seal()
                fate = Fate.LANDED if await self._swaps.swap([step for _, step in changed]) else Fate.LOST
            else:  # refusals and replays hold only for a head that still stands
                fate = Fate.LOST if await self._swaps.stale(steps) else Fate.LANDED
        except CommitStateUnknown:
            unknown = True
            for turn, step in planned:
                turn.may_have_landed(step.going)
                self._settle(turn, step, refusals_only=True)  # whatever became of the others
            raise
        finally:
            for turn, step in changed:
                turn.known.landed_or_lost(step)
            if fate is not Fate.LANDED and not unknown and changed:
                self._later(self._swaps.discard([step for _, step in changed]))
        if fate is Fate.LANDED:
            for turn, step in changed:
                self._remember(turn, step)
            for turn, step in planned:
                self._settle(turn, step)
            # Everybody has been answered: nothing from here on may turn a commit that landed into a failure.
            self._later(self._swaps.expire(steps))
        return fate

    async def _refused_late(self, planned: Sequence[tuple[Turn, Step]]) -> bool:
        """Whether somebody may not go on any more. They are settled, and the others have to be planned again.

        So are all where snapshots were to expire whose keys cannot be kept: once more, without expiring any.
        """
        late = False
        for turn, step in planned:
            going = step.going
            for position, error in (await self._gatekeeper.still_admits([w.member for w in going])).items():
                self._turn_away(turn, going[position], error)
                late = True
            if late:
                continue
            if step.expired:
                try:
                    await self._gatekeeper.keep_keys(step.identifier, step.old.head, step.new.head, step.expired)
                except IcetowerError:
                    if not turn.expires:  # not by retention, but since a client wants it
                        raise
                    turn.expires = False
                    late = True
                    continue
            told = await self._gatekeeper.landed_meanwhile(step.old.head, [w.member for w in going])
            for position, error in told.items():
                self._turn_away(turn, going[position], error)
                late = True
        # Somebody may have left meanwhile. No await between this look and the seals.
        return late or any(waiting.over for _, step in planned for waiting in step.going)

    def _remember(self, turn: Turn, step: Step) -> None:
        turn.saw(step.new)
        turn.may_have_landed(step.going)
        turn.swaps_lost = 0
        turn.expires = True
        self._heads.remember(step.new.head, step.plan.files)

    def _settle(self, turn: Turn, step: Step, *, refusals_only: bool = False) -> None:
        """Answer everybody. With `refusals_only`, those who were refused on a version that may not stand any more."""
        size, head = len(step.plan.accepted), step.new.head
        results: list[tuple[Member, Committed | IcetowerError]] = [(r.member, r.error) for r in step.plan.refused]
        if not refusals_only:
            results += [(r.member, Committed("replayed", head, r.snapshots, 0.0, size)) for r in step.plan.replayed]
            results += [(a.member, Committed(a.outcome, head, a.snapshots, 0.0, size)) for a in step.plan.accepted]
        # A member may have been submitted more than once.
        waiting: dict[int, deque[Waiting]] = {}
        for w in step.waiting:
            waiting.setdefault(id(w.member), deque()).append(w)
        for member, result in results:
            found = waiting[id(member)].popleft()
            if isinstance(result, Committed) and found.taken_s is not None:
                result = replace(result, queue_wait_ms=(found.taken_s - found.entered_s) * 1000)
            if refusals_only and isinstance(result, IcetowerError):
                self._turn_away(turn, found, result)
            else:
                found.settle(result)

    # -- small things ---------------------------------------------------------------------------------------------

    def _turn(self, identifier: Identifier) -> Turn:
        turn = self._turns.get(identifier)
        if turn is None:
            turn = self._turns[identifier] = Turn(identifier, self.limits, self._budget, self._landed)
        return turn

    def _waiting(self, turn: Turn, member: Member) -> Waiting:
        answer: asyncio.Future[Committed] = asyncio.get_running_loop().create_future()
        names = member.identity.in_flight
        turn.under_way.update(names)

        def answered(done: asyncio.Future[Committed]) -> None:
            for name in names:
                turn.under_way[name] -= 1
                if not turn.under_way[name]:
                    del turn.under_way[name]
            # A client may hang up before its answer; an error that nobody fetches is no news.
            if not done.cancelled():
                done.exception()

        answer.add_done_callback(answered)
        return Waiting(member, answer, self._ambient.monotonic_s(), bases_of(member), names=names)

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something that nobody waits for."""
        task = asyncio.create_task(work)
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)

    async def _pause(self, attempt: int) -> None:
        """Two towers that lose to each other must not keep step."""
        await self._ambient.sleep(min(0.002 * 2 ** min(attempt, 8), 0.25) * self._ambient.uniform())

    def _closed_to(self, members: Sequence[Member]) -> CommitConflict | None:
        # What is under way by another request is let in: that may land yet, and then this one must not have heard 409.
        if not self._draining or any(self._turn(member.identifier).knows(member) for member in members):
            return None
        return draining()


def _told(told: T | IcetowerError) -> T:
    """The answer. Raises the error that is told instead."""
    if isinstance(told, IcetowerError):
        raise told
    return told


def _known(raised: Exception) -> IcetowerError:
    """What the clients of a group hear when something happens that nobody foresaw."""
    if isinstance(raised, IcetowerError):
        return raised
    error = CommitStateUnknown(f"the commit engine failed: {type(raised).__name__}")
    error.__cause__ = raised
    return error
