"""Everything that one running tower holds, put together once at its start."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from icetower.admission import permissions
from icetower.admission.admit import admit
from icetower.admission.admitted import Admitted
from icetower.admission.targets import locate
from icetower.ambient import Ambient
from icetower.catalog.changes import Manifests, read_changes
from icetower.catalog.ports import Storage, Upstream
from icetower.catalog.sql import SqlUpstream
from icetower.catalog.storage import FileIOStorage
from icetower.commit.draft import target_ref
from icetower.commit.engine import Committed, Engine, Limits
from icetower.commit.head import Heads
from icetower.commit.tables import Tables
from icetower.contracts.model import ADMINISTRATOR_NAME, Operation
from icetower.database import Database
from icetower.errors import (
    CommitConflict,
    CommitStateUnknown,
    Conflict,
    Forbidden,
    IcetowerError,
    KeyMisused,
    NotSupported,
)
from icetower.gateway.settings import Settings
from icetower.ledger.ledger import Answer, Attempt, Commit, CommitKey, Ledger, Outcome, key_hash
from icetower.protocol.commits import CommitRequest
from icetower.protocol.names import Identifier
from icetower.registry.principals import Principal
from icetower.registry.registry import RESERVED_NAME, Registry
from icetower.table import metadata as table_metadata
from icetower.table.head import HeadState

ADMIN_NAME = "admin"
ADMIN_SECRET_FILE = "admin.token"  # noqa: S105 - the name of a file
AFTERMATH_MAX = 50_000
AFTERMATH_BATCH = 500

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
        data = Path(settings.server.data).absolute()
        data.mkdir(parents=True, exist_ok=True)
        self.data = data
        (data / "control.db").touch(mode=0o600)
        control = Database(f"sqlite:///{data / 'control.db'}")
        upstream_uri = settings.upstream.uri or f"sqlite:///{data / 'catalog.db'}"
        self._databases = [control, Database(upstream_uri)]
        self.registry = Registry(control, ambient)
        self.ledger = Ledger(control, ambient, lifetime_s=settings.server.key_lifetime_s)
        self.upstream: Upstream = SqlUpstream(self._databases[1], settings.upstream.catalog)
        self.storage: Storage = FileIOStorage(settings.storage, threads=settings.server.storage_threads)
        self.heads = Heads(self.upstream, self.storage)
        self.manifests = Manifests(self.storage)
        self.tables = Tables(
            self.upstream,
            self.storage,
            self.heads,
            self.manifests,
            ambient,
            warehouse=settings.upstream.warehouse or (data / "warehouse").as_uri(),
        )
        self.gatekeeper = _Gatekeeper(self.registry)
        self.engine = Engine(
            self.upstream,
            self.storage,
            self.heads,
            self.manifests,
            ambient,
            self.gatekeeper,
            Limits(deadline_s=settings.server.queue_deadline_s),
        )
        self.keys_in_flight: dict[tuple[str, str], tuple[asyncio.Lock, int]] = {}
        self._aftermath: deque[Attempt | Commit | tuple[str, str, Answer]] = deque(maxlen=AFTERMATH_MAX)
        self._flushing: asyncio.Task[None] | None = None

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
        await self.flush()
        await self.upstream.close()
        for database in self._databases:
            database.close()

    # -- commits --------------------------------------------------------------------------------------------------

    async def commit(self, principal: Principal, request: CommitRequest, key: str | None) -> HeadState:
        """One commit to one table: read, ask, queue, answer; every attempt is logged."""
        assert request.identifier is not None
        started_s = self.ambient.monotonic_s()
        operation = "?"
        try:
            admitted, known = await self._admit(principal, request, key)
            operation = "+".join(sorted(admitted.operations)) or "none"
            if known is not None:
                self._log(admitted.principal, request.identifier, operation, started_s, known, key=admitted.key)
                return known.head
            if _creates(request):
                for error in (await self.gatekeeper.still_admits([admitted])).values():
                    raise error
                head = await self.tables.create_by_commit(admitted)
                committed = Committed("direct", head, (), 0.0, 1)
            else:
                committed = await self.engine.submit(admitted)
            self._remember([(admitted, committed)])
        except IcetowerError as error:
            self._log(principal.name, request.identifier, operation, started_s, error, key=key)
            raise
        self._log(principal.name, request.identifier, operation, started_s, committed, key=admitted.key)
        return committed.head

    async def commit_together(self, principal: Principal, requests: Sequence[CommitRequest], key: str | None) -> None:
        """A commit over several tables, all or nothing."""
        if len(requests) > 1 and not self.upstream.atomic_multi_table:
            raise NotSupported("the catalog behind this server cannot commit several tables in one step")
        if len(requests) == 1:
            await self.commit(principal, requests[0], key)
            return
        started_s = self.ambient.monotonic_s()
        admitted: list[Admitted] = []
        try:
            known: list[Committed] = []
            for request in requests:
                if _creates(request):
                    raise NotSupported(f"a transaction cannot create a table ({request.identifier}); create it first")
                member, before = await self._admit(principal, request, key)
                admitted.append(member)
                known += [before] if before is not None else []
            if len(known) == len(requests):
                return
            if known:
                raise KeyMisused(
                    "the idempotency key is known for some tables of the transaction and not for others; "
                    "look whether it landed, and use a new key",
                    rule="key.transaction",
                )
            committed = await self.engine.submit_together(admitted)
            self._remember(list(zip(admitted, committed, strict=True)))
        except IcetowerError as error:
            for request in requests:
                if request.identifier is not None:
                    self._log(principal.name, request.identifier, "transaction", started_s, error, key=key)
            raise
        for member, result in zip(admitted, committed, strict=True):
            self._log(principal.name, member.identifier, "transaction", started_s, result, key=member.key)

    async def _admit(
        self, principal: Principal, request: CommitRequest, key: str | None
    ) -> tuple[Admitted, Committed | None]:
        """Read what the commit does and ask whether it may; with the answer that its key has got before, if any."""
        identifier = request.identifier
        assert identifier is not None
        # Before anything of the table is read, or told by an error: who commits to a table may see it.
        permissions.require(principal, Operation.CREATE if _creates(request) else Operation.READ, identifier)
        head = None if _creates(request) else await self.heads.load(identifier)
        metadata = None if head is None else head.metadata
        changes = await read_changes(self.manifests, metadata, request.updates, confined=not principal.administrator)
        bound = not principal.administrator
        admitted = admit(
            principal,
            identifier,
            metadata,
            changes,
            requirements=request.requirements,
            updates=request.updates,
            key=key,
            places=await locate(self.manifests, metadata, changes) if bound else None,
            location=await self.tables.default_location(identifier, _uuid(request)) if bound and head is None else None,
        )
        if head is not None:
            await self._keep_keys(head, request)
        if head is None or admitted.key is None or not changes:
            return admitted, None
        owner = _owner(admitted, head)
        if head.keys.find(principal.name, owner.ref, admitted.key) is not None:
            return admitted, None  # the plan sees it, and everything that comes before it in the queue
        found = await self.ledger.find_commit(owner)
        if found is None:
            return admitted, None
        # Committed, and its snapshots have expired since: the ledger's word is all that is left of it.
        if any(snapshot_id in head.snapshots for snapshot_id in found.snapshots):
            return admitted, None
        return admitted, Committed("replayed", head, found.snapshots, 0.0, 1)

    async def _keep_keys(self, head: HeadState, request: CommitRequest) -> None:
        """Before snapshots with keys are removed: what the ledger may have missed, by a crash or another tower (K1).

        A key whose snapshot was rolled back is forgotten instead: nothing of it will be left to call done (K2).
        """
        removals = [u["snapshot-ids"] for u in request.updates if u["action"] == "remove-snapshots"]
        gone = {snapshot_id for ids in removals for snapshot_id in ids}
        records = [record for record in head.keys.records(gone) if record.key is not None] if gone else []
        if not records:
            return
        await self.flush()
        uuid = str(head.metadata["table-uuid"])
        kept: list[Commit] = []
        lost: list[CommitKey] = []
        for record in records:
            ref, snapshots = record.ref, record.snapshots
            owner = CommitKey(uuid, ref, record.principal, record.key or "")
            head_id = table_metadata.ref_head(head.metadata, ref) if ref else snapshots[-1]
            if head_id is not None and table_metadata.is_ancestor(head.metadata, snapshots[-1], head_id):
                kept.append(Commit(owner, snapshots, None, ""))
            else:
                lost.append(owner)
        await self.ledger.remember_commits(kept)
        await self.ledger.forget_commits(lost)

    def _remember(self, results: Sequence[tuple[Admitted, Committed]]) -> None:
        """Keys for the time after their snapshots expire. The table has them already: this is a cache (trap K1)."""
        self._aftermath += [
            Commit(_owner(admitted, done.head), done.snapshots, admitted.application_id, admitted.fingerprint)
            for admitted, done in results
            if admitted.key is not None and done.snapshots and done.outcome != "replayed"
        ]
        self._flush_soon()

    def remember_answer(self, principal: str, key: str, answer: Answer) -> None:
        """Keep that a key was used on an endpoint."""
        self._aftermath.append((principal, key, answer))
        self._flush_soon()

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
    ) -> None:
        latency_ms = (self.ambient.monotonic_s() - started_s) * 1000
        committed = result if isinstance(result, Committed) else None
        self._aftermath.append(
            Attempt(
                principal=principal,
                table=str(identifier),
                operation=operation,
                outcome=Outcome(committed.outcome) if committed else _outcome_of(result),
                rule=None if isinstance(result, Committed) else result.rule,
                queue_wait_ms=committed.queue_wait_ms if committed else 0.0,
                latency_ms=latency_ms,
                snapshots=committed.snapshots if committed else (),
                key_hash=key_hash(key),
                at_ms=self.ambient.now_ms(),
            )
        )
        self._flush_soon()

    def _flush_soon(self) -> None:
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.create_task(self._flush())

    async def flush(self) -> None:
        """Write what waits to be written to the ledger."""
        self._flush_soon()
        if self._flushing is not None:
            await self._flushing

    async def _flush(self) -> None:
        # In batches, after the answers: no commit waits for a log's disk. What a crash takes, the tables still tell.
        while self._aftermath:
            batch = [self._aftermath.popleft() for _ in range(min(len(self._aftermath), AFTERMATH_BATCH))]
            try:
                await self.ledger.record([item for item in batch if isinstance(item, Attempt)])
                await self.ledger.remember_commits([item for item in batch if isinstance(item, Commit)])
                for item in batch:
                    if isinstance(item, tuple):
                        await self.ledger.remember(*item)
            except IcetowerError as error:
                log.warning("the ledger could not be written: %s", error.message)


class _Gatekeeper:
    """Reads principals and contracts anew, just before the swap (trap K4)."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def still_admits(self, members: Sequence[Admitted]) -> Mapping[int, IcetowerError]:
        # Whom an open tower let in is nobody that could be revoked.
        bound = {member.principal for member in members if member.principal != RESERVED_NAME}
        standings = await self._registry.standings(sorted(bound))
        found: dict[int, IcetowerError] = {}
        for position, member in enumerate(members):
            if member.principal not in bound:
                continue
            standing = standings.get(member.principal)
            if standing is None:
                found[position] = Forbidden(
                    f"{member.principal} or its contract was revoked while the commit was under way; nothing of it was "
                    "committed",
                    rule="contract.revoked",
                )
            elif standing != (member.contract, member.contract_version):
                found[position] = CommitConflict(
                    f"contract {member.contract} changed while the commit was under way; try again under the new one",
                    rule="contract.changed",
                    next_step="retry",
                )
        return found


def _creates(request: CommitRequest) -> bool:
    return any(requirement["type"] == "assert-create" for requirement in request.requirements)


def _uuid(request: CommitRequest) -> str:
    """The uuid that a commit gives to the table that it creates."""
    return next((str(u["uuid"]) for u in request.updates if u["action"] == "assign-uuid"), "")


def _owner(admitted: Admitted, head: HeadState) -> CommitKey:
    assert admitted.key is not None
    uuid = str(head.metadata["table-uuid"])
    return CommitKey(uuid, target_ref(admitted.updates) or "", admitted.principal, admitted.key)


def _outcome_of(error: IcetowerError | Committed) -> Outcome:
    if isinstance(error, CommitStateUnknown):
        return Outcome.UNKNOWN
    return Outcome.CONFLICT if isinstance(error, Conflict) else Outcome.REFUSED
