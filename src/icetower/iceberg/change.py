"""What a snapshot really adds and removes, read from its manifests and not from its summary.

A `Change` is the true difference of live files between the manifests that a snapshot names anew and those of its parent
that it no longer names. The statuses of the entries (ADDED, EXISTING, DELETED) are claims: `entry_checks` compares them
with the difference, and what does not hold becomes a `problem` (R5).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from icetower.errors import ValidationFailed
from icetower.iceberg.entry_checks import (
    Difference,
    LiveEntry,
    check_entries,
    check_rows,
    difference,
    inherited,
    is_again,
    is_vector,
    key_of,
    live_entries,
)
from icetower.iceberg.manifests import ADDED, DATA, DELETED, EQUALITY_DELETES, DataFile, Entry, Manifest, ManifestFile
from icetower.protocol.snapshots import Snapshot

JSON = Mapping[str, Any]

Place = tuple[int, tuple[Any, ...]]
"""Where a file is listed: partition spec id and partition."""

# May be filled in while a manifest is carried: row ids after an upgrade to version 3, counts that version 1 left out.
_FILLED_LATER = frozenset(
    {"first_row_id", "added_files", "existing_files", "deleted_files", "added_rows", "existing_rows", "deleted_rows"}
)


@dataclass(frozen=True, slots=True)
class ListDiff:
    """Two manifest lists compared by path.

    `altered`: rows of the new list that name a manifest of the old one, but say something else of it, or name one
    manifest twice.
    """

    added: tuple[ManifestFile, ...]
    removed: tuple[ManifestFile, ...]
    carried: tuple[ManifestFile, ...]
    altered: tuple[ManifestFile, ...]


@dataclass(frozen=True, slots=True)
class Touched:
    """A file that a snapshot adds or removes. `sequence_number` is None where it is the snapshot's own."""

    file: DataFile
    spec_id: int
    sequence_number: int | None


@dataclass(frozen=True, slots=True)
class Header:
    """What a new manifest says of its partitions, and its row in the manifest list of it.

    Attributes:
        field_ids: of its own header's spec, by which its partitions were read here. Engines go by the table's spec.
        types: the Avro types that their values were written as. Readers go by these.
        partitions: those of its live entries, each once.
    """

    row: ManifestFile
    field_ids: tuple[int, ...]
    types: tuple[Any, ...]
    partitions: frozenset[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Change:
    """What one snapshot does to the table.

    Attributes:
        snapshot: the snapshot as sent.
        added, removed: the true difference of live entries: a file that was named twice and goes is removed twice.
        entries_added: the ADDED entries of files truly added, by the path of the manifest that holds them.
        entries_removed: the entries of files truly removed as they stood, by the path of the replaced manifest; numbers
            and row ids that were inherited are filled in.
        problems: what the manifests claim but is not so, one sentence each (R5).
        names_sibling: a replaced entry belongs to another new snapshot of the same commit (S1).
        headers: what each new manifest and its row say of partitions, to be held against the table's spec.
        live: by the path of each new manifest of data files, the paths of those that are live in it.
        again: the data files among those added that are live already, in a manifest that it replaces.
    """

    snapshot: Snapshot
    diff: ListDiff
    added: tuple[Touched, ...]
    removed: tuple[Touched, ...]
    entries_added: Mapping[str, tuple[Entry, ...]]
    entries_removed: Mapping[str, tuple[Entry, ...]]
    problems: tuple[str, ...]
    names_sibling: bool
    headers: tuple[Header, ...] = ()
    live: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, "tuple[str, ...]"])
    again: tuple[str, ...] = ()

    @property
    def is_pure_append(self) -> bool:
        """Whether it adds data files, or nothing, and removes none. Says nothing about being blind (R1)."""
        return not self.removed and all(touched.file.content == DATA for touched in self.added)


def diff_lists(base: Iterable[ManifestFile], own: Iterable[ManifestFile]) -> ListDiff:
    """Compare a snapshot's manifest list with its parent's; `own` keeps its order."""
    before = {row.path: row for row in base}
    added: list[ManifestFile] = []
    carried: list[ManifestFile] = []
    altered: list[ManifestFile] = []
    seen: set[str] = set()
    for row in own:
        known = before.get(row.path)
        if row.path in seen or (known is not None and not _says_the_same(known, row)):
            altered.append(row)
        else:
            (added if known is None else carried).append(row)
        seen.add(row.path)
    removed = tuple(row for path, row in before.items() if path not in seen)
    return ListDiff(tuple(added), removed, tuple(carried), tuple(altered))


def _says_the_same(known: ManifestFile, row: ManifestFile) -> bool:
    return known == row or all(  # nearly always the first
        getattr(known, field.name) == getattr(row, field.name)
        or (field.name in _FILLED_LATER and getattr(known, field.name) is None)
        for field in fields(ManifestFile)
    )


def manifests_to_read(diff: ListDiff) -> tuple[ManifestFile, ...]:
    """The manifests that `change_of` needs, each once."""
    rows = {row.path: row for row in (*diff.added, *diff.removed, *diff.altered)}
    return tuple(rows.values())


def vectors_added(diff: ListDiff, manifests: Mapping[str, Manifest]) -> dict[str, set[Place]]:
    """The data files for which new manifests name new deletion vectors, and where these are said to belong."""
    found: dict[str, set[Place]] = {}
    for row in diff.added:
        for entry in manifests[row.path].entries if row.content != DATA else ():
            target = entry.file.referenced_data_file
            if entry.status == ADDED and target is not None and is_vector(entry.file):
                found.setdefault(target, set()).add((row.spec_id, entry.file.partition))
    return found


def change_of(
    snapshot: JSON,
    diff: ListDiff,
    manifests: Mapping[str, Manifest],
    *,
    siblings: frozenset[int] = frozenset(),
    carried_vectors: Mapping[str, str] | None = None,
) -> Change:
    """What `snapshot` adds and removes.

    Args:
        snapshot: as sent (JSON).
        diff: its manifest list against its parent's.
        manifests: those of `manifests_to_read(diff)`, by path.
        siblings: ids of the snapshots that the same commit adds.
        carried_vectors: of the data files of `vectors_added`, those with a live deletion vector in a manifest that is
            carried over, with that manifest's path.

    Raises:
        ValidationFailed: a manifest was not given.
    """
    for row in manifests_to_read(diff):
        if row.path not in manifests:
            raise ValidationFailed(f"manifest {row.path} of snapshot {snapshot['snapshot-id']} was not read")
    before = live_entries(diff.removed, manifests)
    true = difference(before, live_entries(diff.added, manifests))
    altered = (f"manifest {row.path} is carried over, but listed twice or otherwise" for row in diff.altered)
    problems = (
        *altered,
        *check_rows(snapshot, diff.added, manifests),
        *check_entries(snapshot, diff.added, manifests, before, true, carried_vectors or {}, diff.removed),
    )
    others = siblings - {snapshot["snapshot-id"]}
    known = {live.key for live in before}
    return Change(
        snapshot=Snapshot(snapshot),
        diff=diff,
        added=tuple(Touched(live.entry.file, live.row.spec_id, live.entry.sequence_number) for live in true.added),
        removed=tuple(Touched(live.entry.file, live.row.spec_id, live.sequence_number) for live in true.removed),
        entries_added=_by_path((live.row.path, live.entry) for live in true.added if live.entry.status == ADDED),
        entries_removed=_by_path((live.row.path, inherited(live)) for live in true.removed),
        problems=tuple(dict.fromkeys(problems)),
        names_sibling=bool(others) and _names_any(others, diff.added, manifests, before),
        headers=tuple(
            Header(
                row,
                tuple(field["field-id"] for field in manifests[row.path].spec_fields),
                manifests[row.path].partition_types,
                frozenset(e.file.partition for e in manifests[row.path].entries if e.status != DELETED),
            )
            for row in diff.added
        ),
        live=_live_paths(diff.added, true),
        again=tuple(live.entry.file.path for live, was in true.kept if known and is_again(live, was, known)),
    )


def _live_paths(rows: Iterable[ManifestFile], true: Difference) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {row.path: [] for row in rows if row.content == DATA}
    for live, _ in true.kept:
        if live.row.content == DATA:
            found[live.row.path].append(live.entry.file.path)
    return {path: tuple(paths) for path, paths in found.items()}


def _by_path(pairs: Iterable[tuple[str, Entry]]) -> dict[str, tuple[Entry, ...]]:
    grouped: dict[str, list[Entry]] = {}
    for path, entry in pairs:
        grouped.setdefault(path, []).append(entry)
    return {path: tuple(entries) for path, entries in grouped.items()}


def _names_any(
    others: frozenset[int],
    added: Sequence[ManifestFile],
    manifests: Mapping[str, Manifest],
    before: Sequence[LiveEntry],
) -> bool:
    theirs = {live.key for live in before if live.snapshot_id in others}
    entries = (entry for row in added for entry in manifests[row.path].entries if entry.status != ADDED)
    return any(entry.snapshot_id in others or key_of(entry.file) in theirs for entry in entries)


Groups = dict[tuple[int, int], tuple[Entry, ...]]


def own_added_entries(change: Change) -> Groups:
    """The snapshot's own ADDED entries for writing its manifests anew (R4), by (spec id, manifest content)."""
    return _grouped(change.entries_added, change.diff.added)


def _grouped(by_path: Mapping[str, tuple[Entry, ...]], rows: Iterable[ManifestFile]) -> Groups:
    groups: Groups = {}
    for row in rows:
        if entries := by_path.get(row.path):
            key = (row.spec_id, row.content)
            groups[key] = (*groups.get(key, ()), *entries)
    return groups


# ── Summaries (specification, Appendix F: "Optional Snapshot Summary Fields"; S3) ───────────────────────────────────

_TOTALS = {
    "total-records": ("added-records", "deleted-records"),
    "total-files-size": ("added-files-size", "removed-files-size"),
    "total-data-files": ("added-data-files", "deleted-data-files"),
    "total-delete-files": ("added-delete-files", "removed-delete-files"),
    "total-position-deletes": ("added-position-deletes", "removed-position-deletes"),
    "total-equality-deletes": ("added-equality-deletes", "removed-equality-deletes"),
}
COUNTED = frozenset(_TOTALS).union(
    *_TOTALS.values(),
    (f"{verb}-{kind}" for verb in ("added", "removed") for kind in ("position-delete-files", "equality-delete-files")),
    ("added-dvs", "removed-dvs"),
)
"""The summary keys that `summary_totals` answers for: a client's own values of these are claims."""


def summary_deltas(change: Change) -> dict[str, str]:
    """Counts of what the change truly adds and removes, under Iceberg's keys; zeros are left out, as Iceberg does."""
    counts: dict[str, int] = {}
    for verb, gone, files in (("added", "added", change.added), ("removed", "deleted", change.removed)):
        for touched in files:
            for key, amount in _amounts(touched.file, verb, gone):
                counts[key] = counts.get(key, 0) + amount
    return {key: str(amount) for key, amount in counts.items() if amount > 0}


def _amounts(file: DataFile, verb: str, gone: str) -> list[tuple[str, int]]:
    # A deletion vector is part of a file that it shares with others: its size is its own content's.
    vector = is_vector(file)
    size_bytes = file.record.get("content_size_in_bytes") if vector else None
    amounts = [(f"{verb}-files-size", file.size_bytes if size_bytes is None else size_bytes)]
    if file.content == DATA:
        return [*amounts, (f"{gone}-data-files", 1), (f"{gone}-records", file.record_count)]
    kind = "equality" if file.content == EQUALITY_DELETES else "position"
    files_key = f"{verb}-dvs" if vector else f"{verb}-{kind}-delete-files"
    return [*amounts, (f"{verb}-delete-files", 1), (files_key, 1), (f"{verb}-{kind}-deletes", file.record_count)]


def summary_totals(parent_summary: Mapping[str, str] | None, change: Change) -> dict[str, str]:
    """The verified deltas of a change and the running totals after it (S3).

    A total that the parent lacks, or that would fall below 0, is left out: engines answer ``count(*)`` from totals, and
    no total is better than a wrong one.

    Args:
        parent_summary: of the new parent; None where there is no parent, and all totals begin at 0.
    """
    deltas = summary_deltas(change)
    before = dict.fromkeys(_TOTALS, "0") if parent_summary is None else parent_summary
    totals: dict[str, str] = {}
    for key, (plus, minus) in _TOTALS.items():
        text = before.get(key)
        if text is not None and text.isascii() and text.isdecimal() and len(text) <= 19:
            total = int(text) + int(deltas.get(plus, 0)) - int(deltas.get(minus, 0))
            if total >= 0:
                totals[key] = str(total)
    return deltas | totals
