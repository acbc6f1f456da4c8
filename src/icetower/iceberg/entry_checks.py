"""Cross-checks of what manifests claim against what was live (R5). Each problem is one sentence for the client.

Real clients pass: Iceberg's Java library and PyIceberg write ADDED entries that inherit their numbers and row ids,
EXISTING and DELETED ones with the numbers that the file had. One exception is theirs: compaction (operation
``replace``) adds files under the older data sequence number of those they replace.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from icetower.iceberg.partitions import partition_key
from icetower.iceberg.records import ADDED, DATA, DELETED, EXISTING, DataFile, Entry, Manifest, ManifestFile, is_vector

FileKey = tuple[bool, str, int | None, str | None]
Identity = tuple[FileKey, int, tuple[Any, ...]]
_STATISTICS = ("value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")
_HINTS = ("split_offsets", "sort_order_id")
"""What readers plan by where it is there: rows before the first offset are not read."""


@dataclass(frozen=True, slots=True)
class LiveEntry:
    """A live entry with what it inherits from its manifest's row (specification: "Sequence Number Inheritance")."""

    entry: Entry
    row: ManifestFile
    snapshot_id: int
    sequence_number: int | None
    file_sequence_number: int | None
    first_row_id: int | None

    @property
    def key(self) -> FileKey:
        return key_of(self.entry.file)

    @property
    def identity(self) -> Identity:
        return identity_of(self.entry.file, self.row.spec_id)


@dataclass(frozen=True, slots=True)
class Difference:
    """The live entries of new manifests against those of the manifests that they replace.

    Attributes:
        kept: every live entry of the new manifests, with the one that it carries on; None where it is new.
        removed: the entries that nothing carries on.
    """

    kept: tuple[tuple[LiveEntry, LiveEntry | None], ...]
    removed: tuple[LiveEntry, ...]

    @property
    def added(self) -> tuple[LiveEntry, ...]:
        return tuple(live for live, was in self.kept if was is None)


def key_of(file: DataFile) -> FileKey:
    """What makes a file one file: its path; for deletion vectors, many to a file, also where it lies and its target.

    `iceberg.records.key_of` is Iceberg's own idea of it, without the target: whoever forges one is not asked there.
    """
    if file.content == DATA:
        return (True, file.path, None, None)
    return (False, file.path, file.record.get("content_offset"), file.referenced_data_file)


def identity_of(file: DataFile, spec_id: int) -> Identity:
    """What makes an entry one entry: its file, and the partition that it is listed in.

    One file may be named in several partitions. They have different owners, so that the path alone does not say whose
    entry is meant.
    """
    return key_of(file), spec_id, partition_key(file.partition)


def live_entries(rows: Sequence[ManifestFile], manifests: Mapping[str, Manifest]) -> tuple[LiveEntry, ...]:
    """The live entries of manifests, each of them: a file that is named twice is there twice."""
    return tuple(live for row in rows for live in _live_of(row, manifests[row.path]))


def difference(before: Sequence[LiveEntry], after: Sequence[LiveEntry]) -> Difference:
    """Which of the entries `before` each of those `after` carries on. An entry is carried on once."""
    pairs = _paired([_names(live) for live in after], [_names(live) for live in before])
    left = set(range(len(before))) - set(pairs.values())
    return Difference(
        tuple((live, before[pairs[at]] if at in pairs else None) for at, live in enumerate(after)),
        tuple(before[at] for at in sorted(left)),
    )


def _names(live: LiveEntry) -> tuple[Hashable, ...]:
    """From the closest to the loosest. The last, the file alone, is for saying what was forged: it is a problem."""
    return (live.identity, live.snapshot_id, live.sequence_number), live.identity, live.key


def _paired(wanted: Sequence[Sequence[Hashable]], there: Sequence[Sequence[Hashable]]) -> dict[int, int]:
    """Positions of `wanted` with those of `there` that have one name in common, the closest names first; each once."""
    pairs: dict[int, int] = {}
    for closeness in range(min((len(names) for names in (*wanted, *there)), default=0)):
        taken = set(pairs.values())
        free: defaultdict[Hashable, list[int]] = defaultdict(list)
        for at in reversed(range(len(there))):
            if at not in taken:
                free[there[at][closeness]].append(at)
        if not free:
            break
        for at, names in enumerate(wanted):
            if at not in pairs and (found := free.get(names[closeness])):
                pairs[at] = found.pop()
    return pairs


def _live_of(row: ManifestFile, manifest: Manifest) -> Iterator[LiveEntry]:
    next_row_id = row.first_row_id if row.content == 0 else None
    for entry in manifest.entries:
        if entry.status == DELETED:
            continue
        own = entry.file.first_row_id
        if next_row_id is None:
            own = None  # a manifest without row ids of its own has none inside (specification: "Row Lineage")
        elif own is None:
            own, next_row_id = next_row_id, next_row_id + entry.file.record_count
        inherits = entry.status == ADDED or row.sequence_number == 0
        yield LiveEntry(
            entry=entry,
            row=row,
            snapshot_id=row.added_snapshot_id if entry.snapshot_id is None else entry.snapshot_id,
            sequence_number=_or(entry.sequence_number, row.sequence_number if inherits else None),
            file_sequence_number=_or(entry.file_sequence_number, row.sequence_number if inherits else None),
            first_row_id=own,
        )


def _or(value: int | None, inherited_value: int | None) -> int | None:
    return inherited_value if value is None else value


def inherited(live: LiveEntry) -> Entry:
    """The entry with everything that it inherits written out."""
    return replace(
        live.entry,
        snapshot_id=live.snapshot_id,
        sequence_number=live.sequence_number,
        file_sequence_number=live.file_sequence_number,
        file=replace(live.entry.file, first_row_id=live.first_row_id),
    )


# ── Rows of the manifest list ───────────────────────────────────────────────────────────────────────────────────────


def check_rows(
    snapshot: Mapping[str, Any], added: Sequence[ManifestFile], manifests: Mapping[str, Manifest]
) -> Iterator[str]:
    """What the manifest list says of new manifests, against the snapshot and the manifests themselves."""
    for row in added:
        for problem in (*_row_problems(snapshot, row, manifests[row.path]), *_count_problems(row, manifests[row.path])):
            yield f"manifest {row.path} {problem}"
    yield from _row_id_problems(snapshot, added)


def _row_problems(snapshot: Mapping[str, Any], row: ManifestFile, manifest: Manifest) -> Iterator[str]:
    number = snapshot.get("sequence-number") or 0
    if row.added_snapshot_id != snapshot["snapshot-id"]:
        yield f"is new, but listed as added by snapshot {row.added_snapshot_id}"
    if row.sequence_number != number:
        yield f"is new, but listed with sequence number {row.sequence_number}, not the snapshot's {number}"
    if manifest.length_bytes not in (None, row.length_bytes):  # readers stop where the list says that it ends
        yield f"is {manifest.length_bytes} bytes long, but listed with {row.length_bytes}"
    if manifest.spec_id != row.spec_id:
        yield f"was written with partition spec {manifest.spec_id}, but is listed under {row.spec_id}"
    if manifest.content != row.content:
        yield f"holds content {manifest.content}, but is listed as {row.content}"
    for entry in manifest.entries:
        if min(entry.file.content, 1) != row.content or entry.file.content not in (0, 1, 2):
            yield f"of content {row.content} holds {entry.file.path} of content {entry.file.content}"
        if entry.file.record_count < 0 or entry.file.size_bytes < 0:
            yield f"gives {entry.file.path} a negative count or size"
    lowest = min((_or(live.sequence_number, 0) or 0 for live in _live_of(row, manifest)), default=number)
    if row.min_sequence_number > lowest:
        yield f"is listed with minimum sequence number {row.min_sequence_number}, but has an entry of {lowest}"


def _count_problems(row: ManifestFile, manifest: Manifest) -> Iterator[str]:
    listed = {
        ADDED: ("added", row.added_files, row.added_rows),
        EXISTING: ("existing", row.existing_files, row.existing_rows),
        DELETED: ("deleted", row.deleted_files, row.deleted_rows),
    }
    for status, (name, files, rows) in listed.items():
        sizes = [entry.file.record_count for entry in manifest.entries if entry.status == status]
        if files is not None and files != len(sizes):  # version 1 may leave counts out
            yield f"is listed with {files} {name} files, but has {len(sizes)}"
        if rows is not None and rows != sum(sizes):
            yield f"is listed with {rows} {name} rows, but has {sum(sizes)}"


def _row_id_problems(snapshot: Mapping[str, Any], added: Sequence[ManifestFile]) -> Iterator[str]:
    """Row ids of new manifests lie in the range that the snapshot claims, and do not overlap (version 3)."""
    first = snapshot.get("first-row-id")
    end = None if first is None else first + (snapshot.get("added-rows") or 0)
    taken: list[tuple[int, int, str]] = []
    for row in added:
        if row.first_row_id is None:
            continue
        stop = row.first_row_id + (row.existing_rows or 0) + (row.added_rows or 0)
        if row.content != 0 or first is None or end is None or row.first_row_id < first or stop > end:
            yield (
                f"manifest {row.path} is listed with first row id {row.first_row_id}, outside of the snapshot's own "
                f"(first-row-id {first}, added-rows {snapshot.get('added-rows')})"
            )
        taken.append((row.first_row_id, stop, row.path))
    taken.sort()
    for (_, stop, path), (start, _, other) in pairwise(taken):
        if start < stop:
            yield f"manifests {path} and {other} are listed with overlapping row ids"


# ── Entries ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def check_entries(
    snapshot: Mapping[str, Any],
    added: Sequence[ManifestFile],
    manifests: Mapping[str, Manifest],
    before: Sequence[LiveEntry],
    diff: Difference,
    carried_vectors: Mapping[str, str],
    replaced: Sequence[ManifestFile],
) -> Iterator[str]:
    """The status of each entry of a new manifest, against the files that were and are live.

    Args:
        replaced: the manifests of the parent that the snapshot no longer names.
        carried_vectors: by data file, a manifest that is carried over and holds a live deletion vector for it.
    """
    own_id = snapshot["snapshot-id"]
    known = {live.key for live in before}
    seen: set[FileKey] = set()
    for live, was in diff.kept:
        if is_again(live, was, known):
            continue
        if live.key in seen and was is None:
            yield f"file {live.entry.file.path} is named twice as live"
        seen.add(live.key)
        is_added = live.entry.status == ADDED
        problems = _added(snapshot, live, live.key in known) if is_added else _existing(live, was)
        yield from (f"file {live.entry.file.path} {problem}" for problem in problems)
    tombstones = [(entry, row) for row in added for entry in manifests[row.path].entries if entry.status == DELETED]
    gone = [(entry, row.spec_id) for entry, row in tombstones if entry.snapshot_id in (None, own_id)]
    yield from _tombstone_problems(gone, known, diff)
    if len(gone) < len(tombstones):
        older = [entry for entry, _ in tombstones if entry.snapshot_id not in (None, own_id)]
        yield from _older_tombstone_problems(older, replaced, manifests)
    yield from _vector_problems(diff, carried_vectors)


def is_again(live: LiveEntry, was: LiveEntry | None, known: Collection[FileKey]) -> bool:
    """Whether an entry adds a data file once more that is live and stays. It claims what is so, and is no problem here.

    Args:
        known: the files that were live in the manifests that are replaced.
    """
    return was is None and live.entry.status == ADDED and live.entry.file.content == DATA and live.key in known


def _tombstone_problems(gone: Sequence[tuple[Entry, int]], known: set[FileKey], diff: Difference) -> Iterator[str]:
    """DELETED entries against the removed ones. Each that is removed needs one of its own, in its own partition."""
    wanted = [identity_of(entry.file, spec_id) for entry, spec_id in gone]
    there = [live.identity for live in diff.removed]
    pairs = _paired(
        [((name, entry.sequence_number or 0), name) for name, (entry, _) in zip(wanted, gone, strict=True)],
        [((name, live.sequence_number or 0), name) for name, live in zip(there, diff.removed, strict=True)],
    )
    removed, kept = set(there), {live.identity for live, _ in diff.kept}
    for at, (entry, spec_id) in enumerate(gone):
        path = entry.file.path
        if at in pairs:
            was = diff.removed[pairs[at]]
            if (entry.sequence_number or 0) != (was.sequence_number or 0):
                yield (
                    f"file {path} is marked DELETED with sequence number {entry.sequence_number}, "
                    f"but had {was.sequence_number}"
                )
        elif wanted[at] in kept:
            yield f"file {path} is marked DELETED and live at once"
        elif key_of(entry.file) in known and wanted[at] not in removed:
            place = f"partition {entry.file.partition} of spec {spec_id}"
            yield f"file {path} is marked DELETED in {place}, but was not there"
        elif wanted[at] not in removed:
            yield f"file {path} is marked DELETED, but was not live in the manifests that this commit replaces"
    for at in sorted(set(range(len(there))) - set(pairs.values())):
        live = diff.removed[at]
        yield f"file {live.entry.file.path} was live in {live.row.path} and is left out without a DELETED entry"


def _older_tombstone_problems(
    older: Sequence[Entry], replaced: Sequence[ManifestFile], manifests: Mapping[str, Manifest]
) -> Iterator[str]:
    """Tombstones of earlier snapshots, which some writers keep. They say nothing about this one, and yet must be true:
    expiry and purges delete the files that they name, which may be another table's."""
    kept = {
        (entry.file.path, entry.snapshot_id or row.added_snapshot_id)
        for row in replaced
        for entry in manifests[row.path].entries
        if entry.status == DELETED
    }
    for entry in older:
        if (entry.file.path, entry.snapshot_id) not in kept:
            yield (
                f"file {entry.file.path} is marked DELETED by snapshot {entry.snapshot_id}, and no manifest that this "
                "commit replaces says so"
            )


def _vector_problems(diff: Difference, carried: Mapping[str, str]) -> Iterator[str]:
    """A data file has one deletion vector (specification: "Deletion Vectors"): readers refuse a table with two.

    Two that were there already stay as they were.
    """
    added: dict[str, int] = {}
    live: dict[str, int] = {}
    for each, was in diff.kept:
        target = each.entry.file.referenced_data_file
        if target is not None and is_vector(each.entry.file):
            live[target] = live.get(target, 0) + 1
            added[target] = added.get(target, 0) + (was is None)
    for target, count in live.items():
        if added[target] and target in carried:
            yield (
                f"file {target} has a deletion vector in manifest {carried[target]} already, which the commit keeps; "
                "write one with the rows of both, and remove the other"
            )
        elif count > 1 and added[target]:
            yield f"file {target} has {count} deletion vectors; merge them into one"


def _added(snapshot: Mapping[str, Any], live: LiveEntry, was_live: bool) -> Iterator[str]:
    entry, number = live.entry, snapshot.get("sequence-number") or 0
    if was_live:  # in whatever partition
        yield "is marked ADDED, but was live before"
    if entry.snapshot_id not in (None, snapshot["snapshot-id"]):
        yield f"is marked ADDED by another snapshot, {entry.snapshot_id}"
    compacts = (snapshot.get("summary") or {}).get("operation") == "replace"
    own = entry.sequence_number
    # Version 1 has no sequence numbers: there, 0 is the snapshot's.
    inherits = own is None or own == number == 0
    if not inherits and not (compacts and 0 <= (own or 0) <= number):
        yield f"is marked ADDED with sequence number {own} of its own instead of inheriting the snapshot's"
    if entry.file_sequence_number not in ((None, 0) if number == 0 else (None,)):
        yield f"is marked ADDED with file sequence number {entry.file_sequence_number} instead of inheriting it"
    if entry.file.first_row_id is not None:
        yield f"is marked ADDED with first row id {entry.file.first_row_id} instead of inheriting it"


def _existing(live: LiveEntry, was: LiveEntry | None) -> Iterator[str]:
    if was is None:
        yield "is marked EXISTING, but was not live in the manifests that this commit replaces"
        return
    claims = {
        "partition spec": (live.row.spec_id, was.row.spec_id),
        "snapshot": (live.snapshot_id, was.snapshot_id),
        "sequence number": (live.sequence_number, was.sequence_number),
        "file sequence number": (live.file_sequence_number, was.file_sequence_number),
        "content": (live.entry.file.content, was.entry.file.content),
        "record count": (live.entry.file.record_count, was.entry.file.record_count),
        "size": (live.entry.file.size_bytes, was.entry.file.size_bytes),
        "format": (live.entry.file.file_format.lower(), was.entry.file.file_format.lower()),
        "content size": tuple(each.entry.file.record.get("content_size_in_bytes") for each in (live, was)),
        # By their text: a NaN is not equal to itself.
        "partition": (repr(live.entry.file.partition), repr(was.entry.file.partition)),
        "equality ids": (live.entry.file.record.get("equality_ids"), was.entry.file.record.get("equality_ids")),
        "key metadata": (live.entry.file.record.get("key_metadata"), was.entry.file.record.get("key_metadata")),
        # None before version 3: the new list gives one.
        "first row id": (live.entry.file.first_row_id, was.first_row_id),
    }
    for name, (claimed, real) in claims.items():
        if claimed != real:
            yield f"is marked EXISTING with {name} {claimed}, but had {real}"
    for name in _HINTS:
        claimed = live.entry.file.record.get(name)
        if claimed is not None and claimed != was.entry.file.record.get(name):
            yield f"is marked EXISTING with {name} {claimed}, but had {was.entry.file.record.get(name)}"
    for name in _STATISTICS:
        if _pairs(live.entry.file, name) != _pairs(was.entry.file, name):
            yield f"is marked EXISTING with other {name} than it had"


def _pairs(file: DataFile, name: str) -> dict[int, Any]:
    return {pair["key"]: pair["value"] for pair in file.record.get(name) or ()}
