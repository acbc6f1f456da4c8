"""Did a write land? And: it never will.

A client that has lost an answer asks by the key of its write, by the number that its application gave it, or by the id
of its snapshot. What the table and the ledger tell is decided by `commit.resolution`, as for a write that is sent
again. "Not there" is said of this moment: its request may be on its way yet, and land later, here or at another tower.
A fence makes that certain (`table.fences`).
"""

from __future__ import annotations

from dataclasses import dataclass

from icetower.admission import permissions
from icetower.admission.admitted import AdmittedFence
from icetower.admission.identity import Identity
from icetower.admission.shadow import ShadowRecorder
from icetower.ambient import Ambient
from icetower.commit.engine import Engine
from icetower.commit.head import Heads
from icetower.commit.replays import Replays
from icetower.contracts.model import Operation
from icetower.errors import CommitConflict, Forbidden, IcetowerError, KeyMisused
from icetower.ledger.ledger import SEQUENCE_LIFETIMES
from icetower.observe.events import one_line
from icetower.protocol.names import Identifier
from icetower.registry.principals import Principal
from icetower.service.fence_counts import NAME_CHARACTERS_MAX, Asked, FenceCounts
from icetower.service.under_way import UnderWay
from icetower.table.fences import fenced
from icetower.table.head import HeadState

FENCED = "key.fenced"
_WRITES = (Operation.APPEND, Operation.OVERWRITE, Operation.DELETE, Operation.REPLACE)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The write that is asked about: one of key, application (with its number) and snapshot id.

    Attributes:
        principal: its writer, where that is not who asks.
    """

    ref: str
    key: str | None = None
    application: tuple[str, int] | None = None
    snapshot_id: int | None = None
    principal: str | None = None

    @property
    def name(self) -> str:
        """For people."""
        numbered = "" if self.application is None else f"{self.application[0]} {self.application[1]}"
        return one_line(self.key or numbered or str(self.snapshot_id))[:NAME_CHARACTERS_MAX]

    def identity(self, principal: Principal) -> Identity:
        """By what the table knows the write. Raises `Forbidden` where it is another's."""
        if self.principal not in (None, principal.name) and not principal.administrator:
            raise Forbidden(
                f"{principal.name} may ask about its own writes only; leave the principal out",
                rule="permission.administrator",
            )
        return Identity.of_append(self.principal or principal.name, self.ref, self.key, self.application)


@dataclass(frozen=True, slots=True)
class Landing:
    """What is known of a write.

    Attributes:
        landed: None: it is unknown.
        snapshot: as which it landed.
        fenced: nothing lands under its name any more.
        error: why it is unknown; or what the write would be refused with, were it sent again.
    """

    landed: bool | None
    snapshot: int | None = None
    fenced: bool = False
    error: IcetowerError | None = None


class Landings:
    """One a tower. `key_lifetime_ms`: how long keys are kept, and fences."""

    def __init__(
        self,
        heads: Heads,
        replays: Replays,
        engine: Engine,
        under_way: UnderWay,
        ambient: Ambient,
        counts: FenceCounts | None = None,
        *,
        key_lifetime_ms: int,
    ) -> None:
        self._heads = heads
        self._replays = replays
        self._engine = engine
        self._under_way = under_way
        self._ambient = ambient
        self._counts = counts or FenceCounts()
        self._key_lifetime_ms = key_lifetime_ms

    async def of(
        self, principal: Principal, table: Identifier, wanted: Wanted, shadow: ShadowRecorder
    ) -> tuple[Landing, HeadState]:
        """Whether a write has landed, and the version of the table that was looked at.

        Raises:
            ContractViolation: the principal may not read the table.
            IcetowerError: it cannot be found out now.
        """
        shadow.allow(principal, permissions.require, Operation.READ, table)
        identity = wanted.identity(principal)
        names = identity.asked_by if wanted.snapshot_id is None else frozenset({str(wanted.snapshot_id)})
        # Before the table is looked at: what ends in between has landed by then.
        under_way = self._under_way.has(table, names) or self._engine.under_way(table, names)
        head = await self._heads.load(table)
        is_fenced = fenced(identity, head.metadata.get("properties") or {}) is not None
        try:
            if wanted.snapshot_id is not None:
                landed = await self._replays.find_snapshot(table, head, wanted.ref, wanted.snapshot_id)
            else:
                landed = await self._replays.landed(table, head, identity)
        except KeyMisused as error:
            if error.rule == FENCED:
                return Landing(False, fenced=True, error=error), head
            return Landing(None, error.snapshot, is_fenced, error), head
        if landed:
            return Landing(True, landed[-1]), head
        return (Landing(None, error=_still_under_way(table)) if under_way else Landing(False)), head

    async def fence(self, principal: Principal, table: Identifier, wanted: Wanted, shadow: ShadowRecorder) -> Landing:
        """See to it that a write never lands, unless it has landed.

        Raises:
            ContractViolation: the principal may not write to the table.
            TooManyRequests: the table has too many fences.
            IcetowerError: it may not be fenced; asked again, it will be.
        """
        outcome = "refused"
        try:
            found = await self._fence(principal, table, wanted, shadow)
            outcome = {True: "landed", False: "fenced", None: "unknown"}[found.landed]
            return found
        finally:
            self._counts.note(Asked(self._ambient.now_ms(), principal.name, str(table), wanted.name, outcome))

    async def _fence(self, principal: Principal, table: Identifier, wanted: Wanted, shadow: ShadowRecorder) -> Landing:
        _require_writer(principal, table, shadow)
        identity = wanted.identity(principal)
        head = await self._heads.load(table)
        unknown: KeyMisused | None = None
        try:
            landed = await self._replays.landed(table, head, identity)
            if landed:
                return Landing(True, landed[-1])
        except KeyMisused as error:
            unknown = None if error.rule == FENCED else error
        lifetimes = 1 if identity.application is None else SEQUENCE_LIFETIMES
        member = AdmittedFence(
            identity,
            table,
            principal.name,
            principal.contract.name,
            principal.contract_version,
            str(head.metadata["table-uuid"]),
            self._ambient.now_ms() + lifetimes * self._key_lifetime_ms,
        )
        try:
            done = await self._engine.submit(member)
        except KeyMisused as error:  # found by a last look at the table
            if error.rule != FENCED:
                raise
        else:
            if done.outcome == "replayed":
                return Landing(True, done.snapshots[-1])
        return Landing(False if unknown is None else None, fenced=True, error=unknown)


def _require_writer(principal: Principal, table: Identifier, shadow: ShadowRecorder) -> None:
    """Raises `ContractViolation` unless it may write to the table: a fence is for what it has sent there itself."""
    if not any(permissions.may(principal, operation, table) for operation in _WRITES):
        shadow.allow(principal, permissions.require, Operation.APPEND, table)


def _still_under_way(table: Identifier) -> CommitConflict:
    return CommitConflict(
        f"a request with it is under way to {table}: ask again in a moment, or fence it, and it is certain",
        rule="commit.under-way",
        next_step="retry",
    )
