"""May this write go on? One gate, for commits and for appends by the fast path, with one order of checks.

The order is a security property: what a caller hears first, and what is read before it. A commit passes

1. the stop of its principal at the table, and the quota of commits a minute;
2. `REQUEST_CHECKS`: what its request alone tells, before its manifests are read, since reading them costs everybody
   (trap A8). Whatever is refused here would be refused later by the same rule;
3. `COMMIT_CHECKS`, with its manifests: first those that hold for administrators, too, then the clauses of its contract;
   and `check_progress`, which asks for other principals;
4. `FILE_CHECKS`, which open data files, deletion vectors and delete files. They are opened only for a commit that its
   contract grants: whether a file is there is nobody else's to know;
5. the guard on overwrites that nobody can have meant. It comes last, since its refusal asks a person.

An append by the fast path passes `APPEND_CHECKS`, which open no file, then the stop and the quota, and then its files
are verified by their footers.

What is asked of the table as it stands is asked again of the version that the commit goes on (`HEAD_CHECKS`): what
changes nothing when it is sent may undo by then what somebody else has changed.

In shadow mode, what the contract refuses is recorded, and goes on (`admission.shadow`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from icetower.admission import appends, clauses, client_settings, contents, guards, honesty, progress, rows, sizes
from icetower.admission.admitted import Admitted, AdmittedAppend, fingerprint
from icetower.admission.appends import AppendFacts
from icetower.admission.deliveries import Way
from icetower.admission.facts import Facts
from icetower.admission.guards import Excess
from icetower.admission.identity import Identity, application_of
from icetower.admission.picks import check_picks
from icetower.admission.quotas import RateLimits
from icetower.admission.reads import believed, scope_of
from icetower.admission.rows import RowsFacts, SentRows
from icetower.admission.shadow import ShadowRecorder, lets_by
from icetower.admission.targets import check_ages, locate
from icetower.ambient import Ambient
from icetower.contracts.check import (
    appends_blindly,
    isolation_of,
    requires_intents,
    slot_needs,
    would_require_intents,
)
from icetower.contracts.model import Isolation, Operation
from icetower.errors import CommitConflict, CommitStateUnknown, ContractViolation, IcetowerError, ValidationFailed
from icetower.files.changes import Manifests, read_changes
from icetower.files.deletes import Contents, Vectors
from icetower.files.footers import Footers
from icetower.files.parsing import Reading
from icetower.protocol.appends import AppendRequest
from icetower.protocol.commits import CommitRequest
from icetower.protocol.names import Identifier
from icetower.protocol.rows import RowsRequest
from icetower.registry.principals import Principal
from icetower.table.client_properties import NO_CODE, Allowed
from icetower.table.head import HeadState

JSON = Mapping[str, Any]
ON_LOOP_BYTES = 16 * 1024
"""Rows of so many bytes are read on the event loop, which takes a few milliseconds; what is more, in a thread."""

F = TypeVar("F", Facts, AppendFacts, SentRows)


@dataclass(frozen=True, slots=True)
class Check(Generic[F]):
    """One question about a write; its answer is silence, or an error with a rule.

    Attributes:
        everybody: asked of administrators, too, and never let by in shadow mode.
        of_head: its verdict depends on what the table has already.
    """

    ask: Callable[[F], object]
    everybody: bool = False
    of_head: bool = False


REQUEST_CHECKS: tuple[Check[Facts], ...] = (
    Check(honesty.check_summary_names, everybody=True),
    Check(clauses.check_origins, everybody=True),
    Check(clauses.check_summaries),
    Check(clauses.check_any_file_operation),
    Check(clauses.check_refs),
    Check(clauses.check_history),
    Check(clauses.check_locations),
    Check(clauses.check_shared),
)

COMMIT_CHECKS: tuple[Check[Facts], ...] = (
    Check(honesty.check_manifests, everybody=True),
    Check(honesty.check_headers, everybody=True),
    Check(sizes.check_commit_sizes, everybody=True),
    Check(honesty.check_summary_names, everybody=True),
    Check(honesty.check_properties_of_ours, everybody=True, of_head=True),
    Check(honesty.check_client_code, everybody=True, of_head=True),
    Check(honesty.check_vectors, everybody=True),
    Check(clauses.check_origins, everybody=True),
    Check(clauses.check_summaries),
    Check(clauses.check_partitions),
    Check(clauses.check_quotas),
    Check(clauses.check_refs, of_head=True),
    Check(clauses.check_history, of_head=True),
    Check(clauses.check_locations, of_head=True),
    Check(clauses.check_shared, of_head=True),
    Check(clauses.check_idempotency),
)

HEAD_CHECKS: tuple[Check[Facts], ...] = (
    Check(clauses.check_operations),  # of `check_partitions`, what needs no files
    *(check for check in COMMIT_CHECKS if check.of_head),
)

APPEND_CHECKS: tuple[Check[AppendFacts], ...] = (
    Check(appends.check_table, everybody=True),
    Check(appends.check_partitions_fit, everybody=True),
    Check(sizes.check_append_sizes, everybody=True),
    Check(appends.check_each_once, everybody=True),
    Check(appends.check_partitions),
    Check(appends.check_locations),
    Check(appends.check_quotas),
    Check(appends.check_idempotency),
    Check(appends.check_spelling, everybody=True),
)


ROWS_CHECKS: tuple[Check[SentRows], ...] = (
    Check(sizes.check_row_sizes, everybody=True),
    Check(rows.check_row_partitions),
    Check(rows.check_row_quotas),
    Check(rows.check_row_key),
)


def ask(checks: Iterable[Check[F]], facts: F) -> tuple[ContractViolation, ...]:
    """Ask one check after the other. What shadow mode lets by, in the order in which it was met; all else is raised."""
    principal, let_by = facts.principal, list[ContractViolation]()
    for check in checks:
        if check.everybody:
            check.ask(facts)
        elif not principal.administrator:
            try:
                check.ask(facts)
            except ContractViolation as refusal:
                if not lets_by(principal, refusal):
                    raise
                let_by.append(refusal)
    return tuple(let_by)


def judge(facts: Facts) -> Admitted:
    """The verdict on a commit whose manifests were read. Pure.

    Raises:
        ValidationFailed: the manifests lie (``contract.manifest``), or name a partition spec that isn't there.
        ContractViolation: outside the principal's contract.
        BadRequest: a declaration of what was read that makes no sense.
    """
    shadowed = ask(COMMIT_CHECKS, facts)
    principal, table, identity, operations = facts.principal, facts.table, facts.identity, facts.operations
    enforced = not facts.contract.shadow
    contract = believed(facts.contract, shadowed)
    scope, slot_required, slot_shadowed = None, False, False
    if facts.base is not None and facts.changes:
        scope = scope_of(contract, table, facts.after, facts.changes, operations, facts.now_ms)
        slot_required, slot_shadowed = slot_needs(
            facts.contract, table, facts.touches[0], operations, layout=facts.layout, now_ms=facts.now_ms
        )
    return Admitted(
        identity=identity,
        identifier=table,
        requirements=tuple(facts.requirements),
        updates=facts.updates,
        changes=tuple(facts.changes),
        contract=facts.contract.name,
        contract_version=principal.contract_version,
        blind_appends=appends_blindly(contract, table),
        strict=enforced and any(rule.strict for rule in facts.contract.rules_for(table)),
        operations=operations,
        fingerprint=fingerprint(facts.updates, facts.changes),
        application_id=next(filter(None, map(application_of, facts.summaries)), None),
        table_uuid=None if facts.base is None else facts.base.get("table-uuid"),
        read_scope=scope,
        shadowed=shadowed,
        serializable=enforced and isolation_of(facts.contract, table, operations) is Isolation.SERIALIZABLE,
        may_change_rows=not principal.administrator
        and any(facts.contract.grants(operation, table) for operation in (Operation.OVERWRITE, Operation.DELETE)),
        judge_again=partial(judge_again, facts) if facts.depends_on_head else None,
        intents_required=requires_intents(facts.contract, table),
        slot_required=slot_required,
        intents_shadowed=would_require_intents(facts.contract, table),
        slot_shadowed=slot_shadowed,
    )


def judge_again(facts: Facts, head: JSON) -> None:
    """Ask a commit that was admitted on one version of a table the same of the version that it goes on. Pure.

    Raises:
        CommitConflict: ``commit.permission``, where it would be refused by now.
    """
    try:
        ask(HEAD_CHECKS, facts.on(head))
    except (ContractViolation, ValidationFailed) as error:
        raise CommitConflict(
            f"{facts.table} has changed since this commit was let in, and it would undo that now: {error.message}. "
            "Load the table again",
            rule="commit.permission",
        ) from error


class Stops(Protocol):
    """Who is stopped at a table."""

    async def require_free(self, principal: Principal, table: Identifier) -> None:
        """Raises `ContractViolation` where an escalation is open."""
        ...


class Bindings(Protocol):
    """Under which contract principals stand."""

    async def bindings(self, names: Sequence[str]) -> Mapping[str, tuple[str, int]]:
        """Principal → (contract, version), without those that may not act."""
        ...


class Approvals(Protocol):
    """What a guard refuses, and a person has approved."""

    async def take(self, principal: Principal, table: Identifier, excess: Excess, work: Hashable) -> str:
        """The approval of an overwrite, by its id; another commit does not get it. Raises `ContractViolation`."""
        ...

    async def release(self, id_: str) -> None:
        """The commit that has taken it has not landed."""
        ...


class TablePlaces(Protocol):
    """Where the catalog wants tables."""

    async def default_location(self, identifier: Identifier, uuid: str) -> str:
        """Where a new table goes."""
        ...


@dataclass(frozen=True, slots=True)
class Files:
    """What the gate reads."""

    manifests: Manifests
    footers: Footers
    vectors: Vectors
    contents: Contents


class Gate:
    """One a tower.

    Args:
        client_code: values of properties by which clients may load code.
        approvals: None: nobody can approve what a guard refuses.
    """

    def __init__(
        self,
        files: Files,
        stops: Stops,
        rates: RateLimits,
        shadow: ShadowRecorder,
        bindings: Bindings,
        places: TablePlaces,
        ambient: Ambient,
        client_code: Allowed = NO_CODE,
        approvals: Approvals | None = None,
    ) -> None:
        self.files = files
        self.shadow = shadow
        self._stops = stops
        self._rates = rates
        self._bindings = bindings
        self._places = places
        self._ambient = ambient
        self._client_code = client_code
        self._approvals = approvals

    def reading(self, principal: Principal) -> AbstractAsyncContextManager[Reading]:
        """What is read within is read for one commit of a principal, and counted."""
        return self.files.manifests.parsing.commit(principal.name)

    async def admit(
        self,
        principal: Principal,
        request: CommitRequest,
        identity: Identity,
        head: HeadState | None,
        *,
        since_s: float,
        published: bool = False,
    ) -> Admitted:
        """Read what a commit does, and say whether it may.

        Args:
            identity: of the commit; whether it has landed before was asked already.
            head: the table, as of late; None where the commit creates it.
            since_s: when its request came, monotonic.
            published: it stands for snapshots that another branch of the table has.

        Raises:
            IcetowerError: whatever refuses it.
        """
        table = request.identifier
        assert table is not None
        await self._stops.require_free(principal, table)
        await self._rates.wait(principal, table, since_s=since_s, work=identity.work)
        facts = await self._facts(principal, request, identity, None if head is None else head.metadata)
        facts = replace(facts, published=True) if published else facts
        if identity.snapshots and head is not None:  # what creates a table is about its own place, which its files tell
            ask(REQUEST_CHECKS, facts.unread())  # what shadow mode lets by is met again, and recorded then
        facts = await self._read(facts, head)
        admitted = await self.files.manifests.parsing.judge(partial(judge, facts))
        await self._check_progress(facts, admitted)
        self.shadow.record(principal, table, _named(admitted), admitted.shadowed)
        for check in FILE_CHECKS:
            await check(self, facts, admitted)
        return await self._meant(facts, admitted)

    @asynccontextmanager
    async def holding(self, *members: Admitted) -> AsyncGenerator[None]:
        """Within, a commit goes on by the approvals that it has taken. Where it is refused, they are free again."""
        try:
            yield
        except IcetowerError as error:
            taken = [member.approval for member in members if member.approval is not None]
            if self._approvals is not None and not isinstance(error, CommitStateUnknown):
                for approval in taken:
                    with suppress(IcetowerError):  # then it is asked for again
                        await self._approvals.release(approval)
            raise

    async def admit_append(
        self,
        principal: Principal,
        table: Identifier,
        request: AppendRequest,
        identity: Identity,
        head: HeadState,
        *,
        since_s: float,
    ) -> AdmittedAppend:
        """Say whether an append by the fast path may go on. Arguments and errors as of `admit`."""
        facts = AppendFacts(principal, table, head, request, identity, self._ambient.now_ms())
        shadowed = ask(APPEND_CHECKS, facts)
        await self._stops.require_free(principal, table)
        await self._rates.wait(principal, table, since_s=since_s, work=identity.work)
        self.shadow.record(principal, table, "append", shadowed)
        files = await self.files.footers.verify(head.metadata, facts.claims)
        with self.shadow.recording(principal, table, "append"):
            appends.check_proofs(principal, table, facts.claims, files)
        return appends.admitted(facts, files)

    async def admit_rows(
        self,
        principal: Principal,
        table: Identifier,
        request: RowsRequest,
        identity: Identity,
        head: HeadState,
        *,
        since_s: float,
        way: Way,
    ) -> AdmittedAppend:
        """Say whether rows may go on. Arguments and errors as of `admit`. `way`: theirs, to `table`."""
        now_ms = self._ambient.now_ms()
        filled = way.with_slot(head.metadata, now_ms)
        # A key is its principal's: equal rows of two are not one row that came twice.
        seed = f"{principal.name}\n{request.seed or identity.key or identity.application or self._ambient.uuid4()}"
        facts = RowsFacts(principal, table, head, request, identity, now_ms, filled, seed, way.whole)
        appends.check_table(facts)
        if request.size_bytes <= ON_LOOP_BYTES:
            sent = rows.read_rows(facts)
        else:
            sent = await self.files.manifests.parsing.body(partial(rows.read_rows, facts), principal.waits_as)
        shadowed = ask(ROWS_CHECKS, sent)
        await self._stops.require_free(principal, table)
        await self._rates.wait(principal, table, since_s=since_s, work=identity.work)
        self.shadow.record(principal, table, "append", shadowed)
        return rows.admitted_rows(sent)

    async def _facts(
        self, principal: Principal, request: CommitRequest, identity: Identity, base: JSON | None
    ) -> Facts:
        table = request.identifier
        assert table is not None
        location = None
        if base is None and not principal.administrator:
            location = await self._places.default_location(table, request.updates.assigned_uuid)
        updates = client_settings.without_client_properties(principal, table, base, location, request.updates)
        now_ms = self._ambient.now_ms()
        return Facts(
            principal, table, base, request.requirements, updates, identity, now_ms, location, self._client_code
        )

    async def _read(self, facts: Facts, head: HeadState | None) -> Facts:
        """With what the commit's manifests say, and the table's about the files that it reaches into."""
        bound = not facts.principal.administrator
        changes = await read_changes(
            self.files.manifests,
            facts.base,
            facts.updates,
            snapshots=None if head is None else head.snapshots,
            confined=bound,
            place=facts.location,
        )
        places = await locate(self.files.manifests, facts.base, changes) if bound else {}
        return facts.with_files(changes, places)

    async def _meant(self, facts: Facts, admitted: Admitted) -> Admitted:
        """guard.rows: an overwrite that nobody can have meant needs a person's approval."""
        principal, table, identity = facts.principal, facts.table, facts.identity
        excess = guards.excess(principal, table, admitted.changes, identity.ref)
        if excess is None:
            return admitted
        with self.shadow.recording(principal, table, _named(admitted)):
            if self._approvals is None or principal.contract.shadow:
                raise guards.unapproved(principal, table, excess)
            return replace(admitted, approval=await self._approvals.take(principal, table, excess, identity.work))
        return admitted

    async def _check_progress(self, facts: Facts, admitted: Admitted) -> None:
        """contract.summary: the progress of a sink is its own principal's to write."""
        sink_owners = progress.sink_owners(facts.principal, facts.table, facts.base, admitted.changes)
        if sink_owners:
            bindings = await self._bindings.bindings(sorted(set(sink_owners.values())))
            others = {name for name, (contract, _) in bindings.items() if contract != facts.contract.name}
            progress.check_progress(facts.principal, facts.table, sink_owners, others)


async def check_proofs(gate: Gate, facts: Facts, admitted: Admitted) -> None:
    """append.unproven, append.*: data files show by their statistics that they lie where they say (trap R5)."""
    if not appends.must_prove(facts.principal, facts.table):
        return
    claims = appends.claims_of(facts.after, admitted.changes)
    with gate.shadow.recording_all(facts.principal, facts.table, _named(admitted)):
        files = await gate.files.footers.verify(facts.after, claims)
        appends.check_proofs(facts.principal, facts.table, claims, files)


async def check_vector_ages(gate: Gate, facts: Facts, admitted: Admitted) -> None:
    """contract.manifest: no deletion vector is older than its data file."""
    await check_ages(gate.files.manifests, facts.base, admitted.changes)


async def check_added_vectors(gate: Gate, facts: Facts, admitted: Admitted) -> None:
    """contract.manifest: each deletion vector is there, with as many rows as its manifest says."""
    await gate.files.vectors.verify(admitted.changes)


async def check_contents(gate: Gate, facts: Facts, admitted: Admitted) -> None:
    """contract.contents, contract.partitions: delete files name no data files that are not the principal's to touch."""
    if not admitted.changes or not contents.must_look_inside(facts.principal, facts.table, admitted.operations):
        return
    with gate.shadow.recording_all(facts.principal, facts.table, _named(admitted)):
        named = await gate.files.contents.named(admitted.changes)
        unlisted = contents.unlisted_targets(admitted.changes, named)
        places = await locate(gate.files.manifests, facts.base, admitted.changes, unlisted)
        contents.check_contents(facts.principal, admitted, facts.after, named, places, now_ms=facts.now_ms)


async def check_picked(gate: Gate, facts: Facts, admitted: Admitted) -> None:
    """summary.picked: what says that it was picked brings what its source has, so that publications may believe it."""
    if facts.base is not None:
        await check_picks(gate.files.manifests, facts.base, admitted.changes)


FILE_CHECKS: tuple[Callable[[Gate, Facts, Admitted], Awaitable[None]], ...] = (
    check_picked,
    check_proofs,
    check_vector_ages,
    check_added_vectors,
    check_contents,
)


def _named(admitted: Admitted) -> str:
    return "+".join(sorted(admitted.operations))
