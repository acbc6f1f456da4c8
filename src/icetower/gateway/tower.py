"""Everything that one running tower holds, put together once at its start."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from icetower.admission import appends as admission_of_appends
from icetower.admission import permissions
from icetower.admission.admitted import Admitted
from icetower.admission.gate import Files, Gate
from icetower.admission.identity import Identity
from icetower.admission.operations import claimed_by
from icetower.admission.quotas import RateLimits
from icetower.admission.shadow import ShadowRecorder
from icetower.ambient import Ambient
from icetower.catalog.changes import Manifests
from icetower.catalog.deletes import Contents, Vectors
from icetower.catalog.footers import Footers
from icetower.catalog.parsing import Reading
from icetower.catalog.ports import Storage, Upstream
from icetower.catalog.sql import SqlUpstream
from icetower.catalog.storage import FileIOStorage
from icetower.commit import replays
from icetower.commit.engine import Committed, Engine, Limits
from icetower.commit.head import Heads
from icetower.commit.tables import Tables
from icetower.contracts.model import ADMINISTRATOR_NAME, Operation
from icetower.database import Database, sqlite_url
from icetower.errors import (
    IcetowerError,
    KeyMisused,
    NotSupported,
)
from icetower.gateway.aftermath import Aftermath
from icetower.gateway.attempts import Attempts, partitions_of
from icetower.gateway.gatekeeper import Gatekeeper
from icetower.gateway.intake import Intake
from icetower.gateway.owners import Owners
from icetower.gateway.readiness import readiness_of
from icetower.gateway.settings import Settings, data_directory
from icetower.gateway.token_rates import TokenRates
from icetower.gateway.twins import Twins
from icetower.ledger.answers import Answer
from icetower.ledger.ledger import Attempt, Commit, CommitKey, Ledger, key_hash
from icetower.ledger.shadow import Shadowed
from icetower.observe.bypasses import Bypasses
from icetower.observe.escalations import Escalations
from icetower.observe.events import Events
from icetower.protocol.appends import AppendRequest
from icetower.protocol.commits import CommitRequest
from icetower.protocol.names import Identifier
from icetower.protocol.updates import creates, target_ref
from icetower.recent import Budget
from icetower.registry.principals import Principal
from icetower.registry.registry import Registry
from icetower.registry.tokens import Lifetimes
from icetower.table.change import Touched
from icetower.table.head import HeadState

ADMIN_NAME = "admin"
ADMIN_SECRET_FILE = "admin.token"  # noqa: S105 - the name of a file
REPLAY_LOADS_MAX = 3
"""So often a table is looked at again for a commit that another has overtaken."""

log = logging.getLogger("icetower")


class Tower:
    """The rooms below the gateway, wired.

    Attributes:
        open: whether callers without credentials are let in as an administrator (loopback only).
    """

    def __init__(self, settings: Settings, ambient: Ambient, *, open_to_all: bool = False) -> None:
        self.settings = settings
        self.ambient = ambient
        self.open = open_to_all
        given = settings.upstream.uri
        self.data = data = data_directory(settings.server.data, ["control.db", *([] if given else ["catalog.db"])])
        control = Database(sqlite_url(data / "control.db"), own=True, name="the control database (control.db)")
        catalog = given or sqlite_url(data / "catalog.db")
        self._databases = [control, Database(catalog, own=given is None, name="the catalog's database")]
        lifetimes = Lifetimes(settings.server.token_ttl_s, settings.server.token_renewal_max_s)
        self.registry = Registry(control, ambient, lifetimes)
        self.token_rates = TokenRates(ambient)
        self.events = Events(ambient)
        self.escalations = Escalations(self.registry, ambient, settings.escalations.ways(os.environ), self.events)
        self.ledger = Ledger(control, ambient, lifetime_s=settings.server.key_lifetime_s)
        self.aftermath = Aftermath(self.ledger, ambient)
        self.upstream: Upstream = SqlUpstream(self._databases[1], settings.upstream.catalog)
        self.storage: Storage = FileIOStorage(settings.storage, threads=settings.server.storage_threads)
        self.budget = Budget(settings.server.cache_max_bytes)
        self.manifests = Manifests(self.storage, budget=self.budget)
        self.attempts = Attempts(ambient, self.events, self._note, slow_s=settings.server.slow_swap_s)
        self.bypasses = Bypasses(self.manifests, ambient, self.events)
        self.heads = Heads(
            self.upstream,
            self.storage,
            budget=self.budget,
            metadata_max_bytes=settings.server.metadata_max_bytes,
            ledger=self.ledger,
            ambient=ambient,
            went_around=self.bypasses.noticed,
        )
        warehouse = settings.upstream.warehouse or f"file://{data}/warehouse"  # as it is: nothing is unquoted
        self.tables = Tables(
            self.upstream,
            self.storage,
            self.heads,
            self.manifests,
            ambient,
            warehouse=warehouse,
            ledger=self.ledger,
            client_code=settings.client_code,
        )
        self.readiness = readiness_of(
            self.upstream,
            self.storage,
            control,
            ambient,
            warehouse=warehouse,
            data=data,
            disk_min_bytes=settings.server.disk_min_bytes,
        )
        self.gatekeeper = Gatekeeper(self.registry, self.ledger, self.heads.group_keys, self.flush)
        self.engine = Engine(
            self.upstream,
            self.storage,
            self.heads,
            self.manifests,
            ambient,
            self.gatekeeper,
            Limits(deadline_s=settings.server.queue_deadline_s, metadata_max_bytes=settings.server.metadata_max_bytes),
            self.attempts.swapped,
        )
        self.shadow = ShadowRecorder(ambient, self._note)
        self.owners = Owners(self.registry, ambient)
        files = Files(
            self.manifests,
            Footers(self.storage, budget=self.budget),
            Vectors(self.storage),
            Contents(self.storage, budget=self.budget),
        )
        rates = RateLimits(ambient, self.shadow, deadline_s=settings.server.queue_deadline_s)
        places, code = self.tables, settings.client_code
        self.gate = Gate(files, self.escalations, rates, self.shadow, self.registry, places, ambient, code)
        self.intake = Intake(settings.server, ambient, open_to_all=open_to_all)
        self.keys_in_flight: dict[tuple[str, str], tuple[asyncio.Lock, int]] = {}
        self.twins: Twins[tuple[Committed, ...]] = Twins()

    async def ensure_administrator(self) -> None:
        """At the first start of a data directory: an administrator, its secret in a file only its owner can read."""
        if await self.registry.principals():
            return
        secret = await self.registry.create_principal(ADMIN_NAME, ADMINISTRATOR_NAME)
        path = self.data / ADMIN_SECRET_FILE
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secret + "\n")

    async def close(self) -> None:
        """Finish what waits, write what is to be written, let go of files and threads."""
        await self.engine.drain()
        await self.aftermath.close()
        await self.heads.group_keys.flush()
        await self.escalations.close()
        await self.bypasses.close()
        await self.readiness.close()
        self.events.close()
        await self.upstream.close()
        for database in self._databases:
            database.close()

    # -- commits --------------------------------------------------------------------------------------------------

    async def commit(
        self,
        principal: Principal,
        request: CommitRequest,
        key: str | None,
        application: tuple[str, int] | None = None,
    ) -> HeadState:
        """One commit to one table: read, ask, queue, answer; every attempt is logged."""
        assert request.identifier is not None
        started_s = self.ambient.monotonic_s()
        operation, name, partitions = "?", None, ()

        async def work() -> tuple[Committed]:
            nonlocal operation, partitions
            async with self.manifests.parsing.commit(principal.name) as reading:
                admitted = await self._admit(principal, request, sent, since_s=started_s)
                reading.leave()
                if isinstance(admitted, Committed):
                    return (admitted,)
                operation = "+".join(sorted(admitted.operations)) or "none"
                done = await self._commit(admitted)
                partitions = partitions_of(done.head, _touched(admitted))
                return (done,)

        try:
            sent = Identity.of_commit(principal.name, request.updates, key, application)
            key, name = sent.key, sent.work
            operation = "+".join(sorted(claimed_by(request.requirements, request.updates))) or "none"
            self._require(principal, _asked_first(request), request.identifier)
            committed = _told(*await self.twins.once(_name(principal, [sent]), request, work))[0]
        except IcetowerError as error:
            error = await self.owners.explained(principal, error)
            told = await self.escalations.failed(principal, request.identifier, error, work=name)
            self._log(principal.name, request.identifier, operation, started_s, told, key=key)
            if told is not error:
                raise told from error
            raise
        self._log(principal.name, request.identifier, operation, started_s, committed, key=key, partitions=partitions)
        return committed.head

    async def _commit(self, admitted: Admitted) -> Committed:
        if creates(admitted.requirements):
            for error in (await self.gatekeeper.still_admits([admitted])).values():
                raise error
            head = await self.tables.create_by_commit(admitted)
            committed = Committed("direct", head, (), 0.0, 1)
        else:
            committed = await self.engine.submit(admitted)
        self._remember([(admitted, committed)])
        return committed

    async def commit_together(
        self,
        principal: Principal,
        requests: Sequence[CommitRequest],
        key: str | None,
        application: tuple[str, int] | None = None,
    ) -> None:
        """A commit over several tables, all or nothing."""
        if len(requests) > 1 and not self.upstream.atomic_multi_table:
            raise NotSupported("the catalog behind this server cannot commit several tables in one step")
        if len(requests) == 1:
            await self.commit(principal, requests[0], key, application)
            return
        started_s = self.ambient.monotonic_s()
        try:
            sent = [Identity.of_commit(principal.name, each.updates, key, application) for each in requests]
            for request in requests:
                if creates(request.requirements):
                    raise NotSupported(f"a transaction cannot create a table ({request.identifier}); create it first")
                assert request.identifier is not None
                self._require(principal, _asked_first(request), request.identifier)

            async def work() -> tuple[Committed, ...]:
                try:
                    async with self.manifests.parsing.commit(principal.name) as reading:
                        return await self._commit_together(principal, requests, sent, reading, since_s=started_s)
                except KeyMisused as error:
                    if error.rule != "key.rolled-back":
                        raise
                    raise KeyMisused(
                        f"{error.message}. Look first whether other tables of the transaction still have it",
                        rule="key.rolled-back",
                        snapshot=error.snapshot,
                        next_step="ask_owner",  # under a new key, they would have it twice
                    ) from error

            committed = _told(*await self.twins.once(_name(principal, sent), tuple(requests), work))
        except IcetowerError as error:
            told = error = await self.owners.explained(principal, error)
            for identifier in (request.identifier for request in requests if request.identifier is not None):
                failure = await self.escalations.failed(principal, identifier, error, work=key)
                self._log(principal.name, identifier, "transaction", started_s, failure, key=key)
                told = failure if told is error else told
            if told is not error:
                raise told from error
            raise
        for request, told, result in zip(requests, sent, committed, strict=True):
            if request.identifier is not None:
                self._log(principal.name, request.identifier, "transaction", started_s, result, key=told.key)

    async def _commit_together(
        self,
        principal: Principal,
        requests: Sequence[CommitRequest],
        sent: Sequence[Identity],
        reading: Reading,
        *,
        since_s: float,
    ) -> tuple[Committed, ...]:
        # Members without snapshots leave nothing to be known by: they are done when those with snapshots are.
        marked = [position for position, names in enumerate(sent) if names.snapshots]
        admitted: dict[int, Admitted] = {}
        known: dict[int, Committed] = {}
        for position in (*marked, *(position for position in range(len(sent)) if position not in marked)):
            if marked and len(known) == len(marked):
                return await self._known_together(requests, known)
            member = await self._admit(principal, requests[position], sent[position], since_s=since_s)
            if isinstance(member, Committed):
                known[position] = member
            else:
                admitted[position] = member
        if known and len(known) == len(requests):
            return await self._known_together(requests, known)
        if known:
            raise KeyMisused(
                "the idempotency key is known for some tables of the transaction and not for others; "
                "look, table by table, whether it has landed, and write what is missing under new keys",
                rule="key.transaction",
                next_step="ask_owner",  # under a new key, what landed would land twice
            )
        members = [admitted[position] for position in range(len(requests))]
        reading.leave()
        try:
            committed = await self.engine.submit_together(members)
        except KeyMisused as error:
            if error.rule != "key.transaction" or len(marked) == len(requests):
                raise
            # The engine met the key on some tables only: it may have landed since it was asked for.
            for position in marked:
                names, identifier = sent[position], members[position].identifier
                landed = await self._landed_before(identifier, await self.heads.load(identifier), names)
                if landed is None:
                    raise
                known[position] = landed
            return await self._known_together(requests, known)
        self._remember(list(zip(members, committed, strict=True)))
        return tuple(committed)

    async def _known_together(
        self, requests: Sequence[CommitRequest], known: Mapping[int, Committed]
    ) -> tuple[Committed, ...]:
        """The answer of a transaction that has landed before, its members without snapshots included."""
        told: list[Committed] = []
        for position, request in enumerate(requests):
            assert request.identifier is not None
            member = known.get(position)
            told.append(member or Committed("replayed", await self.heads.load(request.identifier), (), 0.0, 1))
        return tuple(told)

    async def _admit(
        self, principal: Principal, request: CommitRequest, identity: Identity, *, since_s: float
    ) -> Admitted | Committed:
        """Read what the commit does and ask whether it may; or the answer of a commit that has landed before."""
        table = request.identifier
        assert table is not None
        head = None if creates(request.requirements) else await self.heads.load(table)
        if head is not None and identity.snapshots:
            # Before its files are read: some of them may be gone, since a client cleans up after its commit.
            before = await self._landed_before(table, head, identity)
            if before is not None:
                return before
        return await self.gate.admit(principal, request, identity, head, since_s=since_s)

    async def _landed_before(self, identifier: Identifier, head: HeadState, sent: Identity) -> Committed | None:
        """The answer that a commit has got before, if any (traps K1 to K3). Raises `KeyMisused`."""
        own = replays.resent(head, sent)
        if own is not None:
            return Committed("replayed", head, own, 0.0, 1)
        found = await replays.landed(self.ledger, head, sent)
        for _ in range(REPLAY_LOADS_MAX):
            if found is None or found.shows_in(head):
                break
            # The ledger knows what this version does not: it came after it, or is gone.
            newest = await self.heads.load(identifier)
            if newest.location == head.location:
                break
            head, found = newest, await replays.landed(self.ledger, newest, sent)
        if found is None or not await replays.is_done(self.ledger, identifier, head, found):
            return None
        return Committed("replayed", head, found.snapshots, 0.0, 1)

    # -- appends by the fast path ---------------------------------------------------------------------------------

    async def append(
        self, principal: Principal, identifier: Identifier, request: AppendRequest, key: str | None
    ) -> Committed:
        """Data files into a table: ask, look at the files, queue; every attempt is logged."""
        started_s = self.ambient.monotonic_s()
        # Two without a key, of one content, are two appends for all that anybody knows.
        keyed = key is not None or request.key is not None or request.application is not None
        name = (principal.name, identifier, request.ref, key, request.key, request.application) if keyed else None
        partitions: tuple[str, ...] = ()

        async def work() -> tuple[Committed]:
            nonlocal partitions
            head = await self.heads.load(identifier)
            # Before the contract is asked, and its files are looked at: a slot may have passed since they were
            # appended, and compaction may have replaced them.
            own = admission_of_appends.key_of(request, key)
            sent = Identity.of_append(principal.name, request.ref, own, request.application)
            landed = await self._landed_before(identifier, head, sent)
            if landed is not None:
                return (landed,)
            admitted = await self.gate.admit_append(principal, identifier, request, sent, head, since_s=started_s)
            done = await self.engine.submit_append(admitted, head)
            partitions = partitions_of(done.head, admitted.files)
            return (done,)

        try:
            self._require(principal, Operation.APPEND, identifier)
            committed = _told(*await self.twins.once(name, request, work))[0]
        except IcetowerError as error:
            error = await self.owners.explained(principal, error)
            told = await self.escalations.failed(principal, identifier, error, work=key or request.key)
            self._log(principal.name, identifier, "append", started_s, told, key=key or request.key)
            if told is not error:
                raise told from error
            raise
        self._log(
            principal.name, identifier, "append", started_s, committed, key=key or request.key, partitions=partitions
        )
        return committed

    def _require(self, principal: Principal, operation: Operation, identifier: Identifier) -> None:
        """Before anything of the table is read, or told by an error. Raises `ContractViolation`.

        What shadow mode lets by is noted once, where the commit itself is judged.
        """
        if not principal.contract.shadow:
            permissions.require(principal, operation, identifier)

    def _remember(self, results: Sequence[tuple[Admitted, Committed]]) -> None:
        """Keys for the time after their snapshots expire. The table has them already: this is a cache (trap K1)."""
        for admitted, done in results:
            if done.snapshots and done.outcome != "replayed":
                self.aftermath.put(*_commits(admitted, done))

    def remember_answer(self, principal: str, key: str, answer: Answer) -> None:
        """Keep that a key was used on an endpoint."""
        self.aftermath.put((principal, key, answer))

    # -- the log of attempts --------------------------------------------------------------------------------------

    def _log(
        self,
        principal: str,
        identifier: Identifier,
        operation: str,
        started_s: float,
        result: Committed | IcetowerError,
        *,
        key: str | None,
        partitions: tuple[str, ...] = (),
    ) -> None:
        if isinstance(result, Committed) and result.outcome != "replayed":
            self.escalations.succeeded(principal, identifier)
        self.attempts.ended(
            principal, str(identifier), operation, started_s, result, key_hash=key_hash(key), partitions=partitions
        )

    def _note(self, item: Shadowed | Attempt) -> None:
        self.aftermath.put(item)

    async def flush(self) -> None:
        """Write what waits to be written to the ledger. Raises `IcetowerError` where that cannot be."""
        await self.aftermath.flush()
        await self.heads.group_keys.flush()


def _name(principal: Principal, sent: Sequence[Identity]) -> Hashable:
    """What a commit is known by while it is in hand: its key and the ids of its snapshots.

    Without a snapshot two equal ones may be two wishes: of two that take a lock, one must be refused.
    """
    ids = tuple(each.snapshot_ids for each in sent)
    return (principal.name, tuple(each.key for each in sent), ids) if any(ids) else None


def _told(committed: tuple[Committed, ...], of_twin: bool) -> tuple[Committed, ...]:
    return tuple(replace(each, outcome="replayed") for each in committed) if of_twin else committed


def _touched(admitted: Admitted) -> Iterator[Touched]:
    """The files that a commit adds and removes."""
    return chain.from_iterable((*change.added, *change.removed) for change in admitted.changes)


def _asked_first(request: CommitRequest) -> Operation:
    """Who commits to a table may see it, and who makes one may create it."""
    return Operation.CREATE if creates(request.requirements) else Operation.READ


def _commits(admitted: Admitted, done: Committed) -> list[Commit]:
    """What the ledger keeps of a commit."""
    table = str(done.head.metadata["table-uuid"]), target_ref(admitted.updates) or "", admitted.principal
    about = done.snapshots, admitted.application_id, admitted.fingerprint
    numbers = [(done.head.snapshots.get(i) or {}).get("sequence-number") or 0 for i in done.snapshots]
    lowest = min(numbers) or None
    commits: list[Commit] = []
    if admitted.key is not None:
        commits.append(Commit(CommitKey(*table, admitted.key), *about, sequence_number=lowest))
    if admitted.application_sequence is not None:
        name, number = admitted.application_sequence
        owner = CommitKey(*table, name, numbered=True)
        commits.append(Commit(owner, *about, sequence=number, sequence_number=lowest))
    return commits
