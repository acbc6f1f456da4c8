"""Which commits are known not to have read what others wrote. Pure (trap R11).

A manifest does not say what its writer has read, and the operation does not either: an insert-only MERGE and an
`INSERT … SELECT` from the table itself are recorded as `append`. Nor does Spark's silence: the marks by which a stale
append is known to need no validation (`rebase.blindness`) do not show a plain `SELECT`. So a commit counts as one
that has read nothing, or only part of the table, where a statement says so:

- the fast path, a Kafka Connect append and a revert read no rows by what they are;
- the writer's `icetower.blind`, the table's `icetower.blind-appends`, or `blind_appends` in the contract of its
  principal: appends that depend on nothing;
- the writer's `icetower.read-snapshot`, or the tower's `icetower.base-snapshot`: it has read no newer version;
- `read_scope: owned` in the contract: it depends on no rows but those of partitions that it owns.

The fourth kind of statement, `icetower.filter`, is held against the files (`cycles.Cycles.touched`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from icetower.audit.commits import BEFORE, Commit
from icetower.contracts.check import appends_blindly, owned
from icetower.contracts.model import FILE_OPERATIONS, Contract
from icetower.contracts.terms import Layout
from icetower.iceberg.deletes import Place
from icetower.iceberg.partitions import known_specs
from icetower.protocol.marks import BASE, BLIND, BLIND_APPENDS, GROUP_FILE, KAFKA, PRINCIPAL, READ_SNAPSHOT, REVERTS
from icetower.protocol.names import Identifier
from icetower.rebase.blindness import known_blind

JSON = Mapping[str, Any]
Owns = Callable[[int, tuple[Any, ...]], bool]


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a contract; `contract` None: revoked."""

    since_ms: int
    contract: Contract | None


@dataclass(frozen=True, slots=True)
class Promises:
    """The contracts of principals, by principal, each with its versions, oldest first."""

    table: Identifier
    versions: Mapping[str, Sequence[Version]]

    def in_force(self, commit: Commit) -> Contract | None:
        """The contract under which a commit was made."""
        made_ms = commit.snapshot["timestamp-ms"]
        earlier = [each for each in self.versions.get(_principal(commit), ()) if each.since_ms <= made_ms]
        return earlier[-1].contract if earlier else None


@dataclass(frozen=True)
class Unread:
    """Tells what a commit has not read.

    Args:
        metadata: of the table.
        before: snapshots that are older than all of those in question.
        promises: None where contracts are not known.
    """

    metadata: JSON
    before: frozenset[int] = frozenset()
    promises: Promises | None = None
    _owns: dict[tuple[int, int], Owns] = field(default_factory=dict[tuple[int, int], Owns])

    def reads_nothing(self, commit: Commit) -> bool:
        """Whether a commit depends on no rows of the table."""
        summary = commit.summary
        if not commit.delta.added and not commit.delta.removed:
            return True
        if GROUP_FILE in summary or REVERTS in summary:
            return True
        if commit.operation != "append":
            return False
        if any(key.startswith(KAFKA) for key in summary):
            return True
        contract = self._contract(commit)
        promised = contract is not None and self.promises is not None and appends_blindly(contract, self.promises.table)
        declared = promised or str(self._properties.get(BLIND_APPENDS, "")).lower() == "true"
        return (declared or str(summary.get(BLIND, "")).lower() == "true") and known_blind(summary, declared=declared)

    def newest_read(self, commit: Commit) -> int | None:
        """The newest version that a commit can have read, by position; None where nothing says it."""
        if commit.reads.newest is not None:
            return commit.reads.newest
        said = commit.summary.get(READ_SNAPSHOT, commit.summary.get(BASE))
        return BEFORE if said is not None and str(said) in {str(each) for each in self.before} else None

    def owned_among(self, commit: Commit, places: Iterable[Place]) -> list[Place] | None:
        """Of these partitions, those on whose rows a commit may depend by its contract; None where it doesn't say."""
        contract = self._contract(commit)
        if contract is None or self.promises is None or contract.administrator:
            return None
        rules = contract.rules_for(self.promises.table)
        writing = [rule for rule in rules if any(rule.grants(operation) for operation in FILE_OPERATIONS)]
        if not writing or not all(rule.reads_owned for rule in writing):
            return None
        owns = self._owned(contract, self.promises.table, commit.snapshot["timestamp-ms"])
        return [place for place in dict.fromkeys(places) if owns(*place)]

    def _contract(self, commit: Commit) -> Contract | None:
        return None if self.promises is None else self.promises.in_force(commit)

    @property
    def _properties(self) -> Mapping[str, Any]:
        return self.metadata.get("properties") or {}

    def _owned(self, contract: Contract, table: Identifier, now_ms: int) -> Owns:
        key = (id(contract), now_ms)
        if key not in self._owns:
            layout = Layout.of(self.metadata)
            self._owns[key] = owned(contract, table, known_specs(self.metadata), layout=layout, now_ms=now_ms)
        return self._owns[key]


def _principal(commit: Commit) -> str:
    return str(commit.summary.get(PRINCIPAL, ""))
