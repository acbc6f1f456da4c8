"""The engine: one queue for each table, groups, one swap for each group, and the only retry loop of the server.

A commit waits in its table's queue (`queue.py`). Each table has one worker. It takes the waiting commits as a group,
plans it (`steps.py`), writes the new manifest lists and the metadata file side by side, asks the gatekeeper once more,
and swaps (`swaps.py`). Meanwhile the next group is planned on the version that this one will leave, and written. The
outcomes of a group:

- *landed*: all its members are answered from the new head.
- *lost*: an outside writer was faster. The table is read again, once, and the members are planned again.
- *refused late*: some members may not go on any more. They are refused; the others are planned again (trap S5).
- *failed*: its members get the error. Where one of them may be the cause, they are tried again in two halves.
- *predecessor lost*: the group before it, on whose version it was planned, did not land.

Members that are planned again stand at the front of the queue, in their old order, and no file of the group stays in
the storage. An outcome that stays unknown is no failure: no client gets 409, and nothing is deleted (trap A3).

A commit over several tables takes the lock of each, in the order of their names, so that two of them never wait for
each other. While one waits for a table, the worker finishes the groups that are in flight and releases the lock.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from icetower.admission.admitted import Admitted, AdmittedFence
from icetower.ambient import Ambient
from icetower.commit.gatekeeper import Gatekeeper
from icetower.commit.head import Heads
from icetower.commit.landed import Landed
from icetower.commit.last_look import SENT_BACK, LastLook, as_error, draining, lost_for_good, withdrawn
from icetower.commit.limits import Limits
from icetower.commit.plan import Plan
from icetower.commit.queue import Committed, Member, Waiting, bases_of, regrouped
from icetower.commit.steps import Planner, Step, Version, require_one_answer
from icetower.commit.swaps import Swaps, Timed
from icetower.commit.table_state import GroupOutcome, InFlightGroup, TableState
from icetower.deadlines import Deadlines
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
    """The queues of all tables, and the workers that commit what waits in them."""

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
        self._deadlines = Deadlines()
        self.atomic_multi_table = upstream.atomic_multi_table
        self._heads = heads
        self._ambient = ambient
        self._gatekeeper = gatekeeper
        self._planner = Planner(storage, manifests, ambient, self.limits)
        self._swaps = Swaps(upstream, storage, heads, ambient, settle_s=self.limits.settle_s, timed=timed)
        self.live = self._planner.live
        self._look = LastLook(heads, self.live, look_s=self.limits.look_s)
        self._budget = manifests.budget
        self._landed = Landed()
        self._tables: dict[Identifier, TableState] = {}
        self._transactions: set[asyncio.Task[None]] = set()
        self._chores: set[asyncio.Task[None]] = set()
        self._draining = False

    # -- the ways in ----------------------------------------------------------------------------------------------

    async def submit(self, member: Member, head: HeadState | None = None, *, request: str = "") -> Committed:
        """Queue one commit and wait for its answer.

        Args:
            head: of an append by the fast path, and of a publication: the version that it was admitted on. What must be
                known of its files is read before it is queued.
            request: the id of its request.

        Raises:
            CommitConflict: stale and not to be rebased, or withdrawn from the queue at its deadline.
            CommitStateUnknown: it may or may not have landed.
            IcetowerError: whatever else refused it; nothing of it was committed.
        """
        if head is not None and not isinstance(member, AdmittedFence):
            newest = partial(self._heads.newer, head)
            await self._planner.live.warm(newest, member, within_s=self.limits.deadline_s)
        closed = self._closed_to([member])
        if closed is not None:
            return _unwrapped(await self._look.answer(member, closed))
        table = self._table(member.identifier)
        waiting = self._waiting(table, member, request)
        self._enqueue(table, waiting)
        deadline = self._deadlines.after(self.limits.deadline_s, partial(self._leave, table, waiting))
        try:
            return await asyncio.shield(waiting.answer)
        except asyncio.CancelledError:
            # Its client hung up. What is still queued is withdrawn: that client looks, and may write again.
            waiting.leaving = True
            if table.queue.withdraw(waiting):
                waiting.settle(withdrawn(self.limits.deadline_s, table.identifier))
            raise
        finally:
            deadline.cancel()

    def _enqueue(self, table: TableState, waiting: Waiting) -> None:
        """Put one into the table's queue, or refuse it where the queue is full, and see that a worker runs."""
        try:
            table.queue.put(waiting, certainly=table.twice(waiting))
        except CommitConflict as full:
            self._reject(table, waiting, full)
        table.wake.set()
        if table.worker is None:
            table.worker = asyncio.create_task(self._work(table))

    def _leave(self, table: TableState, waiting: Waiting) -> None:
        """Withdraw a commit past its deadline, now or as soon as it is certain not to have landed.

        A commit that was sent twice is not withdrawn: upon 409, its client would delete the manifests of the other one,
        or believe lost what the other one appends.
        """
        waiting.leaving = True
        if not waiting.sealed and not waiting.over and not table.twice(waiting):
            table.queue.withdraw(waiting)
            self._reject(table, waiting, withdrawn(self.limits.deadline_s, table.identifier))

    def _reject(self, table: TableState, waiting: Waiting, refusal: IcetowerError) -> None:
        """Refuse a commit, after a last look whether it is in the table."""
        waiting.refused = refusal
        if waiting in table.transaction_members:  # its transaction is answered as one
            return
        if refusal.status >= 500:
            waiting.settle(refusal)
            return

        async def look_and_answer() -> None:
            answer = await self._look.answer(waiting.member, refusal)
            if answer is not refusal or refusal.rule not in SENT_BACK or not table.twice(waiting):
                waiting.settle(answer)
                return
            # Sent again while this looked. A group that still has it in hand lands it, or brings it back.
            waiting.refused = None
            if waiting.taken_s is None:
                self._enqueue(table, waiting)

        self._later(look_and_answer())

    async def submit_together(self, members: Sequence[Admitted], *, request: str = "") -> list[Committed]:
        """Commit to several tables, all or nothing; the answers are in the order of the members.

        Raises as `submit` does.
        """
        if len({member.identifier for member in members}) != len(members):
            raise IcetowerError("a table was named twice in one transaction")  # the protocol has refused it before
        closed = self._closed_to(members)
        if closed is not None:
            return _unwrapped(await self._look.answers(members, closed))
        waiting = [self._waiting(self._table(member.identifier), member, request) for member in members]
        # A task of its own: a caller that goes away must not let go of the turns half-way.
        task = asyncio.create_task(self._together(sorted(waiting, key=lambda w: w.member.identifier)))
        self._transactions.add(task)
        task.add_done_callback(self._transactions.discard)
        await asyncio.shield(task)
        return [w.answer.result() for w in waiting]

    async def would(self, member: Admitted) -> tuple[Plan, HeadState]:
        """The plan for one commit alone, on the table as it stands, of which nothing is queued or written.

        Raises `NoSuchTable`, `NotFound`, and as `Planner.step`.
        """
        version = await self._load(self._table(member.identifier))
        return await self._planner.alone(version, member), version.head

    def under_way(self, identifier: Identifier, names: frozenset[str]) -> bool:
        """Whether a write is on its way here that goes by one of these (`Identity.asked_by`)."""
        return identifier in self._tables and self._tables[identifier].has_under_way(names)

    def queued(self, identifier: Identifier | None = None) -> int:
        """How many commits wait for a table; None: for any."""
        tables = self._tables.values() if identifier is None else filter(None, [self._tables.get(identifier)])
        return sum(len(table.queue) for table in tables)

    async def drain(self) -> None:
        """Take no more commits, and finish those that wait and what is to be done after them."""
        self._draining = True
        while True:
            workers = [table.worker for table in self._tables.values() if table.worker is not None]
            tasks = [*workers, *self._transactions, *self._chores]
            if not tasks:
                return
            for table in self._tables.values():
                table.wake.set()
            await asyncio.gather(*tasks, return_exceptions=True)

    # -- a table's worker -----------------------------------------------------------------------------------------

    async def _work(self, table: TableState) -> None:
        try:
            while table.queue:
                async with table.lock:
                    await self._run(table)
        finally:
            # No await between the last look at the queue and this: a later commit starts a new worker.
            table.worker = None
            table.cache.clear()

    async def _run(self, table: TableState) -> None:
        """Group after group, until nothing waits or a transaction wants the lock. The caller holds the lock."""
        version: Version | None = None  # what the next group is planned on; None: the head is to be read
        started = False
        while True:
            table.wake.clear()
            if table.in_flight and (first := table.in_flight[0].landing) is not None and first.done():
                pending = table.in_flight.popleft()
                if first.result() is not GroupOutcome.LANDED:
                    version = await self._bring_back(table, pending)
                continue
            room = len(table.in_flight) < self.limits.pipeline_max and not (started and table.wanted)
            # Nothing is planned on a group whose own plan failed.
            ready = room and bool(table.queue) and (version is not None or not table.in_flight)
            linger_s = self._linger_s(table) if ready else 0.0
            if ready and linger_s <= 0:
                started = True
                version = await self._start(table, version)
            elif table.in_flight or (linger_s > 0 and not table.wanted):
                await self._wait(table, linger_s)
            else:
                return

    def _linger_s(self, table: TableState) -> float:
        """How long the next group is to wait yet: not at all, unless it would be nothing but fast-path appends."""
        if table.appended_s is None or self._draining or not table.queue.may_linger:
            return 0.0
        return table.appended_s + table.linger_s - self._ambient.monotonic_s()

    async def _wait(self, table: TableState, linger_s: float) -> None:
        """Wait until there may be something to do."""
        if linger_s <= 0:
            await table.wake.wait()
            return

        async def nap() -> None:
            await self._ambient.sleep(linger_s)
            table.wake.set()

        timer = asyncio.create_task(nap())
        await table.wake.wait()
        timer.cancel()

    async def _start(self, table: TableState, version: Version | None) -> Version | None:
        """Take a group, plan it, and begin to commit it. Returns the version that it will leave; None if unknown."""
        now_s = self._ambient.monotonic_s()
        group = table.queue.take(self.limits.group_max, self.limits.appends_max, now_s)
        appends = sum(waiting.appends for waiting in group)
        if version is None:
            try:
                version = await self._load(table)
            except Exception as raised:  # noqa: BLE001 - a worker that dies would leave its clients waiting for ever
                for waiting in group:
                    waiting.settle(as_error(raised))
                return None
        if appends:
            properties = version.head.metadata["properties"]
            table.appended_s, table.linger_s = now_s, self.limits.linger_s(appends, table.appends, properties)
            table.appends = appends
        pending = InFlightGroup(group, version, None, None)
        try:
            pending.step = await self._plan(table, group, version)
        except Exception as raised:  # noqa: BLE001 - likewise
            pending.error = as_error(raised)
        before = table.in_flight[-1] if table.in_flight else None
        pending.landing = asyncio.create_task(self._carry_out(table, pending, before))
        pending.landing.add_done_callback(lambda _: table.wake.set())
        table.in_flight.append(pending)
        return None if pending.step is None else pending.step.new

    async def _carry_out(self, table: TableState, pending: InFlightGroup, before: InFlightGroup | None) -> GroupOutcome:
        """Commit one planned group; never raises."""
        try:
            if pending.step is not None:
                return await self._land([(table, pending.step)], before)
            if before is not None and await before.landed() is not GroupOutcome.LANDED:
                return GroupOutcome.PREDECESSOR_LOST
        except Exception as raised:  # noqa: BLE001 - a worker that dies would leave its clients waiting for ever
            pending.error = as_error(raised)
        return GroupOutcome.FAILED

    async def _bring_back(self, table: TableState, pending: InFlightGroup) -> Version | None:
        """Put the members of a group that did not land, and of those planned on it, back into the queue.

        Returns the version to plan them on, if the head that it was planned on still stands.
        """
        outcome = await pending.landed()
        again = list(pending.waiting)
        going = [waiting for waiting in again if not waiting.over]
        if outcome is GroupOutcome.FAILED and pending.error is not None:
            if isinstance(pending.error, DatabaseBusy):
                log.warning("%s: %s", table.identifier, pending.error.message)  # held until its deadline (trap A4)
            elif len(going) > 1 and not isinstance(pending.error, CommitStateUnknown | UpstreamFailed | Unavailable):
                again = [*(waiting for waiting in again if waiting.over), *regrouped(going)]
            else:
                for waiting in going:
                    self._reject(table, waiting, pending.error)
        if outcome is GroupOutcome.LOST:
            table.swaps_lost += 1
            for waiting in going:
                waiting.swaps_lost += 1
                if waiting.swaps_lost >= self.limits.rounds_max:
                    self._reject(table, waiting, lost_for_good(self.limits.rounds_max))
        while table.in_flight:
            later = table.in_flight.popleft()
            await later.landed()
            again += later.waiting
        for waiting in again:
            waiting.taken_s, waiting.sealed = None, False
            if waiting.leaving:
                self._leave(table, waiting)
        table.queue.put_back([waiting for waiting in again if not waiting.over])
        if outcome is GroupOutcome.LOST:
            await self._pause(table.swaps_lost)
        return pending.planned_on if outcome is GroupOutcome.REFUSED_LATE else None

    # -- transactions ---------------------------------------------------------------------------------------------

    async def _together(self, ordered: Sequence[Waiting]) -> None:
        """Commit to the tables of some members in one swap, and settle everybody; never raises."""
        tables = [self._table(waiting.member.identifier) for waiting in ordered]
        while True:
            error = await self._attempt_together(tables, ordered)
            if all(waiting.answer.done() for waiting in ordered):
                return
            answers = await self._look.answers([waiting.member for waiting in ordered], error)
            twice = any(table.twice(waiting) for table, waiting in zip(tables, ordered, strict=True))
            if answers is not error or error.rule not in SENT_BACK or not twice:
                break
        for position, waiting in enumerate(ordered):
            waiting.settle(answers if isinstance(answers, IcetowerError) else answers[position])

    async def _attempt_together(self, tables: Sequence[TableState], ordered: Sequence[Waiting]) -> IcetowerError:
        """Lock all tables and commit. Returns the error for those that were not answered; never raises."""
        for table, waiting in zip(tables, ordered, strict=True):
            waiting.taken_s = None
            table.transaction_members.append(waiting)
        held: list[TableState] = []
        try:
            if await self._lock_tables(tables, ordered, held):
                return await self._rounds(tables, ordered)
            return withdrawn(self.limits.deadline_s, ordered[len(held)].member.identifier)
        finally:
            for table in held:
                table.lock.release()
            for table, waiting in zip(tables, ordered, strict=True):
                table.transaction_members.remove(waiting)

    async def _lock_tables(
        self, tables: Sequence[TableState], ordered: Sequence[Waiting], held: list[TableState]
    ) -> bool:
        """Whether all tables were locked within the deadline. Those that were are added to `held`.

        A transaction that was sent twice takes longer if it must: upon 409, its client would delete the manifests of
        the other (trap A3). It keeps its place meanwhile.
        """

        async def take() -> None:
            for table, waiting in zip(tables, ordered, strict=True):
                table.wake.set()
                await table.lock.acquire()
                held.append(table)
                waiting.taken_s = self._ambient.monotonic_s()

        taking = asyncio.create_task(take())
        try:
            await asyncio.wait([taking], timeout=self.limits.deadline_s)
            if taking.done() or any(table.twice(w) for table, w in zip(tables, ordered, strict=True)):
                await taking
                return True
        finally:
            taking.cancel()  # nothing, where it has ended
        await asyncio.wait([taking])
        return len(held) == len(tables)

    async def _rounds(self, tables: Sequence[TableState], ordered: Sequence[Waiting]) -> IcetowerError:
        """Try until it has landed and all were answered. Returns the error for those that were not; never raises."""
        try:
            for attempt in range(self.limits.rounds_max):
                outcome = await self._land(await self._planned_together(tables, ordered), None)
                if outcome is GroupOutcome.REFUSED_LATE:
                    for waiting in ordered:
                        if waiting.refused is not None:
                            raise waiting.refused
                if outcome is not GroupOutcome.LOST:
                    break
                await self._pause(attempt + 1)
        except DatabaseBusy as busy:  # only 409 says that it may be sent again (trap A4)
            return CommitConflict(busy.message, rule=busy.rule, next_step="retry")
        except Exception as raised:  # noqa: BLE001 - all who wait must be answered
            return as_error(raised)
        return lost_for_good(self.limits.rounds_max)

    async def _planned_together(
        self, tables: Sequence[TableState], ordered: Sequence[Waiting]
    ) -> Sequence[tuple[TableState, Step]]:
        steps = [
            await self._plan(table, (waiting,), await self._load(table))
            for table, waiting in zip(tables, ordered, strict=True)
        ]
        require_one_answer(steps)
        return list(zip(tables, steps, strict=True))

    # -- one group, or one transaction ----------------------------------------------------------------------------

    async def _load(self, table: TableState) -> Version:
        """The head as it stands now. Raises `NoSuchTable`, `NotFound`."""
        head = await self._heads.load(table.identifier)
        if table.version is not None and table.version[0] == head.location:
            return Version(head, table.version[1])
        version = Version.found(head, table.version)
        table.saw(version)
        return version

    async def _plan(self, table: TableState, group: tuple[Waiting, ...], version: Version) -> Step:
        keep = table.bases(group) if table.expires else frozenset(version.head.snapshots)
        return await self._planner.step(table.identifier, group, version, table.cache, keep)

    async def _land(self, planned: Sequence[tuple[TableState, Step]], before: InFlightGroup | None) -> GroupOutcome:
        """Write, ask the gatekeeper once more, swap, and answer. `before`: the group that must have landed first.

        Raises:
            CommitStateUnknown: the outcome did not become known in time. Files stay where they are.
            IcetowerError: it failed, and certainly nothing landed.
        """
        steps = [step for _, step in planned]
        changed = [(table, step) for table, step in planned if step.changes]
        unknown = False
        outcome = GroupOutcome.FAILED
        try:
            failure = await self._swaps.write([step for _, step in changed])
            if before is not None and await before.landed() is not GroupOutcome.LANDED:
                outcome = GroupOutcome.PREDECESSOR_LOST
            elif failure is not None:
                raise failure
            elif await self._refused_late(changed):
                outcome = GroupOutcome.REFUSED_LATE
            elif changed:
                for step in steps:
                    step.seal()
                outcome = (
                    GroupOutcome.LANDED if await self._swaps.swap([step for _, step in changed]) else GroupOutcome.LOST
                )
            else:  # refusals and replays hold only for a head that still stands
                outcome = GroupOutcome.LOST if await self._swaps.stale(steps) else GroupOutcome.LANDED
        except CommitStateUnknown:
            unknown = True
            for table, step in planned:
                table.may_have_landed(step.going)
                self._settle(table, step, refusals_only=True)  # whatever became of the others
            raise
        finally:
            for table, step in changed:
                table.cache.landed_or_lost(step)
            if outcome is not GroupOutcome.LANDED and not unknown and changed:
                self._later(self._swaps.discard([step for _, step in changed]))
        if outcome is GroupOutcome.LANDED:
            for table, step in changed:
                self._remember(table, step)
            for table, step in planned:
                self._settle(table, step)
            # All have been answered: nothing from here on may turn a commit that landed into a failure.
            self._later(self._swaps.expire(steps))
        return outcome

    async def _refused_late(self, planned: Sequence[tuple[TableState, Step]]) -> bool:
        """Whether some members may not go on any more. They are refused, and the others have to be planned again.

        So are all where snapshots were to expire whose keys cannot be kept: once more, without expiring any.
        """
        late = False
        for table, step in planned:
            if step.expired:
                try:
                    await self._gatekeeper.keep_keys(step.identifier, step.old.head, step.new.head, step.expired)
                except IcetowerError:
                    if not table.expires:  # not by retention, but since a client wants it
                        raise
                    table.expires = False
                    late = True
                    continue
            going = step.going
            meanwhile = await self._gatekeeper.landed_meanwhile(step.old.head, [w.member for w in going])
            for position, error in meanwhile.items():
                self._reject(table, going[position], error)
                late = True
        # Last: no swap may begin after a revocation (trap K4).
        left = [(table, w, step.old.head) for table, step in planned for w in step.going if not w.over]
        for position, error in (await self._gatekeeper.last_word([(w.member, old) for _, w, old in left])).items():
            self._reject(*left[position][:2], error)
            late = True
        # Somebody may have left meanwhile. No await between this look and the seals.
        return late or any(waiting.over for _, step in planned for waiting in step.going)

    def _remember(self, table: TableState, step: Step) -> None:
        table.saw(step.new)
        table.may_have_landed(step.going)
        table.swaps_lost = 0
        table.expires = True
        self._heads.remember(step.new.head, step.plan.files)

    def _settle(self, table: TableState, step: Step, *, refusals_only: bool = False) -> None:
        """Answer all members. With `refusals_only`, those refused on a version that may not stand any more."""
        results: list[tuple[Member, Committed | IcetowerError]] = [(r.member, r.error) for r in step.plan.refused]
        if not refusals_only:
            results += step.answers()
        # A member may have been submitted more than once.
        waiting: dict[int, deque[Waiting]] = {}
        for w in step.waiting:
            waiting.setdefault(id(w.member), deque()).append(w)
        for member, result in results:
            found = waiting[id(member)].popleft()
            if isinstance(result, Committed) and found.taken_s is not None:
                result = replace(result, queue_wait_ms=(found.taken_s - found.entered_s) * 1000)
            if refusals_only and isinstance(result, IcetowerError):
                self._reject(table, found, result)
            else:
                found.settle(result)

    # -- helpers --------------------------------------------------------------------------------------------------

    def _table(self, identifier: Identifier) -> TableState:
        table = self._tables.get(identifier)
        if table is None:
            table = self._tables[identifier] = TableState(identifier, self.limits, self._budget, self._landed)
        return table

    def _waiting(self, table: TableState, member: Member, request: str) -> Waiting:
        answer: asyncio.Future[Committed] = asyncio.get_running_loop().create_future()
        names = member.identity.in_flight
        every = names if isinstance(member, AdmittedFence) else names | member.identity.asked_by
        table.begun(every)

        def answered(done: asyncio.Future[Committed]) -> None:
            table.ended(every)
            # A client may hang up before its answer; its error needs no reader then.
            if not done.cancelled():
                done.exception()

        answer.add_done_callback(answered)
        return Waiting(member, answer, self._ambient.monotonic_s(), bases_of(member), names=names, request=request)

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something in the background."""
        task = asyncio.create_task(work)
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)

    async def _pause(self, attempt: int) -> None:
        """Two towers that lose to each other must not keep step."""
        await self._ambient.sleep(min(0.002 * 2 ** min(attempt, 8), 0.25) * self._ambient.uniform())

    def _closed_to(self, members: Sequence[Member]) -> CommitConflict | None:
        # What is under way by another request is let in: that may land yet, and then this one must not have heard 409.
        if not self._draining or any(self._table(member.identifier).knows(member) for member in members):
            return None
        return draining()


def _unwrapped(answer: T | IcetowerError) -> T:
    """The answer. Raises it where it is an error."""
    if isinstance(answer, IcetowerError):
        raise answer
    return answer
