"""The server's check of a commit against what was written meanwhile. It cannot see the client's scans.

Iceberg's clients check against the filter of their scan. The protocol doesn't send it (trap R2), so a server looks at
*objects*: no data file, delete file or target of a delete may be written by both, and nobody may have deleted rows of a
file that the other replaces. That is all that snapshot isolation owes. Where the scope of what was read is declared and
the level is serializable, what came into the scope counts as well.

These are the server's own rules, W1 to W15. docs/conflicts.md says for which check of Iceberg's client each stands. On
the wire a refusal names the client's check, since that is what clients and people know.

It refuses more than Iceberg where it must guess (position deletes that don't name their targets, trap R6), and less
only where it knows better: under snapshot isolation, a delete in a file that this commit leaves alone does not
concern it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from icetower.admission.read_scope import ReadScope
from icetower.errors import ValidationFailed
from icetower.iceberg.change import Change, Touched
from icetower.iceberg.deletes import Place, is_unpartitioned, place_key
from icetower.iceberg.entries import Files, Live, NeedsFile, NeedsFiles
from icetower.iceberg.expressions import Column, columns_of
from icetower.iceberg.partitions import PartitionSpec
from icetower.iceberg.pruning import Pruner, comparisons
from icetower.iceberg.records import (
    ADDED,
    DATA,
    DELETED,
    EQUALITY_DELETES,
    POSITION_DELETES,
    DataFile,
    FileKey,
    ManifestFile,
    is_vector,
    key_of,
    referenced_file,
)
from icetower.iceberg.validation import Conflict, Level
from icetower.protocol.snapshots import Snapshot

JSON = Mapping[str, Any]
Targets = Mapping[str, frozenset[str] | None]
"""By the path of a position delete file that doesn't say which data files it is about: those files; None if unknown."""


WIRE: Mapping[str, str] = {
    "W1": "C6",
    "W2": "C6",
    "W3": "C3b",
    "W4": "C3b",
    "W5": "C3b",
    "W6": "C4",
    "W7": "C4",
    "W8": "C3a",
    "W9": "C3a",
    "W10": "C3a",
    "W11": "C3a",
    "W12": "C5",
    "W13": "C1",
    "W14": "C2",
    "W15": "C3a",
}
"""The rules of this module, each with the check of Iceberg's client that its refusal names on the wire."""


@dataclass(frozen=True, slots=True)
class Objection(Conflict):
    """A conflict that a rule of the server has found.

    Attributes:
        by: that rule, such as ``W3``; `rule` is the check of Iceberg's client that it stands for.
    """

    by: str = ""


def untargeted(change: Change) -> Iterator[DataFile]:
    """The position delete files of a change that don't say which data files they are about (trap R6)."""
    for touched in change.added:
        file = touched.file
        if file.content == POSITION_DELETES and referenced_file(file) is None:
            yield file


@dataclass(frozen=True, slots=True)
class Written:
    """The objects that a commit writes.

    Attributes:
        removed: data files that it replaces or drops.
        removed_deletes: delete files likewise.
        targets: data files that its position deletes and deletion vectors are about.
        loose: partitions in which its position deletes may be about any file (trap R6).
        places: partitions of the files that it removes and of its delete files.
        equality: partitions of its equality deletes, which reach every row there that is older.
        keeps_numbers: all data that it adds carries the sequence number of what it replaces (compaction), so that newer
            equality deletes go on applying to it.
        rewrites: it says and shows that it changes no row: only what it replaces matters.
    """

    removed: frozenset[str]
    removed_deletes: frozenset[FileKey]
    targets: frozenset[str]
    untargeted: frozenset[Place]
    places: frozenset[Place]
    equality: frozenset[Place]
    keeps_numbers: bool
    rewrites: bool

    @staticmethod
    def of(change: Change, *, rewrites: bool = False, targets: Targets | None = None) -> Written:
        """What a change writes. `targets`: what was read of delete files that don't name theirs."""
        named: set[str] = set()
        untargeted: set[Place] = set()
        places: set[Place] = set()
        for touched in change.added:
            file = touched.file
            if file.content == DATA:
                continue
            places.add(_place(touched))
            if file.content == EQUALITY_DELETES:
                continue
            about = referenced_file(file)
            found = frozenset({about}) if about is not None else (targets or {}).get(file.path)
            if found is None:
                untargeted.add(_place(touched))
            else:
                named |= found
        data = [touched for touched in change.added if touched.file.content == DATA]
        return Written(
            removed=frozenset(t.file.path for t in change.removed if t.file.content == DATA),
            removed_deletes=frozenset(key_of(t.file) for t in change.removed if t.file.content != DATA),
            targets=frozenset(named),
            untargeted=frozenset(untargeted),
            places=frozenset(places | {_place(touched) for touched in change.removed}),
            equality=frozenset(_place(touched) for touched in change.added if touched.file.content == EQUALITY_DELETES),
            keeps_numbers=bool(data) and all(touched.sequence_number is not None for touched in data),
            rewrites=rewrites,
        )

    @property
    def nothing(self) -> bool:
        """Whether nothing that others write could be in its way: it only adds data."""
        return not (self.removed or self.removed_deletes or self.targets or self.untargeted or self.equality)


def _place(touched: Touched) -> Place:
    return place_key((touched.spec_id, touched.file.partition))


@dataclass(frozen=True, slots=True)
class Table:
    """What the checks need to know of the table: its specs and the columns of its current schema."""

    specs: Mapping[int, PartitionSpec]
    schema: JSON


def objections(
    written: Written, steps: Sequence[Snapshot], files: Files, table: Table, scope: ReadScope | None
) -> Iterator[Objection]:
    """The conflicts of a commit, in the order of the snapshots; an empty iterator where there are none.

    Args:
        steps: the snapshots that landed between the commit's base and the head, oldest first.
        files: manifests, and what each of these snapshots added itself.
        scope: what was read, where that is declared.

    Raises:
        NeedsFiles: manifests or manifest lists must be read first.
    """
    covers = None if scope is None or scope.level is not Level.SERIALIZABLE else _covers(scope, table)
    if written.nothing and covers is None:
        return
    for step, rows in _rows_that_matter(steps, files, scoped=covers is not None):
        operation = step.operation or ""
        for row in rows:
            for live in files.entries(row):
                if live.snapshot_id != step.id or live.status not in (ADDED, DELETED):
                    continue
                found = _against(written, live, table, operation)
                if found is None and covers is not None:
                    found = _in_scope(live, operation, covers)
                if found is not None:
                    by, message = found
                    place = (live.row.spec_id, live.entry.file.partition)
                    yield Objection(WIRE[by], "", message, (live.path,), (step.id,), (place,), by)


def _rows_that_matter(
    steps: Sequence[Snapshot], files: Files, *, scoped: bool
) -> list[tuple[Snapshot, tuple[ManifestFile, ...]]]:
    """Of each snapshot, the manifests that have to be opened. What is missing is asked for all at once."""
    unknown: list[NeedsFile] = []
    found: list[tuple[Snapshot, tuple[ManifestFile, ...]]] = []
    for step in steps:
        try:
            rows = files.own_rows(step)
        except NeedsFile as need:
            unknown.append(need)
            continue
        operation = step.operation or ""
        rows = tuple(row for row in rows if _may_matter(row, operation, scoped))
        unknown += files.missing(rows)
        found.append((step, rows))
    if unknown:
        raise NeedsFiles(unknown)
    return found


def _may_matter(row: ManifestFile, operation: str, scoped: bool) -> bool:
    """Decided from the manifest list, so that the many manifests that only add data are never opened."""
    if row.content != DATA or row.deleted_files != 0:
        return True
    return scoped and row.added_files != 0 and operation != "replace"


# ── Objects ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _against(written: Written, live: Live, table: Table, operation: str) -> tuple[str, str] | None:
    file, path = live.entry.file, live.path
    if file.content == DATA:
        return _against_removed_data(written, live) if live.status == DELETED else None
    if live.status == DELETED:
        if key_of(file) in written.removed_deletes:
            return "W2", f"it replaces the delete file {path}, which is gone"
        return None
    about = referenced_file(file)
    if is_vector(file):
        if about in written.removed:
            return "W3", f"rows of the data file {about}, which it replaces, were deleted meanwhile"
        if about in written.targets:
            return "W12", f"rows of the data file {about}, from which it deletes rows, were deleted meanwhile"
    # What a compaction writes anew deletes what was deleted before.
    if operation == "replace":
        return None
    found = None if is_vector(file) else _against_new_deletes(written, live, table, about)
    if found is None and _reached(written, live, table):
        return "W11", f"rows of a partition in which it deletes by equality were deleted meanwhile ({path})"
    return found


def _reached(written: Written, live: Live, table: Table) -> bool:
    """Whether the commit's equality deletes reach the data that a delete file is for: both may delete one row."""
    if written.rewrites:
        return False
    if any(is_unpartitioned(table.specs[spec_id]) for spec_id, _ in written.equality):
        return True
    return place_key((live.row.spec_id, live.entry.file.partition)) in written.equality


def _against_removed_data(written: Written, live: Live) -> tuple[str, str] | None:
    if live.path in written.removed:
        return "W1", f"it replaces the data file {live.path}, which is gone"
    if written.rewrites:  # deletes of a file that is gone are deletes of nothing
        return None
    if live.path in written.targets:
        return "W6", f"it deletes rows of the data file {live.path}, which is gone"
    if place_key((live.row.spec_id, live.entry.file.partition)) in written.untargeted:
        return "W7", (
            f"its position deletes don't say which files of their partition they are about, and the data file "
            f"{live.path} of that partition is gone"
        )
    return None


def _against_new_deletes(written: Written, live: Live, table: Table, about: str | None) -> tuple[str, str] | None:
    file = live.entry.file
    if about is not None:
        if about in written.removed:
            return "W3", f"rows of the data file {about}, which it replaces, were deleted meanwhile"
        if about in written.targets and not written.rewrites:
            return "W8", f"rows of the data file {about}, from which it deletes rows, were deleted meanwhile"
        return None
    touches = bool(written.removed) or not written.rewrites
    spec_id = live.row.spec_id
    if file.content == EQUALITY_DELETES:
        if written.rewrites and written.keeps_numbers:
            return None
        everywhere = is_unpartitioned(table.specs[spec_id])
        if touches and (everywhere or place_key((spec_id, file.partition)) in written.places):
            where = "the whole table" if everywhere else "a partition that it writes to"
            return "W4" if written.removed else "W9", f"equality deletes of {where} came meanwhile ({file.path})"
        return None
    if touches and place_key((spec_id, file.partition)) in written.places:
        return "W5" if written.removed else "W10", (
            f"position deletes of a partition that it writes to came meanwhile ({file.path}), and don't say which "
            "files they are about"
        )
    return None


# ── Scope ────────────────────────────────────────────────────────────────────────────────────────────────────────────


Covers = Callable[[DataFile, int], bool]

COMPARISONS_MAX = 200_000
"""Of the filter of one commit with files that landed meanwhile. What is left then counts as read."""


def _covers(scope: ReadScope, table: Table) -> Covers:
    """Whether a file can hold rows of what was read, or delete some."""
    columns: Mapping[str, Column] = columns_of(table.schema)
    pruners: dict[int, Pruner] = {}
    each = 0 if scope.filter is None else comparisons(scope.filter)
    left = COMPARISONS_MAX

    def covers(file: DataFile, spec_id: int) -> bool:
        # An equality delete of an unpartitioned spec reaches into every partition.
        everywhere = file.content == EQUALITY_DELETES and is_unpartitioned(table.specs[spec_id])
        if scope.owned is not None and not everywhere and not scope.owned(spec_id, file.partition):
            return False
        nonlocal left
        left -= each
        if scope.filter is None or left < 0:  # it is asked on the event loop, and nobody else goes on meanwhile
            return True
        if spec_id not in pruners:
            pruners[spec_id] = Pruner(scope.filter, table.specs[spec_id], columns)
        pruner = pruners[spec_id]
        try:
            return pruner.partition_might_match(file.partition) and pruner.rows_might_match(file)
        except ValidationFailed:  # a column of the filter is gone since: nothing can be ruled out by it
            return True

    return covers


def _in_scope(live: Live, operation: str, covers: Covers) -> tuple[str, str] | None:
    file, added = live.entry.file, live.status == ADDED
    rule = _SCOPED.get((file.content == DATA, added, operation))
    if rule is None or not covers(file, live.row.spec_id):
        return None
    what = "data file" if file.content == DATA else "delete file"
    done = "was added to" if added else "was removed from"
    return rule, f"the {what} {live.path} {done} what it has read"


def _scoped() -> Iterable[tuple[tuple[bool, bool, str], str]]:
    for operation in ("append", "overwrite"):
        yield (True, True, operation), "W13"
    for operation in ("overwrite", "replace", "delete"):
        yield (True, False, operation), "W14"
    for operation in ("overwrite", "delete"):
        yield (False, True, operation), "W15"


_SCOPED = dict(_scoped())
"""(data file?, added?, operation of the snapshot) → the rule that objects: the operations of Iceberg's C1, C2, C3a."""
