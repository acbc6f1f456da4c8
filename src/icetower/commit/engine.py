"""The engine: a queue a table, groups, one swap a group, and the only retry loop of the server.

A commit waits in its table's queue. One worker a table takes what waits as a group, plans it (`plan`), writes the new
manifest lists and the new metadata file side by side, asks the gatekeeper once more, and swaps. What can happen then:

- *landed*: everybody in the group is answered from the new head.
- *lost*, an outside writer was faster: the files are deleted, the head read anew, the group planned again.
- *unknown*: the very same swap is repeated until it lands or the head has moved; then the group's snapshots, or its
  metadata file in the head's log, tell which it was. While nobody can tell, nobody is told 409: a client that hears
  409 deletes its manifests (trap A3).

A commit over several tables holds the turn of each, taken in name order, so that two of them never wait for each other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from icetower.admission.admitted import Admitted, AdmittedAppend
from icetower.ambient import Ambient
from icetower.catalog.changes import Manifests
from icetower.catalog.deletes import Blobs, PositionDeletes
from icetower.catalog.ports import Storage, Swap, SwapLost, SwapUnknown, Upstream
from icetower.commit.head import Heads
from icetower.commit.plan import Plan, Sources, plan
from icetower.commit.rebase import asks_for_snapshot_isolation
from icetower.conflicts.history import Files
from icetower.errors import (
    AlreadyExists,
    CommitConflict,
    CommitStateUnknown,
    IcetowerError,
    KeyMisused,
    NotFound,
    Unavailable,
    UpstreamFailed,
)
from icetower.protocol.names import Identifier
from icetower.table import metadata as table_metadata
from icetower.table.head import HeadState
from icetower.table.manifests import Manifest, ManifestFile
from icetower.table.puffin import BlobAt


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the engine."""

    group_max: int = 256
    """Commits in one metadata write."""
    queue_max: int = 2_048
    """Commits that wait for one table; more are held back before they enter."""
    deadline_s: float = 30.0
    """How long a commit may wait for its turn before it is withdrawn and answered 409 (trap A4)."""
    rounds_max: int = 32
    """Swaps lost to outside writers before a group gives up with 409."""
    settle_s: float = 30.0
    """How long an unknown swap is repeated before its clients hear that nobody can tell."""


class Gatekeeper(Protocol):
    """Asked once more, just before the swap: contracts, principals and keys may have changed since (trap K4)."""

    async def still_admits(self, members: Sequence[Admitted | AdmittedAppend]) -> Mapping[int, IcetowerError]:
        """The members that may no longer go on: position → why."""
        ...


@dataclass(frozen=True, slots=True)
class Committed:
    """The answer to a commit: how it went in, and the table that it is in."""

    outcome: str
    """``direct``, ``rebased`` or ``replayed``."""
    head: HeadState
    snapshots: tuple[int, ...]
    queue_wait_ms: float
    group_size: int


@dataclass(eq=False, slots=True)
class _Waiting:
    member: Admitted | AdmittedAppend
    answer: asyncio.Future[Committed]
    entered_s: float
    taken_s: float | None = None

    def settle(self, result: Committed | IcetowerError) -> None:
        if self.answer.done():
            return
        if isinstance(result, Committed):
            self.answer.set_result(result)
        else:
            self.answer.set_exception(result)


class _Turn:
    """A table's queue and the lock that whoever commits to the table holds."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.queue: deque[_Waiting] = deque()
        self.room = asyncio.Condition()
        self.worker: asyncio.Task[None] | None = None


@dataclass(frozen=True, slots=True)
class _Draft:
    """One table's share of a round, written and ready to be swapped."""

    identifier: Identifier
    waiting: tuple[_Waiting, ...]
    old: HeadState
    new: HeadState
    plan: Plan
    expired_metadata: tuple[str, ...]

    @property
    def swap(self) -> Swap:
        return Swap(self.identifier, self.old.location, self.new.location)


class Engine:
    def __init__(
        self,
        upstream: Upstream,
        storage: Storage,
        heads: Heads,
        manifests: Manifests,
        ambient: Ambient,
        gatekeeper: Gatekeeper,
        limits: Limits | None = None,
    ) -> None:
        self._upstream = upstream
        self._storage = storage
        self._heads = heads
        self._manifests = manifests
        self._blobs = Blobs(storage)
        self._deletes = PositionDeletes(storage)
        self._ambient = ambient
        self._gatekeeper = gatekeeper
        self.limits = limits or Limits()
        self._turns: dict[Identifier, _Turn] = {}
        self._transactions: set[asyncio.Task[None]] = set()
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

    async def submit_append(self, member: AdmittedAppend) -> Committed:
        """Queue one append by the fast path and wait for its answer; raises what `submit` does."""
        return await self._submit(member)

    async def _submit(self, member: Admitted | AdmittedAppend) -> Committed:
        self._check_open()
        turn = self._turns.setdefault(member.identifier, _Turn())
        waiting = self._waiting(member)
        try:
            async with asyncio.timeout(self.limits.deadline_s):
                async with turn.room:
                    await turn.room.wait_for(lambda: len(turn.queue) < self.limits.queue_max)
                    turn.queue.append(waiting)
                if turn.worker is None:
                    turn.worker = asyncio.create_task(self._work(member.identifier, turn))
                return await asyncio.shield(waiting.answer)
        except TimeoutError:
            if waiting.taken_s is not None:  # its group is on the way: only the outcome may answer now
                return await asyncio.shield(waiting.answer)
            if waiting in turn.queue:
                turn.queue.remove(waiting)
            raise _withdrawn(self.limits.deadline_s, member.identifier) from None

    async def submit_together(self, members: Sequence[Admitted]) -> list[Committed]:
        """Commit to several tables, all or nothing; the answers are in the order of the members."""
        self._check_open()
        if len({member.identifier for member in members}) != len(members):
            raise IcetowerError("a table was named twice in one transaction")  # the protocol has refused it before
        waiting = [self._waiting(member) for member in members]
        # A task of its own: a caller that goes away must not let go of the turns half-way.
        task = asyncio.create_task(self._together(sorted(waiting, key=lambda w: w.member.identifier)))
        self._transactions.add(task)
        task.add_done_callback(self._transactions.discard)
        await asyncio.shield(task)
        return [w.answer.result() for w in waiting]

    async def _together(self, ordered: Sequence[_Waiting]) -> None:
        taken: list[_Turn] = []
        try:
            async with asyncio.timeout(self.limits.deadline_s):
                for waiting in ordered:
                    turn = self._turns.setdefault(waiting.member.identifier, _Turn())
                    await turn.lock.acquire()
                    taken.append(turn)
                    waiting.taken_s = self._ambient.monotonic_s()
        except TimeoutError:
            for waiting in ordered:
                waiting.settle(_withdrawn(self.limits.deadline_s, ordered[len(taken)].member.identifier))
        else:
            await self._commit([(w.member.identifier, (w,)) for w in ordered], all_or_nothing=True)
        finally:
            for turn in taken:
                turn.lock.release()

    def queued(self, identifier: Identifier) -> int:
        """How many commits wait for a table."""
        turn = self._turns.get(identifier)
        return len(turn.queue) if turn else 0

    async def drain(self) -> None:
        """Take no more commits and finish those that wait."""
        self._draining = True
        workers = [turn.worker for turn in self._turns.values() if turn.worker is not None]
        await asyncio.gather(*workers, *self._transactions, return_exceptions=True)

    # -- a table's worker -----------------------------------------------------------------------------------------

    async def _work(self, identifier: Identifier, turn: _Turn) -> None:
        try:
            while turn.queue:
                async with turn.lock:
                    group = await self._take(turn)
                    if group:
                        await self._commit([(identifier, group)], all_or_nothing=False)
        finally:
            # No await between the last look at the queue and this: whoever comes later starts a new worker.
            turn.worker = None

    async def _take(self, turn: _Turn) -> tuple[_Waiting, ...]:
        async with turn.room:
            group = tuple(turn.queue.popleft() for _ in range(min(len(turn.queue), self.limits.group_max)))
            for waiting in group:
                waiting.taken_s = self._ambient.monotonic_s()
            turn.room.notify_all()
        return group

    # -- rounds ---------------------------------------------------------------------------------------------------

    async def _commit(self, parts: Sequence[tuple[Identifier, tuple[_Waiting, ...]]], *, all_or_nothing: bool) -> None:
        """Commit each table's group in one swap and settle everybody; never raises."""
        everybody = [waiting for _, group in parts for waiting in group]
        try:
            for attempt in range(self.limits.rounds_max):
                if await self._round(parts, all_or_nothing=all_or_nothing):
                    return
                await self._ambient.sleep(min(0.002 * 2**attempt, 0.25) * self._ambient.uniform())
                parts = [(i, left) for i, group in parts if (left := tuple(w for w in group if not w.answer.done()))]
            error: IcetowerError = CommitConflict(
                f"{self.limits.rounds_max} swaps in a row were lost to other writers of the catalog; try again",
                rule="swap.lost",
                next_step="retry",
            )
        except IcetowerError as raised:
            error = raised
        except Exception as raised:  # noqa: BLE001 - a worker that dies would leave its clients waiting for ever
            error = CommitStateUnknown(f"the commit engine failed: {type(raised).__name__}")
            error.__cause__ = raised
        if len(everybody) > 1 and not all_or_nothing and not isinstance(error, CommitStateUnknown | UpstreamFailed):
            # Something about one of them spoils the group; alone, it spoils nobody else's commit.
            for waiting in everybody:
                if not waiting.answer.done():
                    await self._commit([(waiting.member.identifier, (waiting,))], all_or_nothing=False)
            return
        for waiting in everybody:
            waiting.settle(error)

    async def _round(self, parts: Sequence[tuple[Identifier, tuple[_Waiting, ...]]], *, all_or_nothing: bool) -> bool:
        """One attempt. True when everybody was settled, False when the swap was lost or the group has changed."""
        drafts: list[_Draft] = []
        for identifier, group in parts:
            try:
                head = await self._heads.load(identifier)
            except NotFound as error:
                for waiting in group:
                    waiting.settle(error)
                if all_or_nothing:
                    raise
                continue
            drafts.append(await self._draft(identifier, group, head))
        refused = [refusal.error for draft in drafts for refusal in draft.plan.refused]
        if all_or_nothing and refused:
            raise refused[0]
        if all_or_nothing and len({bool(draft.plan.replayed) for draft in drafts}) > 1:
            raise KeyMisused(
                "the idempotency key is in some tables of the transaction and not in others: it stands for another "
                "transaction; use a new key",
                rule="key.transaction",
            )
        changed = [draft for draft in drafts if draft.new is not draft.old]
        if changed:
            try:
                await self._write(changed)
                late = await self._refused_late(changed)
                outcome = "late" if late else await self._swap(changed)
            except CommitStateUnknown:
                for draft in drafts:  # a refusal is certain, whatever became of the others
                    for refusal in draft.plan.refused:
                        self._waiting_of(draft, refusal.member).settle(refusal.error)
                raise
            except Exception:
                await self._discard(changed)
                raise
            if outcome != "landed":
                await self._discard(changed)
                if late and all_or_nothing:
                    raise late[0]
                return False
            for draft in changed:
                self._remember(draft)
        for draft in drafts:
            self._settle(draft)
        # Everybody has been answered: nothing from here on may turn a commit that landed into a failure.
        with suppress(IcetowerError):
            await self._storage.delete_many([path for draft in changed for path in draft.expired_metadata])
        return True

    async def _draft(self, identifier: Identifier, group: tuple[_Waiting, ...], head: HeadState) -> _Draft:
        members = [waiting.member for waiting in group]
        now_ms = max(self._ambient.now_ms(), head.metadata["last-updated-ms"])
        lists: dict[str, tuple[ManifestFile, ...]] = {}
        manifests: dict[str, Manifest] = {}
        blobs: dict[BlobAt, bytes] = {}
        targets: dict[str, frozenset[str] | None] = {}
        for _ in range(len(members) * 4 + 8):
            files = Files(lists, manifests, self._manifests.own)
            since = 0 if asks_for_snapshot_isolation(head.metadata.get("properties") or {}) else None
            planned = plan(
                head,
                members,
                Sources(files, self._manifests.listings, blobs, targets),
                now_ms=now_ms,
                new_name=self._ambient.uuid4,
                new_id=self._ambient.snapshot_id,
                isolation_since=since,
            )
            if not planned.needs:
                break
            for path in planned.needs.lists:
                lists[path] = await self._manifests.list_at(path)
            for path in planned.needs.manifests:
                manifests[path] = await self._manifests.manifest_at(path)
            blobs |= await self._blobs.read_all(planned.needs.blobs)
            for file in planned.needs.targets:
                targets[file.path] = await self._deletes.targets(file.path, file)
        else:
            raise IcetowerError(f"a plan for {identifier} kept asking for manifest lists")
        if planned.metadata is head.metadata:  # nobody was accepted, or nothing changes by it
            return _Draft(identifier, group, head, head, planned, ())
        logged, expired = table_metadata.with_log(
            planned.metadata, previous=head.metadata, previous_location=head.location
        )
        keep = logged["properties"].get("write.metadata.delete-after-commit.enabled", "false").lower() != "true"
        version = table_metadata.version_of(head.location) + 1
        location = table_metadata.metadata_path(logged, version, self._ambient.uuid4())
        new = HeadState(location, logged, indexed=planned.keys)
        return _Draft(identifier, group, head, new, planned, () if keep else tuple(expired))

    async def _write(self, drafts: Sequence[_Draft]) -> None:
        writes: dict[str, bytes] = {}
        for draft in drafts:
            writes |= draft.plan.files
            writes[draft.new.location] = draft.new.file_bytes
        results = await asyncio.gather(
            *(self._storage.write(path, data) for path, data in writes.items()), return_exceptions=True
        )
        for result in results:  # only now: a write that is still under way must not outlive the clean-up
            if isinstance(result, AlreadyExists):
                raise IcetowerError(f"a new file has the name of an old one: {result.message}")
            if isinstance(result, BaseException):
                raise result

    async def _refused_late(self, drafts: Sequence[_Draft]) -> list[IcetowerError]:
        """Who may not go on any more. They are settled; the rest is planned again without them (trap S5)."""
        errors: list[IcetowerError] = []
        for draft in drafts:
            accepted = {id(accepted.member) for accepted in draft.plan.accepted}
            going = [waiting for waiting in draft.waiting if id(waiting.member) in accepted]
            found = await self._gatekeeper.still_admits([waiting.member for waiting in going])
            for position, error in found.items():
                going[position].settle(error)
                errors.append(error)
        return errors

    async def _discard(self, drafts: Sequence[_Draft]) -> None:
        """Delete the files of a swap that certainly did not happen. What cannot be deleted is an orphan."""
        with suppress(IcetowerError):
            await self._storage.delete_many(
                [path for draft in drafts for path in (*draft.plan.files, draft.new.location)]
            )

    def _remember(self, draft: _Draft) -> None:
        for path, listing in draft.plan.lists.items():
            self._manifests.remember(path, listing)
        for path, rows in draft.plan.own.items():
            self._manifests.remember_own(path, rows)
        self._heads.remember(draft.new, len(draft.new.json_bytes), draft.plan.files)

    def _settle(self, draft: _Draft) -> None:
        size = len(draft.plan.accepted)
        results: list[tuple[Admitted | AdmittedAppend, Committed | IcetowerError]] = [
            (r.member, Committed("replayed", draft.new, r.snapshots, 0.0, size)) for r in draft.plan.replayed
        ]
        results += [(a.member, Committed(a.outcome, draft.new, a.snapshots, 0.0, size)) for a in draft.plan.accepted]
        results += [(r.member, r.error) for r in draft.plan.refused]
        for member, result in results:
            waiting = self._waiting_of(draft, member)
            if isinstance(result, Committed) and waiting.taken_s is not None:
                result = replace(result, queue_wait_ms=(waiting.taken_s - waiting.entered_s) * 1000)
            waiting.settle(result)

    # -- the swap -------------------------------------------------------------------------------------------------

    async def _swap(self, drafts: Sequence[_Draft]) -> str:
        """``landed`` or ``lost``. Raises `CommitStateUnknown` when nobody can tell within `settle_s`."""
        swaps = [draft.swap for draft in drafts]
        until_s = self._ambient.monotonic_s() + self.limits.settle_s
        in_doubt = False
        attempt = 0
        while True:
            try:
                await self._upstream.swap(swaps)
            except SwapLost as lost:
                if not in_doubt:
                    return "lost"
                # While the head cannot be read, nobody knows: what may be in the table must not be cleaned up.
                with suppress(UpstreamFailed, NotFound, Unavailable):
                    return await self._landed_before(drafts, lost)
            except SwapUnknown:
                in_doubt = True
            except IcetowerError:  # certainly nothing was changed, this time
                if not in_doubt:
                    raise
            except Exception as error:
                raise CommitStateUnknown(
                    f"the swap of {', '.join(str(swap.identifier) for swap in swaps)} failed in a way that does not "
                    f"tell whether it landed ({type(error).__name__}); look for its snapshot before writing again"
                ) from error
            else:
                return "landed"
            if self._ambient.monotonic_s() >= until_s:
                raise CommitStateUnknown(
                    f"the catalog did not say within {self.limits.settle_s:g} s whether the commit to "
                    f"{', '.join(str(swap.identifier) for swap in swaps)} landed; look for its snapshot before "
                    "writing again"
                )
            await self._ambient.sleep(min(0.05 * 2**attempt, 2.0) * (0.5 + self._ambient.uniform() / 2))
            attempt += 1

    async def _landed_before(self, drafts: Sequence[_Draft], lost: SwapLost) -> str:
        """Settle a swap in doubt: the head has moved, by us or by somebody else?"""
        draft = next(draft for draft in drafts if draft.identifier == lost.identifier)
        if lost.found is None:
            raise CommitStateUnknown(f"the table {lost.identifier} went away while a commit to it was in doubt")
        if lost.found == draft.new.location:
            return "landed"
        found = await self._heads.at(lost.found)
        logged = {entry["metadata-file"] for entry in found.metadata.get("metadata-log", ())}
        new = [i for accepted in draft.plan.accepted for i in accepted.snapshots]
        if draft.new.location in logged or (new and all(i in found.snapshots for i in new)):
            return "landed"
        return "lost"

    @staticmethod
    def _waiting_of(draft: _Draft, member: Admitted | AdmittedAppend) -> _Waiting:
        return next(waiting for waiting in draft.waiting if waiting.member is member)

    # -- small things ---------------------------------------------------------------------------------------------

    def _waiting(self, member: Admitted | AdmittedAppend) -> _Waiting:
        answer: asyncio.Future[Committed] = asyncio.get_running_loop().create_future()
        # A client may hang up before its answer; an error that nobody fetches is no news.
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        return _Waiting(member, answer, self._ambient.monotonic_s())

    def _check_open(self) -> None:
        if self._draining:
            # Not 503: that ends a PyIceberg job, and leaves Java wondering whether it landed (trap A4).
            raise CommitConflict(
                "the server is shutting down; nothing of the commit was committed; try again",
                rule="queue.draining",
                next_step="retry",
            )


def _withdrawn(deadline_s: float, identifier: Identifier) -> CommitConflict:
    return CommitConflict(
        f"the commit waited {deadline_s:g} s for its turn on {identifier} and was withdrawn; nothing of it was "
        "committed; try again",
        rule="queue.deadline",
        next_step="retry",
    )
