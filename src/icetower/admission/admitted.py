"""What admission hands to the commit engine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from icetower.admission.identity import Identity
from icetower.admission.read_scope import ReadScope
from icetower.contracts.model import Operation
from icetower.errors import ContractViolation
from icetower.iceberg.change import Change, Touched
from icetower.protocol.names import Identifier
from icetower.protocol.updates import Updates
from icetower.rows.batches import Batch

JSON = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class UnderIntent:
    """The intent that a commit is made under.

    Attributes:
        id: of the intent.
        fence: that it was given.
        highest: the highest fence that was given for the table by then.
    """

    id: str
    fence: int
    highest: int


class _Identified:
    """What has an identity is known by its names. `identity`: by what the table is to know it."""

    __slots__ = ()

    identity: Identity

    @property
    def principal(self) -> str:
        return self.identity.principal

    @property
    def ref(self) -> str:
        """The branch or tag that it moves; empty where it moves none."""
        return self.identity.ref

    @property
    def key(self) -> str | None:
        """Its idempotency key."""
        return self.identity.key

    @property
    def application(self) -> tuple[str, int] | None:
        """(application, sequence)."""
        return self.identity.application


@dataclass(frozen=True, slots=True)
class Publication:
    """What a commit is that publishes snapshots of another branch, which its own branch lacks.

    Attributes:
        branch, head: that branch, and where it stands.
        base: the last snapshot that both branches have; None: none.
        onto: where its own branch stood when the two were compared; None where it had no snapshot.
        forward_only: where its own branch has moved on since, nothing is rebased.
        squash: its snapshots become one.
        stage: the copies go on this branch instead, and its own stays where it is: there they wait for checks.
        copies: snapshots of its own branch that are copies of the other's, so that nothing is held against them.
        numbers: sequence numbers of snapshots that were published before, each with that of its copy.
        until_ms: until when its key is kept, at least.
        predicates: who publishes says which isolation is owed, also to what overwrote or deleted by a filter: it counts
            for the rows that it found on the branch.
    """

    branch: str
    head: int
    base: int | None
    onto: int | None
    forward_only: bool
    squash: bool
    stage: str | None
    copies: frozenset[int]
    numbers: Mapping[int, int]
    until_ms: int
    predicates: bool = False


@dataclass(frozen=True, slots=True)
class Admitted(_Identified):
    """A commit that may go on.

    Attributes:
        identity: by what it is known when it is sent again, and by what the table is to know it.
        requirements, updates: as sent.
        changes: one for each snapshot that the commit adds, in order.
        contract, contract_version: what was in force when the question was asked.
        blind_appends: the contract declares that every append of this principal to this table is blind (trap R1).
        strict: the contract asks that nothing is rebased (trap R9).
        operations: what the commit does, as its manifests and updates say.
        fingerprint: stands for the commit's content: equal for a retry, different for other files (trap K3).
        table_uuid: of the table that the question was asked of; another of the same name may stand there by now.
        application_id: the running application, as the snapshot summary names it.
        read_scope: what its writer is known to have read (trap R2); None where nobody says.
        serializable: the contract holds it to serializable isolation, whatever the table is content with.
        may_change_rows: the contract lets it, so that an append of its may be an upsert that has found no row.
        shadowed: what its contract, which is in shadow mode, would have refused.
        intents_required: the contract wants that it stays out of rows that others hold, whatever the table says.
        slot_required: only the holder of a slot may make it, since its contract's slots are handed out.
        intents_shadowed, slot_shadowed: the same of a contract in shadow mode: it is recorded, and lands.
        under: the intent that it is made under.
        judge_again: to be called with the metadata of the version that the commit goes on; raises `CommitConflict`
            where it would be refused by now. None: what it may do does not depend on the version.
        approval: the request by which a person has approved what a guard refuses, where it goes on by one.
        publication: it publishes another branch. Its changes are of the snapshots as they are there.
    """

    identity: Identity
    identifier: Identifier
    requirements: tuple[JSON, ...]
    updates: Updates
    changes: tuple[Change, ...]
    contract: str
    contract_version: int
    blind_appends: bool
    strict: bool
    operations: frozenset[Operation]
    fingerprint: str
    application_id: str | None
    table_uuid: str | None = None
    read_scope: ReadScope | None = None
    serializable: bool = False
    may_change_rows: bool = False
    shadowed: tuple[ContractViolation, ...] = ()
    judge_again: Callable[[JSON], None] | None = None
    approval: str | None = None
    publication: Publication | None = None
    intents_required: bool = False
    slot_required: bool = False
    intents_shadowed: bool = False
    slot_shadowed: bool = False
    under: UnderIntent | None = None


@dataclass(frozen=True, slots=True)
class AdmittedAppend(_Identified):
    """An append that may go on, of which nothing was read: data files that were verified (the fast path), or rows.

    Attributes:
        identity: by what it is known when it is sent again. One numbered no higher than the last that landed of its
            application is a replay.
        files: new data files, each with its partition spec; their sequence numbers are the snapshot's own.
        fingerprint: stands for the files.
        table_uuid: of the table that the question was asked of.
        read_as: by what the files were judged (`iceberg.schemas.read_as`); None: by nothing.
        intents_required, slot_required, slot_shadowed, under: as of a commit.
        leases: the intents that its writer believes to hold, each with its fence.
        rows: in place of files: these are made for the rows of a whole group, when it is known who is in it.
    """

    identity: Identity
    identifier: Identifier
    files: tuple[Touched, ...]
    contract: str
    contract_version: int
    fingerprint: str
    table_uuid: str | None = None
    read_as: tuple[Mapping[str, Any], str | None] | None = None
    rows: Batch | None = None
    intents_required: bool = False
    slot_required: bool = False
    slot_shadowed: bool = False
    under: UnderIntent | None = None
    leases: tuple[tuple[str, str], ...] = ()

    @property
    def places(self) -> Iterator[tuple[int, tuple[Any, ...]]]:
        """The spec and the partition of each of its files, or of each part of its rows."""
        for touched in self.files:
            yield touched.spec_id, touched.file.partition
        for part in () if self.rows is None else self.rows.parts:
            yield part.spec.spec_id, part.partition


@dataclass(frozen=True, slots=True)
class AdmittedFence(_Identified):
    """A fence that may be set: no write of this identity is to land any more, unless it has landed.

    Attributes:
        identity: of the write.
        by: who asks for it: its writer, or an administrator.
        table_uuid: of the table that the question was asked of.
        until_ms: until when it holds, at least.
    """

    identity: Identity
    identifier: Identifier
    by: str
    contract: str
    contract_version: int
    table_uuid: str
    until_ms: int

    @property
    def principal(self) -> str:
        return self.by


def fingerprint(updates: Sequence[JSON], changes: Sequence[Change]) -> str:
    """Stands for a commit's content: the files it adds and removes, and its other updates.

    A client that tries again on a newer base sends another snapshot id, parent and manifests with the same files.
    """
    files = [sorted({t.file.path for t in side}) for change in changes for side in (change.added, change.removed)]
    rest = [update for update in updates if update["action"] not in ("add-snapshot", "set-snapshot-ref")]
    if not changes:
        rest = list(updates)
    content = json.dumps([files, rest], sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()
