"""Dry runs: would a commit, or what somebody intends to write, be let through now? Nothing is committed.

A check asks what a commit is asked, in the same order: the stop of its principal, the gate, and the plan of the commit
engine on the table as it stands. It leaves nothing behind: no key, no attempt in the log, no failure towards a stop, no
note in shadow mode, and no place in the quota of commits a minute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import product
from typing import Any

from icetower.admission import permissions
from icetower.admission.gate import Approvals, Bindings, Files, Gate, Stops, TablePlaces
from icetower.admission.identity import Identity
from icetower.admission.quotas import RateLimits, check_quota
from icetower.admission.refusals import refusal
from icetower.admission.shadow import ShadowRecorder
from icetower.ambient import Ambient
from icetower.commit.engine import Engine
from icetower.commit.head import Heads
from icetower.commit.replays import Replays
from icetower.contracts.check import Clear, Touch, check, needs_slot
from icetower.contracts.model import Operation
from icetower.contracts.regions import Values
from icetower.contracts.terms import Layout
from icetower.contracts.values import NotUnderstood, compile_extent
from icetower.errors import BadRequest, CommitConflict, IcetowerError, NoSuchTable
from icetower.iceberg.partitions import PartitionSpec, partition_name, spec_of
from icetower.ledger.shadow import Shadowed
from icetower.protocol.commits import CommitRequest
from icetower.protocol.names import Identifier
from icetower.protocol.updates import creates
from icetower.registry.principals import Principal
from icetower.service.attempts import partitions_of
from icetower.service.intents import Intents
from icetower.service.landings import Landings, Wanted
from icetower.service.owners import Owners
from icetower.table.client_properties import NO_CODE, Allowed
from icetower.table.head import HeadState

PARTITIONS_MAX = 1_000
"""Partitions of one intent; lists of values are multiplied."""
DATA = 0


@dataclass(frozen=True, slots=True)
class Intent:
    """What somebody intends to write.

    Attributes:
        operations: ``append``, ``overwrite``, ``delete`` or ``replace``.
        partitions: of each field of the table's partition spec one value or a list of them, as texts, or None for
            null; or the name of a partition as refusals have it. Empty: the partitions are not known yet.
        files, size_bytes: that it would add.
    """

    operations: frozenset[Operation]
    partitions: tuple[str | Mapping[str, tuple[str | None, ...]], ...] = ()
    files: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What would become of it now.

    Attributes:
        outcome: ``direct``, ``rebased``, ``created`` or ``replayed``; ``admitted`` of an intent, which has no files to
            compare with what others write; ``new`` of a key that is not in the table; None where it would be refused.
        error: the refusal.
        snapshot: at which the branch, or for an intent ``main``, stood; of a key that has landed, as which.
        partitions: that it touches, a few.
        shadowed: what the contract, which is in shadow mode, would note.
        wait_s: how long the quota of commits a minute would hold it.
    """

    outcome: str | None
    error: IcetowerError | None = None
    snapshot: int | None = None
    operations: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    shadowed: tuple[Shadowed, ...] = ()
    wait_s: float = 0.0


class _NothingHeld(RateLimits):
    """A check takes no place in the quota."""

    async def wait(self, principal: Principal, table: Identifier, *, since_s: float, work: object) -> None:
        return None


class Checks:
    """One a tower. The arguments are those of its `Gate` and `Commits`; `approvals`: none of them is taken."""

    def __init__(
        self,
        files: Files,
        stops: Stops,
        rates: RateLimits,
        bindings: Bindings,
        places: TablePlaces,
        engine: Engine,
        heads: Heads,
        replays: Replays,
        landings: Landings,
        owners: Owners,
        ambient: Ambient,
        client_code: Allowed = NO_CODE,
        approvals: Approvals | None = None,
        intents: Intents | None = None,
    ) -> None:
        self._files = files
        self._stops = stops
        self._rates = rates
        self._bindings = bindings
        self._places = places
        self._engine = engine
        self._heads = heads
        self._replays = replays
        self._landings = landings
        self._owners = owners
        self._ambient = ambient
        self._client_code = client_code
        self._approvals = approvals
        self._intents = intents

    async def commit(
        self,
        principal: Principal,
        request: CommitRequest,
        key: str | None,
        application: tuple[str, int] | None = None,
    ) -> Verdict:
        """The verdict on a commit whose manifests are written. Arguments as of `Commits.commit`.

        Raises:
            IcetowerError: 5xx: it cannot be told now.
        """
        table, noted = _named(request), list[Shadowed]()
        wait_s = self._rates.wait_now_s(principal, table)
        try:
            found = await self._judged(principal, table, request, key, application, noted)
        except IcetowerError as error:
            return await self._refused(principal, error, noted, wait_s)
        outcome, head, operations, partitions = found
        return Verdict(
            outcome, None, _at(head, request), operations, partitions, tuple(noted), 0.0 if head is None else wait_s
        )

    async def intent(self, principal: Principal, table: Identifier, intent: Intent) -> Verdict:
        """The verdict on what is not written yet: the contract, its quotas, and whether the principal is stopped.

        Raises:
            BadRequest: the intent names what the table does not have.
            IcetowerError: 5xx: it cannot be told now.
        """
        noted = list[Shadowed]()
        recorder = ShadowRecorder(self._ambient, noted.append)
        wait_s = self._rates.wait_now_s(principal, table)
        operations = tuple(sorted(operation.value for operation in intent.operations))
        try:
            recorder.allow(principal, permissions.require, Operation.READ, table)
            head = await self._heads.load(table)
        except IcetowerError as error:
            return await self._refused(principal, error, noted, wait_s)
        now_ms = self._ambient.now_ms()
        touches = touches_of(head, intent, now_ms)
        names = tuple(partition_name(touch.spec, touch.partition) for touch in touches)[:100]
        try:
            await self._stops.require_free(principal, table)
            with recorder.recording(principal, table, "+".join(operations)):
                layout = Layout.of(head.metadata)
                verdict = check(principal.contract, table, touches, intent.operations, layout=layout, now_ms=now_ms)
                if not isinstance(verdict, Clear):
                    raise refusal(verdict, principal, table)
            with recorder.recording(principal, table, "+".join(operations)):
                check_quota(principal, table, files=intent.files, size_bytes=intent.size_bytes)
            if self._intents is not None:
                places = [(touch.spec.spec_id, touch.partition) for touch in touches]
                slot = needs_slot(principal.contract, table, touches, intent.operations, layout=layout, now_ms=now_ms)
                would = self._intents.would
                await would(principal, table, head.metadata, places, intent.operations, slot_required=slot)
        except IcetowerError as error:
            return await self._refused(principal, error, noted, wait_s)
        return Verdict("admitted", None, _branch(head, "main"), operations, names, tuple(noted), wait_s)

    async def landed(self, principal: Principal, table: Identifier, wanted: Wanted) -> Verdict:
        """Whether a write is in a branch, as `Landings.of` finds it: ``replayed``, or ``new``.

        Raises:
            IcetowerError: 5xx: it cannot be told now.
        """
        noted = list[Shadowed]()
        try:
            found, head = await self._landings.of(principal, table, wanted, ShadowRecorder(self._ambient, noted.append))
            if found.error is not None:
                raise found.error
        except IcetowerError as error:
            return await self._refused(principal, error, noted, 0.0)
        return (
            Verdict("replayed", None, found.snapshot)
            if found.landed
            else Verdict("new", None, _branch(head, wanted.ref))
        )

    async def _judged(
        self,
        principal: Principal,
        table: Identifier,
        request: CommitRequest,
        key: str | None,
        application: tuple[str, int] | None,
        noted: list[Shadowed],
    ) -> tuple[str, HeadState | None, tuple[str, ...], tuple[str, ...]]:
        """Outcome, version, operations, partitions. Raises whatever refuses it."""
        recorder = ShadowRecorder(self._ambient, noted.append)
        creating = creates(request.requirements)
        if not principal.contract.shadow:
            permissions.require(principal, Operation.CREATE if creating else Operation.READ, table)
        identity = Identity.of_commit(principal.name, request.updates, key, application)
        gate = Gate(
            self._files,
            self._stops,
            _NothingHeld(self._ambient, recorder, deadline_s=0.0),
            recorder,
            self._bindings,
            self._places,
            self._ambient,
            self._client_code,
            self._approvals,
        )
        async with gate.reading(principal):
            head = await self._version(table, creating=creating)
            if head is not None and identity.snapshots:
                landed = await self._replays.find(table, head, identity)
                if landed is not None:
                    return "replayed", head, (), ()
            since_s = self._ambient.monotonic_s()
            judging = nullcontext() if self._intents is None else self._intents.judging(principal, request.updates)
            async with judging:
                admitted = await gate.admit(principal, request, identity, head, since_s=since_s)
            operations = tuple(sorted(admitted.operations))
            if head is None:
                return "created", None, operations, ()
            if self._intents is not None:
                admitted = await self._intents.admit(admitted, head.metadata)
            planned, head = await self._engine.would(admitted)
        for refused in planned.refused:
            raise refused.error
        touched = [each for change in admitted.changes for each in (*change.added, *change.removed)]
        partitions = partitions_of(head, ((each.spec_id, each.file.partition) for each in touched))
        outcome = planned.accepted[0].outcome if planned.accepted else "replayed"
        return outcome, head, operations, partitions

    async def _version(self, table: Identifier, *, creating: bool) -> HeadState | None:
        """The table; None where a commit creates it. Raises `CommitConflict` where it is there already."""
        try:
            head = await self._heads.load(table)
        except NoSuchTable:
            if creating:
                return None
            raise
        if creating:
            raise CommitConflict(f"the table {table} exists already", rule="requirement.assert-create")
        return head

    async def _refused(
        self, principal: Principal, error: IcetowerError, noted: Sequence[Shadowed], wait_s: float
    ) -> Verdict:
        if error.status >= 500:
            raise error
        explained = await self._owners.explained(principal, error)
        return Verdict(None, explained, error.snapshot, (), explained.partitions, tuple(noted), wait_s)


def touches_of(head: HeadState, intent: Intent, now_ms: int) -> list[Touch]:
    """The partitions of an intent, by the table's current spec. Raises `BadRequest`."""
    spec = spec_of(head.metadata, head.metadata["default-spec-id"])
    removes = bool(intent.operations & {Operation.OVERWRITE, Operation.DELETE, Operation.REPLACE})
    adds = bool(intent.operations - {Operation.DELETE})
    found: dict[tuple[Any, ...], None] = {}
    for given in intent.partitions:
        values = _of_name(spec, given) if isinstance(given, str) else given
        found.update(dict.fromkeys(_partitions(spec, values, now_ms, PARTITIONS_MAX - len(found))))
    return [
        Touch(spec, partition, side, DATA)
        for partition in found
        for side, wanted in ((True, adds), (False, removes))
        if wanted
    ]


def _of_name(spec: PartitionSpec, name: str) -> Mapping[str, tuple[str | None, ...]]:
    """The values in a partition's name, as refusals have it: ``date=2017-01-02/bucket=3``. Values may hold slashes."""
    values: dict[str, tuple[str | None, ...]] = {}
    rest = name
    for position, field in enumerate(spec.fields):
        start = f"{field.name}="
        if not rest.startswith(start):
            raise _does_not_fit(spec, f"{name!r} is no name of a partition")
        rest = rest[len(start) :]
        value, separator, after = rest, "", ""
        if position + 1 < len(spec.fields):
            value, separator, after = rest.partition(f"/{spec.fields[position + 1].name}=")
            rest = f"{separator[1:]}{after}"
        if field.transform == "hour" and value.count("-") == 3:  # 2017-01-02-05, as Iceberg prints it
            value = value[:10] + "T" + value[11:]
        values[field.name] = (None if value == "null" else value,)
    return values


def _partitions(
    spec: PartitionSpec, values: Mapping[str, tuple[str | None, ...]], now_ms: int, most: int
) -> Sequence[tuple[Any, ...]]:
    names = [field.name for field in spec.fields if field.transform != "void"]
    if set(values) != set(names):
        raise _does_not_fit(spec, f"a partition names {', '.join(sorted(values)) or 'nothing'}")
    count = 1
    for each in values.values():
        count *= len(each)
    if not 0 < count <= most:
        raise BadRequest(
            f"partitions: more than {PARTITIONS_MAX} partitions, or a list without values; ask about fewer at once",
            rule="request.partitions",
        )
    columns: list[Sequence[Any]] = []
    for field in spec.fields:
        try:
            given = values.get(field.name, (None,))
            columns.append(
                [raw for text in given for raw in compile_extent(field, Values((text,)), now_ms).values or ()]
            )
        except NotUnderstood as error:
            raise BadRequest(f"partitions: {error}", rule="request.partitions") from error
    return [*product(*columns)]


def _does_not_fit(spec: PartitionSpec, what: str) -> BadRequest:
    fields = "/".join(f"{field.name}=…" for field in spec.fields) or "no fields: leave the partitions out"
    return BadRequest(f"partitions: {what}; the table's partitions are {fields}", rule="request.partitions")


def _named(request: CommitRequest) -> Identifier:
    assert request.identifier is not None
    return request.identifier


def _branch(head: HeadState, ref: str) -> int | None:
    found = (head.metadata.get("refs") or {}).get(ref)
    return None if found is None else found["snapshot-id"]


def _at(head: HeadState | None, request: CommitRequest) -> int | None:
    return None if head is None else _branch(head, request.updates.target_ref or "main")
