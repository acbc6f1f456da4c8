"""Whether two changes of a table may coexist, at which isolation level, and why not. Pure.

The later change is treated as if its writer had read the table before the earlier one; then Iceberg's rules are applied
as to its commit. What a snapshot does not record is assumed, and reported: the command that made it (guessed from the
files that it adds and removes), and the filter under which it read (none, unless the caller knows it).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import count
from typing import Any

from icetower.errors import BadRequest
from icetower.iceberg.change import Change, Touched
from icetower.iceberg.deletes import place_key
from icetower.iceberg.entries import Files
from icetower.iceberg.expressions import FALSE, TRUE, Expression, Predicate, both, columns_of, either
from icetower.iceberg.literals import is_nan
from icetower.iceberg.partitions import PartitionField
from icetower.iceberg.records import ADDED, DATA, DELETED, POSITION_DELETES, DataFile, is_vector, referenced_file
from icetower.iceberg.validation import Conflict, Level
from icetower.protocol.snapshots import Snapshot
from icetower.table.head import HeadState
from icetower_client_model.attempt import Clear
from icetower_client_model.explain import Explanation, Names, explain, removers_of
from icetower_client_model.filtering import Refused
from icetower_client_model.history import is_ancestor, since
from icetower_client_model.isolation import Command, Engine, flags, levels
from icetower_client_model.operations import Flag, Kind, Operation, Removal
from icetower_client_model.producer import Draft, Producer

JSON = Mapping[str, Any]

DEPENDS = "depends"
"""Icetower's own rule: a change of files that the other change added was not prepared concurrently with it."""

PARTITIONS_IN_FILTER_MAX = 50
"""A filter of more partitions than this is replaced by no filter."""


# ── What a snapshot was ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Guess:
    """The operation that a snapshot's writer seems to have requested.

    Attributes:
        operation: without the checks of an isolation level.
        command: the engine's command; None for an operation that no engine checks, such as rewriting manifests.
        because: the reason, as text.
    """

    operation: Operation
    command: Command | None
    because: str


def operation_of(change: Change) -> Guess:
    """The operation that a change looks like.

    The summary does not suffice: a DELETE is recorded as ``delete`` whether it writes delete files, rewrites data
    files or drops them. So the guess uses the files that the snapshot adds and removes. (An unchecked overwrite of a
    missing file removes nothing; then the summary alone shows what it was.)
    """
    added = tuple(touched for touched in change.added if touched.file.content == DATA)
    added_deletes = tuple(touched for touched in change.added if touched.file.content != DATA)
    removals = tuple(_removals(change))
    removed = tuple(removal for removal in removals if removal.touched.file.content == DATA)
    removed_deletes = tuple(removal for removal in removals if removal.touched.file.content != DATA)
    summary: JSON = change.snapshot.summary
    match change.snapshot.operation:
        case "replace" if removals:
            numbers = {touched.sequence_number for touched in added} - {None}
            number = min((n for n in numbers if n is not None), default=None)
            operation = Operation(
                Kind.REWRITE, added, added_deletes, removed, removed_deletes, data_sequence_number=number
            )
            command = Command.COMPACTION if removed else Command.COMPACT_DELETES
            return Guess(operation, command, "it is recorded as `replace`, and replaces files")
        case "replace":
            return Guess(Operation(Kind.REWRITE_MANIFESTS), None, "it is recorded as `replace`, and replaces no files")
        case "overwrite" if str(summary.get("replace-partitions", "")).lower() == "true":
            operation = Operation(Kind.REPLACE_PARTITIONS, added)
            return Guess(operation, Command.OVERWRITE_PARTITIONS, "its summary says `replace-partitions`")
        case _:
            pass
    if added_deletes or (removed_deletes and not removed):
        operation = Operation(
            Kind.ROW_DELTA, added, added_deletes, removed, removed_deletes, references=_references(added_deletes)
        )
        if any(key.startswith("flink.") for key in summary):
            return Guess(operation, Command.UPSERT, "Flink wrote it, and it adds delete files")
        unsaid = any(_is_of_partition(touched.file) for touched in added_deletes)
        any_file = "; its position deletes may be about any file of their partitions" if unsaid else ""
        if added:
            because = "it adds delete files and data: an UPDATE or MERGE, merge-on-read"
            return Guess(operation, Command.MERGE, because + any_file)
        because = (
            "it adds delete files and no data: a DELETE, merge-on-read (a MERGE that only deletes asks for C3a, too)"
        )
        return Guess(operation, Command.DELETE, because + any_file)
    if removed:
        # Other delete files are dropped automatically once their data files are removed.
        vectors = tuple(removal for removal in removed_deletes if is_vector(removal.touched.file))
        operation = Operation(Kind.OVERWRITE, added, (), removed, vectors)
        return Guess(operation, Command.COPY_ON_WRITE, "it removes data files and adds no deletes: copy-on-write")
    if change.snapshot.operation == "overwrite":
        because = "it is recorded as `overwrite` and removes nothing: what it was to replace was not there"
        return Guess(Operation(Kind.OVERWRITE, added), Command.COPY_ON_WRITE, because)
    return Guess(Operation(Kind.APPEND, added), Command.APPEND, "it only adds data files")


def _removals(change: Change) -> Iterator[Removal]:
    spec_ids = {touched.file.path: touched.spec_id for touched in change.removed}
    for manifest, entries in change.entries_removed.items():
        for entry in entries:
            yield Removal(Touched(entry.file, spec_ids[entry.file.path], entry.sequence_number), manifest)


def _references(deletes: tuple[Touched, ...]) -> tuple[str, ...]:
    about = (referenced_file(touched.file) for touched in deletes)
    return tuple(dict.fromkeys(path for path in about if path is not None))


def touched_partitions(change: Change, head: HeadState) -> Expression:
    """A filter for the partitions that a change touches, built from identity partition fields.

    TRUE if a file's partition restricts no column that the table still has, or if there are too many partitions.
    """
    columns = columns_of(head.schema)
    places = dict.fromkeys((t.spec_id, t.file.partition) for t in (*change.added, *change.removed))
    if len(places) > PARTITIONS_IN_FILTER_MAX:
        return TRUE
    covered: Expression = FALSE
    for spec_id, partition in places:
        of_place: Expression = TRUE
        for part, value in zip(head.specs[spec_id].fields, partition, strict=True):
            column = columns.get(part.source_name)
            if part.transform == "identity" and column is not None and column.id == part.source_id:
                of_place = both(of_place, _equal(part, value))
        covered = either(covered, of_place)
    return covered


def _equal(part: PartitionField, value: Any) -> Expression:
    """Rows of one partition value; TRUE for values that a filter cannot hold, such as UUIDs."""
    if value is None:
        return Predicate("is-null", part.source_name)
    if isinstance(value, float) and is_nan(value):
        return Predicate("is-nan", part.source_name)
    held = isinstance(value, bool | int | float | str | Decimal)
    return Predicate("eq", part.source_name, (value,)) if held else TRUE


# ── What is compared ─────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Comparison:
    """How two snapshots are compared.

    Attributes:
        start: the snapshot that the later change is assumed to be prepared on; None for the empty table.
        end: the snapshot that it would follow.
        between: the snapshots after the start, up to the end, oldest first.
    """

    start: int | None
    end: JSON
    between: tuple[JSON, ...]


def comparison_of(head: HeadState, earlier: int, later: int) -> Comparison:
    """How `later`'s change is compared with `earlier`'s.

    If `later` came after `earlier` on one branch, it is treated as prepared on `earlier`'s parent, and follows its own
    parent. If both were made from the same history on two branches, it is taken unchanged, and follows `earlier`.

    Raises:
        BadRequest: the table doesn't have such snapshots, or they cannot be compared.
    """
    for snapshot_id in (earlier, later):
        if snapshot_id not in head.snapshots:
            raise BadRequest(
                f"the table has no snapshot {snapshot_id} (it has expired or never existed); its last ones are "
                f"{', '.join(str(each) for each in list(head.snapshots)[-5:]) or 'none'}",
                rule="explain.snapshots",
            )
    if earlier == later:
        raise BadRequest(f"snapshot {earlier} is one change, not two: name another one", rule="explain.snapshots")
    if is_ancestor(head, later, of=earlier):
        raise BadRequest(f"snapshot {later} came before {earlier}: swap the two", rule="explain.snapshots")
    parent = Snapshot(head.snapshots[later]).parent_id
    if parent is None or parent not in head.snapshots:
        raise BadRequest(
            f"the parent of snapshot {later} has expired, so its change is no longer known: name a later snapshot",
            rule="explain.snapshots",
        )
    if is_ancestor(head, earlier, of=parent):
        start, end = Snapshot(head.snapshots[earlier]).parent_id, head.snapshots[parent]
    elif is_ancestor(head, parent, of=earlier):
        start, end = parent, head.snapshots[earlier]
    else:
        raise BadRequest(
            f"snapshots {earlier} and {later} are on two branches, and {later} is not the first snapshot after the "
            f"fork: name the first snapshot of the second branch",
            rule="explain.snapshots",
        )
    return Comparison(start, end, tuple(reversed(since(head, end, start))))


# ── The verdicts ─────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class LevelVerdict:
    """The outcome of the later change at one level.

    Attributes:
        asked: the rules that were checked, and the number of entries that each found harmless.
        conflict: why it is refused; None if both may coexist.
        explanation: the conflict in plain language.
    """

    level: Level
    asked: Mapping[str, int]
    conflict: Conflict | None
    explanation: Explanation | None


def verdicts_by_level(
    head: HeadState,
    files: Files,
    change: Change,
    guess: Guess,
    comparison: Comparison,
    names: Names,
    conflict_filter: Expression = TRUE,
) -> tuple[LevelVerdict, ...]:
    """Whether the change may follow the snapshots in between: one verdict for each level, the weakest first.

    Args:
        files: manifest lists and manifests of the snapshots in between and of the one that it would follow.
        guess: of `change`, see `operation_of`.
        conflict_filter: the filter that its writer pushed into its scan.

    Raises:
        NeedsFile: a manifest list or manifest must be read first.
    """
    table = _table_at(head, comparison.end, guess.operation)
    built_on = _built_on(files, guess.operation, comparison)
    references = (*guess.operation.references, *_perhaps_about(files, guess.operation, comparison))
    guess = replace(guess, operation=replace(guess.operation, references=tuple(dict.fromkeys(references))))
    found: list[LevelVerdict] = []
    for level in Level:
        asked: dict[str, int] = {}
        conflict = built_on
        if conflict is None and guess.command is not None:
            operation = _asking(guess, level, comparison.start, conflict_filter, table.format_version)
            conflict = _attempt(operation, change, table, files, asked)
        if conflict is not None and conflict.rule == "C6":
            conflict = replace(conflict, snapshots=removers_of(files, comparison.between, conflict.paths))
        found.append(LevelVerdict(level, asked, conflict, None if conflict is None else explain(conflict, names)))
    return tuple(found)


def _asking(
    guess: Guess, level: Level, start: int | None, conflict_filter: Expression, format_version: int
) -> Operation:
    """The operation with the checks that Spark (or Flink, for an upsert) turns on for it at a level."""
    assert guess.command is not None
    operation = replace(guess.operation, start=start)
    offered = levels(Engine.SPARK, guess.command)
    if not offered or offered == (Level.NONE,):
        return replace(operation, references=())
    if guess.operation.kind is not Kind.REWRITE and level is Level.NONE:
        return replace(operation, references=())
    asks = flags(Engine.SPARK, guess.command, level if level in offered else offered[-1], format_version)
    return replace(
        operation,
        flags=frozenset(Flag(flag) for flag in asks.validate),
        conflict_filter=conflict_filter if asks.conflict_filter else None,
        references=operation.references if asks.references else (),
    )


def _attempt(
    operation: Operation, change: Change, table: HeadState, files: Files, asked: dict[str, int]
) -> Conflict | None:
    def observe(rule: str, verdict: Clear | Conflict) -> None:
        asked[rule] = verdict.considered if isinstance(verdict, Clear) else 0

    snapshot_id: int = change.snapshot.id
    try:
        paths = (f"manifest-{at}" for at in count())
        writer = Producer(operation, snapshot_id, table, lambda: next(paths))
        made = writer.attempt(table, files, list_path="list", now_ms=0, observe=observe)
    except Refused as refused:
        return refused.conflict
    return None if isinstance(made, Draft) else made


def _table_at(head: HeadState, end: JSON, operation: Operation) -> HeadState:
    """The table when `end` was its newest snapshot, as far as its metadata still shows."""
    metadata: dict[str, Any] = {
        **head.metadata,
        "current-snapshot-id": end["snapshot-id"],
        "last-sequence-number": Snapshot(end).sequence_number,
        "refs": {"main": {"type": "branch", "snapshot-id": end["snapshot-id"]}},
        # Merging manifests does not affect the verdict, and would require reading them.
        "properties": {**(head.metadata.get("properties") or {}), "commit.manifest-merge.enabled": "false"},
    }
    deletes = (touched.file for touched in operation.added_deletes)
    if any(file.content == POSITION_DELETES and not is_vector(file) for file in deletes):
        metadata["format-version"] = min(head.format_version, 2)
    return HeadState("", metadata)


def _built_on(files: Files, operation: Operation, comparison: Comparison) -> Conflict | None:
    """A conflict if the change uses files that were only added in between: its writer must have seen them."""
    wanted = {
        *operation.references,
        *(removal.path for removal in (*operation.removed, *operation.removed_deletes)),
    }
    paths: dict[str, None] = {}
    snapshots: dict[int, None] = {}
    for snapshot in comparison.between if wanted else ():
        snapshot_id: int = snapshot["snapshot-id"]
        for row in files.rows(snapshot):
            if row.added_snapshot_id != snapshot_id or row.added_files == 0:
                continue
            for live in files.entries(row):
                if live.status == ADDED and live.path in wanted:
                    paths[live.path] = None
                    snapshots[snapshot_id] = None
    return Conflict(DEPENDS, "", "", tuple(paths), tuple(snapshots)) if paths else None


def _perhaps_about(files: Files, operation: Operation, comparison: Comparison) -> tuple[str, ...]:
    """Data files that were removed in between and that position deletes of a whole partition may refer to.

    Their writer named its targets, but such delete files don't: each data file of their partitions may be one.
    """
    deletes = (touched for touched in operation.added_deletes if _is_of_partition(touched.file))
    places = {place_key((touched.spec_id, touched.file.partition)) for touched in deletes}
    paths: dict[str, None] = {}
    for snapshot in comparison.between if places else ():
        snapshot_id: int = snapshot["snapshot-id"]
        for row in files.rows(snapshot, content=DATA):
            if row.added_snapshot_id != snapshot_id or row.deleted_files == 0:
                continue
            for live in files.entries(row):
                gone = live.status == DELETED and live.snapshot_id == snapshot_id
                if gone and place_key((row.spec_id, live.entry.file.partition)) in places:
                    paths[live.path] = None
    return tuple(paths)


def _is_of_partition(file: DataFile) -> bool:
    """Whether a file holds position deletes that don't name their data file."""
    return file.content == POSITION_DELETES and referenced_file(file) is None
