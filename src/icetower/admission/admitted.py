"""What admission hands to the commit engine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from icetower.admission.read_scope import ReadScope
from icetower.contracts.model import Operation
from icetower.errors import ContractViolation
from icetower.iceberg.change import Change, Touched
from icetower.protocol.names import Identifier

JSON = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Admitted:
    """A commit that may go on.

    Attributes:
        principal: who commits.
        requirements, updates: as sent.
        changes: one for each snapshot that the commit adds, in order.
        key: the idempotency key that the table is to carry: the snapshot summary's, else the request's.
        contract, contract_version: what was in force when the question was asked.
        blind_appends: the contract's word that every append of this principal to this table is blind (trap R1).
        strict: the contract's wish that nothing is rebased (trap R9).
        operations: what the commit does, as its manifests and updates say.
        fingerprint: stands for the commit's content: equal for a retry, different for other files (trap K3).
        table_uuid: of the table that the question was asked of; another of the same name may stand there by now.
        application_id: the running application, as the snapshot summary names it.
        read_scope: what its writer is known to have read (trap R2); None where nobody says.
        application_sequence: (application, sequence), where the summary numbers the application's commits.
        serializable: the contract holds it to serializable isolation, whatever the table is content with.
        shadowed: what its contract, which is in shadow mode, would have refused.
    """

    principal: str
    identifier: Identifier
    requirements: tuple[JSON, ...]
    updates: tuple[JSON, ...]
    changes: tuple[Change, ...]
    key: str | None
    contract: str
    contract_version: int
    blind_appends: bool
    strict: bool
    operations: frozenset[Operation]
    fingerprint: str
    application_id: str | None
    table_uuid: str | None = None
    read_scope: ReadScope | None = None
    application_sequence: tuple[str, int] | None = None
    serializable: bool = False
    shadowed: tuple[ContractViolation, ...] = ()


@dataclass(frozen=True, slots=True)
class AdmittedAppend:
    """An append by the fast path that may go on: data files that were verified, and nothing read.

    Attributes:
        ref: the branch that it appends to.
        files: new data files, each with its partition spec; their sequence numbers are the snapshot's own.
        key: the idempotency key.
        application: (application, sequence), where the caller numbers its appends: one numbered no higher than the last
            one that landed is a replay.
        fingerprint: stands for the files.
        table_uuid: of the table that the question was asked of.
        read_as: by what the files were judged (`iceberg.schemas.read_as`); None: by nothing.
    """

    principal: str
    identifier: Identifier
    ref: str
    files: tuple[Touched, ...]
    key: str | None
    application: tuple[str, int] | None
    contract: str
    contract_version: int
    fingerprint: str
    table_uuid: str | None = None
    read_as: tuple[Mapping[str, Any], str | None] | None = None


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
