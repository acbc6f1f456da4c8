"""What a commit does: its updates and changes, named as the operations that contracts grant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from icetower.contracts.model import Operation
from icetower.iceberg.change import Change
from icetower.iceberg.manifests import DATA, POSITION_DELETES, DataFile
from icetower.iceberg.records import referenced_file
from icetower.protocol.updates import Updates, creates

JSON = Mapping[str, Any]

# Updates that go with a snapshot or with the table's own identity, and ask for nothing by themselves.
_NEUTRAL = frozenset({"assign-uuid", "add-snapshot", "set-snapshot-ref"})
_REFS = frozenset({"remove-snapshot-ref", "remove-snapshots"})
RETENTION = ("min-snapshots-to-keep", "max-snapshot-age-ms", "max-ref-age-ms")


def targets_of(file: DataFile) -> frozenset[str]:
    """Every data file that some reader finds in a position delete file as the one that it applies to.

    PyIceberg goes by the bounds, whatever the reference says.
    """
    found = (referenced_file(file), referenced_file(file, by_bounds=True))
    return frozenset(target for target in found if target is not None)


def operation_of(change: Change) -> Operation:
    """What one snapshot does, from its files; its own summary is believed only where the files bear it out."""
    claim = change.snapshot.operation
    if claim == "replace" and preserves_rows(change):
        return Operation.REPLACE
    adds_data = any(touched.file.content == DATA for touched in change.added)
    adds_deletes = len(change.added) > sum(touched.file.content == DATA for touched in change.added)
    if not change.removed and not adds_deletes:
        # An empty snapshot does what it says: nothing, under a name.
        empty = not adds_data and claim in (Operation.OVERWRITE, Operation.DELETE)
        return Operation(claim) if empty else Operation.APPEND
    if adds_data or _revives_rows(change):
        return Operation.OVERWRITE
    return Operation.DELETE


def preserves_rows(change: Change) -> bool:
    """Whether rows balance: data rows less deleted positions, on both sides. Equality deletes can't be counted."""
    balance = 0
    for files, sign in ((change.added, 1), (change.removed, -1)):
        for touched in files:
            if touched.file.content not in (DATA, POSITION_DELETES):
                return False
            balance += sign * touched.file.record_count * (1 if touched.file.content == DATA else -1)
    return balance == 0


def _revives_rows(change: Change) -> bool:
    """Whether rows come back: delete files go, without a successor for their data file and without that data file."""
    settled = {referenced_file(touched.file) for touched in change.added}
    settled |= {touched.file.path for touched in change.removed if touched.file.content == DATA}
    settled.discard(None)
    return any(
        touched.file.content != DATA and referenced_file(touched.file) not in settled for touched in change.removed
    )


def operations_of(
    metadata: JSON | None, requirements: Sequence[JSON], updates: Updates, changes: Sequence[Change]
) -> frozenset[Operation]:
    """Everything that a commit does to a table; `metadata` None: it creates the table."""
    found = {operation_of(change) for change in changes}
    if metadata is None or creates(requirements):
        return frozenset(found | {Operation.CREATE})
    own = {change.snapshot.id for change in changes}
    for update in updates:
        action = update["action"]
        if action in _REFS or (action == "set-snapshot-ref" and not _advances(metadata, update, own)):
            found.add(Operation.REFS)
        elif action not in _NEUTRAL | _REFS:
            found.add(Operation.ALTER)
    return frozenset(found)


def claimed_by(requirements: Sequence[JSON], updates: Updates) -> frozenset[str]:
    """What a commit says that it does, for the log of one that is refused before anything of it is read."""
    snapshots = updates.snapshots
    found = {str(snapshot.summary.get("operation", "none")) for snapshot in snapshots}
    if creates(requirements):
        return frozenset(found | {Operation.CREATE})
    actions = updates.actions
    if actions & _REFS or (not snapshots and "set-snapshot-ref" in actions):
        found.add(Operation.REFS)
    if actions - _NEUTRAL - _REFS:
        found.add(Operation.ALTER)
    return frozenset(found)


def _advances(metadata: JSON, update: JSON, own: set[int]) -> bool:
    """Whether an update moves a branch that is there to a snapshot of the same commit, and does nothing else."""
    refs = metadata.get("refs") or {}
    name = update["ref-name"]
    current = refs.get(name, {"type": "branch"} if name == "main" else None)
    if current is None or update["snapshot-id"] not in own or update.get("type") != "branch":
        return False
    return current.get("type") == "branch" and all(
        update.get(setting) is None or update.get(setting) == current.get(setting) for setting in RETENTION
    )
