"""Commits: to one table, to several, and appends by the fast path.

Each goes the same way: is its identity known already? Then its first answer is given again. Else the gate admits it,
the engine lands it, and the journal keeps its keys. Equal requests at once are done once.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, NoReturn

from icetower.admission import permissions
from icetower.admission.admitted import Admitted, AdmittedAppend
from icetower.admission.appends import application_of, key_of
from icetower.admission.deliveries import way_of_rows
from icetower.admission.gate import Gate
from icetower.admission.identity import Identity
from icetower.admission.operations import claimed_by
from icetower.ambient import Ambient
from icetower.commit.engine import Committed, Engine
from icetower.commit.gatekeeper import Gatekeeper
from icetower.commit.head import Heads
from icetower.commit.replays import Replays
from icetower.commit.resolution import half_known
from icetower.commit.safe_refusals import SafeRefusals
from icetower.contracts.model import Operation
from icetower.errors import CommitConflict, IcetowerError, KeyMisused, NoSuchTable, NotSupported
from icetower.files.parsing import Reading
from icetower.ledger.writers import Writers
from icetower.observe.traces import CommitTrace
from icetower.protocol.appends import AppendRequest
from icetower.protocol.commits import CommitRequest
from icetower.protocol.marks import DECIDED
from icetower.protocol.names import Identifier, check_new
from icetower.protocol.rows import RowsRequest
from icetower.protocol.updates import Updates, creates
from icetower.registry.principals import Principal
from icetower.registry.tokens import contract_revoked, not_authenticated
from icetower.service.attempts import partitions_of
from icetower.service.intents import Intents
from icetower.service.journal import Journal
from icetower.service.lifecycle import Lifecycle
from icetower.service.outcomes import Attempt, Outcomes, time_of
from icetower.service.purges import Watch
from icetower.service.rows_in_flight import RowsInFlight
from icetower.service.single_flight import SingleFlight
from icetower.service.under_way import UnderWay
from icetower.table.head import HeadState

Work = Callable[[], Awaitable[tuple[Committed, ...]]]
READ_ANEW_MAX = 8
"""Rows are judged so often, while the columns or the partitioning of their table change beneath them."""
_OF_ANOTHER_SCHEMA = ("append.schema", "commit.spec")


class Commits:
    """One a tower."""

    def __init__(
        self,
        gate: Gate,
        engine: Engine,
        heads: Heads,
        replays: Replays,
        refusals: SafeRefusals,
        writers: Writers,
        lifecycle: Lifecycle,
        gatekeeper: Gatekeeper,
        outcomes: Outcomes,
        journal: Journal,
        ambient: Ambient,
        rows: RowsInFlight | None = None,
        under_way: UnderWay | None = None,
        intents: Intents | None = None,
    ) -> None:
        self._gate = gate
        self._engine = engine
        self._heads = heads
        self._replays = replays
        self._refusals = refusals
        self._writers = writers
        self._lifecycle = lifecycle
        self._gatekeeper = gatekeeper
        self._outcomes = outcomes
        self._journal = journal
        self._ambient = ambient
        self._rows = rows or RowsInFlight()
        self._flights: SingleFlight[tuple[Committed, ...]] = SingleFlight()
        self._under_way = under_way or UnderWay()
        self._intents = intents

    async def commit(
        self,
        principal: Principal,
        request: CommitRequest,
        key: str | None,
        application: tuple[str, int] | None = None,
        trace: CommitTrace | None = None,
    ) -> HeadState:
        """One commit to one table.

        Args:
            key, application: as the request's headers have them.
            trace: of the request; None: nobody traces.

        Returns:
            The table with the commit.

        Raises:
            IcetowerError: whatever refuses it; every attempt is logged.
        """
        table = request.identifier
        assert table is not None
        if principal.ended:
            await self._refuse_ended(principal, [request], key, application)
        attempt = Attempt(principal, [table], "?", self._ambient.monotonic_s(), key, trace=trace)
        self._outcomes.begin(attempt)

        async def work() -> tuple[Committed]:
            with self._lifecycle.purges.watched() as watch:
                async with self._gate.reading(principal) as reading:
                    admitted = await self._admit(principal, request, identity, since_s=attempt.started_s)
                    reading.leave()
                    if isinstance(admitted, Committed):
                        return (admitted,)
                    attempt.operation = "+".join(sorted(admitted.operations)) or "none"
                    self._judged(attempt, admitted)
                    async with self._gate.holding(admitted):
                        done = await self._land(admitted, watch, attempt, reads=_may_read(principal, table))
                    attempt.partitions = partitions_of(done.head, _touched(admitted))
                    return (done,)

        async with self._outcomes.watched(attempt):
            identity = Identity.of_commit(principal.name, request.updates, key, application)
            attempt.key, attempt.work = identity.key, identity.work
            _asked(attempt, request, identity)
            attempt.operation = "+".join(sorted(claimed_by(request.requirements, request.updates))) or "none"
            async with self._refused_safely(principal, [(request, identity)]):
                _require_any(principal, request)
                with self._under_way.noted([(table, identity)]):
                    [done] = await self._once(_flight_name([identity]), request, work)
        self._outcomes.landed(attempt, table, done)
        return done.head

    async def commit_together(
        self,
        principal: Principal,
        requests: Sequence[CommitRequest],
        key: str | None,
        application: tuple[str, int] | None = None,
        trace: CommitTrace | None = None,
    ) -> None:
        """A commit over several tables, all or nothing. Arguments and errors as of `commit`."""
        if principal.ended:
            await self._refuse_ended(principal, requests, key, application)
        if len(requests) > 1 and not self._engine.atomic_multi_table:
            raise NotSupported("the catalog behind this server cannot commit several tables in one step")
        if len(requests) == 1:
            await self.commit(principal, requests[0], key, application, trace)
            return
        tables = [request.identifier for request in requests if request.identifier is not None]
        attempt = Attempt(principal, tables, "transaction", self._ambient.monotonic_s(), key, work=key, trace=trace)
        self._outcomes.begin(attempt)

        async def work() -> tuple[Committed, ...]:
            try:
                async with self._gate.reading(principal) as reading:
                    return await self._together(attempt, requests, identities, reading)
            except KeyMisused as error:
                if error.rule != "key.rolled-back":
                    raise
                raise KeyMisused(
                    f"{error.message}. Look first whether other tables of the transaction still have it",
                    rule="key.rolled-back",
                    snapshot=error.snapshot,
                    next_step="ask_owner",  # under a new key, they would have it twice
                ) from error

        async with self._outcomes.watched(attempt):
            identities = [Identity.of_commit(principal.name, each.updates, key, application) for each in requests]
            for request, identity in zip(requests, identities, strict=True):
                _asked(attempt, request, identity)
            async with self._refused_safely(principal, list(zip(requests, identities, strict=True))):
                for request in requests:
                    attempt.looking_at = request.identifier
                    if creates(request.requirements):
                        raise NotSupported(
                            f"a transaction cannot create a table ({request.identifier}); create it first"
                        )
                    _require_any(principal, request)
                with self._under_way.noted(zip(tables, identities, strict=True)):
                    committed = await self._once(_flight_name(identities), tuple(requests), work)
        for request, identity, done in zip(requests, identities, committed, strict=True):
            if request.identifier is not None:
                self._outcomes.landed(attempt, request.identifier, done, key=identity.key)

    async def append(
        self,
        principal: Principal,
        table: Identifier,
        request: AppendRequest,
        key: str | None,
        application: tuple[str, int] | None = None,
        trace: CommitTrace | None = None,
    ) -> Committed:
        """Data files into a table, by the fast path. Arguments and errors as of `commit`."""
        return await self._append(principal, table, request, key, application, trace, self._gate.admit_append)

    def check_rows(self, principal: Principal, size_bytes: int) -> None:
        """Check, before they are read, that so many bytes of rows may come. Raises `TooManyRequests`."""
        self._rows.check(principal.waits_as, size_bytes)

    async def append_rows(
        self,
        principal: Principal,
        table: Identifier,
        request: RowsRequest,
        key: str | None,
        application: tuple[str, int] | None = None,
        trace: CommitTrace | None = None,
    ) -> tuple[Identifier, Committed]:
        """Rows into a table, or to where its contract says: all of them, or none. Arguments and errors as of `commit`.

        Returns:
            The table that they were written to, and how.

        Raises:
            TooManyRequests: too many rows are on their way already.
        """
        if principal.ended:
            raise not_authenticated()
        try:
            way = way_of_rows(principal, table, request.act, self._ambient.now_ms())
        except IcetowerError:
            sent_key = key or request.key
            attempt = Attempt(principal, [table], "append", self._ambient.monotonic_s(), sent_key, trace=trace)
            self._outcomes.begin(attempt)
            async with self._outcomes.watched(attempt):
                raise
        admit = partial(self._gate.admit_rows, way=way)
        with self._rows.taken(principal.waits_as, request.size_bytes, request.count):
            done = await self._append(principal, way.table, request, key, application, trace, admit, anew=READ_ANEW_MAX)
        return way.table, done

    async def _append(
        self,
        principal: Principal,
        table: Identifier,
        request: AppendRequest | RowsRequest,
        key: str | None,
        application: tuple[str, int] | None,
        trace: CommitTrace | None,
        admit: Callable[..., Awaitable[AdmittedAppend]],
        *,
        anew: int = 0,
    ) -> Committed:
        """`anew`: so often it is admitted once more where the table's columns or its partitioning change meanwhile."""
        if principal.ended:
            raise not_authenticated()  # clients delete nothing
        sent_key = key or request.key
        began_s = self._ambient.monotonic_s()
        attempt = Attempt(principal, [table], "append", began_s, sent_key, work=sent_key, trace=trace)
        request_id = self._outcomes.begin(attempt).request_id or ""
        attempt.updates[table] = Updates([{"action": "set-snapshot-ref", "ref-name": request.ref, "type": "branch"}])
        # Two without a key, of one content, may be two appends.
        names = (key, request.key, application, request.application)
        name = (principal.name, table, request.ref, *names) if any(names) else None

        async def once() -> Committed:
            head = await self._heads.load(table)
            # Before the contract is asked, and its files are looked at: a slot may have passed since they were
            # appended, and compaction may have replaced them.
            identity = Identity.of_append(
                principal.name, request.ref, key_of(request, key), application_of(request, application)
            )
            attempt.write(table).identified(identity)
            with self._under_way.noted([(table, identity)]):
                landed = await self._replays.find(table, head, identity)
                if landed is not None:
                    return landed
                admitted = await admit(principal, table, request, identity, head, since_s=attempt.started_s)
                if self._intents is not None:
                    admitted = await self._intents.admit(admitted, head.metadata)
                self._judged(attempt, admitted)
                done = await self._engine.submit(admitted, head, request=request_id)
                self._tell_holders(admitted, done)
            if done.by_files:
                await self._journal.keep_replay(identity, done)
            attempt.partitions = partitions_of(done.head, admitted.places)
            return done

        async def work() -> tuple[Committed]:
            for _ in range(anew):
                try:
                    return (await once(),)
                except CommitConflict as conflict:
                    if conflict.rule not in _OF_ANOTHER_SCHEMA:
                        raise
            return (await once(),)

        async with self._outcomes.watched(attempt), self._refused_safely(principal, []):  # clients delete nothing
            _require(principal, Operation.APPEND, table)
            [done] = await self._once(name, request, work)
        self._outcomes.landed(attempt, table, done)
        return done

    async def _refuse_ended(
        self,
        principal: Principal,
        requests: Sequence[CommitRequest],
        key: str | None,
        application: tuple[str, int] | None,
    ) -> NoReturn:
        """Of a credential that has ended: nothing is logged as its principal's, or counts for it."""
        identities = [Identity.of_commit(principal.name, each.updates, key, application) for each in requests]
        raise await self._refusals.of(not_authenticated(), list(zip(requests, identities, strict=True)))

    @asynccontextmanager
    async def _refused_safely(
        self, principal: Principal, commits: Sequence[tuple[CommitRequest, Identity]]
    ) -> AsyncGenerator[None]:
        """What refuses commits within; but nothing upon which files are deleted that a table lives on (trap A3)."""
        try:
            if principal.revoked:
                raise contract_revoked(f"contract {principal.contract.name} of {principal.name}")
            yield
        except IcetowerError as refusal:
            error = await self._refusals.of(refusal, commits)
            if error is not refusal:
                raise error from refusal
            raise

    def _judged(self, attempt: Attempt, *members: Admitted | AdmittedAppend) -> None:
        """Note that an attempt is admitted, and what its writes go by."""
        attempt.judged_s = self._ambient.monotonic_s()
        for member in members:
            without_files = isinstance(member, Admitted) and not member.changes
            fingerprint = None if without_files else member.fingerprint
            attempt.write(member.identifier).identified(member.identity, fingerprint)

    async def _once(self, name: Hashable, request: object, work: Work) -> tuple[Committed, ...]:
        committed, another = await self._flights.run(name, request, work)
        return tuple(replace(each, outcome="replayed") for each in committed) if another else committed

    async def _admit(
        self, principal: Principal, request: CommitRequest, identity: Identity, *, since_s: float
    ) -> Admitted | Committed:
        """The commit as the gate admits it; or its answer, where it has landed before."""
        table = request.identifier
        assert table is not None
        creating = creates(request.requirements)
        head = None if creating else await self._heads.load(table)
        if identity.snapshots:
            # Before its files are read: some of them may be gone, since a client cleans up after its commit.
            if head is not None:
                before = await self._replays.find(table, head, identity)
            else:
                before = await self._created_before(principal, request, identity)
            if before is not None:
                return before
        if self._intents is None:
            return await self._gate.admit(principal, request, identity, head, since_s=since_s)
        async with self._intents.judging(principal, request.updates):
            admitted = await self._gate.admit(principal, request, identity, head, since_s=since_s)
        if head is None:
            return admitted
        async with self._gate.holding(admitted):
            return await self._intents.admit(admitted, head.metadata)

    async def _created_before(
        self, principal: Principal, request: CommitRequest, identity: Identity
    ) -> Committed | None:
        """The answer that a creation has got before, if any. Raises `KeyMisused` where what it made is not there."""
        table = request.identifier
        assert table is not None
        uuid = request.updates.assigned_uuid
        if not uuid or not _may_read(principal, table):  # who may not read a table can have added no files to it
            return None
        try:
            head = await self._heads.load(table)
        except NoSuchTable:
            head = None
        if head is not None and str(head.metadata.get("table-uuid")).lower() == uuid.lower():
            return await self._replays.find(table, head, identity)
        await self._replays.refuse_dropped(table, uuid, identity)
        return None

    async def _land(self, admitted: Admitted, watch: Watch, attempt: Attempt, *, reads: bool) -> Committed:
        if creates(admitted.requirements):
            for error in (await self._gatekeeper.still_admits([admitted])).values():
                raise error
            done = await self._lifecycle.create_by_commit(admitted, watch, reads=reads)
            self._journal.remember_commit(admitted, done)
            await self._keep_writer([admitted], uuid=str(done.head.metadata["table-uuid"]))
            if admitted.identity.key is not None or admitted.identity.application is not None:
                # Before the answer: once the table is dropped, only the ledger has its key.
                with suppress(IcetowerError):
                    await self._journal.flush()
            return done
        await self._keep_writer([admitted])
        done = await self._engine.submit(admitted, request=attempt.request_id or "")
        await self._remember(admitted, done)
        return done

    async def _keep_writer(self, members: Sequence[Admitted], uuid: str = "") -> None:
        """Keep who commits where, before the swap: so no kill of the tower takes what a refusal goes by.

        Args:
            uuid: of a table that was just created. Of one that is never made, nothing is kept.
        """
        marked = [member for member in members if member.identity.snapshots]
        tables = [(uuid or member.table_uuid or "", member.identifier) for member in marked]
        if tables:
            await self._writers.keep(marked[0].principal, tables)

    async def _together(
        self,
        attempt: Attempt,
        requests: Sequence[CommitRequest],
        identities: Sequence[Identity],
        reading: Reading,
    ) -> tuple[Committed, ...]:
        # Members without snapshots leave no trace: they are done when those with snapshots are.
        marked = [position for position, identity in enumerate(identities) if identity.snapshots]
        admitted: dict[int, Admitted] = {}
        known: dict[int, Committed] = {}
        for position in (*marked, *(position for position in range(len(requests)) if position not in marked)):
            if marked and len(known) == len(marked):
                return await self._known_together(requests, known)
            attempt.looking_at = requests[position].identifier
            member = await self._admit(
                attempt.principal, requests[position], identities[position], since_s=attempt.started_s
            )
            if isinstance(member, Committed):
                known[position] = member
            else:
                admitted[position] = member
        if known and len(known) == len(requests):
            return await self._known_together(requests, known)
        if known:
            raise half_known()
        members = [admitted[position] for position in range(len(requests))]
        reading.leave()
        attempt.looking_at = None
        self._judged(attempt, *members)
        await self._keep_writer(members)
        try:
            async with self._gate.holding(*members):
                committed = await self._engine.submit_together(members, request=attempt.request_id or "")
        except KeyMisused as error:
            if error.rule != "key.transaction" or len(marked) == len(requests):
                raise
            # The engine met the key on some tables only: it may have landed since the gate was asked.
            for position in marked:
                identity, table = identities[position], members[position].identifier
                landed = await self._replays.find(table, await self._heads.load(table), identity)
                if landed is None:
                    raise
                known[position] = landed
            return await self._known_together(requests, known)
        for member, done in zip(members, committed, strict=True):
            await self._remember(member, done)
        return tuple(committed)

    def _tell_holders(self, member: Admitted | AdmittedAppend, done: Committed) -> None:
        """Whoever holds rows that a commit has touched hears of it."""
        if self._intents is not None:
            self._intents.landed(member, done)

    async def _remember(self, member: Admitted, done: Committed) -> None:
        self._tell_holders(member, done)
        if done.by_files:
            await self._journal.keep_replay(member.identity, done)
        else:
            self._journal.remember_commit(member, done)

    async def _known_together(
        self, requests: Sequence[CommitRequest], known: Mapping[int, Committed]
    ) -> tuple[Committed, ...]:
        """The answer of a transaction that has landed before, its members without snapshots included."""
        found: list[Committed] = []
        for position, request in enumerate(requests):
            assert request.identifier is not None
            member = known.get(position)
            found.append(member or Committed("replayed", await self._heads.load(request.identifier), (), 0.0, 1))
        return tuple(found)


def _asked(attempt: Attempt, request: CommitRequest, identity: Identity) -> None:
    """Note what a commit says of itself."""
    assert request.identifier is not None
    attempt.updates[request.identifier] = request.updates
    write = attempt.write(request.identifier)
    write.identified(identity)
    if identity.snapshots:
        write.base = identity.snapshots[0].parent_id
        said = [s.summary[DECIDED] for s in identity.snapshots if DECIDED in s.summary]
        write.decided_ms = time_of(said[0]) if said else None


def _may_read(principal: Principal, table: Identifier) -> bool:
    return permissions.may(principal, Operation.READ, table)


def _require(principal: Principal, operation: Operation, table: Identifier) -> None:
    """Before anything of the table is read, or shows in an error. Raises `ContractViolation`.

    What shadow mode lets by is recorded once, where the commit itself is judged.
    """
    if not principal.contract.shadow:
        permissions.require(principal, operation, table)


def _require_any(principal: Principal, request: CommitRequest) -> None:
    """A principal that commits to a table may see it, and one that makes it may create it."""
    assert request.identifier is not None
    creating = creates(request.requirements)
    if creating:
        check_new(request.identifier.name)
    operation = Operation.CREATE if creating else Operation.READ
    _require(principal, operation, request.identifier)


def _flight_name(identities: Sequence[Identity]) -> Hashable:
    """The identity of a request in flight: its keys and the ids of its snapshots.

    Without a snapshot two equal ones may be meant as two: of two that take a lock, one must be refused.
    """
    ids = tuple(each.snapshot_ids for each in identities)
    return (identities[0].principal, tuple(each.key for each in identities), ids) if any(ids) else None


def _touched(admitted: Admitted) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Spec and partition of the files that a commit adds and removes."""
    touched = chain.from_iterable((*change.added, *change.removed) for change in admitted.changes)
    return ((each.spec_id, each.file.partition) for each in touched)
