"""May a stale commit be rebased, and does what was written meanwhile conflict with it? Pure (traps R1 to R3, R6 to
R9).

The protocol does not say what a client has read. So a commit is rebased only where something grants it:

- the commit itself, where it is known to be blind, or is a rewrite that shows that it changes no row;
- the table, which declares that snapshot isolation is enough;
- the contract, which declares that its principal reads only what it owns, or is owed no more than snapshot isolation;
- an intent that holds the rows for its writer alone, whose work depends on these rows;
- the client, which declares a filter and an isolation level in the snapshot's summary.

Then the commit is checked against what was written meanwhile (`rebase.written`). A conflict is refused with its
snapshot, partition, file, rule and next step. Without a grant, the client has to validate, as with any other catalog.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from icetower.admission.admitted import Admitted
from icetower.admission.operations import preserves_rows
from icetower.admission.read_scope import ReadScope, carried_over
from icetower.errors import CommitConflict, MissingDeclaration
from icetower.iceberg.change import Change
from icetower.iceberg.partitions import partition_name
from icetower.iceberg.records import DATA, POSITION_DELETES, referenced_file
from icetower.iceberg.validation import Conflict, Level
from icetower.protocol.declarations import LEVELS, Declaration, command_of
from icetower.protocol.marks import BLIND_APPENDS, PRINCIPAL, READ_SNAPSHOT, STRICT
from icetower.protocol.snapshots import Snapshot
from icetower.rebase.blindness import known_blind
from icetower.rebase.declared import unseen
from icetower.rebase.revalidation import (
    is_merge,
    merges_new_rows,
    only_its_client_validates,
    says_what_it_read,
    shared_sinks,
)
from icetower.rebase.written import Objection, Table, Targets, Written, objections
from icetower.table.sinks import sinks_of
from icetower.table.staged import StagedTable
from icetower.texts import printable

JSON = Mapping[str, Any]

ROW_ID = 2147483540
"""The id of the column `_row_id` (specification: "Reserved Field IDs")."""

STEPS_MAX = 50_000
"""A base that lies further back than this is refused: to look at all that came since would keep everybody waiting."""


class Kind(Enum):
    """What a change is, as far as its files and its summary prove it."""

    BLIND = "blind"
    REWRITE = "rewrite"
    LAYOUT = "layout"
    ROWS = "rows"
    PREDICATE = "predicate"


@dataclass(frozen=True, slots=True)
class RebaseGrant:
    """What allows a commit to be rebased.

    Attributes:
        source: ``blind``, ``rewrite``, ``table``, ``contract``, ``intent`` or ``summary``; of the most demanding of its
            snapshots.
        scope: what was read, where that is to be checked.
        merges_vectors: whether disjoint deletions from one data file may be put together.
    """

    source: str
    scope: ReadScope | None = None
    merges_vectors: bool = False


def asks_for_snapshot_isolation(properties: Mapping[str, str]) -> bool:
    """Whether a table is content with snapshot isolation, whatever command writes to it."""
    return all(properties.get(name, "").lower() == Level.SNAPSHOT.value for name in LEVELS)


def kind_of(change: Change, *, declared_blind: bool) -> Kind:
    """What a change is.

    A predicate isn't a list of files (trap R3): what replaces partitions, or removes whole files without saying that it
    found them row by row, may be an overwrite by filter, which a client evaluates anew when it tries again. Row by row
    are deletes by position, what Spark marks as a MERGE, and data files that carry on the ids of rows (format 3), as a
    copy-on-write UPDATE or DELETE writes them.
    """
    summary = change.snapshot.summary
    if change.is_pure_append and known_blind(summary, declared=declared_blind):
        return Kind.BLIND
    operation = change.snapshot.operation
    if operation == "replace" and not change.added and not change.removed:
        return Kind.LAYOUT
    if operation == "replace" and change.removed and preserves_rows(change):
        return Kind.REWRITE
    removes_data = any(touched.file.content == DATA for touched in change.removed)
    by_position = any(touched.file.content == POSITION_DELETES for touched in change.added)
    merges = is_merge(summary)
    replaces_partitions = str(summary.get("replace-partitions", "")).lower() == "true"
    if replaces_partitions or (removes_data and not (by_position or merges or _carries_row_ids(change))):
        return Kind.PREDICATE
    # An overwrite whose filter matched nothing removed nothing, and would if it were evaluated now.
    if operation in ("overwrite", "delete") and not change.removed and not _deletes(change) and not merges:
        return Kind.PREDICATE
    return Kind.ROWS


def _carries_row_ids(change: Change) -> bool:
    """Whether all data that it adds has the column `_row_id`, as rows have that were read and written again."""
    counted = [
        {count["key"] for count in touched.file.record.get("value_counts") or ()}
        for touched in change.added
        if touched.file.content == DATA
    ]
    return bool(counted) and all(ROW_ID in columns for columns in counted)


def _deletes(change: Change) -> bool:
    return any(touched.file.content != DATA for touched in change.added)


# ── The grant ────────────────────────────────────────────────────────────────────────────────────────────────────────


def grant_for(member: Admitted, staged: StagedTable, *, isolation_since: int | None) -> RebaseGrant:
    """What allows this stale commit to be rebased.

    Args:
        isolation_since: the sequence number since which the table is known to have asked for snapshot isolation.

    Raises:
        CommitConflict: nothing does.
    """
    _check_shape(member, staged)
    _check_progress(member, staged)
    properties: Mapping[str, str] = staged.view.get("properties") or {}
    promised = member.blind_appends or properties.get(BLIND_APPENDS, "").lower() == "true"
    # Neither promise was made by the writer of this append: a contract that says serializable goes before both.
    declared = promised and not member.serializable
    kinds = [kind_of(change, declared_blind=declared) for change in member.changes]
    if all(kind is Kind.BLIND for kind in kinds):
        return RebaseGrant("blind")
    if all(kind in (Kind.BLIND, Kind.REWRITE, Kind.LAYOUT) for kind in kinds):
        return RebaseGrant("rewrite")
    scope = member.read_scope
    if Kind.PREDICATE in kinds:
        said = scope is not None and member.publication is not None and member.publication.predicates
        if not (said or _covers_predicate(scope)):
            raise _refused(
                "rebase.predicate",
                f"it may overwrite or delete by a filter, which has to be evaluated anew. {_how_to_declare(member)}",
                None if scope is not None else _missing(member, Declaration.READ_SCOPE),
            )
        assert scope is not None
        return RebaseGrant(scope.source, scope)
    by_table = (
        not member.serializable
        and asks_for_snapshot_isolation(properties)
        and _declared_at(member, staged, isolation_since)
    )
    if scope is not None and scope.source == "summary":
        return RebaseGrant("summary", scope, merges_vectors=scope.level is Level.SNAPSHOT)
    if by_table:
        return RebaseGrant("table", merges_vectors=scope is not None)
    summaries = [change.snapshot.summary for change in member.changes]
    if scope is not None and scope.level is Level.SNAPSHOT and any(map(merges_new_rows, summaries)):
        # Both would insert what neither has found, into different files. Iceberg lets that pass at the table's level
        # alone, which is what the client validates by.
        raise _refused(
            "rebase.reads",
            "it is a MERGE that inserts rows, and isolation: snapshot in the contract does not cover these: another "
            "commit may have inserted the same rows. Where the table's owner accepts that: "
            f"{_set_isolation(member)}; or read_scope: owned in the contract",
            _missing_isolation(member, properties),
        )
    if scope is not None:
        return RebaseGrant(scope.source, scope, merges_vectors=scope.level is Level.SNAPSHOT)
    if all(change.is_pure_append for change in member.changes) and not any(map(is_merge, summaries)):
        blind = not member.serializable and all(
            kind_of(change, declared_blind=True) is Kind.BLIND for change in member.changes
        )
        lacking = Declaration.READ_SCOPE if member.may_change_rows else Declaration.BLIND_APPENDS
        missing = _missing(member, lacking) if blind else None
        raise _refused("rebase.not-blind", _why_not_blind(member, summaries), missing)
    raise _refused("rebase.reads", _why_not_covered(member, staged, properties), _missing_isolation(member, properties))


def _how_to_declare(member: Admitted) -> str:
    if member.publication is not None:
        return (
            "Where it may count for the rows that it found on its branch, publish the branch with isolation: snapshot "
            "(`reads`), or with what it has read and serializable"
        )
    return (
        "Declare what it read: snapshot_properties=icetower.agent.reads(table, filter) in PyIceberg; elsewhere "
        "icetower.filter and icetower.isolation-level=serializable in its summary, or read_scope: owned in the contract"
    )


def _missing(member: Admitted, declaration: Declaration) -> MissingDeclaration:
    return MissingDeclaration(str(member.identifier), declaration)


def _missing_isolation(member: Admitted, properties: Mapping[str, str]) -> MissingDeclaration | None:
    """None where the table has it by now: this commit was written before, and the next one will not be."""
    if member.serializable:
        return _missing(member, Declaration.READ_SCOPE)
    asked = asks_for_snapshot_isolation(properties)
    return None if asked else _missing(member, Declaration.SNAPSHOT_ISOLATION)


def _why_not_covered(member: Admitted, staged: StagedTable, properties: Mapping[str, str]) -> str:
    if member.serializable or not asks_for_snapshot_isolation(properties):
        return (
            "nothing says what it has read. Where snapshot isolation is enough for the table: "
            f"{_set_isolation(member)}; or read_scope: owned in the contract"
        )
    if staged.format_version == 1:
        return (
            "the table declares snapshot isolation, which covers no commit in format version 1, whose snapshots have "
            "no sequence numbers. Upgrade the table to version 2, or set read_scope: owned in the contract"
        )
    return (
        "the table declares snapshot isolation, and this commit was written on a snapshot that may be older than that "
        "declaration: this server has seen no version with it before. Commits that are written on later snapshots are "
        "covered"
    )


def _set_isolation(member: Admitted) -> str:
    return f"`{command_of(Declaration.SNAPSHOT_ISOLATION, str(member.identifier))}` (it sets {', '.join(LEVELS)})"


def _why_not_blind(member: Admitted, summaries: Sequence[JSON]) -> str:
    if any(map(says_what_it_read, summaries)):
        return (
            "its summary says that it has read the table, so it is not blind. State the isolation that it is owed as "
            "well: icetower.isolation-level"
        )
    if member.serializable:
        return (
            "nothing says that this append is blind, and a contract with isolation: serializable takes only the "
            "writer's own declaration. Where it is, set icetower.blind=true in its summary"
        )
    if member.may_change_rows:
        return (
            "nothing says what this append depends on, and its contract lets it change rows: an upsert that finds no "
            "row to change is an append, too, and two of them would insert one row twice. Declare what it has read: "
            "read_scope: owned in the contract, or snapshot_properties=icetower.agent.reads(table, filter) in "
            "PyIceberg; icetower.blind=true in its summary only if it has read nothing"
        )
    return (
        "nothing says that this append is blind. Where no writer of the table upserts or merges: "
        f"`{command_of(Declaration.BLIND_APPENDS, str(member.identifier))}` (it sets {BLIND_APPENDS}=true); else "
        "blind_appends in the contract of an agent that does neither, or icetower.blind=true in the commit's summary"
    )


def _covers_predicate(scope: ReadScope | None) -> bool:
    """Whether a filter that was evaluated on the base would find the same rows now, if nothing came into the scope.

    So it is where the scope is serializable and says which rows: by the writer's own filter, or by the partitions of a
    contract with `read_scope: owned`, outside of which its writes depend on nothing (trap R3).
    """
    return (
        scope is not None
        and scope.level is Level.SERIALIZABLE
        and (scope.filter is not None or scope.owned is not None)
    )


def _check_shape(member: Admitted, staged: StagedTable) -> None:
    """Refuse what is never rebased, whatever is declared (traps R7, R8, R9, R10)."""
    properties: Mapping[str, str] = staged.view.get("properties") or {}
    if member.strict or properties.get(STRICT, "").lower() == "true":
        raise _refused("rebase.strict", "the table or the contract is strict (icetower.strict)")
    if not member.changes:
        raise _refused("rebase.no-snapshot", "the commit adds no snapshot")
    refs = {ref for ref, _ in member.updates.moves}
    if len(refs) != 1 or any(staged.refs.get(ref, {}).get("type") != "branch" for ref in refs):
        raise _refused(
            "rebase.branch", f"the commit must move one branch of the table, and moves {sorted(refs) or 'none'}"
        )
    own = [change.snapshot.id for change in member.changes]
    if [change.snapshot.parent_id for change in member.changes[1:]] != own[:-1]:
        raise _refused("rebase.chain", "its snapshots do not follow one another")
    if member.updates.actions - {"add-snapshot", "set-snapshot-ref"}:
        raise _refused("rebase.other-updates", "the commit changes more than the table's content")
    for change in member.changes:
        reason = only_its_client_validates(change.snapshot.summary)
        if reason is not None:
            raise _refused(reason.rule, reason.message)
        if change.snapshot.get("key-id") is not None:
            raise _refused("rebase.encrypted", "its manifest list is encrypted")


def _check_progress(member: Admitted, staged: StagedTable) -> None:
    """Refuse where the same sink has stated its progress since the base: it must read that first (trap R10)."""
    own = [change.snapshot for change in member.changes]
    if not any(sinks_of(snapshot.summary) for snapshot in own):
        return
    shared = shared_sinks(own, steps_since(member, staged, staged.ref_head(member.ref)))
    if shared is not None:
        sink, snapshot = shared
        raise _refused(
            "rebase.progress",
            f"snapshot {snapshot.id} states progress of the same sink ({' '.join(sink)}), and only its "
            "client can see whether these rows are in the table since",
        )


def _declared_at(member: Admitted, staged: StagedTable, isolation_since: int | None) -> bool:
    """Whether the table asked for snapshot isolation already when the client read it.

    Snapshots of format 1 have no sequence number, so it cannot be determined for them.
    """
    base = base_of(member)
    snapshot = staged.snapshot(base) if base is not None else None
    number = 0 if snapshot is None else snapshot.sequence_number
    return isolation_since is not None and staged.format_version > 1 and number >= isolation_since


def _refused(rule: str, why: str, missing: MissingDeclaration | None = None) -> CommitConflict:
    refused = CommitConflict(f"the table has moved on since the commit was written; not rebased: {why}", rule=rule)
    refused.missing = missing
    return refused


# ── The check ────────────────────────────────────────────────────────────────────────────────────────────────────────


def base_of(member: Admitted) -> int | None:
    """The snapshot that the client wrote its commit on; None for the empty table."""
    return member.changes[0].snapshot.parent_id


def conflicts_of(
    member: Admitted, grant: RebaseGrant, staged: StagedTable, *, head: int | None, targets: Targets
) -> Iterator[tuple[Change, Iterator[Conflict]]]:
    """The conflicts of a commit, by its snapshots.

    Where reads are declared, that begins with the version that was read, which may be older than the commit's base.

    Args:
        head: the snapshot at which the branch stands; for a commit that is not rebased, its base.
        targets: what was read of position delete files that don't name their targets (trap R6).

    Raises:
        CommitConflict: the commit's base is not in the history of its branch, or too far back.
        NeedsFiles: manifests or manifest lists must be read first.
    """
    steps = steps_since(member, staged, head)
    table = Table(staged.specs, staged.schema)
    for change in member.changes:
        rewrites = kind_of(change, declared_blind=False) is Kind.REWRITE
        written = Written.of(change, rewrites=rewrites, targets=targets)
        missed = () if grant.scope is None else unseen(change, member, staged, steps)
        since = _bounded((*missed, *steps), head) if missed else steps
        yield change, objections(written, since, staged.files, table, _carried(grant.scope, change, staged))


def _carried(scope: ReadScope | None, change: Change, staged: StagedTable) -> ReadScope | None:
    """The scope in the names that the table's columns have by now."""
    if scope is None or scope.filter is None:
        return scope
    schema_id = change.snapshot.get("schema-id", staged.schema["schema-id"])
    schemas = [schema for schema in staged.view["schemas"] if schema["schema-id"] == schema_id]
    if not schemas:  # its names mean nothing any more: it may have read everything
        return replace(scope, filter=None)
    return replace(scope, filter=carried_over(scope.filter, schemas[0], staged.schema))


def steps_since(member: Admitted, staged: StagedTable, head: int | None) -> Sequence[Snapshot]:
    """The snapshots that landed since the commit's base, oldest first.

    Of a branch that is published, those that it was published as before are its own.

    Raises:
        CommitConflict: the base is not in the history of the branch, or too far back.
    """
    base = base_of(member)
    steps = staged.steps(base, head)
    if steps is None:
        raise base_lost(base, member.ref, head)
    if member.publication is not None:
        steps = [step for step in steps if step.id not in member.publication.copies]
    return _bounded(steps, head)


def base_lost(base: int | None, ref: str, head: int | None) -> CommitConflict:
    """The refusal of a commit whose base is not in the history of its branch, whose head is given."""
    return CommitConflict(
        f"the base of the commit, snapshot {base}, is not in the history of {ref} any more (expired, or rolled back); "
        "refresh and write again",
        rule="commit.base",
        snapshot=head,
    )


def _bounded(steps: Sequence[Snapshot], head: int | None) -> Sequence[Snapshot]:
    if len(steps) > STEPS_MAX:
        raise CommitConflict(
            f"{len(steps)} snapshots landed since the commit's base, and at most {STEPS_MAX} are looked at; refresh "
            "and write again",
            rule="commit.base",
            snapshot=head,
        )
    return steps


def refusal(change: Change, conflict: Conflict, staged: StagedTable) -> CommitConflict:
    """The error for a conflict."""
    partitions = tuple(dict.fromkeys(_partition_of(change, conflict, staged)))
    # Another agent chose these values, and clients print the message on their terminals.
    where = f" in {printable(', '.join(partitions))}" if partitions else ""
    by = f" (rule {conflict.by} of docs/conflicts.md)" if isinstance(conflict, Objection) else ""
    said = change.snapshot.summary.get(READ_SNAPSHOT)
    read = "" if said is None else f" (its writer has read snapshot {said}; declare what the statement reads anew)"
    return CommitConflict(
        f"the commit conflicts with snapshot {conflict.snapshots[0]}{_made_by(staged, conflict.snapshots[0])}{where}: "
        f"{conflict.message}{by}; refresh and run the statement again{read}",
        rule=f"conflict.{conflict.rule}",
        partitions=partitions,
        snapshot=conflict.snapshots[0],
        files=conflict.paths,
        next_step="refresh",
    )


def _made_by(staged: StagedTable, snapshot_id: int) -> str:
    """Who has made a snapshot, and by which operation, where the table says so."""
    snapshot = staged.snapshot(snapshot_id)
    name = None if snapshot is None else snapshot.summary.get(PRINCIPAL)
    return "" if snapshot is None or name is None else printable(f" ({snapshot.operation} by {name})")


def _partition_of(change: Change, conflict: Conflict, staged: StagedTable) -> Iterator[str]:
    """The partitions of the files in question, as the other commit and the change itself name them."""
    for spec_id, partition in conflict.places:
        yield partition_name(staged.specs[spec_id], partition)
    for touched in (*change.removed, *change.added):
        about = referenced_file(touched.file) if touched.file.content != DATA else None
        if {touched.file.path, about} & set(conflict.paths):
            yield partition_name(staged.specs[touched.spec_id], touched.file.partition)
