"""The rules by which Iceberg refuses a commit before it writes anything, one function for each rule.

Each operation has a tuple of rules (`RULES_OF`), checked in order; the first objection is the writer's error.
Rules that need the head's manifests while they are rewritten, C6 and C7, are in `filtering`.

Source: Apache Iceberg 1.12, `MergingSnapshotProducer` and its subclasses; the texts are Iceberg's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from icetower.errors import ValidationFailed
from icetower.iceberg.deletes import Corrupt, is_unpartitioned, vector_text
from icetower.iceberg.entries import Live
from icetower.iceberg.expressions import FALSE, TRUE, Expression, text
from icetower.iceberg.records import (
    ADDED,
    DATA,
    DELETED,
    EQUALITY_DELETES,
    POSITION_DELETES,
    is_vector,
    referenced_file,
)
from icetower.iceberg.validation import Conflict
from icetower_client_model.attempt import DELETES, Attempt, Clear, PartitionSet, Verdict, Where, conflict_of, text_of
from icetower_client_model.history import UnknownHistory, is_ancestor
from icetower_client_model.operations import Flag, Kind, Operation, unique

_ADDING = frozenset({"append", "overwrite"})
_REMOVING = frozenset({"overwrite", "replace", "delete"})
_REMOVING_BUT_DELETES = frozenset({"overwrite", "replace"})
_ADDING_VECTORS = frozenset({"overwrite", "delete", "replace"})


def _listed(paths: Iterable[str]) -> str:
    return f"[{', '.join(paths)}]"


def _conflict(rule: str, message: str, found: Iterable[Live] = (), error: str = "ValidationException") -> Conflict:
    found = tuple(found)
    return Conflict(
        rule, error, message, tuple(live.path for live in found), tuple(dict.fromkeys(x.snapshot_id for x in found))
    )


# ── The rules ────────────────────────────────────────────────────────────────────────────────────────────────────────


def added_files_match_filter(attempt: Attempt) -> Verdict:
    """Every added file holds only rows that match the overwrite's filter."""
    operation = attempt.operation
    if not operation.asks(Flag.ADDED_FILES_MATCH_FILTER):
        return None
    spec_id = single_spec(operation)
    row_filter = operation.row_filter if operation.row_filter is not None else FALSE
    pruner = attempt.pruner(row_filter, spec_id)
    for touched in operation.added:
        file = touched.file
        inside = pruner.partition_might_match(file.partition) and (
            pruner.partition_must_match(file.partition) or pruner.rows_must_match(file)
        )
        if not inside:
            said = f"Cannot append file with rows that do not match filter: {text(row_filter)}: {file.path}"
            return Conflict("match-filter", "ValidationException", said, (file.path,))
    return Clear(len(operation.added))


class MixedSpecs(Exception):
    """A replacement adds files of no spec or of several; the message is Iceberg's."""


def single_spec(operation: Operation) -> int:
    """The one partition spec of the added files.

    Raises:
        MixedSpecs: there is none, or there are several.
    """
    specs = {touched.spec_id for touched in operation.added}
    if not specs:
        raise MixedSpecs("Cannot determine partition specs: no data files have been added")
    if len(specs) > 1:
        raise MixedSpecs(
            "Cannot return a single partition spec: data files with different partition specs have been added"
        )
    return next(iter(specs))


def start_is_ancestor(attempt: Attempt) -> Verdict:
    """The snapshot that a row delta started from is still in the branch's history."""
    start, parent = attempt.operation.start, attempt.parent
    if start is None or parent is None:
        return None
    if is_ancestor(attempt.head, start, of=parent["snapshot-id"]):
        return Clear(1)
    said = f"Snapshot {start} is not an ancestor of {parent['snapshot-id']}"
    return Conflict("ancestry", "IllegalArgumentException", said, snapshots=(start,))


def no_added_data(attempt: Attempt, where: Where) -> Verdict:
    """C1: nobody added data in the scope `where`. This is the check that "serializable" adds."""
    if not attempt.operation.asks(Flag.NO_CONFLICTING_DATA):
        return None
    found, considered = _data_entries(attempt, _ADDING, ADDED, where)
    if not found:
        return Clear(considered)
    what = "partitions " if isinstance(where, PartitionSet) else ""
    files = _listed(live.path for live in found)
    said = f"Found conflicting files that can contain records matching {what}{text_of(where)}: {files}"
    return _conflict("C1", said, found)


def no_deleted_data(attempt: Attempt, where: Where) -> Verdict:
    """C2: nobody removed data in the scope `where`."""
    if not attempt.operation.asks(Flag.NO_CONFLICTING_DELETES):
        return None
    found, considered = _data_entries(attempt, _REMOVING, DELETED, where)
    if not found:
        return Clear(considered)
    can = "apply to" if isinstance(where, PartitionSet) else "contain"
    files = _listed(live.path for live in found)
    said = f"Found conflicting deleted files that can {can} records matching {text_of(where)}: {files}"
    return _conflict("C2", said, found)


def _data_entries(
    attempt: Attempt, operations: frozenset[str], status: int, where: Where
) -> tuple[tuple[Live, ...], int]:
    """The entries of one status that snapshots since the start made in the scope `where`; how many are outside it."""
    if attempt.parent is None:
        return (), 0
    since = attempt.added(operations, DATA)
    found: list[Live] = []
    considered = 0
    for row in since.rows:
        if not attempt.might_match(where, row):
            considered += 1
            continue
        for live in attempt.files.entries(row):
            if live.status == status and live.snapshot_id in since.snapshot_ids:
                if attempt.matches(where, live.entry.file, row.spec_id):
                    found.append(live)
                else:
                    considered += 1
    return tuple(found), considered


def no_new_delete_files(attempt: Attempt, where: Where) -> Verdict:
    """C3a: nobody added delete files that can apply to rows in the scope `where`.

    With `Operation.precise_deletes`, a delete file for one data file (by its deletion vector, its reference or the
    equal bounds of its path column) conflicts with a row delta only if that touches the same data file: two writers
    that delete from different files have no row in common. Vanlightly proposes this; no engine does it yet.
    It is for snapshot isolation: a serializable writer has also read the rows of the files that it leaves alone, and
    must be refused if some of them are deleted. And it is for operations that name all their targets, see
    `_touched_files`.
    """
    operation = attempt.operation
    if not operation.asks(Flag.NO_CONFLICTING_DELETES):
        return None
    deletes = tuple(live for index in attempt.new_deletes(where) for live in index.files)
    found = deletes
    if operation.kind is Kind.ROW_DELTA and operation.precise_deletes and not operation.asks(Flag.NO_CONFLICTING_DATA):
        ours = _touched_files(operation)
        if ours is not None:
            found = tuple(live for live in deletes if (referenced_file(live.entry.file) or None) in (None, *ours))
    if not found:
        return Clear(len(deletes))
    files = _listed(dict.fromkeys(live.path for live in found))
    said = f"Found new conflicting delete files that can apply to records matching {text_of(where)}: {files}"
    return _conflict("C3a", said, found)


def _touched_files(operation: Operation) -> frozenset[str] | None:
    """The data files that an operation deletes rows from; None if they are not all known.

    They are known by its references, which must name every target of its delete files: C4 then checks that these still
    exist. Equality deletes have no targets that could be named.
    """
    for touched in operation.added_deletes:
        about = referenced_file(touched.file)
        if touched.file.content == EQUALITY_DELETES or not operation.references:
            return None
        if about is not None and about not in operation.references:
            return None
    return frozenset((*operation.references, *(removal.path for removal in operation.removed)))


def no_new_deletes_for_removed(attempt: Attempt, where: Where, *, ignore_equality: bool = False) -> Verdict:
    """C3b: nobody deleted rows from the data files that this operation replaces.

    Args:
        where: limits the delete files that are considered.
        ignore_equality: the new files keep the old ones' sequence number, so newer equality deletes apply to them, too.
    """
    operation = attempt.operation
    if not operation.removed or attempt.parent is None or attempt.head.format_version < 2:
        return None
    indexes, start = attempt.new_deletes(where), attempt.start_sequence_number
    for removal in unique(operation.removed):
        file, spec_id = removal.touched.file, removal.touched.spec_id
        for index in indexes:
            applying = index.applying_to(file, spec_id, start)
            if ignore_equality:
                applying = tuple(live for live in applying if live.entry.file.content == POSITION_DELETES)
            if not applying:
                continue
            kind = "position delete" if ignore_equality else "delete"
            said = f"Cannot commit, found new {kind} for replaced data file: {file.path}"
            who = tuple(dict.fromkeys(live.snapshot_id for live in applying))
            return Conflict("C3b", "ValidationException", said, (file.path,), who)
    return Clear(sum(len(index.files) for index in indexes))


def referenced_files_exist(attempt: Attempt) -> Verdict:
    """C4: nobody removed the data files that our delete files refer to.

    Snapshots recorded as `delete` count only with `validateDeletedFiles`: Spark's DELETE accepts that rows that it
    deletes are deleted already.
    """
    operation = attempt.operation
    if not operation.references or attempt.parent is None:
        return None
    operations = _REMOVING if operation.asks(Flag.DELETED_FILES) else _REMOVING_BUT_DELETES
    where = operation.conflict_filter if operation.conflict_filter is not None else TRUE
    entries, considered = _data_entries(attempt, operations, DELETED, where)
    found = [live for live in entries if live.path in operation.references]
    if not found:
        return Clear(considered + len(entries))
    said = f"Cannot commit, missing data files: {_listed(live.path for live in found)}"
    return _conflict("C4", said, found)


def removed_and_referenced_differ(attempt: Attempt) -> Verdict:
    """No data file is both removed and the target of a new delete file."""
    operation = attempt.operation
    if not operation.removed or attempt.parent is None:
        return None
    both = [removal.path for removal in unique(operation.removed) if removal.path in operation.references]
    if not both:
        return Clear(len(operation.removed))
    said = f"Cannot delete data files {_listed(both)} that are referenced by new delete files"
    return Conflict("removed-and-referenced", "ValidationException", said, tuple(both))


def no_added_vectors(attempt: Attempt) -> Verdict:
    """C5: nobody added a deletion vector for a file that we add one for. Always on."""
    operation = attempt.operation
    ours = {touched.file.referenced_data_file for touched in operation.added_deletes if is_vector(touched.file)}
    if not ours or attempt.parent is None:
        return None
    since = attempt.added(_ADDING_VECTORS, DELETES)
    where = operation.conflict_filter if operation.conflict_filter is not None else TRUE
    # Manifests of another spec than the default turn pruning off: the spec may have changed meanwhile.
    prune = all(row.spec_id == attempt.head.metadata["default-spec-id"] for row in since.rows)
    considered = 0
    for row in since.rows:
        if row.added_files == 0 or (prune and not attempt.might_match(where, row)):
            continue
        for live in attempt.files.live(row):
            file = live.entry.file
            if not is_vector(file) or live.snapshot_id not in since.snapshot_ids:
                continue
            considered += 1
            if file.referenced_data_file in ours and attempt.matches(where, file, row.spec_id):
                said = f"Found concurrently added DV for {file.referenced_data_file}: {vector_text(file)}"
                return _conflict("C5", said, [live])
    return Clear(considered)


def rewrite_is_complete(attempt: Attempt) -> Verdict:
    """A rewrite names the files that it replaces: data files for data, delete files for deletes."""
    operation = attempt.operation
    said = None
    if not operation.removed and not operation.removed_deletes:
        said = "Files to delete cannot be empty"
    elif not operation.removed and operation.added:
        said = "Data files to add must be empty because there's no data file to be rewritten"
    elif not operation.removed_deletes and operation.added_deletes:
        said = "Delete files to add must be empty because there's no delete file to be rewritten"
    return Clear() if said is None else Conflict("arguments", "IllegalArgumentException", said)


# ── The operations ───────────────────────────────────────────────────────────────────────────────────────────────────


def _c1_of_overwrite(attempt: Attempt) -> Verdict:
    return no_added_data(attempt, attempt.operation.data_filter)


def _c3a_of_overwrite(attempt: Attempt) -> Verdict:
    return no_new_delete_files(attempt, _row_filter(attempt)) if attempt.operation.filters_rows else None


def _c2_of_overwrite(attempt: Attempt) -> Verdict:
    return no_deleted_data(attempt, _row_filter(attempt)) if attempt.operation.filters_rows else None


def _row_filter(attempt: Attempt) -> Where:
    operation = attempt.operation
    return operation.row_filter if operation.conflict_filter is None else operation.conflict_filter


def _c3b_of_overwrite(attempt: Attempt) -> Verdict:
    operation = attempt.operation
    if not operation.asks(Flag.NO_CONFLICTING_DELETES):
        return None
    return no_new_deletes_for_removed(attempt, operation.conflict_filter)


def _rows_of_delta(attempt: Attempt) -> Expression:
    found = attempt.operation.conflict_filter
    return TRUE if found is None else found


def _c1_of_delta(attempt: Attempt) -> Verdict:
    return no_added_data(attempt, _rows_of_delta(attempt)) if attempt.parent is not None else None


def _c3b_of_delta(attempt: Attempt) -> Verdict:
    if not attempt.operation.asks(Flag.NO_CONFLICTING_DELETES):
        return None
    return no_new_deletes_for_removed(attempt, _rows_of_delta(attempt))


def _c3a_of_delta(attempt: Attempt) -> Verdict:
    return no_new_delete_files(attempt, _rows_of_delta(attempt)) if attempt.parent is not None else None


def _c3b_of_rewrite(attempt: Attempt) -> Verdict:
    keeps_number = attempt.operation.data_sequence_number is not None
    return no_new_deletes_for_removed(attempt, None, ignore_equality=keeps_number)


def replaced_partitions(attempt: Attempt) -> Where:
    """The scope of a partition replacement: the partitions of its files, or all of an unpartitioned table.

    Raises:
        MixedSpecs: the files are of several specs.
    """
    spec = attempt.specs[single_spec(attempt.operation)]
    if is_unpartitioned(spec):
        return TRUE
    return PartitionSet(((t.spec_id, t.file.partition) for t in attempt.operation.added), attempt.specs)


def _c1_of_replacement(attempt: Attempt) -> Verdict:
    if not attempt.operation.asks(Flag.NO_CONFLICTING_DATA):
        return None
    return no_added_data(attempt, replaced_partitions(attempt))


def _c2_of_replacement(attempt: Attempt) -> Verdict:
    if not attempt.operation.asks(Flag.NO_CONFLICTING_DELETES):
        return None
    return no_deleted_data(attempt, replaced_partitions(attempt))


def _c3a_of_replacement(attempt: Attempt) -> Verdict:
    if not attempt.operation.asks(Flag.NO_CONFLICTING_DELETES):
        return None
    return no_new_delete_files(attempt, replaced_partitions(attempt))


Rule = tuple[str, Callable[[Attempt], Verdict]]
_NONE: tuple[Rule, ...] = ()
RULES_OF: Mapping[Kind, tuple[Rule, ...]] = {
    Kind.FAST_APPEND: _NONE,
    Kind.APPEND: _NONE,
    Kind.OVERWRITE: (
        ("match-filter", added_files_match_filter),
        ("C1", _c1_of_overwrite),
        ("C3a", _c3a_of_overwrite),
        ("C2", _c2_of_overwrite),
        ("C3b", _c3b_of_overwrite),
    ),
    Kind.ROW_DELTA: (
        ("ancestry", start_is_ancestor),
        ("C4", referenced_files_exist),
        ("C1", _c1_of_delta),
        ("C3b", _c3b_of_delta),
        ("C3a", _c3a_of_delta),
        ("removed-and-referenced", removed_and_referenced_differ),
        ("C5", no_added_vectors),
    ),
    Kind.REWRITE: (("arguments", rewrite_is_complete), ("C3b", _c3b_of_rewrite)),
    Kind.REPLACE_PARTITIONS: (
        ("C1", _c1_of_replacement),
        ("C2", _c2_of_replacement),
        ("C3a", _c3a_of_replacement),
    ),
    Kind.DELETE: _NONE,
    Kind.REWRITE_MANIFESTS: _NONE,
}
"""The rules that Iceberg checks for each operation before it applies it, in Iceberg's order."""

RULES = (
    "match-filter",
    "ancestry",
    "history",
    "C1",
    "C2",
    "C3a",
    "C3b",
    "C4",
    "C5",
    "C6",
    "C7",
    "removed-and-referenced",
    "arguments",
    "mixed-specs",
    "delete-format",
    "append-only",
    "replaced-records",
    "missing-manifest",
    "unknown-spec",
    "null-pointer",
    "lost-number",
    "corrupt",
)
"""The ids of all rules, those of `filtering` and `producer` included."""


def judge(attempt: Attempt, observe: Callable[[str, Clear | Conflict], None] | None = None) -> Conflict | None:
    """Validate the operation as Iceberg would; returns the first conflict, or None.

    Args:
        observe: called with every rule that was checked, and its verdict.

    Raises:
        NeedsFile: a manifest list or manifest must be read first.
    """
    for rule, check in RULES_OF[attempt.operation.kind]:
        verdict = ask(rule, check, attempt)
        if verdict is not None and observe is not None:
            observe(verdict.rule if isinstance(verdict, Conflict) else rule, verdict)
        if isinstance(verdict, Conflict):
            return verdict
    return None


def ask(rule: str, check: Callable[[Attempt], Verdict], attempt: Attempt) -> Verdict:
    """One rule's verdict. An error that prevents a verdict is a refusal too, as in Iceberg."""
    try:
        return check(attempt)
    except UnknownHistory as unknown:
        start = "null" if attempt.operation.start is None else attempt.operation.start
        last = unknown.last_id
        said = f"Cannot determine history between starting snapshot {start} and the last known ancestor {last}"
        return Conflict("history", "ValidationException", said, snapshots=(last,))
    except Corrupt as corrupt:
        return Conflict("corrupt", "ValidationException", str(corrupt))
    except MixedSpecs as mixed:
        return Conflict("mixed-specs", "IllegalStateException", str(mixed))
    except ValidationFailed as failed:
        found = conflict_of(failed)
        if found is None:
            raise
        return found
