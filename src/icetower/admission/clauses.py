"""What a contract says of a commit, clause by clause. Each check raises `ContractViolation`, and is pure.

Those that need nothing but the request are asked of it before its manifests are read, too (`Facts.unread`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from icetower.admission.alterations import shared
from icetower.admission.facts import Facts
from icetower.admission.honesty import REMOVES_PROPERTIES, SETS_PROPERTIES, given_properties
from icetower.admission.identity import check_key
from icetower.admission.locations import PATHS, check_files, may_be_statistics, steers_clients
from icetower.admission.operations import RETENTION
from icetower.admission.permissions import require
from icetower.admission.quotas import check_quota
from icetower.admission.refusals import OrdersTower, refusal
from icetower.contracts.check import Clear, Touch, check
from icetower.contracts.model import FILE_OPERATIONS, Operation
from icetower.contracts.terms import NO_LAYOUT, Layout
from icetower.errors import ContractViolation
from icetower.protocol.marks import (
    AUTHOR,
    OF_THE_TOWER,
    OURS,
    PROGRESS,
    PUBLISHED_BRANCH,
    PUBLISHED_OF,
    REVERTS,
)

JSON = Mapping[str, Any]

HISTORY = ("icetower.retention.", "history.expire.", "gc.enabled")
"""Properties that begin like this say how much of everybody's history goes."""

_LISTS_OF_PROPERTIES = (*SETS_PROPERTIES, *REMOVES_PROPERTIES)


ORIGINS = frozenset({PUBLISHED_BRANCH, PUBLISHED_OF, AUTHOR})
"""By these a publication knows what is on a branch already, and a revert whose rows those are."""


def check_origins(facts: Facts) -> None:
    """contract.summary: administrators, too, write nothing that later publications believe."""
    for name in sorted({name for summary in facts.summaries for name in summary} & ORIGINS):
        raise _tower_writes(facts, name)


def check_summaries(facts: Facts) -> None:
    """contract.summary: no summary key that only the tower writes, or only those who own the whole table."""
    for summary in facts.summaries:
        for name in summary:
            # Progress makes rows of a log count as done: for those alone who may write everywhere.
            mediates = name.startswith(PROGRESS) and not facts.grants_everywhere(Operation.APPEND)
            if name in OF_THE_TOWER or mediates:
                raise _tower_writes(facts, name)
            # What is said to be taken back counts as meant to go, or to come back, for every audit.
            if name == REVERTS and not facts.grants_everywhere(Operation.DELETE):
                raise _refusal(
                    facts,
                    "contract.summary",
                    f"{name} is said by those alone who may remove rows anywhere in the table; leave it out or ask "
                    "an administrator to run `icetower revert`",
                    next_step="fix_request",
                )


def _tower_writes(facts: Facts, name: str) -> ContractViolation:
    message = f"the snapshot property {name} is written by the tower alone; leave it out"
    return _refusal(facts, "contract.summary", message, next_step="fix_request")


def check_any_file_operation(facts: Facts) -> None:
    """contract.table, contract.operation: who is granted no operation on files commits no snapshot."""
    if not any(facts.contract.grants(operation, facts.table) for operation in FILE_OPERATIONS):
        asked = sorted(facts.operations & FILE_OPERATIONS)
        require(facts.principal, asked[0] if asked else Operation.APPEND, facts.table)


def check_operations(facts: Facts) -> None:
    """contract.table, contract.operation, contract.pattern: each operation is granted on some part of the table."""
    _require_clear(facts, (), NO_LAYOUT)


def check_partitions(facts: Facts) -> None:
    """contract.table, contract.operation, contract.partitions, contract.undecided, contract.pattern."""
    # First without files: a commit that isn't granted at all shall not depend on its own metadata making sense.
    check_operations(facts)
    if not facts.changes:
        return
    touches, lost = facts.touches
    _require_clear(facts, touches, facts.layout)
    if lost and not facts.contract.grants_everywhere(facts.operations & FILE_OPERATIONS, facts.table):
        raise _refusal(
            facts,
            "contract.undecided",
            f"its delete files reach into data file {lost[0]}"
            + (f" and {len(lost) - 1} more" if len(lost) > 1 else "")
            + ", which is not in the snapshot that it was written on, so its partition cannot be determined",
        )


def _require_clear(facts: Facts, touches: Sequence[Touch], layout: Layout) -> None:
    verdict = check(facts.contract, facts.table, touches, facts.operations, layout=layout, now_ms=facts.now_ms)
    if not isinstance(verdict, Clear):
        raise refusal(verdict, facts.principal, facts.table)


def check_quotas(facts: Facts) -> None:
    """contract.quota: how many files, and bytes, a commit adds."""
    size_bytes = sum(int(file.record.get("file_size_in_bytes") or 0) for file in facts.added)
    check_quota(facts.principal, facts.table, files=len(facts.added), size_bytes=size_bytes)


def check_refs(facts: Facts) -> None:
    """contract.ref: moving a branch other than forward from where it is known to stand may drop others' data."""
    if facts.base is None or facts.grants_everywhere(Operation.REFS):
        return
    refs = facts.base.get("refs") or {}
    parents = {change.snapshot.id: change.snapshot.parent_id for change in facts.changes}
    for update in facts.updates:
        ref = str(update.get("ref-name"))
        stands = ref in refs and refs[ref].get("type") == "branch"
        if update["action"] == "remove-snapshot-ref" and stands:
            raise _loses(facts, f"it removes the branch {ref}")
        if update["action"] != "set-snapshot-ref" or not (stands or ref == "main"):
            continue
        if update.get("type") == "tag":
            raise _loses(facts, f"it makes a tag of the branch {ref}")
        if update["snapshot-id"] not in parents:
            raise _loses(facts, f"it moves the branch {ref} to snapshot {update['snapshot-id']}, not one of its own")
        base: int | None = update["snapshot-id"]
        for _ in range(len(parents)):
            base = parents.get(base, base) if base is not None else None
        if not _asserted(facts, ref, None if base == -1 else base):
            raise _loses(
                facts,
                f"it moves the branch {ref} without asserting (assert-ref-snapshot-id) that it stands at the "
                f"snapshot that the commit is written on, {base}",
            )


def _asserted(facts: Facts, ref: str, snapshot_id: int | None) -> bool:
    return any(
        requirement["type"] == "assert-ref-snapshot-id"
        and requirement["ref"] == ref
        and requirement.get("snapshot-id") == snapshot_id
        for requirement in facts.requirements
    )


def _loses(facts: Facts, what: str) -> ContractViolation:
    return _refusal(
        facts,
        "contract.ref",
        f"{what}, which could drop what others have written; "
        "that needs the operation refs and 'partitions: all' in the contract",
    )


def check_history(facts: Facts) -> None:
    """contract.history: the owner of a part of a table lets no snapshot go, now or by a property."""
    if facts.base is None:
        return
    for update in facts.updates:
        if update["action"] == "remove-snapshots":
            _require_everything(facts, Operation.REFS, "it removes snapshots")
        kept = [name for name in _changed_properties(update, facts.base) if name.startswith(HISTORY)]
        if kept:
            _require_everything(facts, Operation.ALTER, f"it changes {', '.join(kept)}, which lets snapshots go")
        settings = [name for name in RETENTION if _resets(facts.base, update, name)]
        if settings:
            _require_everything(
                facts, Operation.REFS, f"it changes {', '.join(settings)} of the branch {update['ref-name']}"
            )


def _resets(base: JSON, update: JSON, setting: str) -> bool:
    """Whether an update changes for how long a branch that is there keeps its snapshots."""
    if update["action"] != "set-snapshot-ref":
        return False
    refs: Mapping[str, JSON] = base.get("refs") or {}
    current = refs.get(update["ref-name"], {"type": "branch"} if update["ref-name"] == "main" else None)
    return (
        current is not None
        and current.get("type") == "branch"
        and update.get(setting) is not None
        and update.get(setting) != current.get(setting)
    )


def _require_everything(facts: Facts, operation: Operation, what: str) -> None:
    if not facts.grants_everywhere(operation):
        raise _refusal(
            facts,
            "contract.history",
            f"{what}, and history belongs to all who write to the table; "
            f"that needs the operation {operation} and 'partitions: all' in the contract",
        )


def check_shared(facts: Facts) -> None:
    """contract.shared: the owner of a part of a table alters nothing that everybody goes by."""
    if facts.base is None or facts.grants_everywhere(Operation.ALTER):
        return
    changed = shared(facts.base, facts.after, facts.updates)
    orders = [name for name in changed if name.startswith(OURS)]
    if orders:
        raise OrdersTower(
            f"{facts.principal.name} may not commit to {facts.table}: it changes {', '.join(changed)}, and all "
            f"who read or write the table go by that, the tower by {', '.join(orders)}; it needs the operation "
            "alter and 'partitions: all' in the contract",
            rule="contract.shared",
        )
    if changed:
        raise _refusal(
            facts,
            "contract.shared",
            f"it changes {', '.join(changed)}, and all who read or write the table go by that; "
            "it needs the operation alter and 'partitions: all' in the contract",
        )


def check_locations(facts: Facts) -> None:
    """contract.location: no files outside of the table's locations, and no change of these."""
    for update in facts.updates:
        if update["action"] == "set-location" and not _keeps_location(facts, update["location"]):
            raise _refusal(facts, "contract.location", "it sets the table's location; only an administrator may")
        changed = sorted(_properties_of(update) & set(PATHS))
        if changed:
            raise _refusal(
                facts,
                "contract.location",
                f"it changes {', '.join(changed)}, where files are written; only an administrator may",
            )
        steering = [name for name in _changed_properties(update, facts.base) if steers_clients(name)]
        if steering:
            raise _refusal(
                facts,
                "contract.location",
                f"it changes {', '.join(steering)}, by which clients find the storage, and with whose credentials; "
                "only an administrator may",
            )
    statistics = [
        str(update[part].get("statistics-path"))
        for update in facts.updates
        for part in ("statistics", "partition-statistics")
        if update["action"] == f"set-{part}"
    ]
    if not facts.changes and not statistics:
        return
    for path in statistics:  # expiry and purges delete them
        if not may_be_statistics(path, facts.after):
            raise _refusal(
                facts,
                "contract.location",
                f"the statistics file {path} is none that clients write: they write those where the table's metadata "
                "lies, with .stats, .puffin or .parquet at the end",
            )
    if not facts.published:  # whose place they lie in was asked when they came to the branch
        check_files(facts.principal, facts.table, facts.after, [file.path for file in facts.added])


def _keeps_location(facts: Facts, location: str) -> bool:
    given = location.rstrip("/")
    if facts.base is None:
        return facts.location is None or given == facts.location.rstrip("/")
    # Java sends it unchanged when it replaces a table.
    return given == str(facts.base.get("location", "")).rstrip("/")


def check_idempotency(facts: Facts) -> None:
    """contract.key: a key, where the contract requires one."""
    check_key(facts.principal, facts.table, facts.identity.ways)


def _properties_of(update: JSON) -> set[str]:
    """The names of the properties that an update sets or removes."""
    if update["action"] not in ("set-properties", "remove-properties"):
        return set()
    return {name for part in _LISTS_OF_PROPERTIES for name in update.get(part) or ()}


def _changed_properties(update: JSON, before: JSON | None) -> list[str]:
    """The properties to which an update gives another value than a table's, or takes it away, sorted."""
    properties: JSON = (before or {}).get("properties") or {}
    # Java sends what the table has already when it replaces it.
    given = given_properties(update)
    return sorted(n for n in _properties_of(update) if n not in given or given[n] != properties.get(n))


def _refusal(facts: Facts, rule: str, message: str, *, next_step: str | None = None) -> ContractViolation:
    return ContractViolation(
        f"{facts.principal.name} may not commit to {facts.table}: {message}", rule=rule, next_step=next_step
    )
